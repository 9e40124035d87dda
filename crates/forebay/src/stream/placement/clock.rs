//! How long passes take: the loads of a [`Script`] with a clock.
//!
//! Two lanes bring layers at the same time, each one after the other: pinned memory, and files. The
//! link is shared: a lane that wants less than half of it gets what it wants, and the other one the
//! rest. The host takes a layer as soon as it has arrived, ahead of the GPU; a layer's compute
//! begins when the one before has ended, and what was in a buffer gives way when its compute has.

use std::collections::VecDeque;

use super::facts::{Facts, Lane};
use super::script::{Script, WARM};

/// A load that a lane makes.
struct Active {
    load: usize,
    /// When its buffer is free.
    ready: f64,
    bytes: f64,
}

/// See the module's own text.
pub(super) struct Clock<'a> {
    facts: &'a Facts,
    script: &'a Script,
    /// For each layer whether it comes out of pinned memory.
    pinned: &'a [bool],
    now: f64,
    /// Positions that were taken, by when their computes end.
    ends: Vec<f64>,
    /// Loads that were handed to lanes.
    handed: usize,
    /// For each load whether it has arrived.
    arrived: Vec<bool>,
    /// The first load whose position is not taken.
    awaited: usize,
    lanes: [VecDeque<usize>; 2],
    active: [Option<Active>; 2],
}

/// Seconds of one of the passes that count.
pub(super) fn pass_seconds(facts: &Facts, script: &Script, pinned: &[bool]) -> f64 {
    let ends = Clock::new(facts, script, pinned).run();
    let end = |passes: usize| ends[passes * facts.pass.len() - 1];
    (end(script.passes()) - end(WARM)) / script.counted as f64
}

impl<'a> Clock<'a> {
    fn new(facts: &'a Facts, script: &'a Script, pinned: &'a [bool]) -> Self {
        Self {
            facts,
            script,
            pinned,
            now: 0.0,
            ends: Vec::with_capacity(script.passes() * facts.pass.len()),
            handed: 0,
            arrived: vec![false; script.loads.len()],
            awaited: 0,
            lanes: [VecDeque::new(), VecDeque::new()],
            active: [None, None],
        }
    }

    /// When the compute of each position ends.
    fn run(mut self) -> Vec<f64> {
        let all = self.script.passes() * self.facts.pass.len();
        loop {
            self.settle(all);
            if self.ends.len() == all {
                return self.ends;
            }
            self.step();
        }
    }

    /// Takes what is there, and hands lanes what they may bring then.
    fn settle(&mut self, all: usize) {
        loop {
            while let Some(load) = self.script.loads.get(self.handed)
                && load.after <= self.ends.len()
            {
                let lane = if self.pinned[load.layer] { Lane::Memory } else { Lane::File };
                self.lanes[lane as usize].push_back(self.handed);
                self.handed += 1;
            }
            let position = self.ends.len();
            let awaited = self.script.loads.get(self.awaited);
            let is_brought = awaited.is_some_and(|load| load.position == position);
            if position == all || is_brought && !self.arrived[self.awaited] {
                return;
            }
            self.awaited += usize::from(is_brought);
            let begin = self.ends.last().map_or(self.now, |&end| end.max(self.now));
            let layer = self.facts.pass[position % self.facts.pass.len()];
            self.ends.push(begin + self.facts.compute[layer]);
        }
    }

    /// Goes to where a load arrives or begins.
    fn step(&mut self) {
        for lane in [Lane::Memory as usize, Lane::File as usize] {
            if self.active[lane].is_none()
                && let Some(load) = self.lanes[lane].pop_front()
            {
                let it = &self.script.loads[load];
                let ready = it.frees.map_or(0.0, |position| self.ends[position]);
                let bytes = self.facts.bytes[it.layer] as f64;
                self.active[lane] = Some(Active { load, ready, bytes });
            }
        }
        let rates = self.rates();
        // For each lane when it begins or has done; the first of these is where to go.
        let mut next = [f64::INFINITY; 2];
        for (lane, active) in self.active.iter().enumerate() {
            next[lane] = match active {
                Some(it) if it.ready > self.now => it.ready,
                Some(it) => self.now + it.bytes / rates[lane],
                None => f64::INFINITY,
            };
        }
        let lane = usize::from(next[1] < next[0]);
        let then = next[lane];
        assert!(then.is_finite(), "what is awaited is on its way");
        for (other, active) in self.active.iter_mut().enumerate() {
            if let Some(it) = active.as_mut().filter(|it| it.ready <= self.now) {
                it.bytes = (it.bytes - (then - self.now) * rates[other]).max(0.0);
            }
        }
        if let Some(it) = self.active[lane].take_if(|it| it.ready <= self.now) {
            self.arrived[it.load] = true;
        }
        self.now = then;
    }

    /// Bytes per second of each lane now; a lane that brings nothing has any.
    fn rates(&self) -> [f64; 2] {
        let is_on = |lane: Lane| {
            let active = self.active[lane as usize].as_ref();
            active.filter(|it| it.ready <= self.now)
        };
        let link = self.facts.rates.link;
        let Some(file) = is_on(Lane::File) else { return [link, link] };
        let wanted = self.facts.file_rate(self.script.loads[file.load].layer);
        if is_on(Lane::Memory).is_none() {
            return [link, wanted];
        }
        let file = wanted.min(link / 2.0);
        [link - file, file]
    }
}
