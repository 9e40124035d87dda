//! Whole files on several drives, read by one thread that starts all reads and then waits for all.

use std::path::PathBuf;
use std::time::Instant;

use forebay::{Buffer, Engine, File, RequestOptions, Residency, RouteShare, Transfer};

use crate::bar::Stop;
use crate::lab::{routes, verify};
use crate::sample::{Sample, timed};

/// One file, and its target.
#[derive(Debug)]
pub(super) struct Read {
    /// The number of its drive.
    drive: usize,
    file: File,
    len: u64,
    target: Option<Buffer>,
}

/// The time of one round of reads.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// All of it: from the first request to the end of the last transfer.
    pub(super) all: Sample,
    /// By drive, until the end of its last transfer.
    pub(super) drives: Vec<Sample>,
    routes: Vec<RouteShare>,
}

impl Read {
    /// A file to be read into memory of the host.
    pub(super) fn to_host(engine: &Engine, drive: usize, path: PathBuf) -> Result<Self, Stop> {
        let file = engine.open(path)?;
        let target = engine.allocate_pinned(file.len()?)?;
        Ok(Self::new(drive, file, target))
    }

    pub(super) fn new(drive: usize, file: File, target: Buffer) -> Self {
        Self { drive, file, len: target.len(), target: Some(target) }
    }

    /// Starts it; the transfer owns its target until it is given back.
    pub(super) fn start(&mut self) -> Result<Transfer, Stop> {
        let target = self.target.take();
        let target = target.ok_or_else(|| Stop::Fail("a transfer kept its buffer".into()))?;
        Ok(self.file.start_read(0, target, &RequestOptions::default())?)
    }

    /// Takes back the target of a transfer.
    pub(super) fn give_back(&mut self, target: Option<Buffer>) {
        self.target = target;
    }

    /// Compares the last read with the test data.
    pub(super) fn check(&self) -> Result<(), Stop> {
        let target = self.target.as_ref();
        verify(target.ok_or_else(|| Stop::Fail("a buffer is missing".into()))?, self.len)
    }
}

/// Drops all files from the page cache, and fails if one stays.
pub(super) fn evict(reads: &[Read]) -> Result<(), Stop> {
    for Read { file, len, .. } in reads {
        file.evict()?;
        if !matches!(file.residency(0, *len)?, Residency::Known { resident: 0, .. }) {
            let path = file.path().display();
            return Err(Stop::Fail(format!("the page cache keeps part of `{path}`")));
        }
    }
    Ok(())
}

/// Reads the files on drives of `wanted`, all at once.
pub(super) fn run(reads: &mut [Read], wanted: impl Fn(usize) -> bool) -> Result<Round, Stop> {
    let mut round = Round::default();
    let whole = timed(0, || {
        round = run_once(reads, wanted)?;
        Ok(())
    })?;
    round.all.cpu_s = whole.cpu_s;
    Ok(round)
}

fn run_once(reads: &mut [Read], wanted: impl Fn(usize) -> bool) -> Result<Round, Stop> {
    let mut chosen: Vec<&mut Read> = reads.iter_mut().filter(|read| wanted(read.drive)).collect();
    let drives = chosen.iter().map(|read| read.drive + 1).max().unwrap_or_default();
    let mut round = Round { drives: vec![Sample::default(); drives], ..Round::default() };
    let start = Instant::now();
    let mut pending = Vec::with_capacity(chosen.len());
    for read in &mut chosen {
        pending.push((start.elapsed().as_secs_f64(), read.start()?));
    }
    for (read, (started_s, transfer)) in chosen.iter_mut().zip(pending) {
        let (outcome, target) = transfer.wait();
        read.give_back(target);
        let outcome = outcome?;
        if outcome.bytes != read.len {
            return Err(Stop::Fail(format!("{} bytes of {}", outcome.bytes, read.len)));
        }
        let ended_s = started_s + outcome.elapsed.as_secs_f64();
        for sample in [&mut round.all, &mut round.drives[read.drive]] {
            sample.bytes += outcome.bytes;
            sample.seconds = sample.seconds.max(ended_s);
        }
        for share in &outcome.routes {
            let same = |known: &&mut RouteShare| {
                known.route == share.route && known.reason == share.reason
            };
            match round.routes.iter_mut().find(same) {
                Some(known) => known.bytes += share.bytes,
                None => round.routes.push(*share),
            }
        }
    }
    Ok(round)
}

impl Round {
    /// Which routes the bytes took, for the notes of a bar.
    pub(super) fn route(&self) -> String {
        routes(&self.routes)
    }
}

/// A rate for a note.
pub(super) fn mb_per_s(rate: f64) -> String {
    format!("{:.1} MB/s", rate / 1e6)
}
