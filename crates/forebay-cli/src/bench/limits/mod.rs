//! The limits of the parts of the machine. `take` takes them before a point that needs them,
//! `measure` measures them, and `bound` decides which of them binds a point.

mod bound;
mod measure;
mod take;

use std::collections::HashSet;
use std::sync::Arc;

use forebay::gpu::Device;
use forebay_measure::results::{Direction, Limit};

pub(super) use self::bound::bound;

/// The measured limits.
#[derive(Debug, Default)]
pub(super) struct Limits {
    pub(super) all: Vec<Limit>,
    /// The parts that were measured in this round, with the direction.
    pub(super) measured: HashSet<(&'static str, Direction)>,
}

impl Limits {
    fn rate(&self, name: &str, of: &str, direction: Direction) -> Option<f64> {
        let same = |limit: &&Limit| {
            limit.name == name && limit.of == of && limit.direction == Some(direction)
        };
        self.all.iter().find(same).map(|limit| limit.bytes_per_second)
    }

    /// Keeps a limit; returns whether it is a new one. If it was measured before, the larger value
    /// counts: it was reached.
    fn keep(&mut self, new: &Limit) -> bool {
        let same = |old: &&mut Limit| {
            (&old.name, &old.of, old.direction) == (&new.name, &new.of, new.direction)
        };
        match self.all.iter_mut().find(same) {
            Some(old) if old.bytes_per_second >= new.bytes_per_second => return false,
            Some(old) => *old = new.clone(),
            None => self.all.push(new.clone()),
        }
        true
    }
}

/// A limit of a real part of the machine.
fn limit(name: &str, of: String, direction: Direction, rate: f64, how: String) -> Limit {
    let direction = Some(direction);
    Limit { name: name.into(), of, direction, bytes_per_second: rate, how, simulated: false }
}

/// The name of a target in results.
fn name(device: Option<&Arc<dyn Device>>) -> String {
    device.map_or_else(|| "host".into(), |device| device.id().to_string())
}
