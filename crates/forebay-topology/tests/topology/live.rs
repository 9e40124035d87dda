//! File systems of this machine: loop drives, partitions, btrfs, overlays, mounts on mounts.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use forebay_topology::{DriveKind, LayerKind, Layout, Resolver, StorageMap};
use tempfile::TempDir;

use crate::lab::{
    FileSystem, LoopDrive, LoopOptions, Offer, Overlay, child, memory_folder, note, or_skip,
};
use crate::{kinds, reason, step};

fn resolve(path: &Path) -> StorageMap {
    Resolver::default().resolve(path)
}

/// A mount that ends with the test.
struct Mounted(PathBuf);

impl Mounted {
    fn new<'a>(arguments: impl IntoIterator<Item = &'a OsStr>, at: &'a Path) -> Offer<Self> {
        run("mount", arguments.into_iter().chain([at.as_os_str()]))?;
        Ok(Self(at.to_owned()))
    }

    fn tmpfs(at: &Path) -> Offer<Self> {
        Self::new(["-t", "tmpfs", "none"].map(OsStr::new), at)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(reason) = run("umount", [self.0.as_os_str()]) {
            note(reason);
        }
    }
}

fn run<'a>(name: &str, arguments: impl IntoIterator<Item = &'a OsStr>) -> Offer<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(format!("`{name}` takes root"));
    }
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let output = Command::new(name).args(arguments).env("PATH", path).output();
    let output = output.map_err(|e| format!("no `{name}`: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("`{name}` failed: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

#[test]
fn a_path_to_be_made_is_where_its_folder_is() {
    let folder = folder();
    let here = resolve(folder.path());
    let map = resolve(&folder.path().join("not/yet/../there"));
    assert!(!map.exists && here.exists);
    assert_eq!(map.queue, here.queue);
    let real = folder.path().canonicalize().expect("it is there");
    assert_eq!(map.real_path, real.join("not/there"));
    assert_eq!(map.root.text("resolved_as"), real.to_str());
    // The working folder is where paths without a root begin.
    let own = std::env::current_dir().expect("a working folder");
    assert_eq!(resolve(Path::new("new")).real_path, resolve(&own.join("new")).real_path);
}

#[test]
fn links_are_steps() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("deep")).expect("a folder");
    fs::write(path("deep/file"), "x").expect("a file");
    symlink("deep", path("one")).expect("a link");
    symlink(path("one/file"), path("two")).expect("a link");
    let map = resolve(&path("two"));
    assert_eq!(kinds(&map)[..2], [LayerKind::Symlink, LayerKind::Symlink]);
    assert_eq!(map.real_path, path("deep/file").canonicalize().expect("it is there"));

    symlink("deep/missing", path("dangling")).expect("a link");
    let map = resolve(&path("dangling"));
    assert!(!map.exists && map.root.flag("dangling"));
    assert!(map.real_path.ends_with("deep/missing"));
    assert_eq!(map.queue, resolve(folder.path()).queue);

    symlink("circle", path("circle")).expect("a link");
    let map = resolve(&path("circle"));
    assert!(!map.exists && map.drives.is_empty());
    assert!(reason(&map.root, "file").contains("os error 40"), "{:?}", map.root);
    // A file in the place of a folder.
    let map = resolve(&path("deep/file/below"));
    assert!(!map.exists && reason(&map.root, "file").contains("os error 20"));
}

#[test]
fn a_loop_drive_is_on_the_drive_of_its_image() {
    use LayerKind as K;
    let Some(drive) = or_skip(LoopDrive::with(FileSystem::Ext4)) else { return };
    let below = resolve(&std::env::temp_dir());
    let map = resolve(drive.path());
    let above = [K::Mount, K::FileSystem, K::Loop, K::BackingFile];
    assert_eq!(kinds(&map)[..4], above);
    assert_eq!(kinds(&map)[4..], kinds(&below)[..]);
    assert_eq!((&map.queue.hardware, &map.drives), (&below.queue.hardware, &below.drives));
    assert_ne!(map.queue.id, below.queue.id, "it has a request queue of its own");
    let device = step(&map, K::Loop);
    assert_eq!(device.name, drive.name());
    assert!(device.flag("direct_io"));
    let found_by = step(&map, K::BackingFile).text("found_by");
    assert_eq!(found_by, Some("device and inode"));
    // The device itself leads to the same place, without a mount of its own.
    let raw = resolve(drive.device());
    assert_eq!((kinds(&raw)[0], &raw.queue), (K::Loop, &map.queue));
}

#[test]
fn a_loop_drive_on_a_loop_drive_is_on_one_drive() {
    let Some(outer) = or_skip(LoopDrive::with(FileSystem::Ext4)) else { return };
    let options =
        LoopOptions { size: 64 << 20, image_in: outer.path().to_owned(), ..LoopOptions::default() };
    let Some(inner) = or_skip(LoopDrive::new(&options)) else { return };
    let map = resolve(&inner.path().join("new"));
    let count = map.root.walk().filter(|(_, layer)| layer.kind == LayerKind::Loop).count();
    assert_eq!(count, 2);
    assert_eq!(map.drives, resolve(&std::env::temp_dir()).drives);
    assert_ne!(map.queue.id, resolve(outer.path()).queue.id);
}

#[test]
fn partitions_share_the_queue_of_their_drive() {
    let options = LoopOptions { file_system: None, ..LoopOptions::default() };
    let Some(mut drive) = or_skip(LoopDrive::new(&options)) else { return };
    let Some(first) = or_skip(drive.partition(1 << 20, 64 << 20)) else { return };
    let map = resolve(&first);
    assert_eq!(kinds(&map)[..2], [LayerKind::Partition, LayerKind::Loop]);
    let partition = step(&map, LayerKind::Partition);
    assert_eq!(partition.number("start_bytes"), Some(1 << 20));
    assert_eq!(partition.number("size_bytes"), Some(64 << 20));
    assert_eq!(map.queue, resolve(drive.device()).queue);
}

#[test]
fn a_deleted_or_renamed_image_is_no_guess() {
    let Some(drive) = or_skip(LoopDrive::with(FileSystem::Ext4)) else { return };
    let map = resolve(drive.path());
    let image = PathBuf::from(step(&map, LayerKind::Loop).text("backing_file").expect("a path"));
    let aside = image.with_extension("aside");
    fs::rename(&image, &aside).expect("a file of ours");
    fs::write(&image, "another").expect("a file");
    // The kernel follows a file that is renamed, so its name is right again.
    let renamed = resolve(drive.path());
    assert_eq!(renamed.queue, map.queue);
    fs::remove_file(&aside).expect("a file of ours");
    let deleted = resolve(drive.path());
    assert!(step(&deleted, LayerKind::BackingFile).flag("deleted"));
    assert_eq!(deleted.queue, map.queue);
}

#[test]
fn a_drive_that_is_pulled_is_seen() {
    let options = LoopOptions { file_system: None, size: 64 << 20, ..LoopOptions::default() };
    let resolver = Resolver::default();
    let Some(drive) = or_skip(LoopDrive::new(&options)) else { return };
    let device = drive.device().to_owned();
    // Read twice, so that an answer is kept.
    let before = resolver.resolve(&device);
    assert_eq!(resolver.resolve(&device), before);
    drop(drive);
    // Another test may have got the device meanwhile: then it has another image.
    let after = resolver.resolve(&device);
    assert_ne!(after, before);
}

#[test]
fn btrfs_shows_all_its_members() {
    let Some(memory) = or_skip(memory_folder()) else { return };
    let on = |folder: &Path| {
        let image_in = folder.to_owned();
        LoopDrive::new(&LoopOptions { file_system: None, image_in, ..LoopOptions::default() })
    };
    let Some(first) = or_skip(on(&std::env::temp_dir())) else { return };
    let Some(second) = or_skip(on(memory.path())) else { return };
    let arguments = ["-q", "-f", "-d", "raid0", "-m", "raid1"].map(OsStr::new);
    let devices = [first.device().as_os_str(), second.device().as_os_str()];
    if or_skip(run("mkfs.btrfs", arguments.into_iter().chain(devices))).is_none() {
        return;
    }
    let point = folder();
    let scan = ["device".as_ref(), "scan".as_ref(), devices[0], devices[1]];
    let _ = run("btrfs", scan);
    let mount = ["-t".as_ref(), "btrfs".as_ref(), first.device().as_os_str()];
    let Some(_mounted) = or_skip(Mounted::new(mount, point.path())) else { return };

    let map = resolve(&point.path().join("file"));
    let btrfs = step(&map, LayerKind::FileSystem);
    assert_eq!(btrfs.text("data_profile"), Some("raid0"));
    let mut names: Vec<String> = btrfs.children.iter().map(|child| child.name.clone()).collect();
    let mut wanted = [first.name(), second.name()];
    names.sort();
    wanted.sort();
    assert_eq!(names, wanted);
    assert_eq!((map.queue.layout, map.drives.len()), (Layout::Striped, 2));
    assert!(map.queue.id.as_str().starts_with("volume:btrfs:"), "{:?}", map.queue.id);

    // A subvolume has another device number, and the same members and queue.
    let sub = point.path().join("sub");
    if or_skip(run("btrfs", ["subvolume".as_ref(), "create".as_ref(), sub.as_os_str()])).is_some() {
        assert_eq!(resolve(&sub).queue, map.queue);
    }
}

#[test]
fn an_overlay_leads_to_the_folder_that_holds_the_file() {
    let Some(drive) = or_skip(LoopDrive::with(FileSystem::Ext4)) else { return };
    let Some(memory) = or_skip(memory_folder()) else { return };
    let lower = drive.path().join("lower");
    fs::create_dir(&lower).expect("a folder");
    fs::write(lower.join("low"), [1; 5000]).expect("a file");
    fs::write(lower.join("both"), [1; 5000]).expect("a file");
    let Some(overlay) = or_skip(Overlay::over(&lower, memory.path())) else { return };
    fs::write(overlay.path().join("up"), [2; 5000]).expect("a file");
    // Opened for writing, it is copied up.
    fs::OpenOptions::new().append(true).open(overlay.path().join("both")).expect("a file");

    let resolver = Resolver::default();
    let layer = |name: &str| {
        let map = resolver.resolve(&overlay.path().join(name));
        let reported = step(&map, LayerKind::FileSystem).text("layer").map(str::to_owned);
        (reported.unwrap_or_default(), map.queue)
    };
    let (on_drive, in_memory) = (resolve(&lower).queue, resolve(memory.path()).queue);
    // Queried twice: the second answers are kept ones, and still each file's own.
    for _ in 0..2 {
        assert_eq!(layer("low"), ("lower".into(), on_drive.clone()));
        assert_eq!(layer("up"), ("upper".into(), in_memory.clone()));
        assert_eq!(layer("both"), ("upper".into(), in_memory.clone()));
        // What is made is made in the upper folder.
        assert_eq!(layer("new"), ("upper".into(), in_memory.clone()));
    }
}

#[test]
fn a_mount_on_a_mount_is_distinguished_from_the_one_below() {
    let Some(drive) = or_skip(LoopDrive::with(FileSystem::Ext4)) else { return };
    let point = folder();
    let bind = ["--bind".as_ref(), drive.path().as_os_str()];
    let Some(below) = or_skip(Mounted::new(bind, point.path())) else { return };
    let resolver = Resolver::default();
    let on_drive = resolver.resolve(point.path());
    assert_eq!(on_drive.queue, resolve(drive.path()).queue);
    let Some(above) = or_skip(Mounted::tmpfs(point.path())) else { return };
    let in_memory = resolver.resolve(point.path());
    assert_eq!(in_memory.queue.id.as_str(), "memory");
    let hidden = step(&in_memory, LayerKind::Mount).fact("hides").expect("it hides one");
    assert_eq!(hidden.to_string(), format!("ext4 {}", drive.device().display()));
    drop(above);
    assert_eq!(resolver.resolve(point.path()).queue, on_drive.queue);
    drop(below);
    assert_eq!(resolver.resolve(point.path()).queue, resolve(&std::env::temp_dir()).queue);
}

#[test]
fn a_bound_folder_says_so() {
    let outer = folder();
    let (inner, point) = (outer.path().join("inner"), outer.path().join("with blank\\ and tab\t"));
    fs::create_dir(&inner).expect("a folder");
    fs::create_dir(&point).expect("a folder");
    let bind = ["--bind".as_ref(), inner.as_os_str()];
    let Some(_mounted) = or_skip(Mounted::new(bind, &point)) else { return };
    let map = resolve(&point.join("f"));
    let mount = step(&map, LayerKind::Mount);
    assert!(mount.text("bind_of").is_some_and(|folder| folder.ends_with("/inner")));
    assert!(mount.name.ends_with("with blank\\ and tab\u{fffd}"), "{}", mount.name);
    assert_eq!(map.queue, resolve(outer.path()).queue);
}

#[test]
fn an_open_file_is_resolved_like_its_path() {
    let folder = folder();
    let path = folder.path().join("file");
    let file = fs::File::create(&path).expect("a file");
    let resolver = Resolver::default();
    let map = resolver.resolve(&path);
    let below = resolver.resolve_file(file.as_fd(), &path);
    assert_eq!((&below.queue, &below.drives), (&map.queue, &map.drives));
    // An answer is kept, whatever the name; other tests mount meanwhile, which makes it forgotten.
    let is_kept = (0..1000).any(|_| {
        let again = resolver.resolve_file(file.as_fd(), &path);
        let third = resolver.resolve_file(file.as_fd(), Path::new("/another/name"));
        Arc::ptr_eq(&again, &third)
    });
    assert!(is_kept);
    // A file without a name still has its drive.
    fs::remove_file(&path).expect("a file of ours");
    assert_eq!(resolver.resolve_file(file.as_fd(), &path).queue, map.queue);
}

#[test]
fn a_path_through_proc_is_what_the_kernel_makes_of_it() {
    use std::os::fd::AsRawFd;
    let folder = folder();
    let path = folder.path().join("file");
    let file = fs::File::create(&path).expect("a file");
    let by_number = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let map = resolve(&by_number);
    assert_eq!(map.real_path, path.canonicalize().expect("it is there"));
    assert_eq!(map.queue, resolve(&path).queue);
    // Without a name it still has a drive.
    fs::remove_file(&path).expect("a file of ours");
    let map = resolve(&by_number);
    assert!(map.exists);
    assert!(reason(&map.root, "real_path").contains("/proc"));
    assert_eq!(map.queue, resolve(folder.path()).queue);
}

#[test]
fn ten_thousand_files_of_one_drive_have_one_queue() {
    let folder = folder();
    let resolver = Resolver::default();
    let first = resolver.resolve(folder.path()).queue;
    for index in 0..10_000 {
        let map = resolver.resolve(&folder.path().join(format!("f{index}")));
        assert_eq!(map.queue, first);
    }
}

#[test]
fn without_proc_the_device_number_still_leads_to_the_drive() {
    let drive_id = "without proc";
    if child::role().as_deref() == Some(drive_id) {
        let map = resolve(&std::env::temp_dir());
        assert!(reason(step(&map, LayerKind::Mount), "mount").contains("mountinfo"));
        assert!(map.exists && !map.drives.is_empty());
        assert_eq!(resolve(Path::new("/proc")).queue.id.as_str(), "memory");
        return;
    }
    masked("/proc", drive_id);
}

#[test]
fn without_sys_the_number_is_all_that_is_known() {
    let drive_id = "without sys";
    if child::role().as_deref() == Some(drive_id) {
        let map = resolve(&std::env::temp_dir());
        let on_block_device = map.drives.iter().all(|drive| drive.device.is_some());
        if on_block_device {
            let [drive] = map.drives.as_slice() else { panic!("{:?}", map.drives) };
            assert_eq!(drive.kind, DriveKind::Unknown);
            assert_eq!(map.queue.id.as_str(), format!("device:{}", drive.name));
            assert!(reason(step(&map, LayerKind::Unknown), "device").contains("no such file"));
        }
        return;
    }
    masked("/sys", drive_id);
}

/// Runs the running test again with an empty folder in the place of `folder`.
fn masked(folder: &str, role: &str) {
    let thread = std::thread::current();
    let test = thread.name().expect("the harness names a test's thread after it");
    let program = std::env::current_exe().expect("this program has a path");
    if or_skip(run("unshare", ["--mount", "true"].map(OsStr::new))).is_none() {
        return;
    }
    let script = "mount -t tmpfs none \"$0\" && exec \"$@\"";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, folder])
        .arg(program)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env("FOREBAY_TEST_ROLE", role)
        .output()
        .expect("it ran just now");
    let printed = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}\n{complaint}");
}

#[test]
fn holes_and_extents_that_were_never_written_are_not_stored() {
    const LEN: u64 = 1 << 20;
    let each = FileSystem::ALL.map(|kind| or_skip(LoopDrive::with(kind)));
    for drive in each.iter().flatten() {
        let path = |name: &str| drive.path().join(name);
        let of = |name: &str, range| {
            let stored = Resolver::default().stored(&path(name), range).expect("extents");
            assert_eq!((stored.compressed, stored.inline), (0, 0), "{name}");
            (stored.len, stored.unwritten)
        };
        let file = |name: &str| fs::File::create(path(name)).expect("a file");
        file("sparse").set_len(LEN).expect("a hole");
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(file("allocated"), flags, 0, LEN).expect("room");
        fs::write(path("whole"), vec![1; 1 << 20]).expect("a file");
        assert_eq!(of("sparse", 0..LEN), (LEN, LEN));
        assert_eq!(of("allocated", 0..LEN), (LEN, LEN));
        assert_eq!(of("whole", 0..2 * LEN), (LEN, 0));
        // Pages that were read in do not make holes data.
        let read = [fs::read(path("sparse")), fs::read(path("allocated"))];
        assert!(read.iter().all(Result::is_ok));
        assert_eq!((of("sparse", 0..LEN), of("allocated", 0..LEN)), ((LEN, LEN), (LEN, LEN)));
        // Bytes that are still in the page cache count as written.
        let half = fs::OpenOptions::new().write(true).open(path("allocated")).expect("a file");
        half.write_all_at(&[1; 1 << 19], 0).expect("a write");
        assert_eq!(of("allocated", 0..LEN), (LEN, LEN / 2));
        assert_eq!(of("allocated", 0..LEN / 2), (LEN / 2, 0));
    }
}

#[test]
fn compressed_extents_are_counted() {
    let Some(drive) = or_skip(LoopDrive::with(FileSystem::Btrfs)) else { return };
    let mount = ["-o", "remount,compress-force=zstd"].map(OsStr::new);
    let Some(()) = or_skip(run("mount", mount.into_iter().chain([drive.path().as_os_str()])))
    else {
        return;
    };
    let path = drive.path().join("file");
    fs::write(&path, vec![7; 1 << 20]).expect("a file");
    fs::File::open(&path).and_then(|file| file.sync_all()).expect("a sync");
    let stored = Resolver::default().stored(&path, 0..1 << 20).expect("extents");
    assert_eq!((stored.unwritten, stored.compressed), (0, 1 << 20));
}

/// A file system without FIEMAP reports holes by `SEEK_DATA`.
#[test]
fn holes_in_memory_are_seen() {
    let Some(folder) = or_skip(memory_folder()) else { return };
    let path = folder.path().join("file");
    fs::write(&path, vec![7; 1 << 20]).expect("a file");
    let file = fs::OpenOptions::new().write(true).open(&path).expect("a file");
    file.set_len(4 << 20).expect("a hole");
    let stored = Resolver::default().stored(&path, 0..4 << 20).expect("runs");
    assert_eq!((stored.len, stored.unwritten), (4 << 20, 3 << 20));
}
