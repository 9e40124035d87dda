//! Drives whose time is worked out, not waited for.

use crate::gpu::sim::Dice;

/// How one member of a drive takes time.
#[derive(Debug, Clone)]
pub(super) enum Kind {
    /// Every request holds a pipe of `rate` bytes a second for `op_ns` and its bytes, then waits
    /// `latency_ns` beside the others.
    Pipe { rate: u64, op_ns: u64, latency_ns: u64 },
    /// A pipe whose rate falls by `loses` thousandths with each request beyond `from`: deeper
    /// queues take memory that is in no cache.
    Warm { rate: u64, latency_ns: u64, from: u64, loses: u64 },
    /// One request after another; the more there are, the more the heads move.
    Disk { rate: u64, seek_ns: u64 },
    /// One request after another, each the faster the more there are, for ever: with `n` of them
    /// the drive gives `n / (n + half)` of `rate`.
    Soft { rate: u64, half_thousandths: u64 },
    /// Each request goes to one of several channels, by chance.
    Flash { channels: usize, rate: u64, latency_ns: u64 },
}

/// From `at_ns` on, speed and latency are these thousandths of the first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Change {
    pub(super) at_ns: u64,
    pub(super) rate: u64,
    pub(super) latency: u64,
}

/// See the module's own text.
#[derive(Debug)]
pub(super) struct Drive {
    kind: Kind,
    /// Members with equal shares of each stripe.
    members: Vec<Member>,
    stripe: u64,
    /// Times vary by this many hundredths to either side.
    jitter: u64,
    pub(super) changes: Vec<Change>,
    /// Bytes that pass unthrottled at first.
    pub(super) burst: u64,
    dice: Dice,
}

#[derive(Debug, Clone, Default)]
struct Member {
    free_ns: Vec<u64>,
    /// When each of the latest requests is done.
    done_ns: Vec<u64>,
}

impl Drive {
    pub(super) fn new(kind: Kind, members: usize, jitter: u64, seed: u64) -> Self {
        let free_ns = match kind {
            Kind::Flash { channels, .. } => vec![0; channels],
            _ => vec![0],
        };
        Self {
            kind,
            members: vec![Member { free_ns, done_ns: Vec::new() }; members],
            stripe: 64 << 10,
            jitter,
            changes: Vec::new(),
            burst: 0,
            dice: Dice::new(seed),
        }
    }

    /// `ns`, varied.
    fn varied(&mut self, ns: u64) -> u64 {
        let hundredths = 100 - self.jitter + self.dice.next() % (2 * self.jitter + 1);
        ns * hundredths / 100
    }

    fn now(&self, at_ns: u64) -> Change {
        let first = Change { at_ns: 0, rate: 1000, latency: 1000 };
        let begun = self.changes.partition_point(|change| change.at_ns <= at_ns);
        begun.checked_sub(1).map_or(first, |last| self.changes[last])
    }

    /// When a request of `len` bytes at `offset` that is submitted at `at_ns` is done.
    pub(super) fn submit(&mut self, at_ns: u64, offset: u64, len: u64) -> u64 {
        let burst = self.burst > 0;
        self.burst = self.burst.saturating_sub(len);
        let (mut offset, end, mut done) = (offset, offset + len, at_ns);
        let count = self.members.len() as u64;
        let mut shares = vec![0; self.members.len()];
        while offset < end {
            let until = end.min((offset / self.stripe + 1) * self.stripe);
            let member = usize::try_from(offset / self.stripe % count).expect("few members");
            shares[member] += until - offset;
            offset = until;
        }
        for (member, share) in shares.into_iter().enumerate().filter(|(_, share)| *share > 0) {
            done = done.max(self.part(member, at_ns, share, burst));
        }
        done
    }

    fn part(&mut self, member: usize, at_ns: u64, len: u64, burst: bool) -> u64 {
        let change = self.now(at_ns);
        let moved = |rate: u64| {
            let rate = if burst { rate * 10 } else { rate * change.rate / 1000 };
            len * 1_000_000_000 / rate.max(1)
        };
        let mut channel = 0;
        let (busy_ns, waits_ns) = match self.kind {
            Kind::Pipe { rate, op_ns, latency_ns } => {
                (op_ns + moved(rate), latency_ns * change.latency / 1000)
            }
            Kind::Warm { rate, latency_ns, from, loses } => {
                let queue = &mut self.members[member].done_ns;
                queue.retain(|done| *done > at_ns);
                let lost = (queue.len() as u64).saturating_sub(from) * loses;
                (moved(rate * (1000 - lost.min(300)) / 1000), latency_ns * change.latency / 1000)
            }
            Kind::Disk { rate, seek_ns } => {
                let queue = &mut self.members[member].done_ns;
                queue.retain(|done| *done > at_ns);
                (moved(rate) + seek_ns * (queue.len() as u64).min(8) / 8, 0)
            }
            Kind::Soft { rate, half_thousandths } => {
                let queue = &mut self.members[member].done_ns;
                queue.retain(|done| *done > at_ns);
                let count = 1000 * (queue.len() as u64 + 1);
                (moved(rate) * (count + half_thousandths) / count, 0)
            }
            Kind::Flash { channels, rate, latency_ns } => {
                let chosen = self.dice.next() % channels as u64;
                channel = usize::try_from(chosen).expect("few channels");
                (moved(rate / channels as u64), latency_ns * change.latency / 1000)
            }
        };
        let (busy_ns, waits_ns) = (self.varied(busy_ns), self.varied(waits_ns));
        let member = &mut self.members[member];
        let free_ns = &mut member.free_ns[channel];
        *free_ns = (*free_ns).max(at_ns) + busy_ns;
        let done = *free_ns + waits_ns;
        if matches!(self.kind, Kind::Disk { .. } | Kind::Soft { .. } | Kind::Warm { .. }) {
            member.done_ns.push(done);
        }
        done
    }
}
