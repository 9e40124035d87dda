//! The current blocking operations of the command, and their time limits.
//!
//! Plain calls have no limit: a file server may disappear, or a program behind FUSE may hang, at
//! any time. So such calls are enclosed in a [`Step`], and a thread ends the command if one makes
//! no progress for the time set by `FOREBAY_WATCHDOG`. No step is open during operations that may
//! take any time: syncs, other programs, and samples of writes and of several paths.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forebay::{Engine, File, Options, Route};

use crate::failure::Failure;
use crate::{interrupt, watched};

/// The hint for paths that do not answer.
pub(crate) const REMEDY: &str = "`forebay doctor PATH` names the mount: check whether its server \
                               or program works; `umount -f MOUNT` releases waiting processes";

/// How often steps are checked within their time limit.
const LOOKS: u32 = 20;
/// Time limit for the cleanup, which the same file may block.
const UNDO_MAX: Duration = Duration::from_secs(1);

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
    pub(crate) fn begin(operation: &'static str, path: &Path) -> Self {
        let count = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&count);
        let life = move || counted.load(Ordering::Relaxed);
        let mut step = Self::with_life(operation, path, Duration::ZERO, life);
        step.count = count;
        step
    }

    /// Like `begin`, for operations that are slow on healthy drives as well.
    pub(crate) fn begin_long(operation: &'static str, path: &Path) -> Self {
        Self::with_life(operation, path, LONG, || 0)
    }

    /// Begins a transfer by `route`; it makes progress as long as `engine` gets answers from drives
    /// and GPUs.
    pub(crate) fn of_engine(
        operation: &'static str,
        path: &Path,
        engine: &Engine,
        route: Option<Route>,
    ) -> Self {
        let engine = engine.clone();
        let least = if route == Some(Route::Direct) { CUFILE_MAX } else { Duration::ZERO };
        Self::with_life(operation, path, least, move || {
            let seen = engine.statistics();
            seen.file.count() + seen.copy.count()
        })
    }

    /// Begins a step that makes progress as long as the calling thread reads, writes or touches new
    /// pages; none if the kernel does not report that.
    pub(crate) fn of_thread(operation: &'static str, path: &Path) -> Option<Self> {
        signs_of_thread().map(|life| Self::with_life(operation, path, Duration::ZERO, life))
    }

    /// Like [`of_thread`](Self::of_thread); a change of `count` is progress as well.
    pub(crate) fn of_requests(
        operation: &'static str,
        path: &Path,
        count: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        let signs = signs_of_thread();
        let life = move || count().wrapping_add(signs.as_ref().map_or(0, |signs| signs()));
        Self::with_life(operation, path, Duration::ZERO, life)
    }

    /// Begins a step with a limit of `least` at least, which makes progress as long as `life`
    /// changes.
    pub(crate) fn with_life(
        operation: &'static str,
        path: &Path,
        least: Duration,
        life: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        let number = add(operation, path, Arc::new(life), least);
        Self { number, count: Arc::default() }
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

/// Reports the activity of the calling thread so far; `None` if the kernel does not report it.
fn signs_of_thread() -> Option<impl Fn() -> u64 + Send + Sync + 'static> {
    let folder = format!("/proc/self/task/{}", rustix::thread::gettid());
    let text = |name: &str| std::fs::read_to_string(format!("{folder}/{name}")).ok();
    text("io").zip(text("stat")).and_then(|(io, stat)| signs(&io, &stat))?;
    Some(move || {
        let text = |name: &str| std::fs::read_to_string(format!("{folder}/{name}"));
        let (io, stat) = (text("io").unwrap_or_default(), text("stat").unwrap_or_default());
        signs(&io, &stat).unwrap_or(0)
    })
}

/// The activity of a thread so far, from its files `io` and `stat`: bytes read and written, and
/// page faults (proc(5)).
fn signs(io: &str, stat: &str) -> Option<u64> {
    let mut bytes = io.lines().map(|line| line.split_once(": ")?.1.trim().parse::<u64>().ok());
    let bytes = bytes.try_fold(0_u64, |sum, bytes| Some(sum.wrapping_add(bytes?)))?;
    // The name may contain anything, also a bracket.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let fault = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(bytes.wrapping_add(fault(7)?).wrapping_add(fault(9)?))
}

/// Opens `path` by `engine`, in a step.
pub(crate) fn open(engine: &Engine, path: &Path) -> forebay::Result<File> {
    let _step = Step::begin("open", path);
    engine.open(path)
}

fn add(operation: &'static str, path: &Path, life: Life, least: Duration) -> u64 {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let (path, last) = (path.to_owned(), life());
    steps().push(Open { number, operation, path, life, last, stood: None, least });
    number
}

/// Checks all steps, `passed` after the last check; returns the first without progress for `most`.
fn look(steps: &mut [Open], passed: Duration, most: Duration) -> Option<Failure> {
    for step in steps.iter_mut() {
        let now = (step.life)();
        // A step that began in between has not been unchanged for all of that time.
        let stood = step.stood.filter(|_| now == step.last).map(|stood| stood + passed);
        step.stood = Some(stood.unwrap_or_default());
        step.last = now;
    }
    let most_of = |step: &Open| most.max(step.least);
    let late = steps.iter().find(|step| step.stood.is_some_and(|stood| stood >= most_of(step)))?;
    Some(failure(late.operation, &late.path, most_of(late)))
}

fn failure(operation: &str, path: &Path, most: Duration) -> Failure {
    Failure::new(format!("cannot {operation} `{}`", path.display()))
        .because(format!(
            "no response within {most:?}: the file server may be gone, or the FUSE program may hang"
        ))
        .hint(format!("{REMEDY}; `FOREBAY_WATCHDOG` sets the time limit"))
}

/// From now on, ends the command if a step makes no progress for too long.
pub(crate) fn watch() {
    static STARTED: AtomicBool = AtomicBool::new(false);
    if STARTED.swap(true, Ordering::Relaxed) {
        return;
    }
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
                end(&failure);
            }
        }
    };
    let _ = thread::Builder::new().name("steps".into()).spawn(watch);
}

/// Ends the command although a thread cannot end.
#[expect(clippy::exit, reason = "`main` may never return")]
fn end(failure: &Failure) -> ! {
    failure.print();
    interrupt::say_left();
    watched::let_go();
    let (tell, told) = channel();
    let undo = move || {
        let _held = interrupt::undo_all();
        let _ = tell.send(());
        // Nothing new can begin.
        loop {
            thread::park();
        }
    };
    let _ = thread::Builder::new().name("undo".into()).spawn(undo);
    let _ = told.recv_timeout(UNDO_MAX);
    if watched::tell(watched::End::Silent(1)) {
        // The parent received the report, and ends this process.
        loop {
            thread::park();
        }
    }
    std::process::exit(1)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_thread_shows_that_it_goes_on() {
        let io = "rchar: 1\nwchar: 20\nsyscr: 300\n";
        let stat = "7 (a) b) (c) R 1 2 3 4 5 6 4000 9 50000 9 1 1";
        assert_eq!(signs(io, stat), Some(54_321));
        assert_eq!(signs("", ""), None);
        assert_eq!(signs("rchar: x\n", stat), None);
        let Some(step) = Step::of_thread("read", Path::new("/a")) else {
            println!("skipped: progress of a thread: the kernel does not report it");
            return;
        };
        let now = || {
            let life = steps().iter().find(|open| open.number == step.number).unwrap().life.clone();
            life()
        };
        // More than the kernel reads ahead.
        let mut bytes = vec![0; 1 << 20];
        let before = now();
        std::fs::File::open("/proc/self/exe").unwrap().read_exact(&mut bytes).unwrap();
        assert!(now() - before >= 1 << 20);
    }

    proptest::proptest! {
        #[test]
        fn no_text_of_the_kernel_ends_the_command(io: String, stat: String) {
            let _ = signs(&io, &stat);
            let _ = signs(&io, &format!("1 (x) {stat}"));
        }
    }

    fn step(operation: &'static str, life: &Arc<AtomicU64>) -> Open {
        let life = Arc::clone(life);
        let life: Life = Arc::new(move || life.load(Ordering::Relaxed));
        let path = PathBuf::from("/a/b");
        Open { number: 0, operation, path, life, last: 0, stood: None, least: Duration::ZERO }
    }

    #[test]
    fn a_step_may_take_any_time_as_long_as_it_goes_on() {
        let (second, most) = (Duration::from_secs(1), Duration::from_secs(10));
        let count = Arc::new(AtomicU64::new(0));
        let mut steps = [step("read", &count)];
        for turn in 0..100 {
            if turn % 9 == 0 {
                count.fetch_add(1, Ordering::Relaxed);
            }
            assert_eq!(look(&mut steps, second, most), None, "turn {turn}");
        }
        let looks = (0..100).position(|_| look(&mut steps, second, most).is_some());
        assert_eq!(looks, Some(9), "it made no progress for a second already");
    }

    #[test]
    fn the_step_that_stands_still_is_named() {
        let (moves, stands) = (Arc::new(AtomicU64::new(7)), Arc::default());
        let mut steps = [step("read", &moves), step("open", &stands)];
        let half_a_minute = Duration::from_secs(30);
        assert_eq!(look(&mut steps, half_a_minute, half_a_minute), None, "they have just begun");
        moves.fetch_add(1, Ordering::Relaxed);
        let failure = look(&mut steps, half_a_minute, half_a_minute).unwrap();
        assert_eq!(failure.message, "cannot open `/a/b`");
        assert!(failure.causes[0].starts_with("no response within 30s"), "{failure:?}");
        assert!(failure.hint.unwrap().contains("umount -f"));
        assert!(!failure.usage);
    }

    #[test]
    fn a_step_is_over_when_it_is_dropped() {
        let held = Arc::new(());
        let life = Arc::clone(&held);
        let step = Step::with_life("read", Path::new("/a"), Duration::ZERO, move || {
            Arc::strong_count(&life) as u64
        });
        assert!(steps().iter().any(|open| open.number == step.number));
        let number = step.number;
        drop(step);
        assert!(steps().iter().all(|open| open.number != number));
        assert_eq!(Arc::strong_count(&held), 1, "nothing is kept");
    }
}
