//! `--measure-link`: the link of each GPU, read while a copy runs on it.
//!
//! An idle GPU lowers the speed of its link, so only this shows what the link can do here.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay::Engine;
use forebay::gpu::GpuSelector;
use forebay::units::MIB;
use forebay_topology::{System, gpu_at};

use super::json::MapReport;
use super::words::named;
use crate::bench::ceilings::link::Link;
use crate::bench::target::Target;
use crate::failure::{Failure, Result};
use crate::program::Program;
use crate::report::drives::LinkFacts;
use crate::report::json::Direction;
use crate::stdio::say;

/// Bytes of one copy.
const LEN: u64 = 64 * MIB;
/// How long copies run: a link is back at its speed within milliseconds.
const TIME: Duration = Duration::from_millis(300);
/// How often the link is read during the copy.
const TICK: Duration = Duration::from_millis(20);

/// Fills in [`super::json::Gpu::link_busy`].
///
/// # Errors
/// A GPU cannot be used.
pub(crate) fn links(report: &mut MapReport, program: &Program) -> Result<()> {
    if report.gpus.is_empty() {
        return Err(Failure::new("cannot measure the link of a GPU")
            .because("there is no GPU on PCI")
            .hint("omit `--measure-link`"));
    }
    let engine = Engine::new(crate::limits::limits(program)?)?;
    for gpu in &mut report.gpus {
        gpu.link_busy = busy(&engine, &gpu.pci.address)?;
        if gpu.link_busy.is_none() {
            let name = named(&[gpu.index]);
            say(&format!("the kernel does not report the link of {name}: measure it on the host"));
        }
    }
    Ok(())
}

fn busy(engine: &Engine, address: &str) -> Result<Option<LinkFacts>> {
    let selector: GpuSelector = address.parse()?;
    let target = Target::find(engine, Some(&selector))?;
    let mut memory = target.allocate(engine, LEN)?;
    let mut link = Link::new(engine, &memory, LEN)?;
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut best: Option<LinkFacts> = None;
            while !ends.load(Ordering::Relaxed) {
                thread::sleep(TICK);
                let now = gpu_at(&System::live(), address);
                let now = now.and_then(|gpu| LinkFacts::of(gpu.pci.link));
                let rate = |link: &Option<LinkFacts>| link.and_then(|link| link.bytes_per_second);
                if best.is_none() || rate(&now) > rate(&best) {
                    best = now;
                }
            }
            best
        });
        let start = Instant::now();
        let mut copied = Ok(());
        while copied.is_ok() && start.elapsed() < TIME {
            copied = link.sample(Direction::Read, &mut memory).map(drop);
        }
        ends.store(true, Ordering::Relaxed);
        let best = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        copied.map(|()| best)
    })
}
