//! State of the thread that pins and unpins pages (`pinning`).

use std::sync::Arc;
use std::sync::mpsc::Sender;

use forebay_base::lock::Lock;

use super::homes::PinnedUnit;
use super::layer::Copy;
use super::mapped::{Pages, Refusal, Windows};
use super::marks::Mark;

/// The error if the [`Mapper`]'s thread could not be started.
pub(super) const NO_THREAD: &str = "no thread can be started to pin and unpin pages";

/// Requests to the thread.
pub(super) enum Wish {
    Pin(Windows, Sender<Pinned>),
    /// Check pages that are being released, or were copied.
    Look,
}

/// Pages of a unit to be unpinned. They are unpinned once nothing reads them, and else leaked.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) unit: usize,
    pub(super) home: Option<Arc<PinnedUnit>>,
    pub(super) copies: Copies,
}

/// The state of the copies from pages to be unpinned.
#[derive(Debug)]
pub(super) enum Copies {
    /// Some may still be about to be queued.
    Begin,
    /// All were queued before these marks.
    Before(Vec<Mark>),
    /// Unknown: a GPU failed, or a stream's copies did not end.
    Unknown,
}

/// The pages and the copies from them, or why there are none.
pub(super) type Pinned = Result<(Pages, Vec<Copy>), Refusal>;

/// The turn of the thread that unpins pages.
#[derive(Debug, Default)]
pub(super) struct Giving;

/// The thread that pins and unpins pages.
#[derive(Debug, Default)]
pub(super) struct Mapper {
    /// Sender to the thread, if it was started.
    pub(super) wishes: Lock<Option<Sender<Wish>>>,
    pub(super) leaving: Lock<Vec<Leaving>>,
    /// Held while pages are unpinned, so that closing the stream waits for that.
    pub(super) giving: Lock<Giving>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        std::mem::forget(self.home.take()); // a copy may still read them
    }
}
