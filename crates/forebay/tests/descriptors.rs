//! Files by a descriptor that the caller has opened: its access mode holds, and what its
//! owner sees of it never changes.

#[path = "lab/mod.rs"]
mod lab;

use std::fs::{self, File as Plain};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use forebay::{Engine, Error, File, Options, RequestOptions, Result, RingChoice, Route, SyncMode};
use lab::{FileSystem, LoopDrive, LoopOptions, or_skip, pattern};
use rustix::fs::{CWD, FileType, FlockOperation, MemfdFlags, Mode, OFlags, fcntl_getfl, flock};

const LEN: usize = 3_000_001;

const APPENDS: &str = "with O_APPEND every write goes to the end of the file, whatever its offset";

/// Why a descriptor that appends is refused.
fn not_anew(cause: &str) -> String {
    format!("{APPENDS}, and it cannot be opened anew ({cause}): give a descriptor without O_APPEND")
}

fn engines() -> Vec<Engine> {
    let with = |ring| {
        let mut options = Options::default();
        (options.ring, options.slot_size, options.segment_size) = (ring, 1 << 20, 128 << 10);
        Engine::new(options).expect("limits that fit")
    };
    let rings: &[_] = match lab::has_uring() {
        true => &[RingChoice::Uring, RingChoice::Pread],
        false => &[RingChoice::Pread],
    };
    rings.iter().map(|ring| with(*ring)).collect()
}

fn engine() -> Engine {
    engines().remove(0)
}

/// A file of `LEN` bytes on a disk, and these.
fn on_disk() -> (tempfile::TempDir, PathBuf, Vec<u8>) {
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
    let path = folder.path().join("data");
    let bytes = pattern(5, LEN);
    fs::write(&path, &bytes).expect("room for a file");
    (folder, path, bytes)
}

fn opened(path: &Path, flags: i32) -> Plain {
    let open = |read| {
        let mut how = Plain::options();
        how.read(read).write(flags & libc::O_WRONLY != 0 || flags & libc::O_RDWR != 0);
        how.custom_flags(flags & !libc::O_ACCMODE).open(path)
    };
    open(flags & libc::O_WRONLY == 0).expect("the file opens")
}

/// Reads it all by every way, resident and cold, and compares; the routes that can be had.
fn check_reads(engine: &Engine, file: &File, bytes: &[u8]) {
    let gpu = engine.device(&"sim".parse().expect("a name")).expect("a GPU").expect("a GPU").id();
    for cold in [false, true] {
        if cold {
            file.evict().expect("an eviction");
        }
        for (offset, len) in [(0, bytes.len()), (1, 100), (4097, 1_000_003), (bytes.len() - 7, 7)] {
            let mut target = vec![0; len];
            file.read(&mut target).at(offset as u64).exact().run().expect("all bytes");
            assert!(target == bytes[offset..][..len], "cold: {cold}, {offset}+{len}");
        }
        let staged = match file.no_direct_io() {
            None => {
                Some(RequestOptions { route: Some(Route::Staged), ..RequestOptions::default() })
            }
            Some(_) => None,
        };
        for options in [Some(RequestOptions::default()), staged].into_iter().flatten() {
            let mut buffer = engine.allocate(gpu, bytes.len() as u64).expect("memory");
            file.read(&mut buffer).options(options).run().expect("all bytes");
            let mut got = vec![0; bytes.len()];
            buffer.download(0, &mut got).expect("a download");
            assert!(got == bytes, "cold: {cold}, {options:?}");
        }
    }
}

/// Writes at odd and even places by every way, and looks at the file by its descriptor's link.
fn check_writes(engine: &Engine, file: &File, look: &Plain, bytes: &mut [u8]) {
    let gpu = engine.device(&"sim".parse().expect("a name")).expect("a GPU").expect("a GPU").id();
    let mut ways = vec![RequestOptions { sync: SyncMode::Data, ..RequestOptions::default() }];
    if file.no_direct_io().is_none() {
        ways.push(RequestOptions { route: Some(Route::Staged), ..RequestOptions::default() });
    }
    for (turn, options) in ways.iter().enumerate() {
        for (offset, len) in [(0, 4096), (1001, 50), (8192, 1_200_000), (77_777, 300_001)] {
            let new = pattern((turn * 1000 + offset) as u64, len);
            let mut buffer = engine.allocate(gpu, len as u64).expect("memory");
            buffer.upload(0, &new).expect("an upload");
            file.write(&buffer).at(offset as u64).options(*options).run().expect("a write");
            bytes[offset..][..len].copy_from_slice(&new);
        }
        let new = pattern(turn as u64, 99);
        file.write(&new).at(12_345).run().expect("a small write");
        bytes[12_345..][..99].copy_from_slice(&new);
        let mut got = vec![0; bytes.len() + 10];
        assert_eq!(read_all(look, &mut got), bytes.len(), "{options:?}");
        assert!(got[..bytes.len()] == *bytes, "{options:?}");
    }
}

/// Reads from the start without the position; how many bytes there are.
fn read_all(file: &Plain, target: &mut [u8]) -> usize {
    let mut at = 0;
    loop {
        match file.read_at(&mut target[at..], at as u64).expect("a read") {
            0 => return at,
            got => at += got,
        }
    }
}

#[test]
fn a_given_descriptor_never_changes() {
    let (_folder, path, mut bytes) = on_disk();
    let flag_sets = [0, libc::O_APPEND, libc::O_NONBLOCK, libc::O_DSYNC, libc::O_DIRECT];
    for engine in engines() {
        for flags in flag_sets {
            lab::note(format!("{flags:#o}"));
            let Ok(mut plain) =
                Plain::options().read(true).write(true).custom_flags(flags).open(&path)
            else {
                lab::skip("the temporary folder has no O_DIRECT");
                continue;
            };
            plain.seek(std::io::SeekFrom::Start(4096)).expect("a seek");
            let before = fcntl_getfl(&plain).expect("flags");
            let file = engine.open_borrowed_fd(&plain).expect("a file");
            assert_eq!(file.path(), path);
            let hinders = flags & (libc::O_APPEND | libc::O_DIRECT | libc::O_NONBLOCK) != 0;
            assert_eq!(file.reopened().is_some(), hinders, "{:?}", file.reopened());
            check_reads(&engine, &file, &bytes);
            check_writes(&engine, &file, &Plain::open(&path).expect("a look"), &mut bytes);
            assert_eq!(fcntl_getfl(&plain).expect("flags"), before);
            assert_eq!(plain.stream_position().expect("a position"), 4096);
            drop(file);
            // The caller's own descriptor goes on.
            assert_eq!(fcntl_getfl(&plain).expect("flags"), before);
            assert_eq!(plain.metadata().expect("still open").len(), LEN as u64);
        }
    }
}

#[test]
fn an_owned_descriptor_lives_as_long_as_its_file() {
    let (_folder, path, bytes) = on_disk();
    let engine = engine();
    for flags in [0, libc::O_NONBLOCK] {
        let plain = Plain::options().read(true).custom_flags(flags).open(&path).expect("a file");
        flock(&plain, FlockOperation::LockExclusive).expect("a lock");
        let file = engine.open_fd(plain).expect("a file");
        check_reads(&engine, &file, &bytes);
        let other = Plain::open(&path).expect("another descriptor");
        let locked = flock(&other, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(locked, Err(rustix::io::Errno::WOULDBLOCK), "the descriptor is still open");
        drop(file);
        flock(&other, FlockOperation::LockExclusive).expect("the descriptor is closed");
    }
}

#[test]
fn writes_to_a_descriptor_that_appends_go_where_they_should() {
    let (_folder, path, bytes) = on_disk();
    let engine = engine();
    let mut plain = Plain::options().append(true).open(&path).expect("a file");
    let file = engine.open_borrowed_fd(&plain).expect("a file");
    assert_eq!(file.reopened(), Some(APPENDS));
    file.write(&b"forebay".to_vec()).at(10).run().expect("a small write");
    plain.write_all(b"behind").expect("the caller's still appends");
    let now = fs::read(&path).expect("a read");
    assert_eq!(now.len(), LEN + 6);
    assert!(now[10..17] == *b"forebay" && now[..10] == bytes[..10] && now[17..LEN] == bytes[17..]);
    // For reading alone the flag means nothing.
    let reading = Plain::options().read(true).custom_flags(libc::O_APPEND).open(&path);
    assert_eq!(engine.open_fd(reading.expect("a file")).expect("a file").reopened(), None);
}

#[test]
fn a_descriptor_that_cannot_be_replaced_is_refused_or_serves_with_a_reason() {
    let (_folder, path, bytes) = on_disk();
    let plain = |flags| {
        let mut how = Plain::options();
        how.read(true).write(true).custom_flags(flags).open(&path).expect("the file opens")
    };
    let (append, nonblock, neither) = (plain(libc::O_APPEND), plain(libc::O_NONBLOCK), plain(0));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("a mode");
    let tried = lab::unprivileged(|| {
        let engine = engine();
        let refused = engine.open_borrowed_fd(&append).expect_err("it appends");
        let printed = not_anew("Permission denied (os error 13)");
        assert_eq!(refused.to_string(), format!("cannot open `{}`: {printed}", path.display()));
        assert!(matches!(refused, Error::BadRequest { .. }), "{refused:?}");
        for given in [&nonblock, &neither] {
            let file = engine.open_borrowed_fd(given).expect("a file");
            assert_eq!(file.reopened(), None);
            let reason = file.no_direct_io().expect("no second descriptor").to_owned();
            let denied = "no second descriptor with O_DIRECT: Permission denied (os error 13)";
            assert!([denied, "the file lives in memory"].contains(&reason.as_str()), "{reason}");
            check_reads(&engine, &file, &bytes);
            file.write(&bytes[5..1000].to_vec()).at(5).run().expect("a write");
        }
    });
    if or_skip(tried).is_none() {
        return;
    }
    assert!(fs::read(&path).expect("a read") == bytes, "no byte was appended");
}

#[test]
fn a_file_that_may_only_grow_is_refused_by_an_appending_descriptor() {
    let Some(drive) = or_skip(LoopDrive::with(FileSystem::Ext4)) else { return };
    let path = drive.path().join("data");
    fs::write(&path, b"log").expect("a file");
    let attribute = |change: &str| lab::tool("chattr", [change.as_ref(), path.as_os_str()]);
    if or_skip(attribute("+a")).is_none() {
        return;
    }
    let plain = Plain::options().append(true).open(&path).expect("it may grow");
    let refused = engine().open_fd(plain);
    attribute("-a").expect("as before");
    let error = refused.expect_err("nothing else may be written").to_string();
    assert!(error.contains("cannot be opened anew (Operation not permitted"), "{error}");
}

#[test]
fn files_without_a_name() {
    let (folder, path, bytes) = on_disk();
    let removed = opened(&path, libc::O_RDWR);
    fs::remove_file(&path).expect("a removal");
    let how = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let temporary = rustix::fs::openat(CWD, folder.path(), how, Mode::from_raw_mode(0o600));
    let memory = rustix::fs::memfd_create("weights", MemfdFlags::CLOEXEC);
    let mut cases = vec![(removed, format!("{} (deleted)", path.display()))];
    match temporary {
        Ok(fd) => {
            let name = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("a name");
            cases.push((fd.into(), name.to_str().expect("text").to_owned()));
        }
        Err(errno) => lab::skip(format!("no O_TMPFILE here: {errno}")),
    }
    match memory {
        Ok(fd) => cases.push((fd.into(), "/memfd:weights (deleted)".to_owned())),
        Err(errno) => lab::skip(format!("no memfd here: {errno}")),
    }
    for (plain, name) in cases {
        lab::note(&name);
        plain.write_all_at(&bytes, 0).expect("room");
        for engine in engines() {
            let mut bytes = bytes.clone();
            plain.write_all_at(&bytes, 0).expect("room");
            let file = engine.open_borrowed_fd(&plain).expect("a file");
            assert_eq!(file.path().to_str(), Some(name.as_str()));
            assert_eq!(file.len().expect("a size"), LEN as u64);
            let in_memory = file.no_direct_io() == Some("the file lives in memory");
            assert!(in_memory || file.no_direct_io().is_none(), "{:?}", file.no_direct_io());
            check_reads(&engine, &file, &bytes);
            check_writes(&engine, &file, &plain, &mut bytes);
            let error =
                file.read(&mut vec![0; 5]).at(LEN as u64).exact().run().expect_err("the end");
            assert!(error.to_string().starts_with(&format!("cannot read `{name}` at {LEN}+5")));
        }
    }
}

#[test]
fn sealed_memory_can_be_read_and_says_why_it_cannot_be_written() {
    use rustix::fs::{SealFlags, fcntl_add_seals};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let Ok(fd) = rustix::fs::memfd_create("sealed", flags) else {
        return lab::skip("no memfd here");
    };
    let plain = Plain::from(fd);
    plain.write_all_at(&pattern(1, LEN), 0).expect("room");
    fcntl_add_seals(&plain, SealFlags::WRITE | SealFlags::SHRINK).expect("seals");
    let engine = engine();
    let file = engine.open_fd(plain).expect("a file");
    check_reads(&engine, &file, &pattern(1, LEN));
    for len in [10, 200_000] {
        let error = file.write(&vec![1; len]).at(5).run().expect_err("it is sealed");
        assert_eq!(error.errno(), Some(libc::EPERM), "{error}");
    }
    let (buffer, _) = file.read_to_end(None).run().expect("all bytes");
    assert!(buffer.as_slice() == Some(&pattern(1, LEN)[..]));
}

#[test]
fn a_descriptor_for_writing_alone_writes_alone() {
    let (_folder, path, mut bytes) = on_disk();
    for engine in engines() {
        let file = engine.open_fd(opened(&path, libc::O_WRONLY)).expect("a file");
        assert_eq!(file.reopened(), None);
        check_writes(&engine, &file, &Plain::open(&path).expect("a look"), &mut bytes);
        let error = file.read(&mut vec![0; 10]).at(3).run().expect_err("not for reading");
        assert!(matches!(&error, Error::BadRequest { .. }));
        let message = error.to_string();
        assert!(message.starts_with(&format!("cannot read `{}` at 3+10", path.display())));
        assert!(message.ends_with(": the file is open for writing only"), "{message}");
        assert!(file.read_to_end(None).run().is_err());
        let buffer = engine.allocate_pinned(10).expect("memory");
        assert!(file.read(buffer).start().is_err());
        file.evict().expect("an eviction");
        file.residency(0, 1 << 20).expect("an answer");
        let file = engine.open_fd(opened(&path, libc::O_RDONLY)).expect("a file");
        check_reads(&engine, &file, &bytes);
        let error = file.write(&vec![0; 10]).at(3).run().expect_err("not for writing").to_string();
        assert!(error.ends_with(": the file is open for reading only"), "{error}");
    }
}

/// An error's text, and the remedy or nothing.
fn printed(result: Result<File>) -> (String, String) {
    let error = result.expect_err("no file");
    (error.to_string(), error.hint().unwrap_or_default())
}

#[test]
fn descriptors_that_are_no_files() {
    let engine = engine();
    let folder = tempfile::tempdir().expect("a folder");
    let fifo = folder.path().join("fifo");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a FIFO");
    let (pipe, _writer) = std::io::pipe().expect("a pipe");
    let (socket, _other) = UnixStream::pair().expect("a socket");
    let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd");
    let cases: [(OwnedFd, Option<&Path>, &str); 6] = [
        (opened(&fifo, libc::O_RDWR).into(), Some(&fifo), "FIFO"),
        (pipe.into(), None, "FIFO"),
        (socket.into(), None, "socket"),
        (bell, None, "thing of unknown kind"),
        (opened(folder.path(), libc::O_RDONLY).into(), Some(folder.path()), "folder"),
        (opened("/dev/null".as_ref(), 0).into(), Some("/dev/null".as_ref()), "character device"),
    ];
    for (fd, path, kind) in cases {
        let name = path.map_or(format!("fd {}", fd.as_raw_fd()), |path| path.display().to_string());
        let expected = format!("cannot open `{name}`: it is a {kind}, not a file");
        let hint = "give a regular file or a block device".to_owned();
        assert_eq!(printed(engine.open_borrowed_fd(&fd)), (expected.clone(), hint.clone()));
        assert_eq!(printed(engine.open_fd(fd)), (expected, hint));
    }
    let (message, hint) = printed(engine.open_borrowed_fd(lab::no_descriptor()));
    assert!(message.starts_with("cannot open `fd "), "{message}");
    assert_eq!(hint, "give a descriptor that is open");
}

#[test]
fn a_descriptor_that_only_names_a_file() {
    let (_folder, path, _) = on_disk();
    let named = rustix::fs::openat(CWD, &path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let error = engine().open_fd(named.expect("a descriptor")).expect_err("no access").to_string();
    let reason =
        "its descriptor can neither read nor write (O_PATH): open it for reading or writing";
    assert_eq!(error, format!("cannot open `{}`: {reason}", path.display()));
}

#[test]
fn a_block_device_by_its_descriptor() {
    let options = LoopOptions { size: 8 << 20, file_system: None, ..LoopOptions::default() };
    let Some(drive) = or_skip(LoopDrive::new(&options)) else { return };
    let mut bytes = pattern(8, 8 << 20);
    fs::write(drive.device(), &bytes).expect("room");
    for engine in engines() {
        for flags in [0, libc::O_NONBLOCK, libc::O_DIRECT] {
            let mut plain = opened(drive.device(), libc::O_RDWR | flags);
            plain.seek(std::io::SeekFrom::Start(4096)).expect("a seek");
            let file = engine.open_borrowed_fd(&plain).expect("a file");
            assert_eq!(file.len().expect("a size"), 8 << 20);
            assert_eq!(file.drive(), Some(drive.name().as_str()));
            check_reads(&engine, &file, &bytes);
            let look = Plain::open(drive.device()).expect("a look");
            check_writes(&engine, &file, &look, &mut bytes);
            assert_eq!(plain.stream_position().expect("a position"), 4096, "it did not move");
        }
    }
}

#[test]
fn where_proc_is_hidden() {
    let (_folder, path, bytes) = on_disk();
    let tried = lab::without_proc(|| {
        let engine = engine();
        let plain = opened(&path, libc::O_RDWR);
        let number = plain.as_fd().as_raw_fd();
        let file = engine.open_borrowed_fd(&plain).expect("a file");
        assert_eq!(file.path(), Path::new(&format!("fd {number}")));
        let reason = file.no_direct_io().expect("no way to a second descriptor").to_owned();
        let missing = "no second descriptor with O_DIRECT: No such file or directory (os error 2)";
        assert!([missing, "the file lives in memory"].contains(&reason.as_str()), "{reason}");
        check_reads(&engine, &file, &bytes);
        let appending = Plain::options().append(true).open(&path).expect("a file");
        let number = appending.as_raw_fd();
        let printed = not_anew("there is no `/proc` here");
        let error = engine.open_fd(appending).expect_err("no second descriptor");
        assert_eq!(error.to_string(), format!("cannot open `fd {number}`: {printed}"));
        // By its name a file has a second descriptor all the same.
        let file = engine.open(&path).expect("a file");
        assert!(file.no_direct_io().is_none_or(|reason| reason == "the file lives in memory"));
    });
    let _ = or_skip(tried);
}

#[test]
fn the_standard_input_can_be_a_file() {
    // What a shell's `<` gives: a position that others go on from.
    let (_folder, path, bytes) = on_disk();
    let mut plain = Plain::open(&path).expect("a file");
    let mut start = [0; 100];
    plain.read_exact(&mut start).expect("a header");
    let file = engine().open_borrowed_fd(&plain).expect("a file");
    let mut target = vec![0; LEN - 100];
    file.read(&mut target).at(100).exact().run().expect("the rest");
    assert!(target == bytes[100..]);
    plain.read_exact(&mut start).expect("what follows");
    assert!(start == bytes[100..200]);
}
