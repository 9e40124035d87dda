//! The queues of an engine's drives: which queue serves a file.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_base::lock::Lock;
use forebay_topology::{
    Below, Drive, DriveId, LayerKind, Layout, Queue, QueueId, Resolver, System,
};

use super::overdue::{ANSWER_MAX, Overdue};
use super::{Engine, Inner, notes};
use crate::error::Error;
use crate::events;
use crate::file::Handle;
use crate::options::{Options, RingChoice};
use crate::tune::{DepthLimits, DepthRule};

/// Notes of an engine, at most: a server that fails may cause a note per file.
const NOTES_MAX: usize = 1000;
const NOTES_LEFT_OUT: &str = "further notes of this engine are left out";

/// The queues of all drives in use.
#[derive(Debug)]
pub(super) struct KnownDrives {
    resolver: Resolver,
    known: Lock<Known>,
    pub(super) overdue: Overdue,
}

#[derive(Debug, Default)]
struct Known {
    queues: HashMap<QueueId, KnownQueue>,
    /// Index of the hardware, by queue.
    hardware: HashMap<DriveId, usize>,
}

/// The queue of a drive.
#[derive(Debug)]
struct KnownQueue {
    index: usize,
    /// Whether it owns a ring, or was refused a ring.
    ring_tried: bool,
}

impl KnownDrives {
    pub(super) fn new() -> Self {
        Self {
            resolver: Resolver::new(System::of_open_files()),
            known: Lock::default(),
            overdue: Overdue::default(),
        }
    }
}

/// Maximum number of volume members that increase a queue's depth. A volume never gets more than
/// half of the total for all drives.
const MEMBERS_MAX: usize = 4;

/// Limits of the depth of a queue. For a volume it is a drive's depth times the members that are
/// read concurrently.
fn depth(options: &Options, queue: &Queue, below: &Below) -> DepthLimits {
    if let Some(depth) = options.depth {
        return DepthLimits::fixed(depth, options.segment_size);
    }
    // Virtual and loop devices claim to be rotational too, unless configured otherwise.
    let is_scsi = |layer: &forebay_topology::Layer| layer.kind == LayerKind::ScsiDisk;
    let rotates =
        |drive: &Drive| queue.members.contains(&drive.id) && drive.rotational == Some(true);
    let is_disk =
        below.layer.walk().any(|(_, layer)| is_scsi(layer)) && below.drives.iter().any(rotates);
    let members = match queue.layout {
        Layout::Striped | Layout::Mirrored | Layout::StripedMirrors | Layout::Parity => {
            queue.members.len().clamp(1, MEMBERS_MAX)
        }
        _ => 1,
    };
    let (depth_max, size_max) = (Options::DEPTH_MAX * members, options.segment_size);
    let rule = if is_disk { DepthRule::Disk } else { DepthRule::Tuned };
    DepthLimits { rule, depth_max, size_max }
}

impl Engine {
    /// The queue of a file's drive. Its ring is created on the first call with `needs_ring`.
    pub(crate) fn drive(&self, handle: &Arc<Handle>, needs_ring: bool) -> Result<usize, Error> {
        let index = match handle.queue().get() {
            Some(&index) => index,
            None => self.find_drive(handle),
        };
        if needs_ring && handle.ring_tried().get().is_none() {
            self.give_ring(handle, index)?;
        }
        Ok(index)
    }

    fn find_drive(&self, handle: &Arc<Handle>) -> usize {
        let below = self.below(handle);
        // Look the drive up while it exists. Once it was pulled the kernel reports nothing, and
        // that is when an error must name it.
        let _ = handle.drive();
        let index = self.queue(&below.queue, &below, handle);
        if below.is_known() {
            return *handle.queue().get_or_init(|| index);
        }
        index
    }

    /// The layers below a file. Finding them may access names and devices on a server or drive that
    /// hangs. Then the result is empty, and stays so until the call returns.
    pub(super) fn below(&self, handle: &Arc<Handle>) -> Arc<Below> {
        let known = || self.inner.drives.resolver.known(handle.fd());
        if let Some(known) = known() {
            return known;
        }
        let (drives, file) = (Arc::clone(&self.inner.drives), Arc::clone(handle));
        let resolve = move || drives.resolver.resolve_file(file.fd(), file.path());
        let overdue = &self.inner.drives.overdue;
        overdue.query(handle.device(), ANSWER_MAX, known, resolve).unwrap_or_else(|| {
            self.note(format!(
                "the drive of `{}` was not found in time: until then the file has a queue of its \
                 own (`forebay doctor --tree` shows what hangs)",
                handle.path().display()
            ));
            Arc::new(Below::unknown(handle.device()))
        })
    }

    /// The size of a file for a transfer that reaches to `end`. The server is queried only if the
    /// kernel's cached size is smaller. `None` if it did not respond in time.
    ///
    /// # Errors
    /// Those of [`Handle::size`].
    pub(super) fn size_in_time(
        &self,
        handle: &Arc<Handle>,
        end: u64,
    ) -> Result<Option<u64>, Error> {
        if !handle.opens_slowly() {
            return handle.size().map(Some);
        }
        let known = || handle.last_size().map(|size| (end <= size).then_some(size)).transpose();
        if let Some(known) = known() {
            return known.map(Some);
        }
        let file = Arc::clone(handle);
        let overdue = &self.inner.drives.overdue;
        overdue.query(handle.device(), ANSWER_MAX, known, move || file.size()).transpose()
    }

    /// Returns a queue, without a ring at first; `handle` is a file that it serves.
    fn queue(&self, queue: &Queue, below: &Below, handle: &Handle) -> usize {
        let Inner { drives, core, options, .. } = &*self.inner;
        let mut known = drives.known.lock();
        let Known { queues, hardware } = &mut *known;
        if let Some(known) = queues.get(&queue.id) {
            return known.index;
        }
        let mut number = |id: &DriveId| {
            let next = hardware.len();
            *hardware.entry(id.clone()).or_insert(next)
        };
        let pieces: Vec<usize> = queue.hardware.iter().map(&mut number).collect();
        let limits = depth(options, queue, below);
        let index = core.add_drive(limits, &pieces);
        queues.insert(queue.id.clone(), KnownQueue { index, ring_tried: false });
        drop(known);
        events::drive_found(index, handle.drive().name(), queue, limits.depth_max);
        index
    }

    /// Creates the ring of a file's queue, once, if the file may use it.
    fn give_ring(&self, handle: &Handle, index: usize) -> Result<(), Error> {
        let Inner { drives, threads, core, options, tools, .. } = &*self.inner;
        let mut note = None;
        if handle.allows_io_uring() {
            let mut known = drives.known.lock();
            let queue = known.queues.values_mut().find(|queue| queue.index == index);
            if let Some(queue) = queue.filter(|queue| !queue.ring_tried) {
                note = threads.give_ring(core, index, options, tools.arena.parts())?;
                queue.ring_tried = true;
            }
        } else if options.ring != RingChoice::Pread {
            note = Some(notes::by_threads(handle.file_system()));
        }
        note.into_iter().for_each(|note| self.note(note));
        // Until its drive is known, a file uses a different queue.
        if handle.queue().get().is_some() {
            handle.ring_tried().get_or_init(|| ());
        }
        Ok(())
    }

    /// Records a note for the user, once. After [`NOTES_MAX`] a last note says that more are
    /// omitted.
    pub(super) fn note(&self, note: String) {
        let mut notes = self.inner.notes.lock();
        if notes.len() <= NOTES_MAX && !notes.contains(&note) {
            let note = if notes.len() < NOTES_MAX { note } else { NOTES_LEFT_OUT.into() };
            notes.push(note.clone());
            drop(notes);
            events::note(&note);
        }
    }
}
