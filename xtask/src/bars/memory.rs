//! The memory use of the engine itself: a child process reads a file, and its peak is compared with
//! the allowance beyond the target.

use std::fs;
use std::path::Path;
use std::process::Command;

use forebay::gpu::GpuSelector;
use forebay::units::{MIB, format_size};
use forebay::{Engine, Options};
use serde::{Deserialize, Serialize};

use crate::bar::{Bound, Check, Measured, Stop};
use crate::host::evict;
use crate::lab::{Lab, Place, make_resident};
use crate::sample::float;
use crate::talk;

/// The arena of one GPU, as the options document it.
const ARENA_LEN: u64 = 256 * MIB;
/// What the engine may use besides target and arena.
const REST_LEN: u64 = 64 * MIB;

/// The child's report.
#[derive(Debug, Serialize, Deserialize)]
struct Peak {
    peak: u64,
    target: u64,
}

/// To host memory: no GPU, so no arena.
pub(crate) fn host(lab: &Lab) -> Result<Measured, Stop> {
    measure(lab, "none", REST_LEN)
}

/// To a simulated GPU, whose device memory is not counted.
pub(crate) fn sim(lab: &Lab) -> Result<Measured, Stop> {
    measure(lab, "sim", ARENA_LEN + REST_LEN)
}

fn measure(lab: &Lab, gpu: &str, most: u64) -> Result<Measured, Stop> {
    let path = lab.file(Place::Disk, lab.len(1024 * MIB))?;
    let output = Command::new(std::env::current_exe()?)
        .arg("--probe-memory")
        .arg(&path)
        .arg(gpu)
        .output()?;
    if !output.status.success() {
        let cause = String::from_utf8_lossy(&output.stderr);
        return Err(Stop::Fail(format!("the child failed: {}", cause.trim())));
    }
    let peak: Peak = serde_json::from_slice(&output.stdout)
        .map_err(|error| Stop::Fail(format!("the child reported nonsense: {error}")))?;
    let beyond = float(peak.peak.saturating_sub(peak.target)) / float(MIB);
    let bound = Bound::AtMost(float(most) / float(MIB));
    Ok(Measured {
        checks: vec![Check::new("MiB beyond the target", beyond, bound)],
        notes: vec![format!(
            "peak {}, target {}",
            format_size(peak.peak),
            format_size(peak.target)
        )],
        series: Vec::new(),
    })
}

/// The child: reads `path` cold and warm, and prints its peak.
pub(crate) fn probe(path: &Path, gpu: &str) -> Result<(), String> {
    let target = read(path, gpu).map_err(|stop| match stop {
        Stop::Fail(reason) | Stop::Skip(reason) => reason,
    })?;
    let status = fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|text| text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
        .ok_or("no `VmHWM` in `/proc/self/status`")?;
    let peak = Peak { peak: peak * 1024, target };
    talk(&serde_json::to_string(&peak).map_err(|error| error.to_string())?);
    Ok(())
}

/// Reads the file twice to its target; returns the target's bytes.
fn read(path: &Path, gpu: &str) -> Result<u64, Stop> {
    let engine = Engine::new(Options::default())?;
    let device = engine.device(&gpu.parse::<GpuSelector>()?)?;
    let file = engine.open(path)?;
    let len = file.len()?;
    let cold = || match evict(&file) {
        // The peak of resident memory counts even if the cache cannot be dropped.
        Err(Stop::Skip(_)) | Ok(()) => Ok(()),
        failed => failed,
    };
    match device {
        Some(device) => {
            let mut target = engine.allocate(device.id(), len)?;
            cold()?;
            file.read_exact(0, &mut target)?;
            make_resident(path)?;
            file.read_exact(0, &mut target)?;
        }
        None => {
            let mut target = vec![0x5A; usize::try_from(len).unwrap_or_default()];
            cold()?;
            file.read_exact(0, &mut target[..])?;
            make_resident(path)?;
            file.read_exact(0, &mut target[..])?;
        }
    }
    Ok(len)
}
