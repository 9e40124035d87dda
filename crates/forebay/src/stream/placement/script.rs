//! Which layers are brought, in what order and where to, whatever the time: what
//! [`Schedule`](super::super::schedule::Schedule) decides, for as many passes as it takes to repeat
//! itself. Found once, it serves many runs of the [`clock`](super::clock).
//!
//! The schedule decides as if each layer were brought when it is taken. So when it is known how
//! often layers were taken before it lets a layer be brought, no decision depends on the time; that
//! both decide the same is tested.

use super::facts::Facts;

/// Passes from cold before anything counts.
pub(super) const WARM: usize = 2;
/// Passes that count, at least; of long ones a single one will do.
const COUNTED_MIN: usize = 3;
/// Positions after which no more passes are added in search of one that repeats another.
const POSITIONS_MAX: usize = 1_000;
/// Passes that are looked through for it.
const COUNTED_MAX: usize = 16;

/// A layer that is brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load {
    /// The position that it is brought for.
    pub(super) position: usize,
    pub(super) layer: usize,
    pub(super) buffer: usize,
    /// So many positions must have been taken before.
    pub(super) after: usize,
    /// The position whose compute is the last that needs what was in the buffer.
    pub(super) frees: Option<usize>,
}

/// See the module's own text.
#[derive(Debug, Clone)]
pub(super) struct Script {
    pub(super) loads: Vec<Load>,
    /// Passes that count.
    pub(super) counted: usize,
    /// How often each layer is brought in the passes that count.
    pub(super) brought: Vec<u32>,
}

/// What a buffer holds.
#[derive(Debug, Clone, Copy)]
struct Held {
    layer: usize,
    /// The position at which it was taken last, and the one at which it is taken again.
    last: usize,
    again: usize,
}

/// What is in the buffers.
struct Buffers<'a> {
    stays: &'a [bool],
    protects: usize,
    room: usize,
    held: Vec<Held>,
    /// For each layer the buffer that it is in.
    places: Vec<Option<usize>>,
    /// The buffers whose layers do not stay, which are few.
    turning: Vec<usize>,
}

impl Buffers<'_> {
    /// The buffer that a layer is brought to for a position.
    fn victim(&self, position: usize) -> usize {
        if self.held.len() < self.room {
            return self.held.len();
        }
        let turning = || self.turning.iter().copied();
        let latest = |buffer: &usize| self.held[*buffer].again;
        let is_old = |buffer: &usize| self.held[*buffer].last + self.protects < position;
        // Where all were taken of late, any may give way but the last, which is in use.
        let is_idle = |buffer: &usize| self.held[*buffer].last + 1 < position;
        let old = turning().filter(is_old).max_by_key(latest);
        old.or_else(|| turning().filter(is_idle).max_by_key(latest))
            .expect("two buffers at least hold no layer that stays")
    }

    /// Brings the layer of a position, if it is not there.
    fn bring(&mut self, layer: usize, position: usize) -> Option<Load> {
        if self.places[layer].is_some() {
            return None;
        }
        let buffer = self.victim(position);
        let (mut after, mut frees) = (0, None);
        if let Some(held) = self.held.get(buffer) {
            self.places[held.layer] = None;
            // One is released when the next one is taken.
            after = if held.last + self.protects < position { held.last + 2 } else { position };
            frees = Some(held.last);
        }
        let held = Held { layer, last: position, again: position };
        if buffer < self.held.len() {
            self.held[buffer] = held;
        } else {
            self.held.push(held);
            self.turning.push(buffer);
        }
        if self.stays[layer] {
            self.turning.retain(|&other| other != buffer);
        }
        self.places[layer] = Some(buffer);
        Some(Load { position, layer, buffer, after, frees })
    }

    /// Takes the layer of a position, which is taken again at `again`.
    fn take(&mut self, layer: usize, position: usize, again: usize) {
        let buffer = self.places[layer].expect("it was brought");
        self.held[buffer] = Held { layer, last: position, again };
    }
}

impl Script {
    /// For a number of buffers, of which those for layers that do not stay must be two at least.
    pub(super) fn new(facts: &Facts, buffers: usize, stays: &[bool], protects: usize) -> Self {
        let (layers, len) = (stays.len(), facts.pass.len());
        let mut script = Self { loads: Vec::new(), counted: 0, brought: vec![0; layers] };
        let mut state = Buffers {
            stays,
            protects,
            room: buffers,
            held: Vec::new(),
            places: vec![None; layers],
            turning: Vec::new(),
        };
        let more = (POSITIONS_MAX / len).saturating_sub(WARM);
        let least = if len < POSITIONS_MAX { COUNTED_MIN } else { 1 };
        let most = more.clamp(least, COUNTED_MAX);
        let (mut begin, mut wanted, mut after) = (Vec::new(), most, 0);
        for pass in 0.. {
            if pass == WARM {
                begin = is_held(&state.places);
            } else if pass > WARM && wanted == most && is_held(&state.places) == begin {
                // What follows repeats what was since.
                wanted = (pass - WARM) * least.div_ceil(pass - WARM);
            }
            script.counted = pass.saturating_sub(WARM);
            if script.counted >= wanted {
                return script;
            }
            for place in 0..len {
                let (position, layer) = (pass * len + place, facts.pass[place]);
                if let Some(mut load) = state.bring(layer, position) {
                    // Nobody looks further ahead than a pass.
                    after = load.after.max(after).max((position + 1).saturating_sub(len));
                    load.after = after;
                    script.brought[layer] += u32::from(pass >= WARM);
                    script.loads.push(load);
                }
                state.take(layer, position, position + facts.again[place]);
            }
        }
        script
    }

    /// The passes in all.
    pub(super) fn passes(&self) -> usize {
        WARM + self.counted
    }
}

/// Which layers are in a buffer.
fn is_held(places: &[Option<usize>]) -> Vec<bool> {
    places.iter().map(Option::is_some).collect()
}
