//! One measurement: makes files cold or resident, runs a load, reads external counters before and
//! after it, and builds the result.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::gpu::Device;
use forebay::{Engine, File, Residency};
use forebay_cufile::Counters;
use forebay_evidence::{Evidence, Seen};
use serde::{Deserialize, Serialize};

use super::backend::Pool;
use super::check::{Checked, Most};
use super::run::{OfTarget, Ran, Ready};
use super::{End, Lane, Load};
use crate::cache::{FileFrom, make_cold, make_resident};
use crate::failure::{Failure, Result};
use crate::kv::Served;
use crate::proof::{Proof, Prover};
use crate::results::verdict::VerdictFacts;
use crate::results::{Cache, Direction};
use crate::results::{Measured, PageCacheShare};
use crate::route::describe;
use crate::stats::rate;
use crate::steps;

/// Measures loads on a group of targets.
pub struct Measurer {
    engine: Engine,
    /// One for each target, since each is judged separately.
    provers: Vec<Arc<Prover>>,
    targets: Vec<String>,
    simulated: bool,
    /// How much is compared.
    most: Most,
    pool: Arc<Pool>,
}

impl Measurer {
    /// A measurer for each group of targets that work concurrently; `None` is host memory. It
    /// compares `most`.
    #[must_use]
    pub fn all(
        engine: &Engine,
        groups: &[Vec<Option<Arc<dyn Device>>>],
        pool: &Arc<Pool>,
        most: Most,
    ) -> Vec<Self> {
        // The facts of a target are found once, since some take a while.
        let mut known: HashMap<String, Arc<Prover>> = HashMap::new();
        let mut measurer = |targets: &Vec<Option<Arc<dyn Device>>>| {
            let names: Vec<String> = targets.iter().map(|target| name(target.as_ref())).collect();
            let mut prover = |(name, target): (&String, &Option<Arc<dyn Device>>)| {
                let info = target.as_ref().map(|gpu| gpu.info());
                let found = known.entry(name.clone());
                Arc::clone(found.or_insert_with(|| Arc::new(Prover::new(info))))
            };
            let provers = names.iter().zip(targets).map(&mut prover).collect();
            let simulated = targets.iter().flatten().any(|gpu| gpu.info().simulated);
            let (engine, pool) = (engine.clone(), Arc::clone(pool));
            Self { engine, provers, targets: names, simulated, most, pool }
        };
        groups.iter().map(&mut measurer).collect()
    }

    /// The names of the targets.
    #[must_use]
    pub fn targets(&self) -> &[String] {
        &self.targets
    }

    /// Runs `load` on `lanes`, whose files are `made`, at the same time as `peers`. Returns the
    /// measurement, and its details.
    ///
    /// A load that goes over its files once is repeated, with cold files each time, until its time
    /// is reached. If cold reads turn out to go through the page cache, they are repeated in that
    /// form.
    ///
    /// # Errors
    /// File, GPU and engine errors, of this process or of another one.
    pub fn measure(
        &self,
        load: &Load,
        (lanes, made): (&[Lane], Result<()>),
        peers: Option<&dyn Peers>,
    ) -> Result<(Measured, Ran)> {
        let files = made.and_then(|()| files_of(&self.engine, lanes));
        let files = done(peers, "open", files)?;
        let starts = starts_of(&files, lanes);
        let sources = self
            .provers
            .split_first()
            .map(|(first, others)| first.sources(&self.engine, &files, others));
        let begun = Instant::now();
        let time = load.time().filter(|_| load.once).unwrap_or_default();
        let (mut sum, mut before): (Option<Ran>, _) = (None, None);
        let (ran, mut ready, seen, next) = loop {
            let ready = self.ready(load, lanes, (&files, &starts), &mut before);
            let mut ready = done(peers, "prepare", ready)?;
            let counted = ready.counters();
            let span = sources.as_ref().map(|sources| sources.begin());
            let ran = run_together(Ok(&mut ready), &self.targets, peers).map(|ran| {
                let spans = ran.span + sum.as_ref().map_or(Duration::ZERO, |sum| sum.span);
                let next = match load.end {
                    End::Time(_) if ran.requests == 0 => Next::Other,
                    _ if spans >= time || begun.elapsed() >= ROUNDS_MAX * time => Next::Step,
                    _ => Next::Again,
                };
                (ran, next)
            });
            let (mut ran, next) = agreed(peers, "run", ran)?;
            let mut seen = span.map_or_else(Vec::new, |span| span.end_each());
            ran.count(&seen);
            if let (Some(before), Some(after)) = (counted, ready.counters()) {
                // The kernel counted the reads of that process.
                ran.fetched = None;
                let cufile = grown(before, after);
                seen.iter_mut().for_each(|seen| seen.cufile = cufile.clone());
            }
            if let Some(all) = &mut sum {
                all.add(ran);
            } else {
                sum = Some(ran);
            }
            if next != Next::Again {
                break (sum.expect("it ran"), ready, seen, next);
            }
        };
        if let (Next::Other, End::Time(time)) = (next, load.end) {
            // No call ended within the span. So each thread makes at least one, and all count.
            drop(ready);
            if load.rate.is_some() {
                // Calls that were due have a latency, whether they ended later or never began.
                let (what, hint) = match ran.latencies.summary(true) {
                    Some(_) => ("ended", "use a longer `--time`: storage or machine are slow"),
                    None => ("was due", "use a longer `--time`, or a higher `--rate`"),
                };
                return Err(Failure::new(format!("no call {what} within {time:.1?}")).hint(hint));
            }
            let load = Load { end: End::AtLeast(time), warm_up: Duration::ZERO, ..load.clone() };
            return self.measure(&load, (lanes, Ok(())), peers);
        }
        let (before, after) = (before.flatten(), resident(&files, &starts));
        let len = files.iter().zip(&starts).map(|((_, end), start)| end - start).sum();
        let is_cold_read = load.cache == Cache::Cold && !load.writes() && !load.once;
        let is_cached = is_cold_read && passed_through(ran.bytes, (before, after), len);
        let own = if is_cached { Next::Other } else { Next::Step };
        // Nor does a peer compare, which fills the page cache, before all have looked at it.
        if agreed(peers, "pages", Ok(((), own)))?.1 == Next::Other {
            drop(ready);
            let load = Load { once: true, warm_up: Duration::ZERO, ..load.clone() };
            return self.measure(&load, (lanes, Ok(())), peers);
        }
        let checked = ready.check(&self.engine, &self.most)?;
        let content = if load.writes() || lanes.iter().all(|lane| lane.content.is_some()) {
            "what was written"
        } else {
            "a second read"
        };
        Ok((self.measured(load, &ran, (before, after), &seen, (checked, content)), ran))
    }

    /// Brings the files of `lanes` into the state that a load needs, and prepares its threads. Sets
    /// the share of the files that was in the page cache before the first run.
    fn ready<'a>(
        &'a self,
        load: &'a Load,
        lanes: &'a [Lane],
        (files, starts): (&[(File, u64)], &[u64]),
        before: &mut Option<Option<f64>>,
    ) -> Result<Ready<'a>> {
        make_ready(load, files, starts)?;
        before.get_or_insert_with(|| resident(files, starts));
        // Prepared before the counters are read, so that they show only the load.
        let ready = Ready::with(&self.engine, load, lanes, &self.pool)?;
        if load.cache == Cache::Warm {
            // FUSE may drop the pages of a file when it is opened again.
            make_ready(load, files, starts)?;
        }
        Ok(ready)
    }

    /// Lets a block store serve turns for the time of `load`. Returns the measurement, and its
    /// details.
    ///
    /// # Errors
    /// Errors of the drive, the GPU and the engine, of this process or of another one.
    pub fn serve(
        &self,
        load: &Load,
        served: Result<&mut Served>,
        peers: Option<&dyn Peers>,
    ) -> Result<(Measured, Ran)> {
        let files = served.and_then(|served| Ok((served.files(&self.engine)?, served)));
        let (files, served) = done(peers, "prepare", files)?;
        let sources = self.provers.first().map(|prover| prover.sources(&self.engine, &files, &[]));
        let span = sources.as_ref().map(|sources| sources.begin());
        done(peers, "begin", Ok(()))?;
        let at = Instant::now();
        let (mut ran, kv, checked) = served.run(load.warm_up, load.time().unwrap_or_default())?;
        ran.rounds[0][0] = at;
        let seen = span.map_or_else(Vec::new, |span| span.end_each());
        ran.count(&seen);
        let content = (checked, "checksums, and names of blocks");
        let mut measured = self.measured(load, &ran, (None, None), &seen, content);
        measured.kv = Some(kv);
        Ok((measured, ran))
    }

    /// The record of a run, whose bytes were compared with `content`.
    fn measured(
        &self,
        load: &Load,
        ran: &Ran,
        (before, after): (Option<f64>, Option<f64>),
        seen: &[Evidence],
        (checked, content): (Checked, &str),
    ) -> Measured {
        let proofs = proofs_of(&self.provers, seen, &ran.of_targets);
        let parts = ran.taken().into_iter().map(|taken| {
            (taken.is_engines.then_some(taken.route), taken.reason.into_owned(), taken.bytes)
        });
        let (route, reason) = describe(&parts.collect::<Vec<_>>());
        let seconds = ran.span.as_secs_f64();
        Measured {
            bytes: Some(ran.bytes),
            requests: Some(ran.requests),
            seconds: Some(seconds),
            bytes_per_second: ran.rate(),
            requests_per_second: Some(rate(ran.requests, seconds)),
            latency: ran.latencies.summary(load.rate.is_some()),
            cpu: Some(ran.cpu),
            page_cache: Some(PageCacheShare { before, after }),
            drive_bytes: ran.drives,
            route,
            reason,
            verdict: VerdictFacts::of(&proofs),
            evidence: seen.first().filter(|_| !proofs.is_empty()).map(Evidence::to_json),
            // Of one pass, or of whole files, the parts say nothing about the rate.
            steady: ran.steady.clone().filter(|_| !load.counts_all()),
            verified: checked.right,
            verified_bytes: checked.right.map(|_| checked.bytes),
            compared_with: checked.right.map(|_| content.into()),
            shares: ran.shares.clone(),
            simulated: self.simulated,
            ..Measured::default()
        }
    }
}

/// Processes that measure together.
pub trait Peers {
    /// Waits until each has done this step; returns the largest of their values.
    ///
    /// # Errors
    /// The failure of this process; an empty one if only another process failed.
    fn meet(&self, step: &str, own: Result<Next>) -> Result<Next>;
}

/// What follows a step of a measurement. The largest that a process needs follows for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Next {
    /// The next step.
    Step,
    /// The same load again.
    Again,
    /// A load of another form.
    Other,
}

/// Runs a load at the same time as `peers`.
///
/// # Errors
/// Errors of this process or of another one.
pub fn run_together(
    ready: Result<&mut Ready<'_>>,
    targets: &[String],
    peers: Option<&dyn Peers>,
) -> Result<Ran> {
    let ready = done(peers, "begin", ready)?;
    let at = Instant::now();
    let mut ran = ready.run(targets)?;
    ran.rounds[0][0] = at;
    Ok(ran)
}

/// Waits for all; returns the own value, and what follows.
fn agreed<T>(peers: Option<&dyn Peers>, step: &str, own: Result<(T, Next)>) -> Result<(T, Next)> {
    let Some(peers) = peers else { return own };
    match own {
        Ok((value, next)) => peers.meet(step, Ok(next)).map(|next| (value, next)),
        Err(failure) => Err(peers.meet(step, Err(failure)).expect_err("this process failed")),
    }
}

/// Waits until all have done a step.
fn done<T>(peers: Option<&dyn Peers>, step: &str, own: Result<T>) -> Result<T> {
    agreed(peers, step, own.map(|own| (own, Next::Step))).map(|(own, _)| own)
}

/// A load that is repeated with cold files ends after this many times its time: preparing takes
/// time as well.
const ROUNDS_MAX: u32 = 8;

/// If at least this share of the bytes is in the page cache afterwards, they went through it;
/// direct I/O leaves only the edges of requests there.
const THROUGH: f64 = 0.5;

/// Whether bytes that were read are in the page cache afterwards; `share` is the part of `len`
/// bytes of files that is, before and after.
fn passed_through(bytes: u64, (before, after): (Option<f64>, Option<f64>), len: u64) -> bool {
    let rise = before.zip(after).map(|(before, after)| after - before);
    let (read, len) = (rate(bytes.min(len), 1.0), rate(len, 1.0));
    rise.is_some_and(|rise| read > 0.0 && rise * len >= THROUGH * read)
}

/// Makes the files of a load cold or resident.
fn make_ready(load: &Load, files: &[(File, u64)], starts: &[u64]) -> Result<()> {
    for ((file, end), start) in files.iter().zip(starts) {
        let path = file.path();
        let ready = match load.cache {
            Cache::Cold => make_cold(&FileFrom(file, *start), end - start)?,
            Cache::Warm => make_resident(path, &FileFrom(file, 0), *end)?,
        };
        ready.map_err(|reason| {
            let (path, state) = (path.display(), load.cache.name());
            Failure::new(format!("cannot measure `{path}` while it is {state}")).because(reason)
        })?;
    }
    Ok(())
}

/// The growth of cuFile's counters between two readings.
fn grown(before: Seen<Counters>, after: Seen<Counters>) -> Seen<Counters> {
    match (before, after) {
        (Seen::Value(before), Seen::Value(after)) => {
            let again = "measure again: its counters were reset";
            after.since(&before).map_or_else(|why| Seen::missing(why, again), Seen::Value)
        }
        (Seen::Value(_), missing) | (missing, _) => missing,
    }
}

/// The files of lanes, each once and open, with the bytes up to the last that is used.
///
/// # Errors
/// One cannot be opened.
pub fn files_of<'a>(
    engine: &Engine,
    lanes: impl IntoIterator<Item = &'a Lane>,
) -> Result<Vec<(File, u64)>> {
    let mut files: Vec<(File, u64)> = Vec::new();
    for Lane { path, region, .. } in lanes {
        let end = region.start + region.len;
        match files.iter_mut().find(|(known, _)| known.path() == path) {
            Some((_, len)) => *len = end.max(*len),
            None => files.push((steps::open(engine, path)?, end)),
        }
    }
    Ok(files)
}

/// The first byte of each file that lanes use: other ranks may use what is before it.
fn starts_of(files: &[(File, u64)], lanes: &[Lane]) -> Vec<u64> {
    let of = |(file, _): &(File, u64)| {
        let own = lanes.iter().filter(|lane| lane.path == file.path());
        own.map(|lane| lane.region.start).min().unwrap_or(0)
    };
    files.iter().map(of).collect()
}

/// The name of a target in results.
pub fn name(target: Option<&Arc<dyn Device>>) -> String {
    target.map_or_else(|| "host".into(), |gpu| gpu.id().to_string())
}

/// The share of the files that is in the page cache, from 0 to 1.
fn resident(files: &[(File, u64)], starts: &[u64]) -> Option<f64> {
    let (mut there, mut all) = (0, 0);
    for ((file, end), start) in files.iter().zip(starts) {
        let len = end - start;
        let _step = steps::Step::begin("inspect", file.path());
        match file.residency(*start, len).ok()? {
            Residency::Known { resident, .. } => there += resident,
            Residency::Unknown(_) => return None,
        }
        all += len;
    }
    Some(rate(there, 1.0) / rate(all.max(1), 1.0))
}

/// The note for moves with several targets.
const DIVIDED: &str = "drives and page cache were counted for all targets together; the counts \
                       are divided in proportion to the bytes of each target";

/// The proofs of a load's reads and writes, for each target.
pub fn proofs_of(
    provers: &[Arc<Prover>],
    seen: &[Evidence],
    of_targets: &[OfTarget],
) -> Vec<Proof> {
    let mut proofs = Vec::new();
    for ((prover, seen), own) in provers.iter().zip(seen).zip(of_targets) {
        let both = [Direction::Read, Direction::Write].map(|direction| own.moved(direction));
        for (index, direction) in [Direction::Read, Direction::Write].into_iter().enumerate() {
            let (moved, other) = (&both[index], &both[1 - index]);
            if moved.bytes == 0 {
                continue;
            }
            let all = of_targets.iter().map(|own| own.moved(direction).counts());
            let all = all.fold((0, 0), |sum, own| (sum.0 + own.0, sum.1 + own.1));
            let part = seen.of_part(moved.counts(), all);
            let mut proof = prover.proof(part, moved, direction.into(), (other, own.request));
            if provers.len() > 1 {
                proof.verdict.doubts.push(DIVIDED.into());
            }
            proofs.push(proof);
        }
    }
    proofs
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::{Condvar, Mutex};
    use std::thread;

    use super::*;
    use crate::workload::backend::{Method, Plain};
    use crate::workload::pattern::Region;

    /// Two processes, simulated by threads.
    #[derive(Default)]
    struct Two {
        /// What has been said in the current step, and the steps that are over.
        said: Mutex<(Vec<Option<Next>>, usize)>,
        all: Condvar,
    }

    impl Peers for Two {
        fn meet(&self, _step: &str, own: Result<Next>) -> Result<Next> {
            let mut said = self.said.lock().unwrap();
            let step = said.1;
            said.0.push(own.as_ref().ok().copied());
            if said.0.len() == 2 * (step + 1) {
                said.1 += 1;
                self.all.notify_all();
            }
            let said = self.all.wait_while(said, |said| said.1 == step).unwrap();
            let both: Option<Vec<Next>> = said.0[2 * step..][..2].iter().copied().collect();
            own.and(both.and_then(|both| both.into_iter().max()).ok_or(Failure::new("")))
        }
    }

    #[test]
    fn peers_repeat_together_and_fail_together() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let missing = folder.path().join("missing");
        let engine = Engine::new(forebay::Options::default()).unwrap();
        let measured = |peers: &dyn Peers, path: &Path, time: Duration| {
            let end = End::AtLeast(time);
            let load = Load::reads(Method::Plain(Plain::Standard), 1 << 20, end);
            let load = Load { cache: Cache::Warm, once: true, ..load };
            let region = Region { start: 0, len: 1 << 20 };
            let lanes = [Lane { path: path.to_owned(), region, ..Lane::default() }];
            let all = Measurer::all(&engine, &[vec![None]], &Arc::default(), Most::NONE);
            all[0].measure(&load, (&lanes, Ok(())), Some(peers)).map(|(_, ran)| ran.rounds.len())
        };
        let both = |other: &Path, times: [Duration; 2]| {
            let two = Two::default();
            thread::scope(|scope| {
                let first = scope.spawn(|| measured(&two, &path, times[0]));
                (measured(&two, other, times[1]), first.join().unwrap())
            })
        };
        let (own, first) = both(&path, [Duration::from_millis(20), Duration::ZERO]);
        assert!(own.as_ref().unwrap() == first.as_ref().unwrap(), "{own:?}, {first:?}");
        let (own, first) = both(&missing, [Duration::ZERO; 2]);
        assert!(own.unwrap_err().message.contains("missing"));
        assert_eq!(first.unwrap_err(), Failure::new(""), "it leaves the words to the other one");
    }

    #[test]
    fn a_span_without_a_call_is_refused_for_its_reason() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let engine = Engine::new(forebay::Options::default()).unwrap();
        let device = engine.device(&"sim:latency=2s".parse().unwrap()).unwrap();
        let why = |device: Option<Arc<dyn Device>>, rate: f64| {
            let load =
                Load::reads(Method::Forebay(None), 4096, End::Time(Duration::from_millis(100)));
            let warm_up = Duration::from_millis(if device.is_some() { 0 } else { 500 });
            let load = Load { cache: Cache::Warm, rate: Some(rate), warm_up, ..load };
            let region = Region { start: 0, len: 1 << 20 };
            let lanes =
                [Lane { path: path.clone(), region, device: device.clone(), ..Lane::default() }];
            let all = Measurer::all(&engine, &[vec![device]], &Arc::default(), Most::NONE);
            all[0].measure(&load, (&lanes, Ok(())), None).unwrap_err().message
        };
        // The only call of a low rate ends in the warm-up.
        assert_eq!(why(None, 0.1), "no call was due within 100.0ms");
        assert_eq!(why(device, 200.0), "no call ended within 100.0ms");
    }

    #[test]
    fn bytes_in_memory_afterwards_were_read_through_it() {
        let seen = |bytes, before, after| passed_through(bytes, (Some(before), Some(after)), 1000);
        assert!(seen(100, 0.0, 0.1) && seen(5000, 0.1, 1.0) && seen(10, 0.0, 0.2));
        assert!(!seen(1000, 0.0, 0.02) && !seen(5000, 0.9, 0.9) && !seen(0, 0.0, 0.0));
        assert!(!passed_through(10, (None, None), 1000));
    }
}
