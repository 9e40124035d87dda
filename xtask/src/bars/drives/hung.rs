//! One of four drives hangs in the middle of a transfer to the simulated GPU. The other three keep
//! their speed, cancelling returns, and once the drive is released all memory is returned.

use std::time::{Duration, Instant};

use forebay::gpu::{DeviceId, GpuSelector};
use forebay::units::MIB;
use forebay::{Engine, Error, Options, Transfer};

use super::ground::{Drive, Ground, spend_bursts};
use super::reads::{self, Read, Round, mb_per_s};
use super::slow::Pace;
use super::together::RATE;
use crate::bar::{Bound, Check, Measured, Stop};
use crate::sample::{Series, median};

const OTHERS: usize = 3;
/// Bytes of a file: two seconds.
const LEN: u64 = 384 * MIB;
/// Time limit of operations that must not wait for a drive, and of those that must end.
const SOON: Duration = Duration::from_secs(1);
const AT_LAST: Duration = Duration::from_secs(20);

pub(super) fn run(ground: &Ground) -> Result<Measured, Stop> {
    let engine = Engine::new(Options::from_env()?)?;
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
    let pace = Pace { latency_us: 1000, rate: RATE };
    let hung = ground.slow_drive("hung", len, pace)?;
    let mut stuck = [read(&engine, gpu, 0, &hung, len)?];
    reads::evict(&reads)?;
    reads::evict(&stuck)?;
    reads::run(&mut stuck, |_| true)?;

    let mut rounds: [Vec<Round>; 2] = Default::default();
    let (mut cancelling_s, mut freed_s, mut kept) = (0.0_f64, 0.0_f64, 0);
    for _ in 0..ground.rounds(4) {
        for (beside, rounds) in rounds.iter_mut().enumerate() {
            spend_bursts(&drives)?;
            let hanging = if beside == 1 { Some(hang(&hung, &mut stuck[0])?) } else { None };
            let round = bounded(&mut reads, &hung);
            if let Some(transfer) = hanging {
                let start = Instant::now();
                transfer.cancel();
                cancelling_s = cancelling_s.max(start.elapsed().as_secs_f64());
                let still = transfer.wait_for(Duration::from_millis(50)).is_none();
                let released = Instant::now();
                server(&hung, false)?;
                let end = transfer.wait_for(AT_LAST);
                freed_s = freed_s.max(released.elapsed().as_secs_f64());
                if !matches!(end, Some(Err(Error::Cancelled { .. }))) {
                    return Err(Stop::Fail(format!("cancelled, but it ended with {end:?}")));
                }
                let (_, target) = transfer.wait();
                kept += usize::from(target.is_none());
                stuck[0].give_back(target);
                if !still {
                    return Err(Stop::Fail("the drive did not hang".into()));
                }
            }
            rounds.push(round?);
        }
    }
    // The engine has everything it needs for the drive that hung, too.
    reads::run(&mut stuck, |_| true)?;
    stuck.iter().chain(&reads).try_for_each(Read::check)?;
    Ok(judge(&drives, &rounds, &[cancelling_s, freed_s], kept))
}

fn read(
    engine: &Engine,
    gpu: DeviceId,
    index: usize,
    drive: &Drive,
    len: u64,
) -> Result<Read, Stop> {
    let file = engine.open(drive.file("file", len)?)?;
    Ok(Read::new(index, file, len, engine.allocate(gpu, len)?))
}

fn server(drive: &Drive, hangs: bool) -> Result<(), Stop> {
    drive.server.as_ref().map_or(Ok(()), |server| server.hang(hangs))
}

/// Begins a transfer and then makes its drive hang.
fn hang(drive: &Drive, read: &mut Read) -> Result<Transfer, Stop> {
    let transfer = read.start()?;
    let start = Instant::now();
    while transfer.progress().0 == 0 && start.elapsed() < SOON {
        std::thread::sleep(Duration::from_micros(200));
    }
    server(drive, true)?;
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
            server(hung, false)?;
            return Err(Stop::Fail("the others wait for the drive that hangs".into()));
        }
        reading.join().unwrap_or_else(|_| Err(Stop::Fail("a thread panicked".into())))
    })
}

fn judge(drives: &[Drive], rounds: &[Vec<Round>; 2], times: &[f64; 2], kept: usize) -> Measured {
    let mut measured = Measured::default();
    for (index, drive) in drives.iter().enumerate() {
        let [alone, beside] =
            [0, 1].map(|side: usize| median(rounds[side].iter().map(|round| round.rate(index))));
        let what = format!("{}: rate without the hung one", drive.name);
        measured.checks.push(Check::new(what, beside / alone, Bound::AtLeast(0.95)));
        let (alone, beside) = (mb_per_s(alone), mb_per_s(beside));
        measured.notes.push(format!("{}: {alone}, beside the hung drive {beside}", drive.name));
    }
    let [cancelling_s, freed_s] = *times;
    measured.checks.push(Check::new("seconds to cancel", cancelling_s, Bound::AtMost(1.0)));
    #[expect(clippy::cast_precision_loss, reason = "a handful")]
    let kept = kept as f64;
    measured.checks.push(Check::new("buffers that did not come back", kept, Bound::AtMost(0.0)));
    measured.notes.push(format!(
        "cancelling took {:.1} ms; all came back {:.1} ms after the drive went on",
        cancelling_s * 1e3,
        freed_s * 1e3
    ));
    if let Some(round) = rounds[1].last() {
        measured.notes.push(round.route());
    }
    for (name, rounds) in ["three drives", "three drives beside the hung one"].iter().zip(rounds) {
        let samples = rounds.iter().map(|round| round.all).collect();
        measured.series.push(Series { name: (*name).into(), samples });
    }
    measured
}
