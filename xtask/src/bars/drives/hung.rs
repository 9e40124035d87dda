//! One of four drives hangs in the middle of a transfer to the simulated GPU. The other three keep
//! their speed, cancelling returns, and once the drive is released all memory is returned.

use std::time::{Duration, Instant};

use forebay::gpu::{DeviceId, GpuSelector};
use forebay::units::MIB;
use forebay::{Engine, Error, Transfer};

use super::RATE;
use super::ground::{Drive, Ground, spend_bursts};
use super::reads::{self, Read, Round, mb_per_s};
use super::slow::Pace;
use crate::bar::{Measured, Stop};
use crate::lab::engine;
use crate::sample::{Sample, Series, float};

const OTHERS: usize = 3;
/// Bytes of a file: two seconds.
const LEN: u64 = 384 * MIB;
/// Fewest bytes of the file whose drive hangs: on a busy machine a transfer of 6 MiB may end first.
const STUCK_LEN_MIN: u64 = 64 * MIB;
/// Time limit of operations that must not wait for a drive, and of those that must end.
const SOON: Duration = Duration::from_secs(1);
const AT_LAST: Duration = Duration::from_secs(20);

pub(super) fn run(ground: &Ground) -> Result<Measured, Stop> {
    let engine = engine()?;
    let gpu = engine.device(&"sim".parse::<GpuSelector>()?)?;
    let gpu = gpu.ok_or_else(|| Stop::Fail("no simulated GPU".into()))?.id();
    let len = ground.len(LEN);
    let (mut drives, mut reads) = (Vec::new(), Vec::new());
    for index in 0..OTHERS {
        let mut drive = ground.drive(&format!("drive-{index}"), len)?;
        reads.push(read(&engine, gpu, index, &drive, len)?);
        ground.cap(&mut drive, RATE)?;
        drives.push(drive);
    }
    let stuck_len = len.max(STUCK_LEN_MIN);
    let hung = ground.slow_drive("hung", stuck_len, Pace { latency_us: 1000, rate: RATE })?;
    let mut stuck = [read(&engine, gpu, 0, &hung, stuck_len)?];
    reads::evict(&reads)?;
    reads::evict(&stuck)?;
    reads::run(&mut stuck, |_| true)?;

    let mut rounds: [Vec<Round>; 2] = Default::default();
    let (mut cancelling_s, mut freed_s, mut kept) = (0.0_f64, 0.0_f64, 0);
    for _ in 0..ground.rounds(4) {
        spend_bursts(&drives)?;
        rounds[0].push(bounded(&mut reads, &hung)?);
        spend_bursts(&drives)?;
        let transfer = hang(&hung, &mut stuck[0])?;
        let round = bounded(&mut reads, &hung);
        let start = Instant::now();
        transfer.cancel();
        cancelling_s = cancelling_s.max(start.elapsed().as_secs_f64());
        let hangs = transfer.wait_for(Duration::from_millis(50)).is_none();
        let released = Instant::now();
        hung.hang(false)?;
        let end = transfer.wait_for(AT_LAST);
        freed_s = freed_s.max(released.elapsed().as_secs_f64());
        if !matches!(end, Some(Err(Error::Cancelled { .. }))) {
            return Err(Stop::Fail(format!("cancelled, but it ended with {end:?}")));
        }
        let (_, target) = transfer.wait();
        kept += u64::from(target.is_none());
        stuck[0].give_back(target);
        if !hangs {
            return Err(Stop::Fail("the drive did not hang".into()));
        }
        rounds[1].push(round?);
    }
    // The engine has everything it needs for the drive that hung, too.
    reads::run(&mut stuck, |_| true)?;
    stuck.iter().chain(&reads).try_for_each(Read::check)?;
    let judged = judge(&drives, &rounds).at_most("seconds to cancel", cancelling_s, 1.0).at_most(
        "buffers that did not come back",
        float(kept),
        0.0,
    );
    let (cancelling, freed) = (cancelling_s * 1e3, freed_s * 1e3);
    Ok(judged.note(format!(
        "cancelling took {cancelling:.1} ms; all came back {freed:.1} ms after the drive continued"
    )))
}

fn read(
    engine: &Engine,
    gpu: DeviceId,
    index: usize,
    drive: &Drive,
    len: u64,
) -> Result<Read, Stop> {
    let file = engine.open(drive.file("file", len)?)?;
    Ok(Read::new(index, file, engine.allocate(gpu, len)?))
}

/// Begins a transfer and then makes its drive hang.
fn hang(drive: &Drive, read: &mut Read) -> Result<Transfer, Stop> {
    let transfer = read.start()?;
    let start = Instant::now();
    while transfer.progress().0 == 0 && start.elapsed() < SOON {
        std::thread::sleep(Duration::from_micros(200));
    }
    drive.hang(true)?;
    // The hung drive keeps what it holds by now, and the engine has sent it all requests that it
    // will.
    std::thread::sleep(Duration::from_millis(20));
    Ok(transfer)
}

/// Reads from the other drives; if they wait for the hung drive as well, that is the result.
fn bounded(reads: &mut [Read], hung: &Drive) -> Result<Round, Stop> {
    std::thread::scope(|scope| {
        let (sender, ended) = std::sync::mpsc::channel();
        let reading = scope.spawn(move || {
            let round = reads::run(reads, |_| true);
            let _ = sender.send(());
            round
        });
        if ended.recv_timeout(AT_LAST).is_err() {
            // Otherwise its resources would never be released.
            hung.hang(false)?;
            return Err(Stop::Fail("the others wait for the drive that hangs".into()));
        }
        reading.join().unwrap_or_else(|_| Err(Stop::Fail("a thread panicked".into())))
    })
}

fn judge(drives: &[Drive], rounds: &[Vec<Round>; 2]) -> Measured {
    let series = |name: &str, side: usize, of: &dyn Fn(&Round) -> Sample| {
        Series::new(name, rounds[side].iter().map(of).collect())
    };
    let mut measured = Measured::of(vec![
        series("three drives", 0, &|round| round.all),
        series("three drives, one more hangs", 1, &|round| round.all),
    ]);
    for (index, Drive { name, .. }) in drives.iter().enumerate() {
        let [alone, together] =
            [0, 1].map(|side| series(name, side, &|round| round.drives[index]).rate());
        let (a, b) = (mb_per_s(alone), mb_per_s(together));
        measured = measured
            .at_least(format!("{name}: rate without the hung one"), together / alone, 0.95)
            .note(format!("{name}: {a}, with the hung drive {b}"));
    }
    measured.notes.extend(rounds[1].last().map(Round::route));
    measured
}
