//! Many requests of one size in flight at once, into reused memory: like `fio` with a depth.

use forebay::{Buffer, Completions, Engine, File, RequestOptions, Transfer};

use crate::bar::Stop;
use crate::data;
use crate::sample::{Sample, timed};

/// Reads one file in requests of one size.
#[derive(Debug)]
pub(crate) struct Flight<'a> {
    file: &'a File,
    piece: u64,
    /// Memory for each request in flight, with the offset of the bytes in it.
    memory: Vec<(Option<u64>, Option<Buffer>)>,
    completions: Completions,
    /// The seconds of each read of the last run.
    latencies: Vec<f64>,
}

impl<'a> Flight<'a> {
    /// Keeps `count` requests of `piece` bytes in flight.
    pub(crate) fn new(
        engine: &Engine,
        file: &'a File,
        piece: u64,
        count: u64,
    ) -> Result<Self, Stop> {
        let mut memory = Vec::new();
        let mut rest = engine.allocate_pinned(count * piece)?;
        while rest.len() > piece {
            let (buffer, more) = rest.split_at(piece);
            memory.push((None, Some(buffer)));
            rest = more;
        }
        memory.push((None, Some(rest)));
        Ok(Self { file, piece, memory, completions: Completions::new(), latencies: Vec::new() })
    }

    /// Times `count` reads, each at the offset that `place` gives for its number, and compares the
    /// last ones.
    pub(crate) fn timed(&mut self, count: u64, place: impl Fn(u64) -> u64) -> Result<Sample, Stop> {
        let sample = timed(count * self.piece, || self.read((0..count).map(place)))?;
        for (offset, buffer) in &self.memory {
            let (Some(offset), Some(buffer)) = (*offset, buffer) else { continue };
            data::check(buffer.as_slice().unwrap_or_default(), offset)?;
        }
        Ok(sample)
    }

    /// The 99th percentile of the last run's latencies, in seconds.
    pub(crate) fn p99(&mut self) -> f64 {
        self.latencies.sort_by(f64::total_cmp);
        self.latencies.get(self.latencies.len() * 99 / 100).copied().unwrap_or(f64::NAN)
    }

    fn read(&mut self, mut offsets: impl Iterator<Item = u64>) -> Result<(), Stop> {
        let kept = || Stop::Fail("a transfer kept its buffer".into());
        self.latencies.clear();
        if let [(at, memory)] = &mut self.memory[..] {
            for offset in offsets {
                *at = Some(offset);
                let outcome = self.file.read_exact(offset, memory.as_mut().ok_or_else(kept)?)?;
                self.latencies.push(outcome.elapsed.as_secs_f64());
            }
            return Ok(());
        }
        let mut running: Vec<Option<Transfer>> = self.memory.iter().map(|_| None).collect();
        let mut free: Vec<usize> = (0..running.len()).collect();
        loop {
            while let Some(&place) = free.last() {
                let Some(offset) = offsets.next() else { break };
                free.pop();
                let (at, memory) = &mut self.memory[place];
                let (memory, options) =
                    (memory.take().ok_or_else(kept)?, RequestOptions::exactly());
                let transfer = self.file.start_read(offset, memory, &options)?;
                transfer.report_to(&self.completions, place as u64);
                (*at, running[place]) = (Some(offset), Some(transfer));
            }
            if free.len() == running.len() {
                return Ok(());
            }
            let place = self.completions.wait(None).and_then(|tag| usize::try_from(tag).ok());
            let place = place.ok_or_else(|| Stop::Fail("no transfer ended".into()))?;
            if let Some((outcome, memory)) = running[place].take().map(Transfer::wait) {
                self.latencies.push(outcome?.elapsed.as_secs_f64());
                self.memory[place].1 = memory;
            }
            free.push(place);
        }
    }
}
