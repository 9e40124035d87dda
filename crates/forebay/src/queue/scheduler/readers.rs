//! How many readers work at once, and who rests.
//!
//! Callers who help work as readers do, so they count, and so many readers rest meanwhile; but one
//! is left for what no caller helps with. A reader that comes back while enough others are at
//! work sleeps, whatever there is to do: each of those comes back for it. Where the number is set,
//! that many work, and callers beside them.

use super::{Limits, ReaderWork, Scheduler};
use crate::tune::{Ahead, ReaderTuner, Readers};

/// On whose behalf a thread does the work of readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Post {
    /// It is a reader.
    Reader,
    /// It waits for a transfer, and helps.
    Caller,
}

/// See the module's own text.
#[derive(Debug)]
pub(super) struct Posts {
    /// Finds their number, where it is not set.
    tuner: Option<Box<ReaderTuner>>,
    /// What it is set to, or was at first.
    set: usize,
    /// A number that a test puts in the place of what was found.
    #[cfg(test)]
    forced: Option<usize>,
    /// Readers there are, and whether one is being started, or none can be.
    hired: usize,
    hiring: bool,
    refused: bool,
    /// Readers with work, and callers with what a reader would do otherwise.
    working: usize,
    helping: usize,
}

impl Posts {
    pub(super) fn new(limits: &Limits) -> Self {
        let tuner = match limits.readers {
            Readers::Fixed(_) => None,
            Readers::Found(found) => Some(Box::new(ReaderTuner::new(found, limits.segment))),
        };
        Self {
            tuner,
            set: limits.readers.start(),
            #[cfg(test)]
            forced: None,
            hired: 0,
            hiring: false,
            refused: false,
            working: 0,
            helping: 0,
        }
    }

    /// Threads that are to read, callers among them.
    pub(super) fn count(&self) -> usize {
        #[cfg(test)]
        if let Some(count) = self.forced {
            return count;
        }
        self.tuner.as_ref().map_or(self.set, |tuner| tuner.count())
    }

    /// Readers that may be at work.
    fn most(&self) -> usize {
        match self.tuner {
            Some(_) => self.count().saturating_sub(self.helping).max(1),
            None => usize::MAX,
        }
    }

    /// Whether one more reader may take work.
    pub(super) fn has_room(&self) -> bool {
        self.working < self.most()
    }

    /// Whether all readers are at work, but for the one that asks, and there are to be more.
    fn is_short(&self) -> bool {
        let may = !self.hiring && !self.refused && self.tuner.is_some();
        may && self.working + 1 >= self.hired && self.hired < self.most()
    }
}

impl Scheduler {
    /// How many sleeping readers may be called.
    pub(super) fn may_call(&self) -> usize {
        self.posts.most().saturating_sub(self.posts.working + self.readers.called())
    }

    /// One more reader, where all there are have work and more are wanted.
    pub(super) fn reader_to_hire(&mut self) -> Option<ReaderWork> {
        let hires = self.queued > 0 && self.posts.is_short();
        self.posts.hiring |= hires;
        hires.then_some(ReaderWork::Hire)
    }

    /// Counts `started` readers in that were started; none could be where that is zero.
    pub(crate) fn hired(&mut self, started: usize) {
        self.posts.hired += started;
        self.posts.hiring = false;
        self.posts.refused |= started == 0;
    }

    /// Counts a thread in that begins with `work`; `None`: what it does is no reader's.
    pub(crate) fn begins(&mut self, work: &ReaderWork, post: Post) -> Option<Post> {
        match (post, work) {
            (Post::Reader, _) => self.posts.working += 1,
            (Post::Caller, ReaderWork::Op(op)) if !op.is_in_memory() => return None,
            (Post::Caller, _) => self.posts.helping += 1,
        }
        Some(post)
    }

    /// Counts a thread out that is done with what it was counted in for.
    pub(crate) fn ends(&mut self, post: Post) {
        if self.is_closed() {
            return; // it was counted in before
        }
        match post {
            Post::Reader => self.posts.working -= 1,
            Post::Caller => {
                self.posts.helping -= 1;
                self.call_for_more();
            }
        }
    }

    /// More readers may work than before: calls them to what waits.
    fn call_for_more(&mut self) {
        self.effects.work = self.effects.work.max(self.queued + self.openable.len());
    }

    /// Has the number of readers be another, unless it is set.
    #[cfg(test)]
    pub(crate) fn force_readers(&mut self, count: usize) {
        self.posts.forced = self.posts.tuner.as_ref().map(|_| count);
        self.call_for_more();
    }

    /// Readers there are.
    #[cfg(test)]
    pub(crate) fn readers(&self) -> usize {
        self.posts.hired
    }

    /// Panics where the counts are wrong, or nobody comes to what waits. `at_work`: readers with
    /// work, callers with what is a reader's, and callers who come back for their transfers.
    #[cfg(test)]
    pub(super) fn check_posts(&self, [readers, callers, come_back]: [usize; 3]) {
        let Posts { working, helping, hired, hiring, .. } = self.posts;
        assert_eq!((working, helping), (readers, callers), "readers and callers at work");
        let hired = hired + usize::from(hiring); // who was just started may be at work before
        assert!(working <= hired, "{working} readers of {hired} at work");
        let grows = usize::from(self.link_wants_slots());
        let waiting = self.queued + self.openable.len() + grows;
        let coming = working + come_back + self.readers.called();
        let all_awake = self.readers.is_empty();
        assert!(waiting == 0 || coming > 0 || all_awake, "{waiting} wait for readers");
    }

    /// Lets the number of readers follow from a piece that was in memory.
    pub(super) fn tell_readers(&mut self, len: u64, took_ns: u64, at_ns: u64) {
        let Some(tuner) = &mut self.posts.tuner else { return };
        let binds = |link: &super::Link| link.copies > 0 && !link.waiting.is_empty();
        let ahead = if self.queued + self.openable.len() > 0 {
            Ahead::Pieces
        } else if self.links.iter().any(binds) {
            Ahead::Link
        } else {
            Ahead::Little
        };
        let before = tuner.count();
        tuner.completed(at_ns, len, took_ns, self.posts.working + self.posts.helping, ahead);
        if tuner.count() > before {
            self.call_for_more();
        }
    }
}
