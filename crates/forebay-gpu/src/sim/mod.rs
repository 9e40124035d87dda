//! A GPU simulated in host memory: a link with a set bandwidth and latency, and seeded faults.
//!
//! It has no thread, except one while a stream waits for a number in host memory. Work is queued
//! with the time at which a real link would finish it, and the calls that observe completion
//! (`is_done`, `synchronize`) run the work that is due by then. So a stepped
//! [`Clock`](forebay_base::clock::Clock) replays a run exactly. It returns an error where a real
//! GPU would corrupt memory silently: a copy outside an allocation or from unregistered memory, or
//! memory freed under a queued copy.

mod config;
mod cufile;
mod device;
mod fault;
mod gate;
mod hang;
mod memory;
mod place;
mod timeline;
mod uplink;

#[cfg(test)]
mod tests;

pub use config::{BadSetting, SimConfig};
pub use cufile::SimulatedCuFile;
pub use device::SimDevice;
pub use fault::Dice;
pub use hang::SimCall;
pub use place::place;
