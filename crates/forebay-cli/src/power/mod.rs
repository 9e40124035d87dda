//! Watts, temperatures and throttling while something else is measured.
//!
//! A `Meter` finds the available sources of the devices in `Wanted`, reads them during the work,
//! and summarizes any span of the time (`Power`). `gpu`, `rapl`, `hwmon`, `drives`, `ipmi` and
//! `command` each find and read one kind of source. `sensor` is what they have in common, `series`
//! and `readings` are the arithmetic, `result` the data. A missing source is reported with the
//! reason, and is no error.
//!
//! | Source | Readings per second | Reports |
//! |---|---|---|
//! | NVML | 10, energy once | a GPU's energy (a counter), power, heat, throttling |
//! | RAPL | 10 | energy (counters) of packages, memory, platform |
//! | hwmon's `power_meter` | 1 | power of the server, as averaged by its firmware |
//! | hwmon of drives | 1 | heat, and whether a limit of the drive is passed |
//! | IPMI's DCMI | 1 | power of the server, as averaged by its controller |
//! | the user's command | 1 | the watts that it prints |
//!
//! Each source that may be slow has its own thread, so that none delays another. Programs are ended
//! after 2 s, and a slow source that fails three times in succession is no longer read.

pub(crate) mod command;
mod drives;
mod gpu;
pub(crate) mod hwmon;
mod ipmi;
mod rapl;
mod readings;
pub mod result;
mod sensor;
mod series;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tree;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use forebay::gpu::DeviceInfo;
use forebay_evidence::observers;
use forebay_topology::System;

use self::command::UserCommand;
use self::readings::Readings;
use self::sensor::{Channel, Found, Sensor};
use crate::failure::Result;

pub(crate) use self::result::{Absent, Part, Power, joules_per_gb};
#[cfg(test)]
pub(crate) use self::result::{Source, Temperature, Throttled};

/// How often quick sources are read.
const PERIOD: Duration = Duration::from_millis(100);
/// How often slow sources are read.
const SLOW_PERIOD: Duration = Duration::from_secs(1);
/// Failures in succession after which a slow source is no longer read.
const FAILURES_MAX: u32 = 3;
/// How long to wait for a requested reading; a driver may hang.
const MARK_MAX: Duration = Duration::from_millis(500);
/// How long to wait for the threads' end. A hanging thread is abandoned.
const END_MAX: Duration = Duration::from_millis(500);

/// The sources to measure, and where to look for them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    /// GPUs.
    pub(crate) gpus: Vec<DeviceInfo>,
    /// Drives, by the kernel's names for them: `nvme0n1`, `sda`.
    pub(crate) drives: Vec<String>,
    /// The user's command that reports a power: a line for a shell that prints watts.
    pub(crate) command: Option<String>,
    /// The machine.
    pub(crate) system: System,
    /// The folder of `ipmitool` and `ipmi-dcmi`; `None`: the system's program path.
    pub(crate) programs: Option<PathBuf>,
}

/// Reads sources in the background until it is dropped.
#[derive(Debug)]
pub(crate) struct Meter {
    shared: Arc<Shared>,
    absent: Vec<Absent>,
    /// Whether there is a thread that reads quick sources.
    is_quick: bool,
    /// Closed as soon as all threads have ended.
    ended: Receiver<()>,
}

#[derive(Debug)]
struct Shared {
    stop: Arc<AtomicBool>,
    readings: Mutex<Readings>,
    turns: Mutex<Turns>,
    changed: Condvar,
}

/// Counts of requested and completed readings.
#[derive(Debug, Default)]
struct Turns {
    asked: u64,
    made: u64,
}

/// A thread's sensors, each with the number of its first channel.
type Sensors = Vec<(Box<dyn Sensor>, usize)>;

impl Meter {
    /// Finds the sources and begins to read them. The first reading of all quick sources is
    /// complete when this returns.
    ///
    /// # Errors
    /// The user's command prints no power.
    pub(crate) fn begin(wanted: &Wanted) -> Result<Self> {
        let mut found = Found::default();
        let stop = Arc::new(AtomicBool::new(false));
        if let Some(line) = &wanted.command {
            found.slow.push(Box::new(UserCommand::new(line, &stop)?));
        }
        gpu::find(&wanted.gpus, &mut found);
        rapl::find(&wanted.system, &mut found);
        hwmon::find(&wanted.system, &mut found);
        ipmi::find(&wanted.system, wanted.programs.as_ref(), &stop, &mut found);
        drives::find(&wanted.system, &wanted.drives, &mut found);
        Ok(Self::of(found, stop, SLOW_PERIOD))
    }

    fn of(found: Found, stop: Arc<AtomicBool>, slow: Duration) -> Self {
        let shared = Arc::new(Shared {
            stop,
            readings: Mutex::default(),
            turns: Mutex::default(),
            changed: Condvar::new(),
        });
        let (living, ended) = channel();
        let mut meter = Self { shared, absent: found.absent, is_quick: false, ended };
        for sensor in found.slow {
            meter.start(vec![sensor], Some(slow), &living);
        }
        if !found.quick.is_empty() {
            meter.is_quick = meter.start(found.quick, None, &living);
        }
        meter.mark();
        meter
    }

    /// Starts a thread that reads quick sources, or one slow source at the period of slow ones;
    /// returns whether it started.
    fn start(
        &mut self,
        sensors: Vec<Box<dyn Sensor>>,
        slow: Option<Duration>,
        living: &Sender<()>,
    ) -> bool {
        // One reading may itself take long.
        let reach = slow.map_or(5 * PERIOD / 2, |slow| 3 * slow / 2 + command::LIMIT);
        let names: Vec<_> = sensors.iter().flat_map(|sensor| sensor.channels()).collect();
        let mut readings = self.shared.readings();
        let with_first = |sensor: Box<dyn Sensor>| {
            let first = readings.add(sensor.channels(), reach);
            (sensor, first)
        };
        let sensors: Sensors = sensors.into_iter().map(with_first).collect();
        let thread = readings.add_thread();
        drop(readings);
        let (shared, living) = (Arc::clone(&self.shared), living.clone());
        let work = move || {
            match slow {
                None => shared.read_quick(sensors, thread),
                Some(period) => shared.read_slow(sensors, thread, period),
            }
            drop(living);
        };
        let started = Builder::new().name("forebay-power".into()).spawn(work);
        if let Err(error) = &started {
            let why = format!("cannot start a thread to read it: {error}");
            let lack = |channel: Channel| {
                Absent::silent(channel.name, &why).remedy("raise the limit on threads")
            };
            self.absent.extend(names.into_iter().map(lack));
        }
        started.is_ok()
    }

    /// Makes all quick sources read at once, where a span begins; returns when that was done. It
    /// does not wait for a hanging source.
    pub(crate) fn mark(&self) -> Instant {
        if self.is_quick {
            let mut turns = self.shared.turns();
            turns.asked += 1;
            let mine = turns.asked;
            self.shared.changed.notify_all();
            let waits = |turns: &mut Turns| turns.made < mine;
            let waited = self.shared.changed.wait_timeout_while(turns, MARK_MAX, waits);
            drop(waited);
        }
        Instant::now()
    }

    /// The summary from `start` to `end`, which is not in the future.
    pub(crate) fn between(&self, start: Instant, end: Instant) -> Power {
        // Ensures a reading after the end as well.
        self.mark();
        self.shared.readings().power(start, end)
    }

    /// The sources that are not measured, and why: the same for all spans.
    pub(crate) fn absent(&self) -> &[Absent] {
        &self.absent
    }

    /// The sources that could be measured and are not, as sentences with the next step: the same
    /// for all spans.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let lacks = self.absent.iter().filter(|absent| absent.there);
        let sentence = |lack: &Absent| {
            let remedy = lack.remedy.as_deref().unwrap_or("check if other programs can read it");
            format!("`{}` is not measured: {}; {remedy}", lack.name, lack.why)
        };
        lacks.map(sentence).collect()
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // Under the lock, since a thread that is about to sleep would miss it otherwise.
        drop(self.shared.turns());
        self.shared.changed.notify_all();
        // Closed when the last thread ends: nothing is ever sent.
        let _ = self.ended.recv_timeout(END_MAX);
    }
}

impl Shared {
    fn readings(&self) -> MutexGuard<'_, Readings> {
        // Readings are added completely or not at all.
        self.readings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Reads ten times a second, and on request.
    fn read_quick(&self, mut sensors: Sensors, thread: usize) {
        let mut due = Instant::now();
        while !self.is_over() {
            let (asked, is_asked) = {
                let rest = due.saturating_duration_since(Instant::now());
                let sleeps = |turns: &mut Turns| turns.asked == turns.made && !self.is_over();
                let waited = self.changed.wait_timeout_while(self.turns(), rest, sleeps);
                let turns = waited.unwrap_or_else(PoisonError::into_inner).0;
                (turns.asked, turns.asked != turns.made)
            };
            if self.is_over() {
                return;
            }
            for (sensor, first) in &mut sensors {
                self.read(sensor.as_mut(), *first, is_asked);
            }
            self.take_time(thread);
            self.turns().made = asked;
            self.changed.notify_all();
            // If a reading takes longer than a period, pause all the same.
            due = (due + PERIOD).max(Instant::now() + PERIOD / 2);
        }
    }

    /// Reads once in each `period`, until it fails too often.
    fn read_slow(&self, mut sensors: Sensors, thread: usize, period: Duration) {
        let mut failures = 0;
        while !self.is_over() && failures < FAILURES_MAX {
            let begun = Instant::now();
            let mut is_told = false;
            for (sensor, first) in &mut sensors {
                is_told |= self.read(sensor.as_mut(), *first, false);
            }
            failures = if is_told { 0 } else { failures + 1 };
            self.take_time(thread);
            let rest = period.saturating_sub(begun.elapsed()).max(period / 10);
            let sleeps = |_: &mut Turns| !self.is_over();
            drop(self.changed.wait_timeout_while(self.turns(), rest, sleeps));
        }
    }

    /// Reads a sensor; returns whether it reported anything.
    fn read(&self, sensor: &mut dyn Sensor, first: usize, asked: bool) -> bool {
        let begun = Instant::now();
        let told = sensor.read(asked);
        // The value was read at some time within the call.
        let at = begun + begun.elapsed() / 2;
        let is_told = told.iter().any(std::result::Result::is_ok);
        self.readings().take(first, at, told);
        is_told
    }

    /// Records the processor time of this thread so far.
    fn take_time(&self, thread: usize) {
        let used = observers::add();
        self.readings().take_time(thread, Instant::now(), used);
    }
}
