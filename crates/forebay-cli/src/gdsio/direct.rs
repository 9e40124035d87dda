//! Checks whether a job's bytes can take the direct route, by a few requests of the job.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use forebay::gpu::Device;
use forebay::units::MIB;
use forebay::{Buffer, Engine, OpenOptions, RequestOptions, Route, Source, Target};

use super::options::{Asked, Job};
use crate::failure::Result;
use crate::report::json::Direction;
use crate::steps::Step;
use crate::workload::pattern::Region;

/// Bytes of a request at most, and the modulus of its size: no drive has larger blocks, and every
/// alignment that a path requires divides it.
const TRIED: u64 = MIB;

/// Makes a few requests of `job` by the route `direct`, of its sizes and in its directions, in the
/// `parts` of its files. The job overwrites what they write.
///
/// # Errors
/// The route is unavailable, or refuses these requests; the text says why, and what to do.
pub(super) fn try_it(
    engine: &Engine,
    device: &Arc<dyn Device>,
    (asked, job): (&Asked, &Job),
    parts: &[(&Path, Region)],
) -> Result<()> {
    let mut buffer = engine.allocate(device.id(), 2 * TRIED)?;
    let tried = [
        (Direction::Read, asked.read_percent > 0 || asked.verify),
        (Direction::Write, asked.writes()),
    ];
    for (path, region) in parts.iter().take(2) {
        for request in requests(job, *region) {
            for (direction, _) in tried.into_iter().filter(|(_, tried)| *tried) {
                make(engine, path, direction, request.clone(), &mut buffer)?;
            }
        }
    }
    Ok(())
}

/// The requests to try in a part of a file, each of less than twice [`TRIED`] bytes. All others are
/// at multiples of their distance, and of the first size plus a multiple of the second's excess
/// over it.
fn requests(job: &Job, region: Region) -> Vec<Range<u64>> {
    let mut requests = Vec::new();
    let sizes = job.sizes.all();
    for &size in sizes.iter().take(2).chain(sizes.last()) {
        let len = if size > TRIED { TRIED + size % TRIED } else { size };
        // The next one begins where this one ends.
        let next = if size * 2 <= region.len { len } else { 0 };
        for start in [region.start, region.start + next] {
            if !requests.contains(&(start..start + len)) {
                requests.push(start..start + len);
            }
        }
    }
    requests
}

/// Moves the bytes of `request` between the file at `path` and the start of `buffer`.
fn make(
    engine: &Engine,
    path: &Path,
    direction: Direction,
    request: Range<u64>,
    buffer: &mut Buffer,
) -> Result<()> {
    let mut how = OpenOptions::default();
    how.write = direction == Direction::Write;
    let opening = Step::begin("open", path);
    let file = engine.open_with(path, &how)?;
    drop(opening);
    let mut options = RequestOptions::exactly();
    options.route = Some(Route::Direct);
    let part = 0..request.end - request.start;
    let _step = Step::of_engine(direction.name(), path, engine, options.route);
    match direction {
        Direction::Read => file.read_with(request.start, Target::Buffer(buffer, part), &options)?,
        Direction::Write => {
            file.write_with(request.start, Source::Buffer(buffer, part), &options)?
        }
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Arguments, Verb};

    fn tried(line: &str) -> Vec<(u64, u64)> {
        let words = format!("forebay gdsio {line}");
        let parsed = Arguments::try_parse_from(words.split(' ')).unwrap();
        let Verb::Gdsio(args) = parsed.verb else { panic!("{parsed:?}") };
        let asked = Asked::of_options(&args).unwrap();
        let job = &asked.jobs[0];
        let region = Region { start: job.start + asked.shift, len: asked.size - asked.shift };
        requests(job, region).into_iter().map(|request| (request.start, request.end)).collect()
    }

    #[test]
    fn what_is_tried_is_what_the_job_will_do() {
        assert_eq!(tried("-D x -s 64K -w 8 -i 64k"), [(0, 65536)]);
        assert_eq!(tried("-D x -s 9000 -o 512 -i 4500"), [(512, 5012), (5012, 9512)]);
        assert_eq!(tried("-D x -s 128K -I 2 -U -i 64k"), [(512, 66048)]);
        let sizes = tried("-D x -s 30K -w 2 -i 10k:30k:10k -T 1");
        assert_eq!(sizes, [(0, 10240), (10240, 20480), (0, 20480), (0, 30720)]);
        assert_eq!(tried("-D x -s 1073742000 -i 1073742000"), [(0, TRIED + 176)], "not all of it");
    }
}
