//! A GPU's memory to one file through the page cache, compared with one plain thread that writes
//! pinned memory.

use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use forebay::units::{GIB, MIB, format_size};
use forebay::{Buffer, RequestOptions, Route};

use crate::bar::{Bound, Check, Measured, Stop};
use crate::data;
use crate::lab::{Gpu, Lab, Place, make_resident, routes};
use crate::sample::{Sample, Series, fastest, interleave, timed};

/// Most CPU time of a write, relative to the plain writer.
const CPU_MAX: f64 = 1.3;

/// Into a new file each time.
pub(crate) fn new_file(lab: &Lab) -> Result<Measured, Stop> {
    measure(lab, true)
}

/// Into an existing, warm file.
pub(crate) fn overwritten(lab: &Lab) -> Result<Measured, Stop> {
    measure(lab, false)
}

fn measure(lab: &Lab, new: bool) -> Result<Measured, Stop> {
    let gpu = lab.gpu()?;
    let len = lab.len(8 * GIB);
    lab.need_room(Place::Disk, len)?;
    let path = lab.path(Place::Disk, "written")?;
    let source = source(&gpu, len)?;
    let mut pinned = gpu.engine.allocate_pinned(len.min(GIB))?;
    // Other bytes than the engine writes, so that missing writes are found.
    data::fill(pinned.as_mut_slice().unwrap_or_default(), 1 << 40);

    let once = |way: Way| {
        prepare(&path, new, len)?;
        way.run(&gpu, &path, &source, &pinned, len)
    };
    let mut measured = Measured::default();
    // Methods that could be faster than the engine's own are measured in the same turns, if this
    // file allows them.
    let mut ways = vec![Way::Plain, Way::Engine];
    for way in [Way::Engine, Way::Preallocated, Way::Direct] {
        if !new {
            once(Way::Plain)?;
        }
        match once(way) {
            Ok((_, route)) => {
                check(&path, len)?;
                measured.notes.push(format!("{}: {}, {route}", way.name(), format_size(len)));
                ways.extend((way != Way::Engine).then_some(way));
            }
            Err(stop) if way == Way::Engine => return Err(stop),
            Err(Stop::Fail(reason) | Stop::Skip(reason)) => {
                measured.notes.push(format!("without `{}`: {reason}", way.name()));
            }
        }
    }
    let sides: Vec<String> = ways.iter().map(|way| way.name().to_owned()).collect();
    let series = interleave(lab.rounds(5), &sides, |side| Ok(once(ways[side])?.0))?;
    fs::remove_file(&path)?;
    let ratio = series[1].rate() / series[0].rate();
    let cpu = series[1].cpu_s_per_gb() / series[0].cpu_s_per_gb();
    measured.checks.push(Check::new("rate of one plain writer", ratio, Bound::AtLeast(0.95)));
    measured.checks.push(Check::new("CPU of one plain writer", cpu, Bound::AtMost(CPU_MAX)));
    measured.notes.push(fastest_within(&series));
    measured.series = series;
    Ok(measured)
}

/// Which side but the first, the plain writer, was fastest at the CPU that it may take.
fn fastest_within(series: &[Series]) -> String {
    let (plain, ours) = series.split_first().expect("the plain writer is the first side");
    let cpu_of = |side: &Series| side.cpu_s_per_gb() / plain.cpu_s_per_gb();
    let within: Vec<Series> = ours.iter().filter(|side| cpu_of(side) <= CPU_MAX).cloned().collect();
    match fastest(&within) {
        Some(side) => format!(
            "fastest at no more than {CPU_MAX} × the plain writer's CPU: `{}`, {:.3} × its rate at \
             {:.2} × its CPU",
            side.name,
            side.rate() / plain.rate(),
            cpu_of(side)
        ),
        None => format!("no side took at most {CPU_MAX} × the plain writer's CPU"),
    }
}

/// A method to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// One thread, pieces of 1 MiB of pinned memory.
    Plain,
    /// The engine, at its defaults.
    Engine,
    /// The engine, the file's room reserved before.
    Preallocated,
    /// The engine, with O_DIRECT.
    Direct,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain writer",
            Self::Engine => "forebay",
            Self::Preallocated => "forebay, preallocated",
            Self::Direct => "forebay, O_DIRECT",
        }
    }

    /// Writes once; the file is opened before the clock starts and made durable after it stops.
    fn run(
        self,
        gpu: &Gpu,
        path: &Path,
        source: &Buffer,
        pinned: &Buffer,
        len: u64,
    ) -> Result<(Sample, String), Stop> {
        let mut route = String::from("write through the page cache");
        let sample = if matches!(self, Self::Plain) {
            let file = OpenOptions::new().write(true).open(path)?;
            let bytes = pinned.as_slice().unwrap_or_default();
            timed(len, || plain(&file, bytes, len))?
        } else {
            let options = match self {
                Self::Preallocated => RequestOptions::default().preallocated(),
                Self::Direct => RequestOptions::by_route(Route::Staged),
                Self::Engine | Self::Plain => RequestOptions::default(),
            };
            let file = gpu.engine.open_with(path, &forebay::OpenOptions::writing())?;
            timed(len, || {
                route = routes(&file.write_with(0, source, &options)?);
                Ok(())
            })?
        };
        File::open(path)?.sync_all()?;
        Ok((sample, route))
    }
}

/// Writes `len` bytes from `bytes`, again and again from its start.
pub(crate) fn plain(file: &File, bytes: &[u8], len: u64) -> Result<(), Stop> {
    let mut offset = 0;
    for piece in bytes.chunks(1 << 20).cycle() {
        let left = usize::try_from(len - offset).unwrap_or(usize::MAX);
        let piece = &piece[..piece.len().min(left)];
        if piece.is_empty() {
            break;
        }
        file.write_all_at(piece, offset)?;
        offset += piece.len() as u64;
    }
    Ok(())
}

/// Makes the file empty and new, or as long as the bar writes and warm.
fn prepare(path: &Path, new: bool, len: u64) -> Result<(), Stop> {
    if new {
        let _ = fs::remove_file(path);
        OpenOptions::new().write(true).create_new(true).open(path)?;
    } else if fs::metadata(path).map_or(0, |metadata| metadata.len()) != len {
        let _ = fs::remove_file(path);
        data::write(path, len).map_err(Stop::Fail)?;
    }
    if !new {
        make_resident(path)?; // what goes past the page cache drops the file's pages
    }
    Ok(())
}

/// GPU memory with the test data.
pub(crate) fn source(gpu: &Gpu, len: u64) -> Result<Buffer, Stop> {
    let mut buffer = gpu.allocate(len)?;
    let mut piece = vec![0; usize::try_from(16 * MIB).unwrap_or_default()];
    let mut offset = 0;
    while offset < len {
        let count = usize::try_from(len - offset).unwrap_or(usize::MAX).min(piece.len());
        data::fill(&mut piece[..count], offset);
        buffer.upload(offset, &piece[..count])?;
        offset += count as u64;
    }
    Ok(buffer)
}

/// Whether the file holds exactly the test data.
pub(crate) fn check(path: &Path, len: u64) -> Result<(), Stop> {
    let mut file = File::open(path)?;
    let mut piece = vec![0; 4 << 20];
    let mut offset = 0;
    loop {
        // Whole words, so that each piece starts at one.
        let mut count = 0;
        while count < piece.len() {
            match file.read(&mut piece[count..])? {
                0 => break,
                more => count += more,
            }
        }
        if count == 0 {
            break;
        }
        data::check(&piece[..count], offset)
            .map_err(|at| Stop::Fail(format!("wrong bytes in the written file at {at}")))?;
        offset += count as u64;
    }
    if offset == len { Ok(()) } else { Err(Stop::Fail(format!("{offset} of {len} bytes written"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_side_is_looked_for_among_those_that_take_little_cpu() {
        let side = |name: &str, seconds, cpu_s| Series {
            name: name.into(),
            samples: vec![Sample { seconds, bytes: 1_000_000_000, cpu_s }],
        };
        let plain = side("plain", 1.0, 1.0);
        let text = fastest_within(&[
            plain.clone(),
            side("as it comes", 1.0, 1.0),
            side("hungry", 0.1, 1.4),
            side("better", 0.5, 1.3),
        ]);
        assert!(text.contains("`better`, 2.000 × its rate at 1.30 × its CPU"), "{text}");
        let text = fastest_within(&[plain, side("hungry", 0.1, 1.4)]);
        assert!(text.starts_with("no side"), "{text}");
    }
}
