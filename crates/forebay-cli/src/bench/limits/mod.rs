//! The limits of the parts of the machine. `take` takes them before a point that needs them,
//! `measure` measures them, and `bound` decides which of them binds a point.

mod bound;
mod measure;
mod take;

use forebay_measure::results::{Direction, Limit, Record};

pub(super) use self::bound::bound;

/// The rate of a part of the machine, as far as `records` have it. If it was measured several
/// times, it is the highest of them.
pub(super) fn rate(
    records: &[Record],
    name: &str,
    of: &str,
    direction: impl Into<Option<Direction>>,
) -> Option<f64> {
    let direction = direction.into();
    let rates = records.iter().filter_map(|record| match record {
        Record::Limit(limit) if limit.name == name && limit.of == of => {
            (limit.direction == direction).then_some(limit.bytes_per_second)
        }
        _ => None,
    });
    rates.reduce(f64::max)
}

/// A limit of a real part of the machine.
fn limit(name: &str, of: String, direction: Direction, rate: f64, how: String) -> Limit {
    let direction = Some(direction);
    let name = name.into();
    Limit { name, of, direction, bytes_per_second: rate, how, ..Limit::default() }
}
