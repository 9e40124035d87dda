//! Requests, limits and GPUs that make no sense or cannot be had.

use std::fs;

use forebay::gpu::GpuSelector;
use forebay::units::{GIB, KIB, MIB};
use forebay::{
    DirectIo, Engine, Error, File, OpenOptions, Options, Piece, Reason, RingChoice, Route,
};
use tempfile::TempDir;

use crate::lab::fuse::Fuse;
use crate::lab::{self, or_skip, pattern, watchdog::Watchdog};
use crate::{assert_says, engine, on_drive, sim, small_engine};

/// A file of this many bytes, opened for writing.
fn file(engine: &Engine, len: usize) -> (TempDir, File) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data");
    fs::write(&path, pattern(1, len)).expect("a file");
    let file = engine.open_with(&path, &OpenOptions::writing()).expect("the file opens");
    (folder, file)
}

#[test]
fn offsets_beyond_the_end() {
    let engine = engine();
    let (_folder, file) = file(&engine, 1000);
    let place = |offset: u64, len: usize| {
        let drive = on_drive(&engine, file.path());
        format!("`{}` at {offset}+{len}{drive}", file.path().display())
    };
    let hint = "request fewer bytes, or check that the file was written completely";
    for (offset, len, got) in [(990, 20, 10), (1000, 1, 0), (5000, 70_000, 0), (1 << 62, 5, 0)] {
        let mut target = vec![0; len];
        assert_eq!(file.read(&mut target).at(offset).run().expect("what there is").bytes, got);
        let message =
            format!("cannot read {}: the file ended after {got} bytes", place(offset, len));
        assert_says(file.read(&mut target).at(offset).exact().run(), &message, "-", hint);
    }
    for offset in [0, 1000, 1001, i64::MAX.unsigned_abs()] {
        assert_eq!(
            file.read(&mut Vec::new()).at(offset).exact().run().expect("nothing to do").bytes,
            0
        );
        assert_eq!(file.write(&Vec::new()).at(offset).run().expect("nothing to do").bytes, 0);
    }
    assert_eq!(file.len().expect("a size"), 1000);
}

#[test]
fn offsets_that_no_file_has() {
    let _watchdog = Watchdog::start();
    let engine = engine();
    let (_folder, file) = file(&engine, 1000);
    let most = i64::MAX.unsigned_abs();
    for offset in [most, most + 1, u64::MAX - 1, u64::MAX] {
        let place = format!("`{}` at {offset}+2", file.path().display());
        let drive = on_drive(&engine, file.path());
        let read = file.read(&mut vec![0; 2]).at(offset).run();
        let message =
            format!("cannot read {place}{drive}: the range ends beyond the largest file offset");
        assert_says(read, &message, "-", "-");
        let written = file.write(&vec![0; 2]).at(offset).run();
        let message =
            format!("cannot write {place}{drive}: the range ends beyond the largest file offset");
        assert_says(written, &message, "-", "-");
    }
    // The last byte that an offset can name: the file system says no, or the file ends before.
    assert_eq!(file.read(&mut vec![0; 1]).at(most - 1).run().expect("nothing there").bytes, 0);
    match file.write(&vec![0; 1]).at(most - 1).run() {
        Err(Error::Io { place, source, .. }) => {
            assert_eq!((place.offset, place.len), (most - 1, 1));
            assert_eq!(source.0, libc::EFBIG);
        }
        other => panic!("a write at the end of all offsets: {other:?}"),
    }
    let error = file.write(&vec![0; 50]).at(most - 100).preallocate().run().expect_err("too far");
    assert!(error.to_string().starts_with("cannot preallocate"), "{error}");
    assert_eq!(file.len().expect("a size"), 1000);
    file.residency(u64::MAX, u64::MAX).expect("an answer");
    file.residency(0, u64::MAX).expect("an answer");
    file.preallocate(u64::MAX, u64::MAX).expect_err("too far");
    file.preallocate(most, 2).expect_err("too far");
}

#[test]
fn a_file_as_long_as_one_may_be() {
    let _watchdog = Watchdog::start();
    let most = i64::MAX.unsigned_abs();
    let folders = [or_skip(lab::memory_folder()), tempfile::tempdir().ok()];
    for folder in folders.into_iter().flatten() {
        let path = folder.path().join("long");
        let long = fs::File::create(&path).expect("a file");
        if let Err(error) = long.set_len(most) {
            println!("skipped: no file of {most} bytes in {}: {error}", folder.path().display());
            continue;
        }
        for engine in [engine(), small_engine(|options| options.small_size = 0)] {
            let gpu = sim(&engine, "sim");
            let file = engine.open(&path).expect("the file opens");
            let mut target = vec![1; 1000];
            let mut buffer = engine.allocate(gpu, 1000).expect("memory");
            for offset in [most - 1000, most - 1001] {
                let read =
                    file.read(&mut target).at(offset).exact().run().expect("it reaches so far");
                assert_eq!(read.bytes, 1000);
                assert!(target.iter().all(|byte| *byte == 0));
                file.read(&mut buffer).at(offset).exact().run().expect("it reaches so far");
            }
            let buffer = engine.allocate_pinned(3 << 20).expect("memory");
            let transfer = file.read(buffer).at(most - (3 << 20)).exact().start().expect("a start");
            let waited = transfer.wait_for(std::time::Duration::MAX);
            assert!(matches!(waited, Some(Ok(_))), "{waited:?}");
        }
    }
}

#[test]
fn ranges_outside_a_buffer() {
    let engine = engine();
    let (_folder, file) = file(&engine, 1000);
    let mut buffer = engine.allocate_pinned(100).expect("memory");
    let drive = on_drive(&engine, file.path());
    let path = file.path().display().to_string();
    for (range, len) in [(0..101, 101), (101..101, 0), (50..u64::MAX, u64::MAX - 50)] {
        let reason = format!(
            "the range {}..{} lies outside the buffer of 100 bytes",
            range.start, range.end
        );
        let message = format!("cannot read `{path}` at 7+{len}{drive}: {reason}");
        assert_says(file.read((&mut buffer, range.clone())).at(7).run(), &message, "-", "-");
        let message = format!("cannot write `{path}` at 7+{len}{drive}: {reason}");
        assert_says(file.write((&buffer, range)).at(7).run(), &message, "-", "-");
    }
    #[expect(clippy::reversed_empty_ranges, reason = "what is tested")]
    let reversed = file.read((&mut buffer, 60..50)).run();
    assert!(matches!(reversed, Err(Error::BadRequest { .. })));
    let message = "`offset` cannot be `90+11`: it takes a range inside the buffer's 100 bytes";
    assert_says(buffer.download(90, &mut [0; 11]), message, "-", "-");
    assert!(buffer.upload(u64::MAX, &[0; 1]).is_err());
    assert_eq!(file.read((&mut buffer, 100..100)).run().expect("nothing").bytes, 0);
}

#[test]
fn limits_that_make_no_sense() {
    type Change = fn(&mut Options);
    let cases: &[(Change, &str)] = &[
        (|o| o.slot_size = 3 * MIB, "`FOREBAY_SLOT_SIZE` cannot be `3145728`"),
        (|o| o.slot_size = 0, "`FOREBAY_SLOT_SIZE` cannot be `0`"),
        (|o| o.slot_size = 2 * GIB, "`FOREBAY_SLOT_SIZE` cannot be `2147483648`"),
        (|o| o.segment_size = 1000, "`FOREBAY_SEGMENT_SIZE` cannot be `1000`"),
        (|o| o.segment_size = 2 * KIB, "`FOREBAY_SEGMENT_SIZE` cannot be `2048`"),
        (|o| o.segment_size = 32 * MIB, "`FOREBAY_SEGMENT_SIZE` cannot be `33554432`"),
        (|o| o.arena_size = Some(0), "`FOREBAY_ARENA_SIZE` cannot be `0`"),
        (|o| o.readers = Some(0), "`FOREBAY_READERS` cannot be `0`"),
        (|o| o.readers = Some(usize::MAX), "`FOREBAY_READERS` cannot be"),
        (|o| o.depth = Some(0), "`FOREBAY_DEPTH` cannot be `0`"),
        (|o| o.depth = Some(100_000), "`FOREBAY_DEPTH` cannot be `100000`"),
        (|o| o.small_size = u64::MAX, "`FOREBAY_SMALL_SIZE` cannot be"),
    ];
    for (change, message) in cases {
        let mut options = Options::default();
        change(&mut options);
        let error = Engine::new(options).expect_err(message);
        assert!(matches!(error, Error::BadOption { .. }), "{error}");
        let printed = error.to_string();
        assert!(printed.starts_with(message) && printed.contains(": it takes "), "{printed}");
    }
    // An arena that no machine has is only a bound.
    let mut options = Options::default();
    options.arena_size = Some(u64::MAX);
    let engine = Engine::new(options).expect("a bound");
    let gpu = sim(&engine, "sim");
    let (_folder, file) = file(&engine, 200_000);
    assert_eq!(file.read_to_end(Some(gpu)).run().expect("all bytes").1.bytes, 200_000);
}

#[test]
fn routes_that_are_unavailable() {
    let engine = engine();
    let (_folder, file) = file(&engine, 100_000);
    let drive = on_drive(&engine, file.path());
    let place = format!("`{}` at 5+100{drive}", file.path().display());
    let hint = "omit the route to use the fastest available one";
    let says = |file: &File, memory: Option<_>, route: Route, reason: &str| {
        let place = if file.path().starts_with("/dev/shm") {
            format!("`{}` at 5+100", file.path().display())
        } else {
            place.clone()
        };
        let message = format!("cannot move {place} by the route `{route}`: {reason}");
        let mut buffer = match memory {
            Some(gpu) => engine.allocate(gpu, 100).expect("memory"),
            None => engine.allocate_pinned(100).expect("memory"),
        };
        assert_says(file.read(&mut buffer).at(5).route(route).run(), &message, "-", hint);
        assert_says(file.write(&buffer).at(5).route(route).run(), &message, "-", hint);
        assert_says(file.read(buffer).at(5).route(route).start(), &message, "-", hint);
    };
    let gpu = sim(&engine, "sim");
    let missing = "the simulated GPU lacks cuFile; use `--gpu sim:cufile`";
    says(&file, Some(gpu), Route::Direct, missing);
    says(&file, None, Route::Direct, "the memory is the host's");
    says(&file, Some(gpu), Route::Host, "the memory is a GPU's");
    let host = "the memory is the host's, so no slot is used; the route is `host`";
    says(&file, None, Route::Staged, host);
    if let Some(folder) = or_skip(lab::memory_folder()) {
        let path = folder.path().join("data");
        fs::write(&path, pattern(1, 1000)).expect("a file");
        let file = engine.open_with(&path, &OpenOptions::writing()).expect("the file opens");
        says(&file, Some(gpu), Route::Staged, "the file lives in memory");
    }
}

#[test]
fn o_direct_that_is_refused_or_switched_off() {
    let _watchdog = Watchdog::start();
    let bytes = pattern(5, 3_000_000);
    let mut off = Options::default();
    off.direct_io = DirectIo::Off;
    let off = Engine::new(off).expect("limits that fit");
    let (_folder, plain) = file(&off, 100_000);
    let switched = "O_DIRECT is switched off (`FOREBAY_DIRECT_IO=off`)";
    refuses_staged(&off, &plain, switched);
    let Some(fuse) = or_skip(Fuse::new(bytes.clone())) else { return };
    fuse.set(|faults| faults.no_direct = true);
    let engine = engine();
    let file = engine.open_with(fuse.path(), &OpenOptions::writing()).expect("the file opens");
    assert_eq!(file.no_direct_io(), Some("the file system refuses O_DIRECT"));
    refuses_staged(&engine, &file, "the file system refuses O_DIRECT");
    let gpu = sim(&engine, "sim");
    let (buffer, outcome) = file.read_to_end(Some(gpu)).run().expect("all bytes");
    let mut got = vec![0; bytes.len()];
    buffer.download(0, &mut got).expect("a download");
    assert!(got == bytes);
    assert_eq!(outcome.routes.len(), 1);
    assert_eq!(outcome.routes[0].reason, forebay::Reason::NoDirectIo);
    assert_eq!(outcome.routes[0].route, Route::Cached);
}

#[test]
fn o_direct_that_is_refused_when_a_file_is_read() {
    let _watchdog = Watchdog::start();
    let bytes = pattern(5, 3_000_000);
    let Some(fuse) = or_skip(Fuse::new(bytes.clone())) else { return };
    fuse.set(|faults| faults.no_direct_reads = true);
    let refusal = "a request with O_DIRECT failed: Invalid argument (os error 22)";
    for ring in [RingChoice::Auto, RingChoice::Pread] {
        let engine = small_engine(|options| options.ring = ring);
        let gpu = sim(&engine, "sim");
        for on_gpu in [Some(gpu), None] {
            let file = engine.open(fuse.path()).expect("the file opens");
            lab::fuse::drop_pages(&fuse.path());
            let (buffer, outcome) = file.read_to_end(on_gpu).run().expect("all bytes");
            let mut got = vec![0; bytes.len()];
            buffer.download(0, &mut got).expect("a download");
            assert!(got == bytes);
            let refused = |share: &forebay::RouteShare| share.reason == Reason::NoDirectIo;
            assert!(outcome.routes.iter().any(refused), "{outcome:?}");
            assert_eq!(file.no_direct_io(), Some(refusal));
        }
        // Where it is required, it is missing whether that is known before or not.
        let file = engine.open_with(fuse.path(), &OpenOptions::writing()).expect("it opens");
        refuses_staged(&engine, &file, refusal);
        refuses_staged(&engine, &file, refusal);
    }
}

/// The file's pieces have that error, and those of another file are read.
#[test]
fn o_direct_that_is_refused_when_one_of_two_files_is_read() {
    let _watchdog = Watchdog::start();
    let bytes = pattern(5, 100_000);
    let Some(fuse) = or_skip(Fuse::new(bytes.clone())) else { return };
    fuse.set(|faults| faults.no_direct_reads = true);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data");
    fs::write(&path, &bytes).expect("room for a file");
    for ring in [RingChoice::Auto, RingChoice::Pread] {
        let engine = small_engine(|options| options.ring = ring);
        let gpu = sim(&engine, "sim");
        let file = engine.open(&path).expect("the file opens");
        if let Some(reason) = file.no_direct_io() {
            return lab::skip(format!("the temporary folder has no O_DIRECT: {reason}"));
        }
        let refuses = engine.open(fuse.path()).expect("the file opens");
        let mut buffer = engine.allocate(gpu, 100_000).expect("memory");
        let pieces = [0, 1, 2, 3].map(|n| {
            let file = if n % 2 == 0 { &file } else { &refuses };
            Piece::new(file, n * 20_000, 20_000, n * 20_000)
        });
        let outcome = engine.read_many(&pieces, [&mut buffer]).route(Route::Staged).run();
        let outcome = outcome.expect("one file is not all");
        let mut got = vec![0; bytes.len()];
        buffer.download(0, &mut got).expect("a download");
        for (n, result) in outcome.results.iter().enumerate() {
            let range = n * 20_000..(n + 1) * 20_000;
            match result.as_ref().map_err(|error| &**error) {
                Ok(20_000) if n % 2 == 0 => assert!(got[range.clone()] == bytes[range]),
                Err(Error::RouteUnavailable { place, .. }) if n % 2 == 1 => {
                    assert_eq!(place.path, fuse.path());
                }
                other => panic!("piece {n}: {other:?}"),
            }
        }
    }
}

fn refuses_staged(engine: &Engine, file: &File, reason: &str) {
    let gpu = sim(engine, "sim");
    let mut buffer = engine.allocate(gpu, 100).expect("memory");
    let read = file.read(&mut buffer).route(Route::Staged).run();
    match read.expect_err("no O_DIRECT") {
        Error::RouteUnavailable { reason: printed, route: Route::Staged, .. } => {
            assert_eq!(printed, reason);
        }
        error => panic!("{error}"),
    }
}

#[test]
fn missing_gpus() {
    let engine = engine();
    let named = |name: &str| name.parse::<GpuSelector>().and_then(|gpu| engine.device(&gpu));
    let hint = "`--gpu none` moves bytes to host memory, `--gpu sim` to a simulated GPU";
    match forebay::gpu::absence_reason() {
        Some(reason) => {
            assert!(!reason.is_empty());
            assert_says(named("0"), &format!("no GPU `0`: {reason}"), "-", hint);
            assert!(named("auto").expect("host memory").is_none());
        }
        None => {
            let error = named("4000").expect_err("no machine has so many");
            assert!(error.to_string().starts_with("no GPU `4000`: there "), "{error}");
        }
    }
    assert!(named("none").expect("host memory").is_none());
    let names = "`auto`, `none`, an index, a UUID (`GPU-…`, `MIG-…`), a PCI address \
                 (`0000:1b:00.0`), or `sim` and its settings";
    assert_says(named("fast"), &format!("`gpu` cannot be `fast`: it takes {names}"), "-", "-");
    assert!(matches!(named("sim:speed=1"), Err(Error::BadOption { .. })));
    let elsewhere = crate::engine();
    let gpu = sim(&elsewhere, "sim");
    let allocated = engine.allocate(gpu, 100);
    let message = "no GPU `sim:0`: it was not brought into this engine";
    assert_says(allocated, message, "-", hint);
}

#[test]
fn memory_beyond_the_gpus() {
    let engine = engine();
    let gpu = sim(&engine, "sim:memory=1M");
    let (_folder, file) = file(&engine, 2 << 20);
    let hint = "free memory on the GPU, or move the file in parts";
    let error = file.read_to_end(Some(gpu)).run().expect_err("no room");
    let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(cause.contains("SIM_ERROR_OUT_OF_MEMORY (2)"), "{cause}");
    assert_says(Err::<(), _>(error), "cannot allocate 2 MiB on sim:0", &cause, hint);
    // What has room still moves, again and again.
    for _ in 0..5 {
        let mut buffer = engine.allocate(gpu, MIB).expect("all of its memory");
        assert_eq!(file.read(&mut buffer).run().expect("a read").bytes, MIB);
    }
    // The limit of a control group is reported before memory is requested from the kernel.
    let error = engine.allocate_pinned(1 << 58).expect_err("more than any machine has");
    let (text, hint) = (error.to_string(), error.hint().unwrap_or_default());
    assert!(text.starts_with("cannot allocate 262144 TiB of host memory"), "{text}");
    assert!(hint.starts_with("set `FOREBAY_ARENA_SIZE`"), "{hint}");
    assert!(hint.contains(", or raise "), "{hint}");
    let error = engine.allocate_pinned(u64::MAX).expect_err("more than there are addresses");
    let is_known = matches!(error, Error::HostMemory { .. } | Error::MemoryLimit { .. });
    assert!(is_known, "{error:?}");
}
