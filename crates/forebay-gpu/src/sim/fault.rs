//! Errors of the simulated GPU, and the random generator for seeded faults.

use crate::DeviceError;

/// An error of the simulated driver. The numbers are specific to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// A request that is invalid in any state.
    InvalidValue,
    /// The configured memory is used up.
    OutOfMemory,
    /// The host refused the memory behind an allocation.
    HostRefused,
    /// A stream or event that this device did not make, or that was destroyed.
    UnknownHandle,
    /// An address outside every allocation, or where no registered memory starts.
    UnknownAddress,
    /// A range that ends after its allocation.
    OutOfRange,
    /// Host memory in a copy that is not entirely registered.
    NotRegistered,
    /// Host memory that is already registered, in part or whole.
    AlreadyRegistered,
    /// Memory freed while a queued copy touches it.
    InUse,
    /// A copy that the seed chose to fail.
    CopyFailed,
    /// The device is lost: every call fails with this from now on.
    Lost,
}

impl Fault {
    /// Number and name.
    const fn identity(self) -> (i32, &'static str) {
        match self {
            Self::InvalidValue => (1, "SIM_ERROR_INVALID_VALUE"),
            Self::OutOfMemory => (2, "SIM_ERROR_OUT_OF_MEMORY"),
            Self::HostRefused => (3, "SIM_ERROR_HOST_REFUSED"),
            Self::UnknownHandle => (4, "SIM_ERROR_UNKNOWN_HANDLE"),
            Self::UnknownAddress => (5, "SIM_ERROR_UNKNOWN_ADDRESS"),
            Self::OutOfRange => (6, "SIM_ERROR_OUT_OF_RANGE"),
            Self::NotRegistered => (7, "SIM_ERROR_NOT_REGISTERED"),
            Self::AlreadyRegistered => (8, "SIM_ERROR_ALREADY_REGISTERED"),
            Self::InUse => (9, "SIM_ERROR_IN_USE"),
            Self::CopyFailed => (10, "SIM_ERROR_COPY_FAULT"),
            Self::Lost => (11, "SIM_ERROR_DEVICE_LOST"),
        }
    }

    /// Makes the error that `call` returns.
    pub(super) fn in_call(self, call: &'static str, detail: impl Into<String>) -> DeviceError {
        let (code, name) = self.identity();
        DeviceError { call, code, name: name.into(), detail: detail.into() }
    }
}

/// A splitmix64 generator: small, and the same for one seed on every machine.
#[derive(Debug)]
pub struct Dice {
    state: u64,
}

impl Dice {
    /// A generator with this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// True for this fraction of the rolls. Each call uses one roll whatever the fraction, so that
    /// two runs with one seed but different fractions see the same rolls.
    pub fn roll(&mut self, share: f64) -> bool {
        // 32 bits convert to f64 exactly.
        let fraction = f64::from(u32::try_from(self.next() >> 32).expect("32 bits are left"));
        fraction / 4_294_967_296.0 < share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_published_sequence() {
        // The generator's reference values for the seed 1234567.
        let mut dice = Dice::new(1_234_567);
        let rolled: Vec<u64> = (0..3).map(|_| dice.next()).collect();
        assert_eq!(
            rolled,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn shares_hold() {
        let mut dice = Dice::new(7);
        let hits = (0..10_000).filter(|_| dice.roll(0.25)).count();
        assert!((2_300..2_700).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| !dice.roll(0.0)));
        assert!((0..1000).all(|_| dice.roll(1.0)));
    }
}
