//! Whether bytes go straight to a GPU here, found out as `forebay read --route direct` does.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::gpu::Device;
use forebay::units::{KIB, MIB, align_down};
use forebay::{Engine, RequestOptions, Route, Target};

use super::options::{Job, Where};
use super::place::folder_of;
use crate::bench::data::Pattern;
use crate::bench::make;
use crate::bench::scratch::{Part, Scratch};
use crate::failure::Result;
use crate::steps::Step;

/// Bytes that are tried at most.
const TRIED: u64 = MIB;
/// The least that says something: what every drive takes past the page cache.
const LEAST: u64 = 4 * KIB;

/// Reads a little of what `job` will read, or of scratch beside what it will write, by the route
/// `direct`.
///
/// # Errors
/// There is no such path; it says why, and what to do.
pub(super) fn try_it(engine: &Engine, device: &Arc<dyn Device>, job: &Job) -> Result<()> {
    let first = match &job.at {
        Where::File(path) => path.clone(),
        Where::Folder(folder) => folder.join("gdsio.0"),
    };
    let has = std::fs::metadata(&first).map_or(0, |facts| facts.len());
    let len = if is_device(&first) { TRIED } else { align_down(has.min(TRIED), LEAST) };
    if len > 0 {
        return read(engine, device, &first, len);
    }
    let scratch = Scratch::create(&folder(&job.at))?;
    let path = scratch.path(Part::Read);
    make::fill(&path, Pattern::new(1), TRIED)?;
    read(engine, device, &path, TRIED)
}

fn folder(at: &Where) -> PathBuf {
    match at {
        Where::File(path) => folder_of(path),
        Where::Folder(folder) => folder.clone(),
    }
}

fn is_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    std::fs::metadata(path).is_ok_and(|facts| facts.file_type().is_block_device())
}

fn read(engine: &Engine, device: &Arc<dyn Device>, path: &Path, len: u64) -> Result<()> {
    let opening = Step::begin("open", path);
    let file = engine.open(path)?;
    drop(opening);
    let mut buffer = engine.allocate(device.id(), len)?;
    let mut request = RequestOptions::exactly();
    request.route = Some(Route::Direct);
    let _step = Step::of_engine("read", path, engine, request.route);
    file.read_with(0, Target::Buffer(&mut buffer, 0..len), &request)?;
    Ok(())
}
