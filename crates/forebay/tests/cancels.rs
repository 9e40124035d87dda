//! Many outstanding transfers that are given up at once.

mod lab;

use std::time::{Duration, Instant};

use forebay::gpu::{DeviceId, GpuSelector};
use forebay::{Buffer, Engine, Error, Options, Transfer};
use lab::fuse::Fuse;
use lab::{or_skip, pattern, watchdog::Watchdog};

const PART: u64 = 4096;

/// Starts `count` reads of a file that hangs and cancels them: how long the cancels took.
fn cancel_all(count: u64, on_gpu: bool) -> Option<Duration> {
    let fuse = or_skip(Fuse::new(pattern(1, 1 << 20)))?;
    let engine = Engine::new(Options::default()).expect("limits that fit");
    let wanted: GpuSelector = "sim".parse().expect("a name");
    let gpu: DeviceId = engine.device(&wanted).expect("a simulated GPU").expect("a GPU").id();
    let file = engine.open(fuse.path()).expect("the file opens");
    fuse.set(|faults| faults.hang_from = Some(0));
    let memory = if on_gpu {
        engine.allocate(gpu, count * PART)
    } else {
        engine.allocate_pinned(count * PART)
    };
    let mut rest = memory.expect("memory");
    let start = |index: u64| -> Transfer {
        let whole = std::mem::replace(&mut rest, no_memory(&engine));
        let (part, left) = whole.split_at(PART);
        rest = left;
        let offset = index % 256 * PART;
        file.read(part).at(offset).start().expect("a start")
    };
    let outstanding: Vec<Transfer> = (0..count).map(start).collect();
    let begun = Instant::now();
    outstanding.iter().for_each(Transfer::cancel);
    let took = begun.elapsed();
    fuse.set(|faults| faults.hang_from = None);
    for transfer in outstanding {
        let end = transfer.wait().0;
        assert!(matches!(end, Ok(_) | Err(Error::Cancelled { .. })), "{end:?}");
    }
    Some(took)
}

fn no_memory(engine: &Engine) -> Buffer {
    engine.allocate_pinned(0).expect("no bytes cost nothing")
}

#[test]
#[ignore = "slow: a hundred thousand transfers, with and without a GPU"]
fn a_hundred_thousand_transfers_are_cancelled_in_seconds() {
    let _watchdog = Watchdog::start();
    for on_gpu in [false, true] {
        let Some(took) = cancel_all(100_000, on_gpu) else { return };
        lab::note(format!("on a GPU: {on_gpu}, {took:?}"));
        // Were any list searched for each of them, they would take minutes.
        assert!(took < Duration::from_secs(30), "{took:?}");
    }
}
