//! `forebay gdsio`: gdsio's command line, job files and result line.
//!
//! [`options`] and `job` parse the request, in gdsio's own `words`. `place` finds and makes files.
//! `run` runs the jobs by [`forebay_measure::workload`], bound to their `node`. `proved` reports
//! the proven route of their bytes, and `line` prints what scripts read.

mod job;
mod line;
mod node;
pub mod options;
mod place;
mod proved;
mod run;
pub(crate) mod words;

use std::sync::Arc;

use forebay::gpu::{self, Device, GpuSelector};
use forebay::{DirectIo, Engine, Route};
use forebay_measure::failure::{Failure, Result};
use forebay_measure::plain::plain;
use forebay_measure::program::Program;
use forebay_measure::stdio::{message, print, say};
use forebay_measure::target::Target;
use forebay_measure::workload::backend::Method;

use self::node::Kept;
use self::options::{GdsioArgs, Job, Request};
use self::place::Files;
use self::run::{Task, at_once, run_all};
use self::words::{Io, Transfer};

/// Runs the verb.
pub(crate) fn command(args: &GdsioArgs, program: &Program) -> Result<()> {
    if args.rdma.is_some() {
        return Err(Failure::usage("`-P` is not supported: this verb has no RDMA client")
            .hint("mount the export of the server, and give a folder in it with `-D`"));
    }
    let request = match &args.jobs {
        Some(path) => job::read(path, args)?,
        None => Request::of_options(args)?,
    };
    request.notes.iter().for_each(|note| say(note));
    request.transfer.stands_for().into_iter().for_each(say);
    let mut limits = program.engine_options()?;
    if request.cached {
        limits.direct_io = DirectIo::Off;
    }
    let engine = Engine::new(limits)?;
    for job in &request.jobs {
        drop(Kept::to(job.node)?);
    }
    let devices = devices(&engine, args, &request)?;
    let jobs = request.jobs.iter().zip(devices);
    let mut tasks: Vec<Task<'_>> =
        jobs.map(|(job, device)| Task::new(&request, job, device)).collect();
    // Requests that can be refused without files are refused before any is made.
    run::check_memory(&tasks)?;
    if request.writes() {
        request.jobs.iter().try_for_each(|job| place::check_device(job, args))?;
    }
    let mut files = Vec::new();
    for (job, task) in request.jobs.iter().zip(&tasks) {
        files.push(Files::prepare(&engine, &request, job, args, task.device.as_ref())?);
    }
    if request.writes() {
        place::check_apart(&files)?;
    }
    for (task, files) in tasks.iter_mut().zip(&files) {
        task.lanes.clone_from(&files.lanes);
    }
    take_direct_route(&engine, args, &mut tasks)?;
    if request.writes() {
        files.iter_mut().for_each(Files::keep);
    }
    measure(&engine, &request, &tasks)
}

/// Runs all tasks, and shows their lines.
fn measure(engine: &Engine, request: &Request, tasks: &[Task<'_>]) -> Result<()> {
    let reads_back = request.verify && request.io.writes;
    let again = reads_back.then_some((Io { writes: false, ..request.io }, true));
    // The run ends and is judged even if stdout is closed.
    let (mut shown, mut right) = (Ok(()), None);
    for (io, is_second) in std::iter::once((request.io, false)).chain(again) {
        if request.verify && is_second == reads_back {
            shown = shown.and_then(|()| show("Verifying data "));
        }
        let (done, proofs) = run_all(engine, tasks, io, is_second)?;
        shown = shown.and_then(|()| lines(request, io, &done));
        proved::show(&proofs);
        right = [right, at_once(&done).right].into_iter().flatten().reduce(|a, b| a && b);
    }
    let is_known = |task: &Task<'_>| task.lanes.iter().all(|lane| lane.content.is_some());
    let is_mixed = request.writes() && request.read_percent > 0;
    if right == Some(true) && (is_mixed || !request.writes() && !tasks.iter().all(is_known)) {
        message("the expected content is unknown: data were compared with those of a second read");
    }
    judge(right, request.verify)?;
    shown
}

/// The consequence of the comparison's result, `right`.
fn judge(right: Option<bool>, verify: bool) -> Result<()> {
    match right {
        Some(false) => Err(Failure::new("wrong data: the files differ from what was moved").hint(
            "check whether another program writes to the files, then the kernel's log (`dmesg`)",
        )),
        None if verify => {
            say("nothing was verified: no request ended, or reads and writes overlapped");
            Ok(())
        }
        _ => Ok(()),
    }
}

fn lines(request: &Request, io: Io, done: &[run::Done]) -> Result<()> {
    if request.each_job {
        for (job, done) in request.jobs.iter().zip(done) {
            show(&run::line(request, &[job], io, done).to_string())?;
        }
    }
    let jobs: Vec<&Job> = request.jobs.iter().collect();
    show(&run::line(request, &jobs, io, &at_once(done)).to_string())
}

/// The GPUs of the jobs; `None` for host memory.
fn devices(
    engine: &Engine,
    args: &GdsioArgs,
    request: &Request,
) -> Result<Vec<Option<Arc<dyn Device>>>> {
    let all = |device| vec![device; request.jobs.len()];
    if request.in_host_memory || request.transfer == Transfer::CpuOnly {
        return Ok(all(None));
    }
    if args.gpu.is_none() && gpu::visible().is_ok_and(|gpus| !gpus.is_empty()) {
        let one = |job: &Job| engine.device(&GpuSelector::Cuda(job.device.to_string()));
        return Ok(request.jobs.iter().map(one).collect::<forebay::Result<_>>()?);
    }
    let Target { device, reason } = Target::find(engine, args.gpu.as_ref())?;
    let Some(why) = reason else { return Ok(all(device)) };
    if args.strict {
        let number = request.transfer.number();
        return Err(Failure::new(format!("cannot run `-x {number}` without a GPU"))
            .because(why)
            .hint("omit `--strict` to use host memory"));
    }
    say(&format!("no GPU ({why}): using host memory, as CPUONLY"));
    Ok(all(None))
}

/// Requires the direct route of the tasks that request it, if it is available.
///
/// # Errors
/// It is not, and the user insists on it.
fn take_direct_route(engine: &Engine, args: &GdsioArgs, tasks: &mut [Task<'_>]) -> Result<()> {
    let mut is_noted = false;
    for task in tasks.iter_mut().filter(|task| task.request.transfer.is_direct()) {
        let tried = match (task.device.is_some(), task.request.in_host_memory) {
            (true, _) => task.try_direct(engine),
            (false, true) => Err(Failure::new("cannot use the route `direct` for host memory")
                .hint("`-m 0` moves bytes to the GPU")),
            // The lack of a GPU was already reported.
            (false, false) => continue,
        };
        match tried {
            Ok(()) => task.method = Method::Forebay(Some(Route::Direct)),
            Err(why) if args.strict => return Err(why),
            Err(why) if !is_noted => {
                say(&instead(task.request.transfer, &why));
                is_noted = true;
            }
            Err(_) => {}
        }
    }
    Ok(())
}

/// The note for a type whose route is unavailable.
fn instead(transfer: Transfer, why: &Failure) -> String {
    let (number, label) = (transfer.number(), transfer.label());
    let causes: String = why.causes.iter().map(|cause| format!(": {cause}")).collect();
    let hint = why.hint.as_ref().map_or_else(String::new, |hint| format!("; {hint}"));
    format!(
        "`-x {number}` ({label}) is not available; the engine takes its best route, and the result \
         line names the nearest type: {}{causes}{hint}",
        why.message
    )
}

fn show(line: &str) -> Result<()> {
    print(&format!("{}\n", plain(line)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_data_are_a_failure() {
        let failure = judge(Some(false), true).unwrap_err();
        assert!(failure.message.starts_with("wrong data") && failure.exit_code() == 1);
        judge(Some(true), true).unwrap();
        judge(None, true).unwrap();
        judge(None, false).unwrap();
    }

    #[test]
    fn an_unavailable_target_is_an_error_with_a_remedy() {
        let why = Failure::new("cannot move `x`").because("no library").hint("install it");
        let text = instead(Transfer::DirectAsync, &why);
        assert!(text.starts_with("`-x 5` (GPUD_ASYNC) is not available"), "{text}");
        assert!(text.ends_with(": cannot move `x`: no library; install it"), "{text}");
    }
}
