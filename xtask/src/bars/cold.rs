//! Cold files to host memory, compared with `fio`, which only reads them; and by the `pread` ring
//! in place of io_uring. And files that are written down to the drive.

use std::path::Path;

use forebay::units::{GIB, MIB, format_size};
use forebay::{Engine, File, OpenOptions, RequestOptions, RingChoice, Route, SyncMode};

use crate::bar::{Measured, Stop};
use crate::fio::Fio;
use crate::flight::Flight;
use crate::lab::{Lab, engine, evict, options, read_once, routes};
use crate::sample::{fastest, interleave, timed};

/// 1 GiB with O_DIRECT to host memory, compared with `fio` at its best depth.
pub(crate) fn host(lab: &Lab) -> Result<Measured, Stop> {
    let fio = Fio::find()?;
    let len = lab.len(GIB);
    let path = lab.file(len)?;
    let engine = engine()?;
    let file = engine.open(&path)?;
    // On huge pages where possible, like `fio`'s memory; ordinary pages are slower for both.
    let mut target = engine.allocate_pinned(len)?;
    let target = target.as_mut_slice().unwrap_or_default();
    evict(&file)?;
    let note = read_once(&file, target)?;
    let depth = best_depth(lab, &fio, &path, len, &file)?;
    // Into as much memory as `fio` uses: memory that is reused stays in a processor cache.
    let mut flight = Flight::new(&engine, &file, MIB, depth.into())?;
    let whole = "forebay, one read of the whole file".to_owned();
    let sides = ["forebay".to_owned(), whole, format!("fio, depth {depth}")];
    let series = interleave(lab.rounds(9), &sides, |side| {
        evict(&file)?;
        match side {
            0 => flight.timed(len / MIB, |index| index * MIB),
            1 => timed(len, || Ok(file.read_exact(0, &mut target[..]).map(drop)?)),
            _ => fio.sequential(&path, len, depth),
        }
    })?;
    let measured = Measured::of(series);
    let [pieces, whole] = [0, 1].map(|side| measured.ratio(side, 2));
    Ok(measured
        .at_least("rate of `fio`", pieces, 0.97)
        .note(note)
        .note(format!("one read of the whole file, into as much memory: {whole:.3}"))
        .note(format!("`fio` on {}", fio.memory())))
}

/// To host memory with io_uring refused, compared with io_uring.
pub(crate) fn rings(lab: &Lab) -> Result<Measured, Stop> {
    let len = lab.len(GIB);
    let path = lab.file(len)?;
    let mut target = engine()?.allocate_pinned(len)?;
    let target = target.as_mut_slice().unwrap_or_default();
    let (mut notes, mut files) = (Vec::new(), Vec::new());
    for ring in [RingChoice::Pread, RingChoice::Uring] {
        let mut options = options()?;
        options.ring = ring;
        let file = Engine::new(options)
            .and_then(|engine| engine.open(&path))
            .map_err(|error| Stop::Skip(format!("no ring `{ring:?}`: {error}")))?;
        evict(&file)?;
        notes.push(format!("{ring:?}: {}", read_once(&file, target)?));
        files.push(file);
    }
    let series = interleave(lab.rounds(9), &["pread ring", "io_uring ring"], |side| {
        evict(&files[side])?;
        timed(len, || Ok(files[side].read_exact(0, &mut target[..]).map(drop)?))
    })?;
    let measured = Measured { notes, ..Measured::of(series) };
    let ratio = measured.ratio(0, 1);
    Ok(measured.at_least("rate of the io_uring ring", ratio, 0.95))
}

/// 2 GiB from host memory down to the drive, by default and by each way.
pub(crate) fn writes(lab: &Lab) -> Result<Measured, Stop> {
    let len = lab.len(2 * GIB);
    let path = lab.file(len)?;
    let engine = engine()?;
    let file = engine.open_with(&path, &OpenOptions::writing())?;
    let mut source = engine.allocate_pinned(len)?;
    file.read_exact(0, &mut source)?;
    let synced = RequestOptions::default().synced(SyncMode::Data);
    let cached = RequestOptions::by_route(Route::Cached).synced(SyncMode::Data);
    let ways = [synced, synced.past_cache(), cached];
    let mut note = String::new();
    let sides = ["forebay", "O_DIRECT", "page cache"];
    let series = interleave(lab.rounds(5), &sides, |side| {
        evict(&file)?;
        timed(len, || {
            let outcome = file.write_with(0, &source, &ways[side])?;
            if side == 0 {
                note = routes(&outcome.routes);
            }
            Ok(())
        })
    })?;
    let ratio = series[0].rate() / fastest(&series[1..])?.rate();
    let measured = Measured::of(series).note(format!("{}, {note}", format_size(len)));
    Ok(measured.at_least("rate of the fastest way", ratio, 0.95))
}

/// The depth at which `fio` reads a file fastest, by the median of three runs of each.
fn best_depth(lab: &Lab, fio: &Fio, path: &Path, len: u64, file: &File) -> Result<u32, Stop> {
    const DEPTHS: [u32; 4] = [8, 16, 32, 64];
    let series = interleave(lab.rounds(3), &DEPTHS.map(|depth| depth.to_string()), |side| {
        evict(file)?;
        fio.sequential(path, len, DEPTHS[side])
    })?;
    Ok(fastest(&series)?.name.parse()?)
}
