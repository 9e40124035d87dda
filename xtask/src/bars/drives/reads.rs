//! Whole files on several drives, read by one thread that asks for all and then waits for all.

use std::path::PathBuf;
use std::time::Instant;

use forebay::units::format_size;
use forebay::{Buffer, Engine, File, RequestOptions, Residency, RouteShare, Transfer};

use crate::bar::Stop;
use crate::lab::verify;
use crate::sample::{Sample, float, timed};

/// One file, and its target.
#[derive(Debug)]
pub(super) struct Read {
    /// The number of its drive.
    pub(super) drive: usize,
    pub(super) file: File,
    len: u64,
    target: Option<Buffer>,
}

/// The time of one round of reads.
#[derive(Debug)]
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
        let len = file.len()?;
        let target = engine.allocate_pinned(len)?;
        Ok(Self::new(drive, file, len, target))
    }

    pub(super) fn new(drive: usize, file: File, len: u64, target: Buffer) -> Self {
        Self { drive, file, len, target: Some(target) }
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

    /// Whether nothing of it is in the page cache.
    fn is_cold(&self) -> Result<bool, Stop> {
        let residency = self.file.residency(0, self.len)?;
        Ok(matches!(residency, Residency::Known { resident: 0, .. }))
    }
}

/// Drops all files from the page cache, and fails if one stays.
pub(super) fn evict(reads: &[Read]) -> Result<(), Stop> {
    for read in reads {
        read.file.evict()?;
        if !read.is_cold()? {
            let path = read.file.path().display();
            return Err(Stop::Fail(format!("the page cache keeps part of `{path}`")));
        }
    }
    Ok(())
}

/// Reads the files on drives of `wanted`, all at once.
pub(super) fn run(reads: &mut [Read], wanted: impl Fn(usize) -> bool) -> Result<Round, Stop> {
    let mut round = None;
    let whole = timed(0, || {
        round = Some(run_once(reads, wanted)?);
        Ok(())
    })?;
    let mut round = round.ok_or_else(|| Stop::Fail("no round".into()))?;
    round.all.cpu_s = whole.cpu_s;
    Ok(round)
}

fn run_once(reads: &mut [Read], wanted: impl Fn(usize) -> bool) -> Result<Round, Stop> {
    let mut chosen: Vec<&mut Read> = reads.iter_mut().filter(|read| wanted(read.drive)).collect();
    let drives = chosen.iter().map(|read| read.drive + 1).max().unwrap_or_default();
    let nothing = Sample { seconds: 0.0, bytes: 0, cpu_s: 0.0 };
    let mut round = Round { all: nothing, drives: vec![nothing; drives], routes: Vec::new() };
    let start = Instant::now();
    let mut under_way = Vec::with_capacity(chosen.len());
    for read in &mut chosen {
        let asked_s = start.elapsed().as_secs_f64();
        under_way.push((asked_s, read.start()?));
    }
    for (read, (asked_s, transfer)) in chosen.iter_mut().zip(under_way) {
        let (outcome, target) = transfer.wait();
        read.give_back(target);
        let outcome = outcome?;
        if outcome.bytes != read.len {
            return Err(Stop::Fail(format!("{} bytes of {}", outcome.bytes, read.len)));
        }
        let ended_s = asked_s + outcome.elapsed.as_secs_f64();
        for sample in [&mut round.all, &mut round.drives[read.drive]] {
            sample.bytes += outcome.bytes;
            sample.seconds = sample.seconds.max(ended_s);
        }
        add(&mut round.routes, &outcome.routes);
    }
    Ok(round)
}

fn add(sum: &mut Vec<RouteShare>, shares: &[RouteShare]) {
    for share in shares {
        let same =
            |known: &&mut RouteShare| known.route == share.route && known.reason == share.reason;
        match sum.iter_mut().find(same) {
            Some(known) => known.bytes += share.bytes,
            None => sum.push(*share),
        }
    }
}

impl Round {
    /// Bytes per second of one drive.
    pub(super) fn rate(&self, drive: usize) -> f64 {
        float(self.drives[drive].bytes) / self.drives[drive].seconds
    }

    /// Which routes the bytes took, for the notes of a bar.
    pub(super) fn route(&self) -> String {
        let share = |share: &RouteShare| {
            format!("{} {} ({})", format_size(share.bytes), share.route, share.reason)
        };
        let shares: Vec<String> = self.routes.iter().map(share).collect();
        format!("route: {}", shares.join(", "))
    }
}

/// A rate for a note.
pub(super) fn mb_per_s(rate: f64) -> String {
    format!("{:.1} MB/s", rate / 1e6)
}
