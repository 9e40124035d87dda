//! Small urgent reads during a large transfer on the same drive.

use std::time::Instant;

use forebay::units::{KIB, MIB};
use forebay::{Engine, File, Options, RequestOptions};

use super::alone;
use super::ground::Ground;
use super::reads::{self, Read, mb_per_s};
use crate::bar::{Bound, Check, Measured, Stop};
use crate::data;
use crate::sample::{Sample, Series, float};

/// Bytes of a small read, and of its file.
const SMALL_LEN: u64 = 4 * KIB;
const FILE_LEN: u64 = 64 * MIB;
/// Small reads on the idle drive.
const COUNT: u64 = 1000;

pub(super) fn run(ground: &Ground) -> Result<Measured, Stop> {
    let len = ground.len(alone::LEN);
    let drive = alone::drive(ground, len + FILE_LEN)?;
    let engine = Engine::new(Options::from_env()?)?;
    let small = engine.open(drive.file("small", ground.len(FILE_LEN))?)?;
    small.evict()?;
    let mut reads = [Read::to_host(&engine, 0, drive.file("large", len)?)?];
    reads::evict(&reads)?;
    let mut small = Small { file: small, number: 0, target: vec![0; 4096] };

    let count = COUNT / if ground.rounds(2) == 1 { 16 } else { 1 };
    let mut idle = Vec::new();
    for _ in 0..count {
        idle.push(small.read()?);
    }
    let alone = reads::run(&mut reads, |_| true)?;
    for _ in 0..count {
        idle.push(small.read()?);
    }
    let mut beside = Vec::new();
    let transfer = reads[0].start()?;
    while !transfer.is_done() {
        beside.push(small.read()?);
    }
    let (outcome, target) = transfer.wait();
    reads[0].give_back(target);
    let outcome = outcome?;
    reads[0].check()?;

    let seconds = outcome.elapsed.as_secs_f64();
    let both = Sample { seconds, bytes: outcome.bytes, cpu_s: 0.0 };
    let series = vec![
        Series { name: "transfer alone".into(), samples: vec![alone.all] },
        Series { name: "transfer beside small reads".into(), samples: vec![both] },
        Series { name: "small reads, idle drive".into(), samples: idle },
        Series { name: "small reads beside the transfer".into(), samples: beside },
    ];
    let late = [2, 3].map(|side: usize| percentile(&series[side], 0.99));
    let middle = [2, 3].map(|side: usize| percentile(&series[side], 0.5));
    let kept = series[1].rate() / series[0].rate();
    let ms = |seconds: f64| format!("{:.2} ms", seconds * 1e3);
    Ok(Measured {
        checks: vec![
            Check::new("p99 of the idle drive", late[1] / late[0], Bound::AtMost(6.0)),
            Check::new("rate of the transfer alone", kept, Bound::AtLeast(0.9)),
        ],
        notes: vec![
            alone.route(),
            format!("idle: median {}, p99 {}", ms(middle[0]), ms(late[0])),
            format!("beside: median {}, p99 {}", ms(middle[1]), ms(late[1])),
            format!("{} small reads beside the transfer", series[3].samples.len()),
            format!(
                "transfer alone {}, beside {}",
                mb_per_s(series[0].rate()),
                mb_per_s(series[1].rate())
            ),
        ],
        series,
    })
}

/// Makes one small read after the other, each at a different offset.
struct Small {
    file: File,
    number: u64,
    target: Vec<u8>,
}

impl Small {
    fn read(&mut self) -> Result<Sample, Stop> {
        self.number += 1;
        let pieces = self.file.len()? / SMALL_LEN;
        let offset = data::number(self.number, pieces) * SMALL_LEN;
        let options = RequestOptions::default().urgent();
        let start = Instant::now();
        self.file.read_with(offset, &mut self.target[..], &options)?;
        let seconds = start.elapsed().as_secs_f64();
        data::check(&self.target, offset)
            .map_err(|at| Stop::Fail(format!("wrong bytes in a small read at {at}")))?;
        Ok(Sample { seconds, bytes: SMALL_LEN, cpu_s: 0.0 })
    }
}

/// The percentile of the samples at a share.
fn percentile(series: &Series, share: f64) -> f64 {
    let mut sorted: Vec<f64> = series.samples.iter().map(|sample| sample.seconds).collect();
    sorted.sort_by(f64::total_cmp);
    let behind = |index: usize| float(index as u64 + 1) >= share * float(sorted.len() as u64);
    (0..sorted.len()).find(|index| behind(*index)).map_or(f64::NAN, |index| sorted[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let sample = |seconds| Sample { seconds, bytes: 1, cpu_s: 0.0 };
        let samples = (1..=200).rev().map(|n| sample(f64::from(n))).collect();
        let series = Series { name: "a".into(), samples };
        assert!((percentile(&series, 0.99) - 198.0).abs() < 1e-9);
        assert!((percentile(&series, 0.5) - 100.0).abs() < 1e-9);
        assert!((percentile(&series, 1.0) - 200.0).abs() < 1e-9);
    }
}
