//! A control group with less memory than is requested: the kernel ends who uses more, so that an
//! error has to come before.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use forebay::units::MIB;
use forebay::{Engine, Error, OpenOptions, Options};

use crate::lab::{self, child, pattern, watchdog::Watchdog};
use crate::{assert_says, sim};

/// What the children may use.
const LIMIT: u64 = 300 * MIB;

/// A control group of our own inside that of this process; removed when dropped.
struct Group {
    folder: PathBuf,
    /// The file that holds its limit.
    limit: PathBuf,
}

impl Group {
    /// A group with a limit, where this user may make one in the usual place.
    fn with_limit(limit: u64) -> Result<Self, String> {
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let mut refused = "none can be made".to_owned();
        for line in groups.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            let (top, name) = match controllers {
                "" => ("/sys/fs/cgroup", "memory.max"),
                "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                _ => continue,
            };
            let own = Path::new(top).join(path.trim_start_matches('/'));
            static MADE: AtomicU64 = AtomicU64::new(0);
            let number = MADE.fetch_add(1, Ordering::Relaxed);
            let folder = own.join(format!("forebay-limits-{}-{number}", std::process::id()));
            let made = fs::create_dir(&folder);
            let group = Self { limit: folder.join(name), folder };
            // The file is there where the controller works in this tree.
            let set =
                |()| fs::metadata(&group.limit).and(fs::write(&group.limit, limit.to_string()));
            match made.and_then(set) {
                Ok(()) => return Ok(group),
                Err(error) => refused = format!("{refused}; `{}`: {error}", group.limit.display()),
            }
        }
        Err(refused)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Who was in it has ended.
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Runs `test` in a process of its own inside a group with a limit, whose file it is given.
fn inside(test: impl FnOnce(&Path)) {
    if let Some(limit) = child::role() {
        let _watchdog = Watchdog::start();
        let limit = Path::new(&limit);
        let members = limit.with_file_name("cgroup.procs");
        fs::write(members, std::process::id().to_string()).expect("a group that may be entered");
        return test(limit);
    }
    match Group::with_limit(LIMIT) {
        Ok(group) => drop(child::run(group.limit.to_str().expect("names without surprises"))),
        Err(reason) => lab::skip(format!("memory of a control group: {reason}")),
    }
}

/// What is left, and of what, in a message.
fn left(error: &Error) -> u64 {
    match error {
        Error::MemoryLimit { available, limit: LIMIT, .. } => *available,
        other => panic!("not the control group's refusal: {other:?}"),
    }
}

#[test]
fn a_small_control_group_is_enough_and_more_than_it_has_is_an_error() {
    inside(|limit| {
        let engine = Engine::new(Options::default()).expect("the defaults fit");
        let gpu = sim(&engine, "sim");
        let folder = tempfile::tempdir().expect("a folder");
        let bytes = pattern(3, 40_000_001);
        let file = engine.open_with(folder.path().join("data"), &OpenOptions::writing());
        let file = file.expect("the file opens");
        for turn in 0..3 {
            file.write(&bytes).run().expect("a write");
            if turn == 1 {
                file.evict().expect("an eviction");
            }
            let (buffer, _) = file.read_to_end(Some(gpu)).run().expect("all bytes");
            let mut target = vec![0; bytes.len()];
            buffer.download(0, &mut target).expect("a download");
            assert!(target == bytes);
            target.fill(0);
            file.read(&mut target).exact().run().expect("all bytes");
            assert!(target == bytes);
            // More than there is can be requested at any time.
            let result = engine.allocate_pinned(1 << 30);
            let error = result.as_ref().expect_err("more than the group has");
            let message = format!(
                "cannot allocate 1 GiB of host memory: its control group has {} left of 300 MiB",
                forebay::units::format_size(left(error))
            );
            assert!(error.is_retryable() && error.errno() == Some(libc::ENOMEM));
            let hint = format!(
                "set `FOREBAY_ARENA_SIZE` or `FOREBAY_SLOT_SIZE` to less, or raise the limit in \
                 `{}`",
                limit.display()
            );
            assert_says(result, &message, "-", &hint);
        }
        let pinned = engine.allocate_pinned(50 * MIB).expect("so much is left");
        assert_eq!(pinned.len(), 50 * MIB);
    });
}

#[test]
fn memory_that_copies_pass_through_is_held_against_the_group() {
    inside(|_| {
        let engine = Engine::new(Options::default()).expect("the defaults fit");
        let gpu = sim(&engine, "sim");
        let mut buffer = engine.allocate(gpu, 8 * MIB).expect("memory of a simulated GPU");
        let mut bytes = pattern(7, 8 << 20);
        let mut held = Vec::new();
        while let Ok(memory) = engine.allocate_pinned(2 * MIB) {
            held.push(memory);
        }
        // What is left is less than a copy passes through.
        assert!(left(&buffer.upload(0, &bytes).expect_err("no room")) < 8 * MIB);
        assert!(left(&buffer.download(0, &mut bytes).expect_err("no room")) < 8 * MIB);
        drop(held);
        buffer.upload(0, &bytes).expect("an upload");
        let expected = std::mem::replace(&mut bytes, vec![0; 8 << 20]);
        buffer.download(0, &mut bytes).expect("a download");
        assert!(bytes == expected);
    });
}

#[test]
fn concurrent_allocations_do_not_get_the_same_room() {
    inside(|_| {
        let engine = Engine::new(Options::default()).expect("the defaults fit");
        // Each of them fits alone, and all together are four times what there is.
        let allocate = |_| engine.allocate_pinned(LIMIT / 2);
        let got: Vec<_> = thread::scope(|scope| {
            let callers: Vec<_> =
                (0..8).map(|number| scope.spawn(move || allocate(number))).collect();
            callers.into_iter().map(|caller| caller.join().expect("no panic")).collect()
        });
        assert_eq!(got.iter().filter(|result| result.is_ok()).count(), 1);
        for error in got.iter().filter_map(|result| result.as_ref().err()) {
            assert!(left(error) < LIMIT / 2 + 8 * MIB, "{error}");
        }
        drop(got);
        engine.allocate_pinned(LIMIT / 2).expect("what was given back can be had again");
    });
}

#[test]
fn an_arena_gets_by_with_less_than_it_may_have() {
    inside(|limit| {
        let mut options = Options::default();
        options.slot_size = 64 * MIB;
        options.arena_size = Some(1024 * MIB);
        let engine = Engine::new(options).expect("limits that fit");
        let gpu = sim(&engine, "sim");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("data");
        let bytes = pattern(5, 30_000_001);
        fs::write(&path, &bytes).expect("a file");
        let file = engine.open(&path).expect("the file opens");
        file.evict().expect("an eviction");
        let (buffer, _) = file.read_to_end(Some(gpu)).run().expect("fewer slots do");
        let mut target = vec![0; bytes.len()];
        buffer.download(0, &mut target).expect("a download");
        assert!(target == bytes);
        let notes = engine.notes();
        let is_noted = |note: &String| {
            note.contains("of pinned memory could be allocated: ")
                && note.ends_with(&format!("or raise the limit in `{}`", limit.display()))
        };
        assert!(notes.iter().any(is_noted), "{notes:?}");
        // Where not even one fits, that is an error and nothing else.
        let mut options = Options::default();
        options.slot_size = 512 * MIB;
        options.segment_size = 8 * MIB;
        options.arena_size = Some(1024 * MIB);
        let other = Engine::new(options).expect("limits that fit");
        let wanted = sim(&other, "sim");
        let error = other.open(&path).and_then(|file| file.read_to_end(Some(wanted)).run());
        assert!(left(&error.expect_err("no room for a slot")) < LIMIT);
        drop(engine);
    });
}
