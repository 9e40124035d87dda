//! The memory that a run moves bytes to and from: for each point one GPU, several at once, or the
//! host's.

use std::collections::HashSet;
use std::sync::Arc;

use forebay::Engine;
use forebay::gpu::sim::{SimConfig, SimDevice};
use forebay::gpu::{Device, GpuSelector};
use forebay::internal::clock::SystemClock;
use forebay_measure::failure::{Failure, Result};
use forebay_measure::target::{SIMULATED, Target};

use crate::bench::args::{BenchArgs, GpuList};

/// GPUs that work at the same time; `None` is host memory.
pub(super) type Together = Vec<Option<Arc<dyn Device>>>;

/// All GPUs that take part, each once.
pub(super) fn gpus(targets: &[Together]) -> impl Iterator<Item = &Arc<dyn Device>> {
    let mut known = HashSet::new();
    targets.iter().flatten().flatten().filter(move |gpu| known.insert(gpu.id()))
}

/// The targets of a run, one for each value of that axis, and notes on them.
pub(super) fn find(engine: &Engine, args: &BenchArgs) -> Result<(Vec<Together>, Vec<String>)> {
    let all = match &args.together {
        None => {
            let (mut found, mut warnings) = (Vec::new(), Vec::new());
            let named = args.gpu.iter().flat_map(|rows| &rows.0).map(Some);
            let first: Option<Option<&GpuSelector>> = args.gpu.is_empty().then_some(None);
            for wanted in named.chain(first) {
                let target = Target::find(engine, wanted)?;
                args.route.iter().try_for_each(|route| target.check(route.0))?;
                if wanted != Some(&GpuSelector::None) {
                    warnings.extend(target.warnings());
                }
                found.push(vec![target.device]);
            }
            return Ok((found, warnings));
        }
        Some(GpuList::Simulated(count, config)) => simulated(engine, *count, config)?,
        Some(GpuList::Named(named)) => {
            let mut all: Together = Vec::new();
            for wanted in named {
                let Some(device) = engine.device(wanted)? else {
                    return Err(Failure::usage("`--together` takes GPUs, not host memory")
                        .hint("omit it from `--together`; `--gpu none` alone measures it"));
                };
                all.push(Some(device));
            }
            all
        }
    };
    let simulated = all.iter().flatten().any(|gpu| gpu.info().simulated);
    let warnings = if simulated { vec![SIMULATED.into()] } else { Vec::new() };
    // The first, the first two, and so on: shows which limit takes over as they are added.
    Ok(((1..=all.len()).map(|count| all[..count].to_vec()).collect(), warnings))
}

fn simulated(engine: &Engine, count: u32, config: &SimConfig) -> Result<Together> {
    let clock = Arc::new(SystemClock::new());
    let first = SimDevice::new(0, config.clone(), clock);
    let others: Vec<SimDevice> =
        (1..count).map(|index| first.sibling(index, config.clone())).collect();
    let mut all: Together = Vec::new();
    for device in std::iter::once(first).chain(others) {
        let device: Arc<dyn Device> = Arc::new(device);
        engine.add_device(&device)?;
        all.push(Some(device));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_memory_among_gpus_is_an_error_with_a_remedy() {
        let engine = Engine::new(forebay::Options::default()).unwrap();
        let together = Some(GpuList::Named(vec![GpuSelector::None]));
        let failure = find(&engine, &BenchArgs { together, ..BenchArgs::default() }).unwrap_err();
        assert!(failure.usage && failure.hint.unwrap().contains("`--gpu none`"));
    }
}
