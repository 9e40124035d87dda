//! Rates as whole bytes per second, and their comparison in thousandths: whole numbers, so that a
//! simulation gives the same digits on every machine.

/// Bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Rate(pub(crate) u64);

impl Rate {
    /// Of `bytes` in `ns`; as high as can be where no time has passed.
    pub(crate) fn of(bytes: u64, ns: u64) -> Self {
        let rate = u128::from(bytes) * 1_000_000_000 / u128::from(ns.max(1));
        Self(u64::try_from(rate).unwrap_or(u64::MAX))
    }

    /// Whether this is at least `thousandths` of `other`.
    pub(crate) fn is_at_least(self, thousandths: u64, other: Self) -> bool {
        u128::from(self.0) * 1000 >= u128::from(other.0) * u128::from(thousandths)
    }

    /// So many `thousandths` of it.
    pub(super) fn part(self, thousandths: u64) -> Self {
        let part = u128::from(self.0) * u128::from(thousandths) / 1000;
        Self(u64::try_from(part).unwrap_or(u64::MAX))
    }

    /// Bytes in `ns`.
    pub(crate) fn bytes_in(self, ns: u64) -> u64 {
        let bytes = u128::from(self.0) * u128::from(ns) / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// The middle of this and `other`.
    pub(super) fn between(self, other: Self) -> Self {
        Self(self.0.midpoint(other.0))
    }

    /// This, moved a quarter of the way to `other`.
    pub(super) fn towards(self, other: Self) -> Self {
        Self(self.0 - self.0 / 4 + other.0 / 4)
    }
}
