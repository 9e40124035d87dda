//! The queues of drives, and the limits of their ops in flight.

use std::ops::{Deref, DerefMut};

use super::round_robin::{Openable, RoundRobin};
use super::work::Limits;
use crate::plan::Direction;
use crate::queue::op::{Op, OpKind, RunBy};
use crate::tune::{DepthLimits, DepthTuner};

/// Maximum pool threads that wait for a drive. Without io_uring, a drive needs as many ops in
/// flight from threads as from a ring. On a virtio drive with 2 cores, 4 threads reached 0.95 of
/// the ring's rate, 8 reached 0.97, 32 reached 0.98. A thread may need a huge page as bounce
/// buffer, which sets the limit: 32 would pin 64 MiB.
pub(crate) const EACH_MAX: usize = 24;

/// Reads through the page cache that the pool runs on a drive, and their bytes; more are allowed if
/// they are smaller. The kernel reads ahead, so more threads only wait for the same locks: with 4
/// MiB in flight, two processes that loaded 3 GiB from a virtio drive used 0.7 instead of 4.6 CPU s
/// per GB, at the same rate (two GPUs, 2026-11-26, `c47fe393`).
const READS_AHEAD: u64 = 4;
const READ_AHEAD_LEN: u64 = 1 << 20;

/// A read through the page cache that takes longer than this for a byte waits for its drive. Copies
/// of resident bytes are several times as fast.
const CACHED_NS_PER_BYTE: u64 = 1;

/// Minimum ops queued for a drive while bytes remain: planning the next window takes as long as a
/// fast drive needs for these.
const AHEAD_MIN: usize = 4;

/// Or the drive's queue depth divided by this, if that is more, since several ops complete at once.
/// Beyond that, queued windows only hold memory that is evicted from the CPU cache
/// (`docs/internals.md#hot-slots`).
const AHEAD_SHARE: usize = 4;

/// The queues of a drive, and its ops in flight.
#[derive(Debug)]
pub(super) struct DriveQueue {
    /// By [`Direction`].
    depths: [DepthTuner; 2],
    /// Maximum number of ops in flight.
    most: usize,
    /// The hardware behind it, which other drives may share.
    hardware: Vec<usize>,
    /// The ring that serves it. Without a ring, the pool runs its O_DIRECT ops as well.
    pub(super) ring: Option<usize>,
    /// Transfers with ops for its ring, or with windows that the ring is to open.
    pub(super) ring_order: RoundRobin,
    /// Transfers with ops for the pool.
    pub(super) pool_order: RoundRobin,
    /// True if the drive is queued for the pool.
    pub(super) is_queued: bool,
    /// Number of ops for its ring and for the pool.
    pub(super) queued: usize,
    /// Expected ops of windows that are still being planned.
    pub(super) promised: usize,
    /// Transfers that open their next window when the drive needs more ops.
    pub(super) waiting: Openable,
    /// Ops in flight, by [`RunBy`].
    flying: [usize; 3],
    /// Bytes in flight that are read through the page cache, and whether the last such read waited
    /// for the drive.
    cached_len: u64,
    cached_waits: bool,
    /// Bytes in flight now, and when the last op was handed out.
    flying_len: u64,
    filled_len: u64,
    /// Direction of the last op.
    direction: Direction,
}

impl DriveQueue {
    pub(super) fn depth(&self, direction: Direction) -> &DepthTuner {
        &self.depths[direction as usize]
    }

    /// Records a completed op of `len` bytes. True if the depth or the block size changed.
    pub(super) fn completed(
        &mut self,
        direction: Direction,
        at_ns: u64,
        len: u64,
        took_ns: u64,
    ) -> bool {
        self.depths[direction as usize].completed(at_ns, len, took_ns, self.filled_len)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.flying.iter().sum()
    }

    /// True if too few ops are queued to keep the drive busy until the next window is planned.
    pub(super) fn wants_more(&self) -> bool {
        let enough = (self.depth(self.direction).depth() / AHEAD_SHARE).max(AHEAD_MIN);
        self.queued + self.promised < enough
    }

    /// True if the pool has enough reads in flight through the page cache, and `op` would be one
    /// more.
    pub(super) fn reads_enough_ahead(&self, op: &Op) -> bool {
        let len = cached_len(op);
        let is_full = self.cached_len >= READS_AHEAD * len.max(READ_AHEAD_LEN);
        len > 0 && self.flying[RunBy::Pool as usize] > 0 && self.cached_waits && is_full
    }

    /// Number of pool threads that the drive could use in addition, at least 1.
    pub(super) fn pool_room(&self) -> usize {
        let most = self.depth(self.direction).depth().min(EACH_MAX);
        most.saturating_sub(self.flying[RunBy::Pool as usize]).min(self.queued).max(1)
    }
}

/// All drives.
#[derive(Debug)]
pub(super) struct Drives {
    limits: Limits,
    all: Vec<DriveQueue>,
    /// Ops in flight on all drives, those of them in the pool, and the drives with ops in flight.
    in_flight: usize,
    in_pool: usize,
    busy: usize,
    /// The number of drives with ops in flight, by hardware.
    sharers: Vec<usize>,
}

impl Drives {
    pub(super) fn new(limits: Limits) -> Self {
        let (all, sharers) = (Vec::new(), Vec::new());
        Self { limits, all, in_flight: 0, in_pool: 0, busy: 0, sharers }
    }

    /// Adds a drive on this hardware.
    pub(super) fn add(&mut self, limits: DepthLimits, hardware: &[usize]) -> usize {
        let pieces = hardware.iter().max().map_or(0, |last| last + 1);
        self.sharers.resize(self.sharers.len().max(pieces), 0);
        self.all.push(DriveQueue {
            depths: [(); 2].map(|()| DepthTuner::new(limits)),
            most: limits.depth_max,
            hardware: hardware.to_vec(),
            ring: None,
            ring_order: RoundRobin::default(),
            pool_order: RoundRobin::default(),
            is_queued: false,
            queued: 0,
            promised: 0,
            waiting: Openable::default(),
            flying: [0; 3],
            cached_len: 0,
            cached_waits: true,
            flying_len: 0,
            filled_len: 0,
            direction: Direction::Read,
        });
        self.all.len() - 1
    }

    /// Number of ops in flight in the pool.
    pub(super) fn in_pool(&self) -> usize {
        self.in_pool
    }

    /// Counts an op as in flight.
    pub(super) fn begin(&mut self, drive: usize, by: RunBy, op: &mut Op) {
        op.counted = Some(by);
        let len = op.segment.covered.len();
        let state = &mut self.all[drive];
        self.in_flight += 1;
        self.in_pool += usize::from(by == RunBy::Pool);
        if state.in_flight() == 0 {
            self.busy += 1;
            state.hardware.iter().for_each(|&piece| self.sharers[piece] += 1);
        }
        state.flying[by as usize] += 1;
        state.cached_len += cached_len(op);
        state.flying_len += len;
        state.filled_len = state.flying_len;
        if let OpKind::Move(direction) = op.kind {
            state.direction = direction;
        }
    }

    /// Uncounts an op that [`begin`](Self::begin) counted, and that took `took_ns`.
    pub(super) fn end(&mut self, drive: usize, by: RunBy, op: &Op, took_ns: u64) {
        let state = &mut self.all[drive];
        if cached_len(op) > 0 && took_ns > 0 {
            state.cached_waits = took_ns > op.segment.covered.len() * CACHED_NS_PER_BYTE;
        }
        self.in_flight -= 1;
        self.in_pool -= usize::from(by == RunBy::Pool);
        state.flying[by as usize] -= 1;
        state.cached_len -= cached_len(op);
        state.flying_len -= op.segment.covered.len();
        if state.in_flight() == 0 {
            self.busy -= 1;
            state.hardware.iter().for_each(|&piece| self.sharers[piece] -= 1);
        }
    }

    /// True if a drive may run a further op of a queue. The limits:
    ///
    /// - its maximum of ops, divided by the number of busy drives on the same hardware, and half of
    ///   that for one line while the other line has ops;
    /// - the queue depth, fixed or found by its tuner;
    /// - the maximum for all drives, and this drive's equal share of it;
    /// - for the pool, as many threads as it leaves free, at most `EACH_MAX`.
    ///
    /// One op of each line is always allowed, so that no other load can block it. A caller that
    /// runs its own op does not need this, since the pool's op makes progress.
    pub(super) fn has_room(&self, drive: usize, by: RunBy) -> bool {
        let Limits { in_flight: most, pool, .. } = self.limits;
        let state = &self.all[drive];
        let all = state.in_flight();
        let [ring, pool_now, caller] = state.flying;
        let (first, own, other) = match by {
            RunBy::Ring => (ring == 0, ring, &state.pool_order),
            RunBy::Pool => (pool_now == 0, pool_now + caller, &state.ring_order),
            RunBy::Caller => (all == 0, pool_now + caller, &state.ring_order),
        };
        let share = most / (self.busy + usize::from(all == 0)).max(1);
        let sharers = state.hardware.iter().map(|&piece| self.sharers[piece]).max().unwrap_or(0);
        let depth = state.most / (sharers + usize::from(all == 0)).max(1);
        let half = if other.is_empty() { depth } else { depth / 2 };
        let threads = match by {
            RunBy::Pool => pool.saturating_sub(self.in_pool).min(EACH_MAX),
            RunBy::Ring | RunBy::Caller => usize::MAX,
        };
        let admits = || state.depth(state.direction).admits(all, state.flying_len);
        first
            || (own < half
                && all < depth
                && pool_now < threads
                && all < share
                && self.in_flight < most
                && admits())
    }

    /// Panics if the counts of ops in flight contradict each other.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let in_flight: usize = self.all.iter().map(DriveQueue::in_flight).sum();
        let in_pool: usize = self.all.iter().map(|drive| drive.flying[RunBy::Pool as usize]).sum();
        let busy = self.all.iter().filter(|drive| drive.in_flight() > 0).count();
        assert_eq!((in_flight, in_pool, busy), (self.in_flight, self.in_pool, self.busy));
        // One for the drive's ring, one for the pool, and one for a caller whose drive had none.
        let most = self.limits.in_flight + 3 * self.all.len();
        assert!(in_flight <= most, "{in_flight} of {most} in flight");
        let deepest = |drive: &DriveQueue| drive.in_flight() <= drive.most + 2;
        assert!(self.all.iter().all(deepest), "deeper than it may be");
        // Drives on the same hardware have no more in flight than one drive alone might. The
        // exception is ops that were in flight before the other drives became busy.
        for (piece, &sharers) in self.sharers.iter().enumerate() {
            let on = || self.all.iter().filter(|drive| drive.hardware.contains(&piece));
            assert_eq!(on().filter(|drive| drive.in_flight() > 0).count(), sharers);
            let in_flight: usize = on().map(DriveQueue::in_flight).sum();
            let one = on().map(|drive| drive.most).max().unwrap_or(0);
            assert!(in_flight <= 2 * one + 2 * on().count(), "{in_flight} on hardware {piece}");
        }
    }
}

/// Bytes of an op that the kernel may have to read from a drive of this machine.
fn cached_len(op: &Op) -> u64 {
    let reads = op.kind == OpKind::Move(Direction::Read);
    let counts = reads && !op.is_o_direct() && op.file.is_local();
    if counts { op.segment.covered.len() } else { 0 }
}

impl Deref for Drives {
    type Target = [DriveQueue];

    fn deref(&self) -> &[DriveQueue] {
        &self.all
    }
}

impl DerefMut for Drives {
    fn deref_mut(&mut self) -> &mut [DriveQueue] {
        &mut self.all
    }
}
