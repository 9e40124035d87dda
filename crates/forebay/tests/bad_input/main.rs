//! Bad input and bad luck: every failure names operation, path, offset, length, drive and cause,
//! nothing is lost, nothing hangs.

#[path = "../lab/mod.rs"]
mod lab;

mod changing;
mod control_groups;
mod drives;
mod files;
mod limits;
mod losses;
mod lost_gpus;
mod requests;
mod rings;
mod short_requests;
mod taken_back;

use std::error::Error as _;
use std::fmt::Debug;
use std::path::Path;

use forebay::gpu::{DeviceId, GpuSelector};
use forebay::{Engine, Error, Options, Outcome};

fn engine() -> Engine {
    Engine::new(Options::default()).expect("the defaults fit")
}

/// An engine whose transfers are cut in many pieces.
fn small_engine(change: impl FnOnce(&mut Options)) -> Engine {
    let mut options = Options::default();
    options.slot_size = 1 << 20;
    options.segment_size = 128 << 10;
    change(&mut options);
    Engine::new(options).expect("limits that fit")
}

/// A simulated GPU of the engine.
fn sim(engine: &Engine, settings: &str) -> DeviceId {
    try_sim(engine, settings).expect("a simulated GPU")
}

fn try_sim(engine: &Engine, settings: &str) -> Result<DeviceId, Error> {
    let wanted: GpuSelector = settings.parse()?;
    Ok(engine.device(&wanted)?.expect("a GPU").id())
}

/// What an error says, what caused it, and the remedy: `-` for what there is not.
#[track_caller]
fn assert_says<T: Debug>(result: Result<T, Error>, message: &str, cause: &str, hint: &str) {
    let error = result.expect_err(message);
    let source = error.source().map_or("-".to_owned(), ToString::to_string);
    let printed = error.hint().unwrap_or_else(|| "-".to_owned());
    assert_eq!(
        (error.to_string().as_str(), source.as_str(), printed.as_str()),
        (message, cause, hint)
    );
    // An error states its own layer only.
    assert!(error.source().is_none_or(|source| !message.contains(&source.to_string())));
}

/// The kernel's name for the drive below a path, as an error puts it behind the range.
fn on_drive(engine: &Engine, path: &Path) -> String {
    let file = engine.open(path).expect("the file opens");
    file.drive().map_or(String::new(), |drive| format!(" on {drive}"))
}

/// Bytes by route add up to what arrived.
#[track_caller]
fn assert_adds_up(outcome: &Outcome) {
    let shares: u64 = outcome.routes.iter().map(|share| share.bytes).sum();
    assert_eq!(shares, outcome.bytes, "{outcome:?}");
}
