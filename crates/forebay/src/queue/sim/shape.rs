//! Random parameters of a run: the engine's limits, its drives and GPUs, the files, and the fault
//! rates.

use std::path::Path;
use std::sync::Arc;

use forebay_base::units::{KIB, MIB};

use super::world::{Contents, Faults, below, noise};
use crate::file::{Handle, OpenOptions};
use crate::gpu::sim::Dice;
use crate::plan::Alignment;
use crate::queue::Limits;

/// The random parameters of a run.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) limits: Limits,
    pub(super) segment: u64,
    /// The ring that serves each drive; `None` for a drive served by pool threads.
    pub(super) drives: Vec<Option<usize>>,
    /// The hardware below each drive.
    pub(super) hardware: Vec<Vec<usize>>,
    /// A drive that completes its ops last.
    pub(super) hung: Option<usize>,
    /// A drive that loses some completions.
    pub(super) lost: Option<usize>,
    /// Number of rings.
    pub(super) rings: usize,
    pub(super) depth: usize,
    pub(super) gpus: usize,
    /// Slots per GPU, at the start and at most.
    pub(super) slots: (usize, usize),
    pub(super) transfers: usize,
    /// Maximum number of transfers in flight.
    pub(super) at_once: usize,
    /// Fraction of GPU transfers that are direct if the file allows it, fraction of these that
    /// require the route, and the alignment unit of the ports.
    pub(super) by_port: f64,
    pub(super) requires: f64,
    pub(super) port_unit: u64,
    /// Fraction of transfers that write (if the file may be written), that involve a GPU, that use
    /// O_DIRECT if possible, and that block a caller who helps.
    pub(super) writes: f64,
    pub(super) on_gpu: f64,
    pub(super) direct: f64,
    pub(super) blocking: f64,
    /// Fraction of reads that are batches.
    pub(super) many: f64,
    /// Fraction of files that are truncated during reads.
    pub(super) shrinking: f64,
    /// Probability of a cancel in each step.
    pub(super) cancels: f64,
    /// Probability of a truncation in each step.
    pub(super) cuts: f64,
    /// Whether the engine is stopped while transfers are in flight.
    pub(super) stops_early: bool,
    /// Steps that a submitter lingers without work before it parks.
    pub(super) linger: u64,
    pub(super) faults: Faults,
    /// Latency of each copy.
    pub(super) link_latency_us: u64,
}

fn one_of<T: Copy>(dice: &mut Dice, choices: &[T]) -> T {
    choices[usize::try_from(below(dice, choices.len() as u64)).expect("a small number")]
}

pub(super) fn count(dice: &mut Dice, first: u64, last: u64) -> usize {
    usize::try_from(first + below(dice, last - first + 1)).expect("a small number")
}

impl Shape {
    pub(super) fn of(dice: &mut Dice) -> Self {
        let (slot_size, segment) = one_of(
            dice,
            &[
                (64 * KIB, 4 * KIB),
                (64 * KIB, 4 * KIB),
                (64 * KIB, 16 * KIB),
                (256 * KIB, 4 * KIB),
                (64 * KIB, 64 * KIB),
                (MIB, 512 * KIB),
            ],
        );
        let depth = one_of(dice, &[1, 2, 4, 16]);
        let loses = dice.roll(0.2);
        let limits = Limits {
            slot_size,
            segment,
            in_flight: one_of(dice, &[1, 2, 5, 100]),
            readers: count(dice, 1, 6),
            readers_of_host: one_of(dice, &[usize::MAX, 1, 4]),
            cache: one_of(dice, &[u64::MAX, slot_size, 6 * slot_size]),
            // A pool of one thread could block indefinitely on the drive that loses completions.
            pool: count(dice, 1 + u64::from(loses), 4),
            host_windows: u32::try_from(count(dice, 1, 4)).expect("a small number"),
        };
        let rings = count(dice, 1, 2);
        let of_ring = |dice: &mut Dice| dice.roll(0.5).then(|| count(dice, 1, rings as u64) - 1);
        let drives: Vec<_> = (0..count(dice, 1, 3)).map(|_| of_ring(dice)).collect();
        let lost = loses.then(|| count(dice, 1, drives.len() as u64) - 1);
        let hung = dice.roll(0.3).then(|| count(dice, 1, drives.len() as u64) - 1);
        let pieces = |dice: &mut Dice| (0..2).filter(|_| dice.roll(0.3)).collect();
        let hardware = (0..3).map(|_| pieces(dice)).collect();
        let slots = count(dice, 1, 2);
        Self {
            limits,
            segment,
            drives,
            hardware,
            hung,
            lost,
            rings,
            depth,
            gpus: count(dice, 0, 2),
            slots: (slots, slots + count(dice, 0, 2)),
            transfers: count(dice, 2, 12),
            at_once: count(dice, 1, 8),
            by_port: one_of(dice, &[0.3, 0.7, 1.0]),
            requires: one_of(dice, &[0.0, 0.3, 1.0]),
            port_unit: one_of(dice, &[4 * KIB, segment.min(64 * KIB)]),
            writes: one_of(dice, &[0.1, 0.5, 1.0]),
            on_gpu: one_of(dice, &[0.3, 0.7, 1.0]),
            direct: one_of(dice, &[0.0, 0.5, 1.0]),
            blocking: one_of(dice, &[0.0, 0.3, 1.0]),
            many: one_of(dice, &[0.0, 0.3, 1.0]),
            shrinking: one_of(dice, &[0.0, 0.5, 1.0]),
            cancels: one_of(dice, &[0.0, 0.0, 0.002, 0.02]),
            cuts: one_of(dice, &[0.0, 0.01, 0.05]),
            stops_early: dice.roll(0.2),
            linger: one_of(dice, &[0, 0, 3]),
            faults: faults(dice),
            link_latency_us: one_of(dice, &[0, 3, 100]),
        }
    }
}

fn faults(dice: &mut Dice) -> Faults {
    let mut share = |choices: &[f64]| one_of(dice, choices);
    Faults {
        again: share(&[0.0, 0.05, 0.2]),
        short: share(&[0.0, 0.1, 0.4, 1.0]),
        odd: share(&[0.0, 0.0, 0.3, 1.0]),
        empty: share(&[0.0, 0.0, 0.05]),
        hard: share(&[0.0, 0.0, 0.003, 0.03]),
        late: share(&[0.0, 0.02]),
        calls: share(&[0.0, 0.0, 0.02, 0.2]),
        gone: share(&[0.0, 0.0, 0.0, 0.01, 0.1]),
        copies: share(&[0.0, 0.0, 0.05]),
        memory: share(&[0.0, 0.3]),
        lost: share(&[0.02, 0.2, 1.0]),
        port: share(&[0.0, 0.02, 0.3, 1.0]),
    }
}

/// Makes the files of a run in `folder`. Their bytes are kept in memory; the real files only
/// provide identities.
pub(super) fn files(dice: &mut Dice, shape: &Shape, folder: &Path) -> Vec<Contents> {
    let slot = shape.limits.slot_size;
    let how = OpenOptions { write: true, create: true, ..OpenOptions::default() };
    (0..count(dice, 1, 3))
        .map(|index| {
            let path = folder.join(format!("file-{index}"));
            let open = || Arc::new(Handle::open(&path, &how).expect("a new file"));
            let len = below(dice, 5 * slot + 1);
            let bytes = noise(dice, len);
            let shrinks = dice.roll(shape.shrinking);
            let size_max = if dice.roll(0.2) { below(dice, 8 * slot) } else { u64::MAX };
            let (memory, offset) = (one_of(dice, &[4, 512, 4096]), one_of(dice, &[512, 4096]));
            let alignment = Alignment::of(memory, offset);
            Contents {
                handles: vec![open(), open()],
                expected: bytes.clone(),
                bytes,
                size_max,
                alignment: dice.roll(0.7).then_some(alignment),
                refuses: dice.roll(0.2),
                shrinks,
            }
        })
        .collect()
}
