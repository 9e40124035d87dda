//! Settings of an engine by the dice: small, so that little data takes every path.

use forebay::units::KIB;
use forebay::{DirectIo, Options, RingChoice};

use crate::lab::seeds::{Dice, index};

pub(crate) fn options(dice: &mut Dice) -> Options {
    let mut options = Options::default();
    options.slot_size = 256 * KIB;
    options.segment_size = dice.one_of(&[4 * KIB, 16 * KIB, 256 * KIB]);
    options.arena_size = Some(512 * KIB);
    options.readers = Some(index(1 + dice.below(4)));
    options.depth = dice.one_of(&[None, Some(1), Some(3), Some(32)]);
    options.small_size = dice.one_of(&[0, 64 * KIB]);
    options.ring = dice.one_of(&[RingChoice::Auto, RingChoice::Pread]);
    options.direct_io = dice.one_of(&[DirectIo::Auto, DirectIo::Auto, DirectIo::Off]);
    options
}
