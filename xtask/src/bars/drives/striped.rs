//! One file that btrfs stripes over four capped drives.
//!
//! The reference is the sum of the members, each read by `fio` below the file system: the upper
//! bound of four drives. `fio` on the file itself, at its best depth, shows how much of it the file
//! system delivers.

use forebay::units::MIB;
use forebay::{Engine, Options};

use super::ground::{Ground, spend_burst};
use super::reads::{self, Read, mb_per_s};
use super::together::RATE;
use crate::bar::{Bound, Check, Measured, Stop};
use crate::data;
use crate::fio::Fio;
use crate::sample::{fastest, interleave};

const MEMBERS: usize = 4;

/// Bytes of the file: two seconds.
const LEN: u64 = 1536 * MIB;

/// Depths among which `fio` has its best, past the file system one that a capped drive fills.
const DEPTHS: [u32; 4] = [4, 8, 16, 32];
const MEMBER_DEPTH: u32 = 4;

pub(super) fn run(ground: &Ground) -> Result<Measured, Stop> {
    let fio = Fio::find()?;
    let len = ground.len(LEN);
    let (folder, mut drives) = ground.stripes(MEMBERS, len)?;
    let path = folder.join("file");
    data::write(&path, len).map_err(Stop::Fail)?;
    for drive in &mut drives {
        ground.cap(drive, RATE)?;
    }
    let engine = Engine::new(Options::from_env()?)?;
    let mut reads = vec![Read::to_host(&engine, 0, path.clone())?];
    reads::evict(&reads)?;
    let mut sides = vec!["forebay".to_owned()];
    sides.extend(DEPTHS.iter().map(|depth| format!("fio on the file, depth {depth}")));
    sides.push("fio on one member".into());
    let mut route = String::new();
    let series = interleave(ground.rounds(3), &sides, |side| {
        // The kernel reads through the page cache if memory was not touched before: `fio`'s.
        reads::evict(&reads)?;
        spend_burst(&folder, MEMBERS as u64 * RATE)?;
        if side == 0 {
            let round = reads::run(&mut reads, |_| true)?;
            route = round.route();
            return Ok(round.all);
        }
        match DEPTHS.get(side - 1) {
            Some(depth) => fio.sequential(&path, len, *depth),
            None => fio.sequential(&drives[0].device, len / MEMBERS as u64, MEMBER_DEPTH),
        }
    })?;
    reads[0].check()?;
    let last = series.len() - 1;
    let four = 4.0 * series[last].rate();
    let best = fastest(&series[1..last]).ok_or_else(|| Stop::Fail("no depth".into()))?;
    let (own, other) = (series[0].rate(), best.rate());
    let notes = vec![
        route,
        format!("forebay {}, {} {}", mb_per_s(own), best.name, mb_per_s(other)),
        format!("four members {}; ratio to `fio` {:.3}", mb_per_s(four), own / other),
    ];
    let check = Check::new("rate of four members", own / four, Bound::AtLeast(0.97));
    Ok(Measured { checks: vec![check], notes, series })
}
