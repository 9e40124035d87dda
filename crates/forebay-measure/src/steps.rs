//! The watchdog: ends a command whose file never responds.
//!
//! Plain calls have no time limit: a file server may disappear, or a program behind FUSE may hang,
//! at any time. So such calls are enclosed in a [`Step`]. A thread ends the command if one makes
//! no progress for the time set by `FOREBAY_WATCHDOG`. No step is open during operations that may
//! take any time: syncs, other programs, and samples of writes and of several paths.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forebay::{Engine, File, Options, Route};

use crate::cleanup;
use crate::failure::Failure;

/// How often steps are checked within their time limit.
const LOOKS: u32 = 20;
/// Time limit for the cleanup, which the same file may block.
const CLEANUP_MAX: Duration = Duration::from_secs(1);
/// The engine's time limits for opening cuFile, in a child and here, plus a margin.
const CUFILE_MAX: Duration = Duration::from_secs(60);
/// Time limit of a removal: a large file in many pieces on a spinning disk.
const LONG: Duration = Duration::from_secs(600);

/// The progress of a step: any number that changes.
type Life = Arc<dyn Fn() -> u64 + Send + Sync>;

/// A step in progress.
struct Open {
    number: u64,
    operation: &'static str,
    path: PathBuf,
    life: Life,
    /// The last value of `life`, and how long it has been observed unchanged.
    last: u64,
    stood: Option<Duration>,
    /// Minimum time limit.
    least: Duration,
}

static STEPS: Mutex<Vec<Open>> = Mutex::new(Vec::new());

fn steps() -> MutexGuard<'static, Vec<Open>> {
    STEPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An operation on a file; it ends when this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Step {
    number: u64,
    count: Arc<AtomicU64>,
}

impl Step {
    /// Begins `operation` (an infinitive) on `path`, which should end soon, or report progress.
    pub fn begin(operation: &'static str, path: &Path) -> Self {
        Self::new(operation, path, Duration::ZERO, || 0)
    }

    /// Like `begin`, for operations that are slow on healthy drives as well.
    pub fn begin_long(operation: &'static str, path: &Path) -> Self {
        Self::new(operation, path, LONG, || 0)
    }

    /// Begins a transfer by `route`; it makes progress as long as `engine` gets answers from drives
    /// and GPUs.
    pub fn of_engine(
        operation: &'static str,
        path: &Path,
        engine: &Engine,
        route: Option<Route>,
    ) -> Self {
        let engine = engine.clone();
        let least = if route == Some(Route::Direct) { CUFILE_MAX } else { Duration::ZERO };
        Self::new(operation, path, least, move || {
            let seen = engine.statistics();
            seen.file.count() + seen.copy.count()
        })
    }

    /// Begins a step that makes progress as long as the calling thread reads, writes or touches new
    /// pages; none if the kernel does not report that.
    pub fn of_thread(operation: &'static str, path: &Path) -> Option<Self> {
        activity().map(|life| Self::new(operation, path, Duration::ZERO, life))
    }

    /// Like [`of_thread`](Self::of_thread); a change of `count` is progress as well.
    pub(crate) fn of_requests(
        operation: &'static str,
        path: &Path,
        count: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        let activity = activity();
        let life = move || count().wrapping_add(activity.as_ref().map_or(0, |activity| activity()));
        Self::new(operation, path, Duration::ZERO, life)
    }

    fn new(
        operation: &'static str,
        path: &Path,
        least: Duration,
        life: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let count = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&count);
        let life = Arc::new(move || life().wrapping_add(counted.load(Ordering::Relaxed)));
        let (path, last) = (path.to_owned(), life());
        steps().push(Open { number, operation, path, life, last, stood: None, least });
        Self { number, count }
    }

    /// Reports progress.
    pub(crate) fn goes_on(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        let mut steps = steps();
        let index = steps.iter().position(|step| step.number == self.number);
        let ended = index.map(|index| steps.swap_remove(index));
        drop(steps);
        drop(ended); // its life may be the last to hold an engine
    }
}

/// Reports the activity of the calling thread so far: bytes read and written, and page faults
/// (proc(5)); `None` if the kernel does not report it.
fn activity() -> Option<impl Fn() -> u64 + Send + Sync + 'static> {
    let folder = format!("/proc/self/task/{}", rustix::thread::gettid());
    let read = move || {
        let text = |name: &str| std::fs::read_to_string(format!("{folder}/{name}")).ok();
        parsed(&text("io")?, &text("stat")?)
    };
    read()?;
    Some(move || read().unwrap_or(0))
}

fn parsed(io: &str, stat: &str) -> Option<u64> {
    let mut bytes = io.lines().map(|line| line.split_once(": ")?.1.trim().parse::<u64>().ok());
    let bytes = bytes.try_fold(0_u64, |sum, bytes| Some(sum.wrapping_add(bytes?)))?;
    // The name may contain anything, also a bracket.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let fault = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(bytes.wrapping_add(fault(7)?).wrapping_add(fault(9)?))
}

/// The operation and path of the step that is open for longest.
pub fn oldest() -> Option<(&'static str, PathBuf)> {
    let steps = steps();
    let oldest = steps.iter().min_by_key(|step| step.number)?;
    Some((oldest.operation, oldest.path.clone()))
}

/// Opens `path` by `engine`, in a step.
pub fn open(engine: &Engine, path: &Path) -> forebay::Result<File> {
    let _step = Step::begin("open", path);
    engine.open(path)
}

/// Checks all steps, `passed` after the last check; returns the first without progress for `most`.
fn look(steps: &mut [Open], passed: Duration, most: Duration) -> Option<Failure> {
    for step in steps.iter_mut() {
        let now = (step.life)();
        // A step that began in between has not been unchanged for all of that time.
        let stood = step.stood.filter(|_| now == step.last).map(|stood| stood + passed);
        (step.stood, step.last) = (Some(stood.unwrap_or_default()), now);
    }
    let most_of = |step: &Open| most.max(step.least);
    let late = steps.iter().find(|step| step.stood.is_some_and(|stood| stood >= most_of(step)))?;
    let failure = Failure::new(format!("cannot {} `{}`", late.operation, late.path.display()));
    let why = "the file server may be gone, or the FUSE program may hang";
    Some(failure.because(format!("no response within {:?}: {why}", most_of(late))).hint(
        "`forebay doctor PATH` names the mount: check whether its server or program works; \
         `umount -f MOUNT` releases waiting processes; `FOREBAY_WATCHDOG` sets the time limit",
    ))
}

/// From now on, ends the command if a step makes no progress for too long. A blocked thread may
/// keep the process until the file responds, but nothing waits for its output.
pub fn watch() {
    static STARTED: Once = Once::new();
    // An invalid variable is reported by the code that needs it.
    let most = Options::from_env().unwrap_or_default().watchdog;
    let pause = most / LOOKS;
    let watch = move || {
        loop {
            let start = Instant::now();
            thread::sleep(pause);
            // Time during which the command was stopped (Ctrl-Z) does not count.
            let passed = start.elapsed().min(2 * pause);
            let late = look(&mut steps(), passed, most);
            if let Some(failure) = late {
                failure.print();
                cleanup::run(CLEANUP_MAX);
                signal_hook::low_level::exit(1);
            }
        }
    };
    STARTED.call_once(|| drop(thread::Builder::new().name("watchdog".into()).spawn(watch)));
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn no_text_of_the_kernel_ends_the_command(io: String, stat: String) {
            let _ = parsed(&io, &stat);
            let _ = parsed(&io, &format!("1 (x) {stat}"));
        }
    }

    #[test]
    fn the_activity_of_a_thread_is_bytes_and_faults() {
        let io = "rchar: 1\nwchar: 20\nsyscr: 300\n";
        let stat = "7 (a) b) (c) R 1 2 3 4 5 6 4000 9 50000 9 1 1";
        assert_eq!(parsed(io, stat), Some(54_321));
        assert_eq!(parsed("", ""), None);
        assert_eq!(parsed("rchar: x\n", stat), None);
    }

    fn step(operation: &'static str, life: &Arc<AtomicU64>) -> Open {
        let life = Arc::clone(life);
        let life: Life = Arc::new(move || life.load(Ordering::Relaxed));
        let path = PathBuf::from("/a/b");
        Open { number: 0, operation, path, life, last: 0, stood: None, least: Duration::ZERO }
    }

    #[test]
    fn a_step_may_take_any_time_as_long_as_it_makes_progress() {
        let (second, most) = (Duration::from_secs(1), Duration::from_secs(10));
        let count = Arc::new(AtomicU64::new(0));
        let mut steps = [step("open", &count)];
        for turn in 0..100 {
            if turn % 9 == 0 {
                count.fetch_add(1, Ordering::Relaxed);
            }
            assert_eq!(look(&mut steps, second, most), None, "turn {turn}");
        }
        let late = (0..100).find_map(|turn| Some(turn).zip(look(&mut steps, second, most)));
        let (turn, failure) = late.unwrap();
        assert_eq!(turn, 9, "it made no progress for a second already");
        assert_eq!(failure.message, "cannot open `/a/b`");
        assert!(failure.causes[0].starts_with("no response within 10s"), "{failure:?}");
        assert!(failure.hint.unwrap().contains("umount -f"));
    }

    #[test]
    fn a_step_is_open_from_its_begin() {
        let step = Step::begin("read", Path::new("/a"));
        step.goes_on();
        let open = steps().iter().find(|open| open.number == step.number).map(|open| (open.life)());
        assert_eq!(open, Some(1));
    }

    #[test]
    fn a_step_is_over_when_it_is_dropped() {
        let held = Arc::new(());
        let life = Arc::clone(&held);
        let step = Step::new("read", Path::new("/a"), Duration::ZERO, move || {
            Arc::strong_count(&life) as u64
        });
        let number = step.number;
        assert!(steps().iter().any(|open| open.number == number));
        drop(step);
        assert!(steps().iter().all(|open| open.number != number));
        assert_eq!(Arc::strong_count(&held), 1, "nothing is kept");
    }
}
