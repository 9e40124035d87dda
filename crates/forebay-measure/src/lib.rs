//! Measures how fast, and by which path, bytes move between files and GPU memory.
//!
//! [`workload`] keeps files busy by one of many methods, and [`results`] stores each measurement.
//! [`proof`] proves the path by counters, [`power`] reads power sensors.
//!
//! Files: [`output`], [`scratch`] and [`make`] make them, [`data`] has their contents, [`cache`]
//! makes them cold or warm, [`drive`] tries what reaches their drives, and [`held`] keeps paths to
//! open ones. Memory: [`memory`], [`host_memory`], [`control_group`]. The machine: [`environment`],
//! [`target`], [`fio`], [`cpu`]. [`parallel`] runs work on all cores, [`stats`] summarizes samples,
//! [`kv`] knows cache sizes of models.
//!
//! [`failure`] is the error of all of these. [`steps`] ends a process whose file never responds,
//! [`cleanup`] undoes what must not remain, [`program`] starts processes. Text from
//! elsewhere is escaped by [`plain`] before [`stdio`] shows it.

pub mod cache;
pub mod cleanup;
pub mod control_group;
pub mod cpu;
pub mod data;
pub mod drive;
pub mod environment;
pub mod failure;
pub mod fio;
pub mod held;
pub mod host_memory;
pub mod json_memory;
pub mod kv;
pub mod make;
pub mod memory;
pub mod output;
pub mod parallel;
pub mod plain;
pub mod power;
pub mod program;
pub mod proof;
pub mod ranks;
pub mod results;
pub mod route;
pub mod scratch;
pub mod stats;
pub mod stdio;
pub mod steps;
pub mod subject;
pub mod target;
pub mod variables;
pub mod workload;

/// The tests of the command share these files, and know this package by its name.
#[cfg(test)]
extern crate self as forebay_measure;

/// Facts of a made-up machine, for tests.
#[cfg(test)]
#[path = "../tests/results/facts.rs"]
mod facts;
#[cfg(test)]
#[path = "../tests/results/made.rs"]
mod made;
