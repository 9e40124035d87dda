//! One drive whose speed grows with the requests it has, from a cold start: all that the engine
//! spends on finding the depth counts.

use forebay::units::{GIB, MIB, format_size};
use forebay::{Engine, Options};

use super::ground::{Drive, Ground};
use super::reads::{self, Read, mb_per_s};
use super::slow::Pace;
use super::together::RATE;
use crate::bar::{Bound, Check, Measured, Stop};
use crate::fio::Fio;
use crate::sample::{Series, fastest};

/// Bytes of the transfer.
pub(super) const LEN: u64 = 4 * GIB;

/// Bytes that `fio` reads at each depth: two seconds at the most that the drive gives.
const DEPTH_LEN: u64 = 384 * MIB;

const DEPTHS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// A drive that needs more than one request in flight for its full rate.
pub(super) fn drive(ground: &Ground, len: u64) -> Result<Drive, Stop> {
    ground.slow_drive("slow", len, Pace { latency_us: 1000, rate: RATE })
}

pub(super) fn depth(ground: &Ground) -> Result<Measured, Stop> {
    let fio = Fio::find()?;
    let (len, depth_len) = (ground.len(LEN), ground.len(DEPTH_LEN));
    let drive = drive(ground, len)?;
    let path = drive.file("file", len)?;
    let engine = Engine::new(Options::from_env()?)?;
    let mut reads = [Read::to_host(&engine, 0, path.clone())?];
    reads::evict(&reads)?;
    let mut series = Vec::new();
    for depth in DEPTHS {
        let samples = vec![fio.sequential(&path, depth_len, depth)?];
        series.push(Series { name: format!("fio, depth {depth}"), samples });
    }
    let curve: Vec<String> =
        series.iter().map(|s| format!("{} {}", s.name, mb_per_s(s.rate()))).collect();
    let best = fastest(&series).map(|s| s.name.clone()).unwrap_or_default();
    let deep: u32 = best.rsplit(' ').next().and_then(|text| text.parse().ok()).unwrap_or(8);

    // The first transfer of a new engine, between two runs of the reference.
    let mut other = vec![fio.sequential(&path, depth_len, deep)?];
    let round = reads::run(&mut reads, |_| true)?;
    other.push(fio.sequential(&path, depth_len, deep)?);
    reads[0].check()?;
    let own = Series { name: "forebay, cold start".into(), samples: vec![round.all] };
    let other = Series { name: format!("fio, depth {deep}, beside it"), samples: other };
    let ratio = own.rate() / other.rate();
    let rates = format!("forebay {}, {best} {}", mb_per_s(own.rate()), mb_per_s(other.rate()));
    series.extend([own, other]);
    Ok(Measured {
        checks: vec![Check::new("rate at the best depth", ratio, Bound::AtLeast(0.95))],
        notes: vec![format!("{}, {}", format_size(len), round.route()), rates, curve.join(", ")],
        series,
    })
}
