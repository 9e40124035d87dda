//! Watts and throttling while something else is measured.
//!
//! A `Meter` finds the available sources of the devices in `Wanted`, reads them in the background,
//! and summarizes any span of the time (`Power`). `gpu`, `rapl` and `command` each find one kind of
//! source, `track` is the arithmetic, `result` the data. A missing source is reported with the
//! reason, and is no error.
//!
//! | Source | Readings per second | Reports |
//! |---|---|---|
//! | NVML | 10 | a GPU's power and throttling |
//! | RAPL | 10 | energy (counters) of packages, memory, platform |
//! | the user's command | 1 | the watts that it prints, such as those of a server's own meter |
//!
//! The command has its own thread, since it may take seconds. Drivers may hang, so nothing waits
//! long for a thread.

mod command;
mod gpu;
mod rapl;
pub mod result;
#[cfg(test)]
mod tests;
mod track;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use forebay::gpu::DeviceInfo;
use forebay_evidence::observers;
use forebay_topology::System;

use self::track::{About, Reading, Track};
use crate::failure::Result;

pub use self::result::{Absent, Part, Power};

/// How often drivers are read.
const PERIOD: Duration = Duration::from_millis(100);
/// How long to wait for a requested reading; a driver may hang.
const MARK_MAX: Duration = Duration::from_millis(500);
/// How long to wait for the threads' end. A hanging thread is abandoned.
const END_MAX: Duration = Duration::from_millis(500);
/// More than any chip consumes: higher values are errors.
const CHIP_WATTS_MAX: f64 = 100e3;
/// The remedy for a source that does not answer.
const OTHERS: &str = "check if other programs can read it";

/// The sources to measure, and where to look for them.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// GPUs.
    pub gpus: Vec<DeviceInfo>,
    /// The user's command that reports a power: a line for a shell that prints watts.
    pub command: Option<String>,
    /// The machine.
    pub system: System,
}

/// A source that can be read repeatedly.
struct Sensor {
    about: About,
    read: Box<dyn FnMut() -> Reading + Send>,
}

/// Sensors of drivers, and the missing ones.
#[derive(Default)]
struct Found {
    quick: Vec<Sensor>,
    absent: Vec<Absent>,
}

/// Reads sources in the background until it is dropped.
#[derive(Debug)]
pub struct Meter {
    tracks: Arc<Mutex<Vec<Track>>>,
    absent: Vec<Absent>,
    /// The thread of the command, and of drivers. It ends when this is dropped; a message requests
    /// an immediate reading, and the answer follows it.
    threads: [Option<Sender<Sender<()>>>; 2],
    /// Ends a command that runs.
    stop: Arc<AtomicBool>,
    /// Closed as soon as all threads have ended.
    ended: Receiver<()>,
}

impl Meter {
    /// Finds the sources and begins to read them. The first reading of all drivers is complete when
    /// this returns.
    ///
    /// # Errors
    /// The user's command prints no power.
    pub fn begin(wanted: &Wanted) -> Result<Self> {
        let (mut found, stop) = (Found::default(), Arc::default());
        let command = match &wanted.command {
            Some(line) => Some(command::sensor(line, &stop)?),
            None => None,
        };
        gpu::find(&wanted.gpus, &mut found);
        rapl::find(&wanted.system, &mut found);
        Ok(Self::of(found, command, stop))
    }

    fn of(found: Found, command: Option<Sensor>, stop: Arc<AtomicBool>) -> Self {
        let (living, ended) = channel();
        let (tracks, absent) = (Arc::default(), found.absent);
        let mut meter = Self { tracks, absent, threads: [None, None], stop, ended };
        meter.threads = [
            meter.start(command.into_iter().collect(), command::PERIOD, &living),
            meter.start(found.quick, PERIOD, &living),
        ];
        meter.mark();
        meter
    }

    /// Starts a thread that reads sensors in each `period`, and on request.
    fn start(
        &mut self,
        mut sensors: Vec<Sensor>,
        period: Duration,
        living: &Sender<()>,
    ) -> Option<Sender<Sender<()>>> {
        if sensors.is_empty() {
            return None;
        }
        let (requests, requested) = channel::<Sender<()>>();
        let first = lock(&self.tracks).len();
        let names: Vec<_> = sensors.iter().map(|sensor| sensor.about.name.clone()).collect();
        let about = sensors.iter().map(|sensor| Track::new(sensor.about.clone()));
        lock(&self.tracks).extend(about);
        let (tracks, living) = (Arc::clone(&self.tracks), living.clone());
        let work = move || {
            let mut answer: Option<Sender<()>> = None;
            loop {
                for (index, sensor) in sensors.iter_mut().enumerate() {
                    let begun = Instant::now();
                    let reading = (sensor.read)();
                    // The value was read at some time within the call.
                    let at = begun + begun.elapsed() / 2;
                    lock(&tracks)[first + index].add(at, reading);
                }
                observers::add();
                if let Some(answer) = answer.take() {
                    let _ = answer.send(());
                }
                match requested.recv_timeout(period) {
                    Ok(request) => answer = Some(request),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
            drop(living);
        };
        if let Err(error) = Builder::new().name("forebay-power".into()).spawn(work) {
            let why = format!("cannot start a thread to read it: {error}");
            let lack = |name| Absent::new(name, &why).remedy("raise the limit on threads");
            self.absent.extend(names.into_iter().map(lack));
            return None;
        }
        Some(requests)
    }

    /// Makes all drivers report at once, where a span begins; returns when that was done. It does
    /// not wait for a hanging driver.
    pub fn mark(&self) -> Instant {
        let (answer, answered) = channel();
        if self.threads[1].as_ref().is_some_and(|drivers| drivers.send(answer).is_ok()) {
            let _ = answered.recv_timeout(MARK_MAX);
        }
        Instant::now()
    }

    /// The summary from `start` to `end`, which is not in the future.
    pub fn between(&self, start: Instant, end: Instant) -> Power {
        // Ensures a reading after the end as well.
        self.mark();
        let seconds = end.saturating_duration_since(start).as_secs_f64();
        let mut power = Power { seconds, ..Power::default() };
        lock(&self.tracks).iter().for_each(|track| track.summarize(start, end, &mut power));
        power
    }

    /// The sources that are not measured, and why: the same for all spans.
    pub fn absent(&self) -> &[Absent] {
        &self.absent
    }

    /// The sources that could be measured and are not, as sentences with the next step: the same
    /// for all spans.
    pub fn warnings(&self) -> Vec<String> {
        let sentence = |Absent { name, why, remedy }: &Absent| {
            Some(format!("`{name}` is not measured: {why}; {}", remedy.as_ref()?))
        };
        self.absent.iter().filter_map(sentence).collect()
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads = [None, None];
        // Closed when the last thread ends: nothing is ever sent.
        let _ = self.ended.recv_timeout(END_MAX);
    }
}

fn lock(tracks: &Mutex<Vec<Track>>) -> MutexGuard<'_, Vec<Track>> {
    // Readings are added completely or not at all.
    tracks.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Watts, if plausible: above zero, and at most `max`.
fn watts(value: f64, max: f64) -> Result<f64, String> {
    match value {
        value if value > 0.0 && value <= max => Ok(value),
        value => Err(format!("{value} W is not plausible")),
    }
}
