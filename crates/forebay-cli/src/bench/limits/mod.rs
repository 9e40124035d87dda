//! The limits of the parts of the machine. `take` does that before a point that needs them,
//! `measure` measures them, and `bound` decides which of them binds a point.

mod bound;
mod measure;
mod take;

use forebay_measure::results::{Direction, Limit, Record};

pub(super) use self::bound::bound;

/// The rate of a part of the machine, as far as `records` have it.
pub(super) fn rate(
    records: &[Record],
    name: &str,
    of: &str,
    direction: impl Into<Option<Direction>>,
) -> Option<f64> {
    highest(records, name, of, direction).map(|limit| limit.bytes_per_second)
}

/// The highest limit of a part of the machine, which counts if it was measured several times. That
/// of several GPUs is named after what bound them then: any of these names finds it.
pub(super) fn highest<'r>(
    records: &'r [Record],
    name: &str,
    of: &str,
    direction: impl Into<Option<Direction>>,
) -> Option<&'r Limit> {
    let direction = direction.into();
    let same = records.iter().filter_map(|record| match record {
        Record::Limit(limit) if limit.is_of(name, of, direction) => Some(limit),
        _ => None,
    });
    same.max_by(|one, other| one.bytes_per_second.total_cmp(&other.bytes_per_second))
}

/// A limit of a real part of the machine.
fn limit(name: &str, of: String, direction: Direction, rate: f64, how: String) -> Limit {
    let direction = Some(direction);
    let name = name.into();
    Limit { name, of, direction, bytes_per_second: rate, how, ..Limit::default() }
}
