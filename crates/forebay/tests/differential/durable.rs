//! Writers that are cut off: killed, or on a file system that is shut down without flushing its
//! log. What they acknowledged is there afterwards, and the rest is old, new or zero.

use std::io::{BufRead, BufReader, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fs, thread};

use forebay::gpu::GpuSelector;
use forebay::{Engine, Error, OpenOptions, RequestOptions, Route, SyncMode, Transfer};

use crate::lab::seeds::{Dice, index};
use crate::lab::{FileSystem, child, note, or_skip, pattern};
use crate::place::drive;
use crate::settings;
use crate::shadow::{Change, Shadow};

/// Bytes from one record to the next: neighbours share pages.
const STEP: u64 = 100_003;

/// Records of a file that does not grow.
const RECORDS: u64 = 24;

/// How long a file gets at most: longer than any writer lives.
const GROWS: u64 = 1000;

/// Added to the number of acknowledged batches when the writer says no more.
const ENDED: u64 = 1 << 40;

/// How a writer is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    Kill,
    KillAndPower,
    Power,
}

/// What a file looks like before its first record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    Growing,
    /// As long as it gets, with its room reserved.
    Preallocated,
}

/// What a seed says of a writer; both the writer and who checks it read it.
struct Plan {
    dice: Dice,
    layout: Layout,
    /// `None`: in turns. A sync makes all durable that was written to the file before, so that one
    /// that does nothing shows where there is no other kind.
    sync: Option<SyncMode>,
    done: u64,
}

/// Records that are written concurrently and then acknowledged together.
struct Batch {
    records: Vec<Change>,
    on_gpu: bool,
    options: RequestOptions,
}

impl Plan {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let layout = dice.one_of(&[Layout::Growing, Layout::Preallocated]);
        let sync =
            dice.one_of(&[None, Some(SyncMode::None), Some(SyncMode::Data), Some(SyncMode::All)]);
        Self { dice, layout, sync, done: 0 }
    }

    fn len(&self) -> u64 {
        match self.layout {
            Layout::Growing => 0,
            Layout::Preallocated => RECORDS * STEP,
        }
    }

    fn next(&mut self) -> Batch {
        let dice = &mut self.dice;
        let count = 1 + dice.below(3);
        let first = match self.layout {
            Layout::Growing => self.done % GROWS,
            Layout::Preallocated => dice.below(RECORDS - 2),
        };
        self.done += count;
        let mut record = |number| {
            let most = dice.one_of(&[600, 5_000, STEP]);
            let len = if dice.below(2) == 0 { most } else { 1 + dice.below(most) };
            let bytes = pattern(dice.next(), index(len));
            Change { offset: (first + number) * STEP, bytes, sure: true }
        };
        let records = (0..count).map(&mut record).collect();
        let on_gpu = dice.below(2) == 0;
        let options = match on_gpu && dice.below(2) == 0 {
            true => RequestOptions { route: Some(Route::Staged), ..RequestOptions::default() },
            false => RequestOptions::default(),
        };
        let any = dice.one_of(&[SyncMode::None, SyncMode::Data, SyncMode::All]);
        let sync = self.sync.unwrap_or(any);
        Batch { records, on_gpu, options: RequestOptions { sync, ..options } }
    }
}

/// The test's process that writes: batch after batch, until it is cut off.
pub(crate) fn write_for_ever(seed: u64, path: &str) {
    let mut plan = Plan::new(seed);
    let engine = Engine::new(settings::options(&mut Dice(seed))).expect("limits that fit");
    let gpu: GpuSelector = "sim".parse().expect("a name");
    let gpu = engine.device(&gpu).expect("a simulated GPU").expect("a GPU").id();
    let file = engine.open_with(path, &OpenOptions::writing()).expect("the file opens");
    if plan.layout == Layout::Preallocated {
        file.preallocate(0, plan.len()).expect("room");
    }
    let start = |batch: &Batch, change: &Change| -> Transfer {
        let buffer = || {
            let len = change.bytes.len() as u64;
            let buffer = match batch.on_gpu {
                true => engine.allocate(gpu, len),
                false => engine.allocate_pinned(len),
            };
            let mut buffer = buffer.expect("memory");
            buffer.upload(0, &change.bytes).expect("an upload");
            buffer
        };
        match file.write(buffer()).at(change.offset).options(batch.options).start() {
            Err(Error::RouteUnavailable { .. }) => file
                .write(buffer())
                .at(change.offset)
                .sync(batch.options.sync)
                .start()
                .expect("a start"),
            started => started.expect("a start"),
        }
    };
    let mut says = std::io::stdout();
    loop {
        let batch = plan.next();
        let started: Vec<_> = batch.records.iter().map(|change| start(&batch, change)).collect();
        started.into_iter().for_each(|transfer| drop(transfer.wait().0.expect("a write")));
        if batch.options.sync == SyncMode::None {
            file.sync_data().expect("a sync");
        }
        writeln!(says, "durable").and_then(|()| says.flush()).expect("a reader");
    }
}

/// Cuts a writer off and checks what it left.
pub(crate) fn check(seed: u64) {
    let mut dice = Dice(!seed);
    let file_system = dice.one_of(&[FileSystem::Ext4, FileSystem::Xfs]);
    let cut = dice.one_of(&[Cut::Kill, Cut::KillAndPower, Cut::Power]);
    let mut plan = Plan::new(seed);
    note(format!("{file_system:?}, {cut:?}, {:?}", plan.layout));
    let Some((_memory, mut drive)) = or_skip(drive(Some(file_system), 512)) else { return };
    let path = drive.path().join("data");
    let made = fs::File::create(&path).and_then(|file| {
        file.set_len(plan.len())?;
        file.sync_all()?;
        fs::File::open(drive.path())?.sync_all()
    });
    made.expect("a file");

    let enough = 2 + dice.below(40);
    let mut writer = child::start(&format!("write {seed} {}", path.display()));
    let says = BufReader::new(writer.stdout.take().expect("its output"));
    let seen = AtomicU64::new(0);
    let acknowledged = thread::scope(|scope| {
        scope.spawn(|| {
            let lines = says.lines().map_while(Result::ok);
            for _ in lines.filter(|line| line.ends_with("durable")) {
                seen.fetch_add(1, Ordering::SeqCst);
            }
            seen.fetch_add(ENDED, Ordering::SeqCst);
        });
        while seen.load(Ordering::SeqCst) < enough {
            thread::sleep(Duration::from_micros(200));
        }
        thread::sleep(Duration::from_micros(dice.below(5000)));
        // While the file system goes down, it takes syncs that it does not make: only what was
        // acknowledged before counts.
        let before = seen.load(Ordering::SeqCst);
        let shut = if cut == Cut::Power { drive.shut_down() } else { Ok(()) };
        writer.kill().expect("it is ours");
        let output = writer.wait_with_output().expect("it ends");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(before < ENDED, "the writer ended by itself: {printed}");
        shut.map(|()| before)
    });
    let all = seen.into_inner() - ENDED;
    let Some(before) = or_skip(acknowledged) else { return };
    let acknowledged = if cut == Cut::Power { before } else { all };
    if cut == Cut::KillAndPower && or_skip(drive.shut_down()).is_none() {
        return;
    }
    if cut != Cut::Kill && or_skip(drive.start_again(file_system)).is_none() {
        return;
    }

    let mut shadow = Shadow(vec![0; index(plan.len())]);
    for _ in 0..acknowledged {
        plan.next().records.iter().for_each(|record| shadow.write(record.offset, &record.bytes));
    }
    // Those that it reported later, and the current one.
    let rest = (acknowledged..=all).flat_map(|_| plan.next().records);
    let rest: Vec<Change> = rest.map(|record| Change { sure: false, ..record }).collect();
    note(format!("{acknowledged} of {all} batches before the cut"));
    shadow.settle(fs::read(&path).expect("the file is there"), &rest);
}
