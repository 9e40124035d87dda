//! Checks whether a job's bytes can take the direct route, by a few requests like those of the job.

use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::gpu::Device;
use forebay::units::MIB;
use forebay::{Buffer, Engine, OpenOptions, RequestOptions, Route, Source, Target};

use super::options::{Asked, Job, Where};
use super::place::folder_of;
use crate::bench::data::Pattern;
use crate::bench::make;
use crate::bench::scratch::{Part, Scratch};
use crate::failure::Result;
use crate::report::json::Direction;
use crate::steps::Step;

/// The modulus of offsets and sizes: no drive has larger blocks, and every alignment that a path
/// requires divides it.
const TRIED: u64 = MIB;
/// Bytes of scratch: room for the largest request at the largest offset.
const SCRATCH: u64 = 3 * TRIED;

/// Makes a few requests of `job` by the route `direct`, of its sizes and in its directions: the
/// first two, and the first of the second part. Reads use the files of the job if they exist;
/// everything else uses scratch in the same folder.
///
/// # Errors
/// The route is unavailable, or refuses these requests; the text says why, and what to do.
pub(super) fn try_it(
    engine: &Engine,
    device: &Arc<dyn Device>,
    asked: &Asked,
    job: &Job,
) -> Result<()> {
    let first = match &job.at {
        Where::File(path) => path.clone(),
        Where::Folder(folder) => folder.join("gdsio.0"),
    };
    let (has, is_device) = has(&first);
    let requests = requests(asked, job);
    let mut buffer = engine.allocate(device.id(), 2 * TRIED)?;
    let fits = |end: u64| end <= has;
    let reads = asked.read_percent > 0 || asked.verify;
    // A device is only read here, even if the job writes to it.
    if is_device || (reads && requests.iter().all(|request| fits(request.end))) {
        let file = Trial::open(engine, &first, false)?;
        for request in requests.iter().filter(|request| fits(request.end)) {
            file.make(Direction::Read, request.clone(), &mut buffer)?;
        }
        if is_device || !asked.writes() {
            return Ok(());
        }
    }
    let scratch = Scratch::create(&folder(&job.at))?;
    let path = scratch.path(Part::Write);
    make::fill(&path, Pattern::new(1), SCRATCH)?;
    let file = Trial::open(engine, &path, asked.writes())?;
    for request in requests {
        let start = request.start % TRIED;
        let request = start..start + (request.end - request.start);
        if reads {
            file.make(Direction::Read, request.clone(), &mut buffer)?;
        }
        if asked.writes() {
            file.make(Direction::Write, request, &mut buffer)?;
        }
    }
    Ok(())
}

/// The requests to try, each of at most twice [`TRIED`] bytes.
fn requests(asked: &Asked, job: &Job) -> Vec<Range<u64>> {
    // All other requests are at multiples of these distances.
    let apart = match &job.at {
        Where::File(_) if job.threads > 1 && !asked.transfer.is_batch() => asked.size,
        _ => 0,
    };
    let first = job.start + asked.shift;
    let mut requests = Vec::new();
    let sizes = job.sizes.all();
    // All other sizes are the first plus a multiple of the second's excess over it.
    for &size in sizes.iter().take(2).chain(sizes.last()) {
        let len = if size > TRIED { TRIED + size % TRIED } else { size };
        // The next one begins where this one ends.
        let next = if size * 2 <= asked.size - asked.shift { len } else { 0 };
        for start in [first, first + apart, first + next] {
            if !requests.contains(&(start..start + len)) {
                requests.push(start..start + len);
            }
        }
    }
    requests
}

fn folder(at: &Where) -> PathBuf {
    match at {
        Where::File(path) => folder_of(path),
        Where::Folder(folder) => folder.clone(),
    }
}

/// The length of the file or device at `path`, 0 if there is none, and whether it is a device.
fn has(path: &Path) -> (u64, bool) {
    use std::os::unix::fs::FileTypeExt as _;
    let _step = Step::begin("inspect", path);
    match std::fs::metadata(path) {
        Ok(facts) if facts.file_type().is_block_device() => {
            let end = File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
            (end.unwrap_or(0), true)
        }
        Ok(facts) if facts.is_file() => (facts.len(), false),
        _ => (0, false),
    }
}

/// A file that requests are tried on.
struct Trial<'a> {
    engine: &'a Engine,
    path: &'a Path,
    file: forebay::File,
}

impl<'a> Trial<'a> {
    fn open(engine: &'a Engine, path: &'a Path, writes: bool) -> Result<Self> {
        let _step = Step::begin("open", path);
        let mut how = OpenOptions::default();
        how.write = writes;
        Ok(Self { engine, path, file: engine.open_with(path, &how)? })
    }

    /// Moves the bytes of `request` between the file and the start of `buffer`.
    fn make(&self, direction: Direction, request: Range<u64>, buffer: &mut Buffer) -> Result<()> {
        let mut options = RequestOptions::exactly();
        options.route = Some(Route::Direct);
        let (start, part) = (request.start, 0..request.end - request.start);
        let _step = Step::of_engine(direction.name(), self.path, self.engine, options.route);
        match direction {
            Direction::Read => {
                self.file.read_with(start, Target::Buffer(buffer, part), &options)?
            }
            Direction::Write => {
                self.file.write_with(start, Source::Buffer(buffer, part), &options)?
            }
        };
        Ok(())
    }
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
        let requests = requests(&asked, &asked.jobs[0]).into_iter();
        requests.map(|request| (request.start, request.end)).collect()
    }

    #[test]
    fn what_is_tried_is_what_the_job_will_do() {
        assert_eq!(tried("-D x -s 64K -w 8 -i 64k"), [(0, 65536)]);
        assert_eq!(tried("-D x -s 9000 -o 512 -i 4500"), [(512, 5012), (5012, 9512)]);
        assert_eq!(tried("-D x -s 128K -I 2 -U -i 64k"), [(512, 66048)]);
        assert_eq!(tried("-f x -s 8K -w 2 -i 1k"), [(0, 1024), (8192, 9216), (1024, 2048)]);
        assert_eq!(
            tried("-f x -s 8K -w 2 -i 1k -x 6"),
            [(0, 1024), (1024, 2048)],
            "a batch has one part"
        );
        let sizes = tried("-D x -s 30K -w 2 -i 10k:30k:10k -T 1");
        assert_eq!(sizes, [(0, 10240), (10240, 20480), (0, 20480), (0, 30720)]);
        assert_eq!(tried("-D x -s 1073742000 -i 1073742000"), [(0, TRIED + 176)], "not all of it");
    }
}
