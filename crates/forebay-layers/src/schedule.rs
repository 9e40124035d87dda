//! Decides which layer is loaded into which GPU buffer, and when. Pure.
//!
//! In a known order, the layer evicted is the one whose next use is furthest away (Belady's rule).
//! The choice is made as if layers were loaded when they are requested, and carried out as soon as
//! the buffer is free. So no rule needs fewer reads, and reads begin as early as that allows. The
//! most recently taken layers may be protected from eviction, so that one is loaded while they are
//! computed.

use super::order::{NEVER, Sequence};

/// The contents of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Nothing,
    /// This layer, whose copies are being queued.
    Coming(usize),
    /// This layer; all of its copies are queued.
    There(usize),
}

/// A GPU buffer.
#[derive(Debug, Clone, Copy)]
struct Held {
    content: Content,
    /// How often it was taken and not released.
    users: u32,
    /// Whether its user keeps it beyond the next layer.
    kept: bool,
    /// The position after that of its last use.
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

/// A layer to be loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load {
    /// The position that it is loaded for.
    pub(super) position: u64,
    /// The layer, or the slice of a layer.
    pub(super) unit: usize,
    /// The destination.
    pub(super) buffer: usize,
}

/// The state of the next layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// It is in this buffer.
    There(usize),
    /// It is being loaded.
    Coming,
    /// It is not, and no buffer is available: all are held.
    NoRoom,
    /// There is nothing more to take.
    End,
}

/// The order, and the contents of the buffers.
#[derive(Debug, Clone, Default)]
pub(super) struct Schedule {
    sequence: Sequence,
    buffers: Vec<Held>,
    /// Per layer: the buffer that it is in or is loaded to, if it was ever loaded.
    places: Vec<Option<usize>>,
    /// Layers that stay in their first buffer.
    stays: Vec<bool>,
    /// This many of the most recently taken layers are not evicted.
    protects: u64,
    /// The position that is taken next.
    next: u64,
}

impl Schedule {
    /// Creates a schedule for `buffers` buffers, at least two.
    pub(super) fn new(sequence: Sequence, buffers: usize) -> Self {
        let empty = Held { content: Content::Nothing, users: 0, kept: false, last: 0 };
        let buffers = vec![empty; buffers];
        let (places, stays) = (Vec::new(), Vec::new());
        Self { sequence, buffers, places, stays, protects: 1, next: 0 }
    }

    /// Sets which layers stay, if memory allows, and how many recent ones are protected from
    /// eviction.
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

    /// Appends a unit to the order.
    pub(super) fn append(&mut self, unit: usize) {
        self.sequence.append(unit);
    }

    /// The layer to load now, which counts as being loaded from then on. `None` if there is none
    /// until another layer is taken or released.
    pub(super) fn next_load(&mut self) -> Option<Load> {
        let (position, unit) = self.wanted()?;
        let buffer = self.victim(position)?;
        self.put(buffer, Content::Coming(unit));
        (self.buffers[buffer].users, self.buffers[buffer].kept) = (0, false);
        Some(Load { position, unit, buffer })
    }

    /// The first position whose layer is neither in a buffer nor being loaded, and that layer. It
    /// is the next to load.
    pub(super) fn wanted(&self) -> Option<(u64, usize)> {
        // If a whole pass is complete, nothing is missing. An order given step by step ends by
        // itself.
        let pass = self.sequence.pass_len();
        let bound = if self.sequence.is_appended() { NEVER } else { self.next + pass };
        let mut upcoming = (self.next..bound).map_while(|at| Some((at, self.sequence.at(at)?)));
        upcoming.find(|&(_, unit)| self.buffer_of(unit).is_none())
    }

    /// The layers before `until` that are neither in a buffer nor being loaded.
    pub(super) fn missing(&self, until: u64) -> Vec<usize> {
        let upcoming = (self.next..until).map_while(|at| self.sequence.at(at));
        upcoming.filter(|&unit| self.buffer_of(unit).is_none()).collect()
    }

    fn buffer_of(&self, unit: usize) -> Option<usize> {
        self.places.get(unit).copied().flatten()
    }

    /// Replaces the contents of a buffer.
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

    /// The buffer to evict for the layer missing at `position`, if any can be evicted now.
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
            // A layer needed right now cannot wait. One needed later does not evict layers that
            // stay or were taken recently.
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

    /// Records that all copies to a buffer are queued.
    pub(super) fn arrived(&mut self, buffer: usize) {
        if let Content::Coming(unit) = self.buffers[buffer].content {
            self.buffers[buffer].content = Content::There(unit);
        }
    }
    /// Records that the load of a buffer failed, or that its contents are lost.
    pub(super) fn failed(&mut self, buffer: usize) {
        self.put(buffer, Content::Nothing);
    }

    /// The state of the layer that is taken next.
    pub(super) fn next(&self) -> Next {
        let Some(unit) = self.sequence.at(self.next) else { return Next::End };
        match self.buffer_of(unit) {
            Some(buffer) if matches!(self.buffers[buffer].content, Content::There(_)) => {
                Next::There(buffer)
            }
            Some(_) => Next::Coming,
            None if self.buffers.iter().any(|b| matches!(b.content, Content::Coming(_))) => {
                Next::Coming // one that is free by then is evicted
            }
            None => Next::NoRoom,
        }
    }

    /// Takes the layer in a buffer; it must be the next one.
    pub(super) fn take(&mut self, buffer: usize) {
        self.next += 1;
        let held = &mut self.buffers[buffer];
        (held.users, held.last) = (held.users + 1, self.next);
        self.sequence.forget(self.next.saturating_sub(self.protects + 1));
    }

    /// Takes the first layer of a pass next. A pass left in the middle is repeated.
    pub(super) fn rewind(&mut self) {
        let pass = self.sequence.pass_len();
        if pass > 0 && !self.next.is_multiple_of(pass) {
            self.next = self.next.next_multiple_of(pass);
            self.sequence.add_pass();
        }
    }

    /// Makes a layer stay in its buffer until it is released one more time.
    pub(super) fn hold(&mut self, buffer: usize) {
        self.buffers[buffer].users += 1;
    }

    /// Keeps a taken layer until it is released explicitly.
    pub(super) fn keep(&mut self, buffer: usize) {
        self.buffers[buffer].kept = true;
    }

    /// Releases a taken layer.
    pub(super) fn release(&mut self, buffer: usize) {
        let held = &mut self.buffers[buffer];
        held.users = held.users.saturating_sub(1);
        held.kept &= held.users > 0;
    }
}

/// The ranking for eviction, the worst buffer first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// Its layer does not stay.
    turns: bool,
    /// Its layer is not among the most recently taken.
    old: bool,
    empty: bool,
    /// The position at which its layer is taken again.
    again: u64,
    /// It is available now.
    free: bool,
    /// How long it was not used.
    idle: u64,
}

#[cfg(test)]
mod tests;
