//! A GPU played by host memory: a link of a set bandwidth and latency, and seeded faults.
//!
//! It has no threads. Work is queued with the time at which a real link would be done with it, and
//! whoever asks (`is_done`, `synchronize`) carries out what is due by then, so that a stepped
//! [`Clock`](crate::clock::Clock) replays a run exactly. It is strict where a GPU would corrupt
//! memory in silence: a copy outside an allocation, from memory that is not registered, or memory
//! given back under a queued copy is an error that says so.

mod config;
mod device;
mod fault;
mod gate;
mod hang;
mod memory;
mod timeline;
mod uplink;

#[cfg(test)]
pub(crate) mod table;
#[cfg(test)]
mod tests;

pub use config::{CuFilePlay, SimConfig};
pub use device::SimDevice;
#[cfg(test)]
pub(crate) use fault::Dice;
pub use hang::SimCall;
