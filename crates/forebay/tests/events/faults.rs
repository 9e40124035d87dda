//! The events where something is missing or hangs.

use forebay::{Engine, Options};
use tracing::Level;

use crate::lab::{self, fuse::Fuse, or_skip, pattern, watchdog::Watchdog};
use crate::listener::{Heard, listener};
use crate::{LEN, file_of, gpu, messages};

/// The number of `io_uring_setup` on every architecture.
const SETUP: i64 = 425;

#[test]
fn a_file_system_that_refuses_the_first_request_is_reported_once() {
    let _watchdog = Watchdog::start();
    let listener = listener();
    let Some(fuse) = or_skip(Fuse::new(pattern(2, LEN))) else { return };
    fuse.set(|faults| faults.no_direct_reads = true);
    let path = fuse.path();
    let engine = Engine::new(Options::default()).expect("the defaults fit");
    listener.calling(&engine, || {
        let gpu = gpu(&engine, 60, "sim");
        let file = engine.open(&path).expect("the file opens");
        for _ in 0..2 {
            file.read_to_end(Some(gpu)).run().expect("all bytes, through the page cache");
        }
    });
    let reported = listener.about("path", path.to_str().expect("plain letters"));
    let of_file: Vec<Heard> =
        reported.into_iter().filter(|event| event.target == "forebay::file").collect();
    let expected = ["file opened", "O_DIRECT opened", "no O_DIRECT, through the page cache"];
    assert_eq!(messages(&of_file), expected);
    assert_eq!(of_file[2].level, Level::INFO);
    let reason = of_file[2].get("reason").expect("a reason");
    assert!(reason.starts_with("a request with O_DIRECT failed: "), "{reason}");
}

#[test]
fn missing_features_are_reported_once() {
    let _watchdog = Watchdog::start();
    let listener = listener();
    let (_folder, path) = file_of(LEN);
    let result = lab::without_call(SETUP, libc::EPERM, || {
        let engine = Engine::new(Options::default()).expect("the defaults fit");
        listener.calling(&engine, || {
            for _ in 0..2 {
                let file = engine.open(&path).expect("the file opens");
                file.evict().expect("its pages are clean");
                file.read_to_end(None).run().expect("all bytes");
            }
            engine.notes()
        })
    });
    let Some(notes) = or_skip(result) else { return };
    let reported = listener.with("the engine does without something");
    let refused = |event: &&Heard| {
        event.get("note").is_some_and(|note| note.starts_with("io_uring is refused here"))
    };
    // A folder without O_DIRECT needs no ring.
    let noted = notes.iter().filter(|note| note.starts_with("io_uring")).count();
    assert_eq!(reported.iter().filter(refused).count(), noted, "{reported:?}");
    assert!(reported.iter().all(|event| event.level == Level::INFO));
}
