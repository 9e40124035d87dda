//! Which layers are copied from the page cache where they lie, and the thread that pins their pages
//! and lets them go: both take as long as the driver likes, and neither may hold up who queues
//! copies.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::layer::Unit;
use super::mapped::{Copy, Pages, Refusal, Windows};
use super::marks::Mark;
use super::shared::{Shared, State};
use super::store::Home;
use crate::topology::System;

/// Passes that are worth pinning for. A layer's first copy from its pages takes 1.4 times as long
/// as through slots, or 3 times where the pages are small; each one after that saves a twentieth
/// (37 to 40 and 14 to 20 GB/s, then 54.9, beside 51 to 54: one H200).
const WORTH_PASSES: u64 = 16;

/// Time between two looks at the memory that is left, while pages are pinned.
const LOOKS_EVERY: Duration = Duration::from_millis(500);

/// What is left to others: pinned pages go where less than this part of the memory would be.
const LEFT: u64 = 16;

/// Which layers' pages are pinned, and which could be.
#[derive(Debug)]
pub(super) struct Maps {
    /// Bytes that may be pinned, and those that are.
    budget: u64,
    pub(super) used: u64,
    /// For each unit whether it has come from files before, and whether its pages can be used.
    came: Vec<bool>,
    can: Vec<bool>,
    /// Why some cannot.
    pub(super) refused: Option<String>,
}

/// What the thread is asked for.
enum Wish {
    Pin(Windows, Sender<Pinned>),
    /// Once these are passed.
    LetGo(Arc<Home>, Vec<Mark>),
}

/// Pages and where to copy from, or why there are none.
pub(super) type Pinned = Result<(Pages, Vec<Copy>), Refusal>;

/// See the module's own text.
#[derive(Debug, Default)]
pub(super) struct Mapper(Mutex<Option<Sender<Wish>>>);

impl Maps {
    /// Within `budget` bytes of `passes` passes.
    pub(super) fn new(units: &[Unit], budget: Option<u64>, passes: Option<u64>) -> Self {
        let of_machine = || System::live().memory_left().map_or(0, |(available, _)| available / 2);
        let is_worth = passes.is_none_or(|passes| passes >= WORTH_PASSES);
        let budget = budget.unwrap_or_else(|| if is_worth { of_machine() } else { 0 });
        let (came, can) = (vec![false; units.len()], vec![true; units.len()]);
        Self { budget, used: 0, came, can, refused: None }
    }

    /// Whether anything may be pinned.
    pub(super) fn is_on(&self) -> bool {
        self.budget > 0
    }

    /// Whether a unit's pages are to be pinned now that it is brought again, and counts them.
    pub(super) fn claim(&mut self, number: usize, unit: &Unit) -> bool {
        let again = std::mem::replace(&mut self.came[number], true);
        let len = unit.bytes();
        if !again || !self.can[number] || len == 0 || self.budget.saturating_sub(self.used) < len {
            return false;
        }
        self.used += len;
        true
    }

    /// A unit that was claimed is not pinned, or no more.
    pub(super) fn unclaim(&mut self, number: usize, unit: &Unit) {
        self.used = self.used.saturating_sub(unit.bytes());
        self.came[number] = false; // whatever was in the way is asked about later
    }

    /// Claims a unit no more, for a reason.
    pub(super) fn refuse(&mut self, number: usize, reason: String) {
        self.can[number] = false;
        self.refused.get_or_insert(reason);
    }

    /// Pins nothing more.
    fn stop(&mut self, reason: String) {
        self.budget = 0;
        self.refused = Some(reason);
    }
}

impl Shared {
    /// Has a unit's pages pinned.
    pub(super) fn pin_pages(self: &Arc<Self>, unit: &Unit) -> Receiver<Pinned> {
        let (sender, receiver) = channel();
        match Windows::of(unit) {
            Ok(windows) => self.wish(Wish::Pin(windows, sender)),
            Err(reason) => drop(sender.send(Err(Refusal::Ever(reason)))),
        }
        receiver
    }

    /// A unit that was claimed has no pages pinned, for a reason where it is not memory of the
    /// stream's own.
    pub(super) fn not_pinned(&self, number: usize, refusal: Option<Refusal>) {
        let maps = &mut self.lock().maps;
        maps.unclaim(number, &self.units[number]);
        if let Some(Refusal::Ever(reason)) = refusal {
            maps.refuse(number, reason);
        }
    }

    /// Lets the pages of a unit go, which is brought by other ways from now on.
    pub(super) fn let_pages_go(self: &Arc<Self>, state: &mut State, number: usize) {
        let Some(home) = state.store().ok().and_then(|store| store.take_pages(number)) else {
            return;
        };
        state.filled[number] = false;
        state.maps.unclaim(number, &self.units[number]);
        let lanes = [self.memory_lane, self.file_lane];
        let marks: Result<Vec<Mark>, _> = lanes.iter().map(|&lane| self.marks.put(lane)).collect();
        match marks {
            Ok(marks) => self.wish(Wish::LetGo(home, marks)),
            Err(_) => std::mem::forget(home), // the GPU fails, and may still read it
        }
    }

    /// Lets all pages go where others need the memory.
    fn look_at_memory(self: &Arc<Self>) {
        let used = self.lock().maps.used;
        let Some(left) = System::live().memory_left().filter(|_| used > 0) else { return };
        if is_short(left, used) {
            let reason = format!("{} MiB of memory were left to others", left.0 >> 20);
            self.let_all_pages_go(&reason);
        }
    }

    /// Lets all pages go, and pins none any more.
    pub(super) fn let_all_pages_go(self: &Arc<Self>, reason: &str) {
        let mut state = self.lock();
        state.maps.stop(reason.to_owned());
        (0..self.units.len()).for_each(|number| self.let_pages_go(&mut state, number));
    }

    /// Asks the thread, and starts it where nobody did before.
    fn wish(self: &Arc<Self>, wish: Wish) {
        let mut sender = self.mapper.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = sender.get_or_insert_with(|| {
            let (sender, wishes) = channel();
            let (shared, patience) = (Arc::downgrade(self), self.engine.options().watchdog);
            let run = move || run(&wishes, &shared, patience);
            // Where no thread can be had, wishes come back with the channel's end.
            let _ = thread::Builder::new().name("forebay-mapper".into()).spawn(run);
            sender
        });
        if let Err(std::sync::mpsc::SendError(Wish::LetGo(home, _))) = sender.send(wish) {
            std::mem::forget(home); // nobody is left to wait for its copies
        }
    }
}

/// Whether so little of the memory is left, of so much, that pages of `used` bytes are to go: they
/// are counted as left, which they are not while they are pinned.
fn is_short((available, all): (u64, u64), used: u64) -> bool {
    available.saturating_sub(used) < all / LEFT
}

fn run(wishes: &Receiver<Wish>, shared: &Weak<Shared>, patience: Duration) {
    loop {
        match wishes.recv_timeout(LOOKS_EVERY) {
            Ok(Wish::Pin(windows, answer)) => {
                let Some(device) = shared.upgrade().map(|shared| Arc::clone(&shared.device)) else {
                    return;
                };
                // Whoever asked may be gone; then the pages go with the answer.
                drop(answer.send(windows.pin(&device)));
            }
            Ok(Wish::LetGo(home, marks)) => let_go(home, &marks, patience),
            Err(RecvTimeoutError::Timeout) => match shared.upgrade() {
                Some(shared) => shared.look_at_memory(),
                None => return,
            },
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Gives pages back behind the copies that read them; where these do not end, never.
fn let_go(home: Arc<Home>, marks: &[Mark], patience: Duration) {
    let until = Instant::now() + patience;
    let is_over = |mark: &Mark| mark.wait_while(&mut || Instant::now() < until).unwrap_or(false);
    if !marks.iter().all(is_over) {
        std::mem::forget(home);
    }
}

#[cfg(test)]
#[expect(unsafe_code, reason = "takes layers for a stream that it names")]
mod tests {
    use std::fs;

    use super::*;
    use crate::clock::SystemClock;
    use crate::gpu::sim::{SimConfig, SimDevice};
    use crate::gpu::{CallerStream, Device};
    use crate::stream::{Layer, LayerStream, Order, StreamOptions};
    use crate::{Engine, Options};

    /// Takes a pass, and says how many bytes of it came from pinned pages.
    fn pass(stream: &LayerStream) -> u64 {
        // SAFETY: the default stream is alive, and nothing is queued on it.
        while unsafe { stream.next(CallerStream(0)) }.unwrap().is_some() {}
        stream.statistics().passes.last().map_or(0, |pass| pass.mapped_bytes)
    }

    #[test]
    fn pages_that_others_need_are_let_go() {
        const LEN: u64 = 1 << 20;
        let engine = Engine::new(Options::default()).unwrap();
        let device = SimDevice::new(0, SimConfig::default(), Arc::new(SystemClock::new()));
        let device = Arc::new(device);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, vec![7; 4 << 20]).unwrap();
        let file = engine.open(&path).unwrap();
        let named = |n: u64| Layer::named(format!("layer {n}")).with(&file, n * LEN, LEN);
        let layers: Vec<Layer> = (0..4).map(named).collect();
        let mut options = StreamOptions::ordered(Order::Forward);
        (options.gpu_budget, options.mapped_budget) = (Some(2 * LEN), Some(u64::MAX));
        let on = Arc::clone(&device) as Arc<dyn Device>;
        let stream = LayerStream::new(&engine, &on, &layers, options).unwrap();
        thread::sleep(Duration::from_millis(2100)); // as long as it takes to settle
        let is_pinned = (0..200).any(|_| {
            fs::read(&path).unwrap();
            pass(&stream) == 4 * LEN
        });
        assert!(is_pinned, "{:?}", stream.mapped());
        let before = device.registrations();
        stream.shared.let_all_pages_go("others need it");
        for _ in 0..3 {
            pass(&stream);
        }
        assert_eq!(pass(&stream), 0);
        assert_eq!(stream.mapped(), (0, Some("others need it".into())));
        stream.close().unwrap();
        assert!(device.registrations() + 4 <= before, "{} of {before}", device.registrations());
    }

    #[test]
    fn pages_go_before_others_have_no_memory() {
        const GIB: u64 = 1 << 30;
        assert!(!is_short((100 * GIB, 128 * GIB), 50 * GIB));
        assert!(is_short((57 * GIB, 128 * GIB), 50 * GIB));
        assert!(is_short((7 * GIB, 128 * GIB), 0));
    }
}
