//! The proven route of bytes that should be direct, from independent counters around a run.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use forebay::Engine;
use forebay::gpu::DeviceId;
use forebay_evidence::{Evidence, Sources, Span};
use forebay_measure::failure::Result;
use forebay_measure::proof::{Proof, Prover};
use forebay_measure::results::verdict::VerdictFacts;
use forebay_measure::stdio::{message, say};
use forebay_measure::workload::Lane;
use forebay_measure::workload::measure::{files_of, proofs_of};
use forebay_measure::workload::run::{OfTarget, Ran};

/// Most files whose cached pages are queried, and which stay open during the run.
const FILES_MAX: usize = 64;

/// The counters around the runs of jobs.
pub(super) struct Watched {
    provers: Vec<Arc<Prover>>,
    sources: Sources,
    /// The number of the GPU, by job.
    gpus: Vec<usize>,
}

impl Watched {
    /// The counters around the lanes of `jobs` whose bytes should be direct; `None` without jobs or
    /// without a GPU.
    ///
    /// # Errors
    /// A file cannot be opened.
    pub(super) fn new(engine: &Engine, jobs: &[&[Lane]]) -> Result<Option<Self>> {
        let (mut known, mut gpus): (Vec<(DeviceId, Arc<Prover>)>, _) = (Vec::new(), Vec::new());
        for job in jobs {
            let device = job.first().and_then(|lane| lane.device.as_ref());
            let Some(device) = device else { return Ok(None) };
            let number = known.iter().position(|(id, _)| *id == device.id());
            gpus.push(number.unwrap_or(known.len()));
            if number.is_none() {
                known.push((device.id(), Arc::new(Prover::new(Some(device.info())))));
            }
        }
        let provers: Vec<Arc<Prover>> = known.into_iter().map(|(_, prover)| prover).collect();
        let Some((first, others)) = provers.split_first() else { return Ok(None) };
        let lanes = || jobs.iter().copied().flatten();
        let paths: HashSet<&Path> = lanes().map(|lane| lane.path.as_path()).collect();
        if paths.len() > FILES_MAX {
            let many = paths.len();
            message(&format!(
                "no verdict: cached pages of {many} files were not queried, {FILES_MAX} is the most"
            ));
            return Ok(None);
        }
        let files = files_of(engine, lanes())?;
        let sources = first.sources(engine, &files, others);
        Ok(Some(Self { provers, sources, gpus }))
    }

    pub(super) fn begin(&self) -> Span<'_> {
        self.sources.begin()
    }

    /// The proofs of the jobs' bytes in a span, by job number.
    pub(super) fn proofs<'a>(
        &self,
        seen: &[Evidence],
        ran: impl Iterator<Item = (usize, &'a Ran)>,
    ) -> Vec<Proof> {
        let mut of_gpus = vec![OfTarget::default(); self.provers.len()];
        for (job, ran) in ran {
            ran.of_targets.iter().for_each(|had| of_gpus[self.gpus[job]].add(had));
        }
        proofs_of(&self.provers, seen, &of_gpus)
    }
}

/// Prints the proof of a run on stderr.
pub(super) fn show(proofs: &[Proof]) {
    let Some(facts) = VerdictFacts::of(proofs) else { return };
    let simulated = if facts.simulated { ", simulated" } else { "" };
    let note = facts.note().map_or_else(String::new, |note| format!(": {note}"));
    let text = format!("verdict by counters: {}{simulated}{note}", facts.text);
    // A contradiction is a warning.
    if facts.contradictions.is_empty() { message(&text) } else { say(&text) }
}
