//! The default size to move from each path. Pure.
//!
//! A comparison is fair to each drive if all are busy for the same time. So a drive gets bytes in
//! proportion to its speed, and files on one drive divide its share.

use forebay::units::{GIB, MIB, align_down};

/// A run should end within 30 s; this is the part that remains after drives are probed and methods
/// are started.
const SECONDS: f64 = 28.0;
/// Bytes per second of one pass over memory by all cores: a careful guess for small machines.
const MEMORY_RATE: f64 = 4e9;
/// Maximum seconds of one pass.
const SPAN_MAX: f64 = 2.0;
/// Minimum bytes of one path.
const LEN_MIN: u64 = 4 * MIB;
/// Maximum bytes of all paths together.
const TOTAL_MAX: u64 = 8 * GIB;
/// Speeds that differ by at most this share count as equal.
const SAME: f64 = 0.15;
/// Passes of KvikIO that find its best settings.
const TRIES: f64 = 3.0;

/// The parts of a run.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// Samples of each line.
    pub repeats: u32,
    /// Whether bytes are read from the drives, and whether they are written there.
    pub directions: (bool, bool),
    /// Whether files are measured cold, and whether warm.
    pub caches: (bool, bool),
    /// Whether KvikIO is compared.
    pub kvikio: bool,
}

impl Work {
    /// The passes of a run. All drives at once count as one, drives one by one as `queues`.
    fn passes(&self, queues: f64) -> f64 {
        let repeats = f64::from(self.repeats);
        let mut passes = 0.0;
        if self.directions.0 {
            // Making or estimating the files, trying depths, and a whole round.
            passes += 1.25 + 2.0 * queues;
            if self.caches.0 {
                // The limit and the engine one by one; then all together, and by methods that serve
                // the drives in turn.
                passes += repeats * (2.0 * queues + 1.0 + queues);
                passes += if self.kvikio { repeats * (1.5 * queues + 1.0) + TRIES } else { 0.0 };
            }
            // Files are read into the page cache once.
            passes += if self.caches.1 { 1.0 } else { 0.0 };
        }
        if self.directions.1 {
            let kinds = f64::from(u8::from(self.caches.0) + u8::from(self.caches.1));
            // Each method writes, syncs and is read back.
            passes +=
                2.0 + queues + repeats * queues + 2.0 * kinds * repeats * (2.0 * queues + 1.0);
        }
        passes
    }
}

/// The resources of the machine.
#[derive(Debug, Clone)]
pub struct Means {
    /// Bytes per second of each path's drives, roughly.
    pub rates: Vec<f64>,
    /// The queue of each path.
    pub queues: Vec<usize>,
    /// Maximum bytes of each path: its file, or room for scratch.
    pub most: Vec<u64>,
    /// Available host memory.
    pub memory: u64,
    /// Free memory on the GPU; `None` if the target is host memory.
    pub gpu_memory: Option<u64>,
}

/// Seconds of one pass, in which all drives have work.
#[must_use]
pub fn timely(means: &Means, work: Work) -> f64 {
    let queues = means.queues.iter().max().map_or(1, |last| last + 1);
    let total: f64 = shares(means).iter().zip(&means.rates).map(|(part, rate)| part * rate).sum();
    // Each sample is prepared and checked in memory.
    let memory = f64::from(work.repeats) * 12.0 * total / MEMORY_RATE;
    let timely = SECONDS / (work.passes(count(queues)) + memory);
    let copies = if means.gpu_memory.is_none() { 6 } else { 4 };
    let bound = (means.memory / copies).min(TOTAL_MAX);
    let bound = means.gpu_memory.map_or(bound, |memory| bound.min(memory / 5));
    timely.min(SPAN_MAX).min(as_float(bound) / total.max(1.0))
}

/// Bytes from each path that its drives move in `span` seconds.
#[must_use]
pub fn lens(means: &Means, span: f64) -> Vec<u64> {
    let (rates, shares) = (evened(&means.rates), shares(means));
    let len = |index: usize| {
        let len = as_len(rates[index] * shares[index] * span);
        align_down(len, MIB).max(LEN_MIN).min(means.most[index]).max(1)
    };
    (0..rates.len()).map(len).collect()
}

/// Seconds after which a drive first runs out of scratch, at the rates in `means`. The user's files
/// do not count: they may end earlier.
#[must_use]
pub fn span(means: &Means, lens: &[u64], scratch: &[bool]) -> f64 {
    let shares = shares(means);
    let each = (0..lens.len()).filter(|index| scratch[*index]);
    let span = each.map(|index| as_float(lens[index]) / (means.rates[index] * shares[index]));
    span.fold(f64::INFINITY, f64::min)
}

/// The maximum share of the drives' total rate, since some have work for longer than others.
#[must_use]
pub fn reachable(means: &Means, lens: &[u64]) -> f64 {
    let queues = means.queues.iter().max().map_or(0, |last| last + 1);
    let (mut longest, mut sum) = (0.0_f64, 0.0);
    for queue in 0..queues {
        let mine = || (0..lens.len()).filter(|index| means.queues[*index] == queue);
        let rate = mine().map(|index| means.rates[index]).fold(0.0, f64::max);
        let len: u64 = mine().map(|index| lens[index]).sum();
        longest = longest.max(as_float(len) / rate.max(1.0));
        sum += rate;
    }
    as_float(lens.iter().sum()) / longest.max(1e-9) / sum.max(1.0)
}

/// Each path's share of its queue.
fn shares(means: &Means) -> Vec<f64> {
    let users = |queue: usize| means.queues.iter().filter(|other| **other == queue).count();
    means.queues.iter().map(|queue| 1.0 / count(users(*queue))).collect()
}

/// Replaces rates that differ by no more than measurement error by their mean.
fn evened(rates: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..rates.len()).collect();
    order.sort_by(|a, b| rates[*a].total_cmp(&rates[*b]));
    let mut evened = rates.to_vec();
    let mut rest = order.as_slice();
    while let Some(first) = rest.first() {
        let same = rest.partition_point(|index| rates[*index] <= rates[*first] * (1.0 + SAME));
        let (group, others) = rest.split_at(same.max(1));
        let mean = group.iter().map(|index| rates[*index]).sum::<f64>() / count(group.len());
        group.iter().for_each(|index| evened[*index] = mean);
        rest = others;
    }
    evened
}

#[expect(clippy::cast_precision_loss, reason = "sizes are compared with estimates")]
fn as_float(len: u64) -> f64 {
    len as f64
}

#[expect(clippy::cast_precision_loss, reason = "a handful")]
fn count(number: usize) -> f64 {
    number as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate, and casts saturate"
)]
fn as_len(len: f64) -> u64 {
    len as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Work =
        Work { repeats: 3, directions: (true, false), caches: (true, false), kvikio: true };

    fn suitable(means: &Means, work: Work) -> Vec<u64> {
        lens(means, timely(means, work))
    }

    fn means(rates: &[f64], queues: &[usize]) -> Means {
        Means {
            rates: rates.into(),
            queues: queues.into(),
            most: vec![u64::MAX; rates.len()],
            memory: 100 * GIB,
            gpu_memory: None,
        }
    }

    #[test]
    fn a_slow_drive_gets_less() {
        let means = means(&[200e6, 50e6, 200e6, 50e6], &[0, 1, 2, 3]);
        let lens = suitable(&means, READ);
        let ratio = as_float(lens[0]) / as_float(lens[1]);
        assert!((3.5..4.8).contains(&ratio), "{lens:?}");
        assert!(reachable(&means, &lens) > 0.9, "{lens:?}");
        assert!(reachable(&means, &[GIB; 4]) < 0.5);
    }

    #[test]
    fn drives_of_about_one_speed_get_the_same() {
        let lens = suitable(&means(&[200e6, 50e6, 190e6, 49e6, 210e6], &[0, 1, 2, 3, 4]), READ);
        assert!(lens[0] == lens[2] && lens[2] == lens[4] && lens[1] == lens[3], "{lens:?}");
        assert!(lens[1] < lens[0] / 3, "{lens:?}");
    }

    #[test]
    fn files_on_one_drive_share_it() {
        let (two, one) = (means(&[1e9; 3], &[0, 0, 1]), means(&[1e9; 2], &[0, 1]));
        let lens = suitable(&two, READ);
        assert!(lens[2].abs_diff(2 * lens[0]) <= 2 * MIB, "{lens:?}");
        assert!(reachable(&two, &lens) > 0.98 && reachable(&one, &[GIB, GIB]) > 0.99);
        // One drive is never counted twice.
        assert!(reachable(&means(&[1e9; 2], &[0, 0]), &[GIB, GIB]) > 0.99);
    }

    #[test]
    fn a_run_over_many_slow_drives_still_ends() {
        for count in [2_usize, 4, 16] {
            let means = means(&vec![200e6; count], &(0..count).collect::<Vec<_>>());
            let lens = suitable(&means, READ);
            let pass = as_float(lens[0]) / 200e6;
            let seconds = pass * READ.passes(super::count(count));
            assert!(seconds <= SECONDS && seconds > SECONDS / 3.0, "{count}: {seconds}");
        }
        // Even the slowest drives are measured.
        assert_eq!(suitable(&means(&[1e3, 1e3], &[0, 1]), READ), [LEN_MIN; 2]);
    }

    #[test]
    fn no_means_are_exceeded() {
        let fast = means(&[10e9; 4], &[0, 1, 2, 3]);
        let sum = |means: &Means| suitable(means, READ).iter().sum::<u64>();
        assert!(sum(&fast) <= TOTAL_MAX);
        assert!(sum(&Means { memory: 6 * GIB, ..fast.clone() }) <= GIB);
        assert!(sum(&Means { gpu_memory: Some(5 * GIB), ..fast.clone() }) <= GIB);
        let most = vec![7, GIB, GIB, 3 * MIB + 5];
        let lens = suitable(&Means { most: most.clone(), ..fast }, READ);
        assert!(lens.iter().zip(&most).all(|(len, most)| len <= most), "{lens:?}");
    }

    #[test]
    fn scratch_lasts_as_long_as_its_fastest_drive_lets_it() {
        let means = means(&[100e6, 200e6], &[0, 1]);
        let made = [100_000_000, 100_000_000];
        assert!((span(&means, &made, &[true, true]) - 0.5).abs() < 1e-9);
        assert!((span(&means, &made, &[true, false]) - 1.0).abs() < 1e-9);
        assert!(span(&means, &made, &[false, false]).is_infinite());
    }
}
