//! Which layer is brought into which of the GPU's buffers, and when. Pure.
//!
//! Of an order that is known, the layer that gives way is the one that is taken again last of all
//! (Belady's rule), decided as if each layer were brought when it is taken, and then done as soon
//! as the buffer is free: so as few layers are read as with any other rule, and each as early as
//! that allows. The layers taken last may be kept out of it, so that one is brought while they are
//! computed.

use super::order::{NEVER, Sequence};

/// What a buffer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Nothing,
    /// This layer, whose copies are being queued.
    Coming(usize),
    /// This layer, all of whose copies are queued.
    There(usize),
}

/// One of the GPU's buffers.
#[derive(Debug, Clone, Copy)]
struct Held {
    content: Content,
    /// How often it was taken and not released.
    users: u32,
    /// Whether its user keeps it beyond the next layer.
    kept: bool,
    /// The position behind the one at which it was taken last.
    last: u64,
}

impl Held {
    fn unit(&self) -> Option<usize> {
        match self.content {
            Content::Nothing => None,
            Content::Coming(unit) | Content::There(unit) => Some(unit),
        }
    }
}

/// A layer that is to be brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load {
    /// The position that it is brought for.
    pub(super) position: u64,
    /// The layer, or the slice of one.
    pub(super) unit: usize,
    /// Where to.
    pub(super) buffer: usize,
}

/// What there is of a layer that is to be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// It is in this buffer.
    There(usize),
    /// It is on its way to one.
    Coming,
    /// It is not, and no buffer can be had for it: all are held.
    NoRoom,
    /// Nothing more is to be taken.
    End,
}

/// See the module's own text.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    sequence: Sequence,
    buffers: Vec<Held>,
    /// For each layer the buffer that it is in or comes to, as far as one ever did.
    places: Vec<Option<usize>>,
    /// Layers that stay in the buffer that they were brought to first.
    stays: Vec<bool>,
    /// So many of the layers taken last do not give way.
    protects: u64,
    /// The position that is taken next.
    next: u64,
}

impl Schedule {
    /// For `buffers` buffers, of which there are two at least.
    pub(super) fn new(sequence: Sequence, buffers: usize) -> Self {
        let empty = Held { content: Content::Nothing, users: 0, kept: false, last: 0 };
        let buffers = vec![empty; buffers];
        let (places, stays) = (Vec::new(), Vec::new());
        Self { sequence, buffers, places, stays, protects: 1, next: 0 }
    }

    /// Has these layers stay, where there is room, and so many of those taken last not give way.
    pub(super) fn arrange(&mut self, stays: Vec<bool>, protects: u64) {
        (self.stays, self.protects) = (stays, protects.max(1));
    }

    /// The position that is taken next.
    pub(super) fn position(&self) -> u64 {
        self.next
    }

    pub(super) fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// Tells what is taken behind all that was told before.
    pub(super) fn tell(&mut self, unit: usize) {
        self.sequence.tell(unit);
    }

    /// The layer that is to be brought now, which counts as on its way from then on; `None`: none,
    /// until another one is taken or released.
    pub(super) fn next_load(&mut self) -> Option<Load> {
        let (position, unit) = self.wanted()?;
        let buffer = self.victim(position)?;
        self.put(buffer, Content::Coming(unit));
        (self.buffers[buffer].users, self.buffers[buffer].kept) = (0, false);
        Some(Load { position, unit, buffer })
    }

    /// The first position whose layer is in no buffer and on its way to none, and the layer: it
    /// would be brought next.
    pub(super) fn wanted(&self) -> Option<(u64, usize)> {
        // What a whole pass does not miss nothing misses; what is told ends by itself.
        let pass = self.sequence.pass_len();
        let bound = if self.sequence.is_told() { NEVER } else { self.next + pass };
        let mut upcoming = (self.next..bound).map_while(|at| Some((at, self.sequence.at(at)?)));
        upcoming.find(|&(_, unit)| self.buffer_of(unit).is_none())
    }

    /// The layers before `until` that are in no buffer and on their way to none.
    pub(super) fn missing(&self, until: u64) -> Vec<usize> {
        let upcoming = (self.next..until).map_while(|at| self.sequence.at(at));
        upcoming.filter(|&unit| self.buffer_of(unit).is_none()).collect()
    }

    fn buffer_of(&self, unit: usize) -> Option<usize> {
        self.places.get(unit).copied().flatten()
    }

    /// Says what a buffer holds from now on, instead of what it did.
    fn put(&mut self, buffer: usize, content: Content) {
        if let Some(unit) = self.buffers[buffer].unit() {
            self.places[unit] = None;
        }
        self.buffers[buffer].content = content;
        if let Some(unit) = self.buffers[buffer].unit() {
            self.places.resize(self.places.len().max(unit + 1), None);
            self.places[unit] = Some(buffer);
        }
    }

    /// The buffer whose layer gives way to the one that is missing at `position`, if it can now.
    fn victim(&self, position: u64) -> Option<usize> {
        let is_recent = |unit| {
            let from = position.saturating_sub(self.protects);
            (from..position).any(|at| self.sequence.at(at) == Some(unit))
        };
        let is_now = position == self.next;
        let mut best: Option<(Rank, usize)> = None;
        for (index, buffer) in self.buffers.iter().enumerate() {
            let unit = buffer.unit();
            let stays = unit.is_some_and(|unit| self.stays.get(unit) == Some(&true));
            let used = unit.map_or(NEVER, |unit| self.sequence.next_use(unit, self.next));
            let is_coming = matches!(buffer.content, Content::Coming(_));
            let free = buffer.users == 0 && !is_coming && used >= position;
            let recent = unit.is_some_and(is_recent);
            // What is to be taken now cannot wait; what is to be taken later leaves alone what
            // stays, and what was taken last.
            if buffer.kept || if is_now { !free } else { recent || stays } {
                continue;
            }
            let again = unit.map_or(NEVER, |unit| self.sequence.next_use(unit, position));
            let (empty, idle) = (unit.is_none(), u64::MAX - buffer.last);
            let rank = Rank { turns: !stays, old: !recent, empty, again, free, idle };
            if best.is_none_or(|(other, _)| rank > other) {
                best = Some((rank, index));
            }
        }
        best.filter(|(rank, _)| rank.free).map(|(_, index)| index)
    }

    /// Says that all copies of what is on its way to a buffer are queued.
    pub(super) fn arrived(&mut self, buffer: usize) {
        if let Content::Coming(unit) = self.buffers[buffer].content {
            self.buffers[buffer].content = Content::There(unit);
        }
    }
    /// Says that what is on its way to a buffer does not come, or that what was there is gone.
    pub(super) fn failed(&mut self, buffer: usize) {
        self.put(buffer, Content::Nothing);
    }

    /// What there is of the layer that is taken next.
    pub(super) fn next(&self) -> Next {
        let Some(unit) = self.sequence.at(self.next) else { return Next::End };
        match self.buffer_of(unit) {
            Some(buffer) if matches!(self.buffers[buffer].content, Content::There(_)) => {
                Next::There(buffer)
            }
            Some(_) => Next::Coming,
            None if self.buffers.iter().any(|b| matches!(b.content, Content::Coming(_))) => {
                Next::Coming // what is free then gives way
            }
            None => Next::NoRoom,
        }
    }

    /// Takes the layer in a buffer, which is the one that is next.
    pub(super) fn take(&mut self, buffer: usize) {
        self.next += 1;
        let held = &mut self.buffers[buffer];
        (held.users, held.last) = (held.users + 1, self.next);
        self.sequence.forget(self.next.saturating_sub(self.protects + 1));
    }

    /// Takes the first layer of a pass next. A pass that was left in its middle is made again.
    pub(super) fn rewind(&mut self) {
        let pass = self.sequence.pass_len();
        if pass > 0 && !self.next.is_multiple_of(pass) {
            self.next = self.next.next_multiple_of(pass);
            self.sequence.add_pass();
        }
    }

    /// Has a layer stay in its buffer until it is released once more.
    pub(super) fn hold(&mut self, buffer: usize) {
        self.buffers[buffer].users += 1;
    }

    /// Keeps what was taken until it is released by itself.
    pub(super) fn keep(&mut self, buffer: usize) {
        self.buffers[buffer].kept = true;
    }

    /// Releases what was taken.
    pub(super) fn release(&mut self, buffer: usize) {
        let held = &mut self.buffers[buffer];
        held.users = held.users.saturating_sub(1);
        held.kept &= held.users > 0;
    }
}

/// How well a buffer serves, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// It does not stay.
    turns: bool,
    /// It is none of those taken last.
    old: bool,
    empty: bool,
    /// The position at which its layer is taken again.
    again: u64,
    /// It can be had now.
    free: bool,
    /// How long it was not used.
    idle: u64,
}

#[cfg(test)]
mod tests;
