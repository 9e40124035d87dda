//! What breaks in the middle of a sweep: disks that are full, paths that vanish, GPUs that fall
//! away. Each is a row with its error, or ends with results that are whole.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use forebay_measure::results::file::{read, samples};
use forebay_measure::results::{Cache, Point, Record, Sample};

use super::{command, folder, scratch, stderr, wait_for};
use crate::lab::fuse::Fuse;
use crate::lab::{FileSystem, LoopDrive, LoopOptions, Offer, Overlay, or_skip, tool, unmount};

/// A folder in memory with little room.
pub(crate) struct Small(PathBuf);

impl Small {
    pub(crate) fn mount(at: &Path, size: &str) -> Offer<Self> {
        fs::create_dir(at).unwrap();
        let size = format!("size={size}");
        let words = ["-t", "tmpfs", "-o", &size, "tmpfs"].map(OsStr::new);
        tool("mount", words.into_iter().chain([at.as_os_str()]))?;
        Ok(Self(at.to_owned()))
    }

    /// Unmounts it while others use it.
    fn vanish(self) {
        tool("umount", ["--lazy".as_ref(), self.0.as_os_str()]).unwrap();
        std::mem::forget(self);
    }

    fn make_room(&self) {
        let words = ["-o", "remount,size=4m"].map(OsStr::new);
        tool("mount", words.into_iter().chain([self.0.as_os_str()])).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        unmount(&self.0);
    }
}

fn all(results: &Path) -> Vec<Sample> {
    samples(&read(results).unwrap()).map(|(_, sample)| sample.clone()).collect()
}

#[test]
fn rows_that_a_file_system_cannot_have_are_left_out() {
    let folder = folder();
    let memory = Path::new("/dev/shm");
    let Some(overlay) = or_skip(Overlay::over(folder.path(), memory)) else { return };
    let arguments = ["--gpu=none", "--size=4M", "--repeats=1", "--time=100ms", "-v"];
    let output = command(overlay.path(), &arguments).output().unwrap();
    let (printed, table) = (stderr(&output), String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{printed}");
    let text = "no cold rows and no storage limit for `.`: overlay keeps its files in memory";
    assert!(printed.contains(text), "{printed}");
    assert!(table.contains("READ, warm") && !table.contains("cold"), "{table}");
    // Another path keeps its cold rows, and rows of both are warm.
    let drive = folder.path().join("drive");
    fs::create_dir(&drive).unwrap();
    let paths = [drive.to_str().unwrap(), overlay.path().to_str().unwrap()];
    let of = |path: &str, cache| (path.to_owned(), Some(cache));
    let both = paths.join(" + ");
    for (more, states) in
        [(None, &[Cache::Warm, Cache::Cold][..]), (Some("--depth=1"), &[Cache::Cold])]
    {
        let results = folder.path().join(format!("results-{}", states.len()));
        let arguments = [&paths[..], &arguments[..4], &["-o", results.to_str().unwrap()]].concat();
        let output = command(folder.path(), &arguments).args(more).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let found = all(&results).into_iter().filter(|sample| sample.point.method == "forebay");
        let found: HashSet<_> = found.map(|one| (one.point.path, one.point.cache)).collect();
        let expected = states.iter().map(|cache| of(paths[0], *cache));
        let warm = [of(paths[1], Cache::Warm), of(&both, Cache::Warm)];
        assert_eq!(found, expected.chain(warm).collect());
        let limits = read(&results).unwrap();
        let limits = limits.iter().filter_map(|record| match record {
            Record::Limit(limit) if limit.name == "storage" => Some(limit.of.as_str()),
            _ => None,
        });
        assert_eq!(limits.collect::<HashSet<_>>(), HashSet::from([paths[0]]));
    }
}

#[test]
fn results_on_a_full_disk_stay_whole_and_are_continued() {
    let folder = folder();
    let Some(small) = or_skip(Small::mount(&folder.path().join("small"), "64k")) else { return };
    let results = small.0.join("results");
    let arguments = ["--gpu=none", "--block-size=4K,8K", "--depth=1", "--size=1M"];
    let arguments =
        [&arguments[..], &["--bytes=64K", "--repeats=30", "-o", "small/results"]].concat();
    let output = command(folder.path(), &arguments).output().unwrap();
    let reported = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{reported}");
    for part in [
        "error: cannot write to the results file `small/results`",
        "no space left on device",
        "hint: free some space, and repeat the command: it continues where it stopped",
    ] {
        assert!(reported.contains(part), "{reported}");
    }
    assert!(fs::read(&results).unwrap().ends_with(b"}\n"), "the last line is whole");
    let kept = all(&results).len();
    assert!((1..60).contains(&kept), "{kept}");
    assert!(scratch(folder.path()).is_empty());
    // It stays so until there is room.
    let output = command(folder.path(), &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert_eq!(all(&results).len(), kept);
    small.make_room();
    let output = command(folder.path(), &arguments).output().unwrap();
    let reported = stderr(&output);
    assert!(output.status.success(), "{reported}");
    assert!(reported.contains(&format!("{kept} samples kept from an earlier run")), "{reported}");
    let all = all(&results);
    let each: HashSet<(&Point, u32)> = all.iter().map(|s| (&s.point, s.repeat)).collect();
    assert_eq!((all.len(), each.len()), (60, 60), "each once");
}

#[test]
fn a_disk_that_is_full_of_data_is_a_row_or_no_sweep() {
    let folder = folder();
    let options = LoopOptions {
        size: 24 << 20,
        file_system: Some(FileSystem::Ext4),
        image_in: folder.path().canonicalize().unwrap(),
        ..LoopOptions::default()
    };
    let Some(drive) = or_skip(LoopDrive::new(&options)) else { return };
    let small = drive.path().to_str().unwrap();
    // Scratch that would fill it is not made.
    let arguments = [small, "--gpu=none", "--block-size=4K", "--size=64M", "-o", "none"];
    let output = command(folder.path(), &arguments).output().unwrap();
    let reported = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{reported}");
    assert!(reported.contains("cannot make 64 MiB of scratch in"), "{reported}");
    assert!(
        reported.contains("stay free") && reported.contains("hint: give a smaller `--size`"),
        "{reported}"
    );
    assert!(!folder.path().join("none").exists() && scratch(drive.path()).is_empty());
    // A file with holes has no room for what they are to hold.
    let holes = format!("{small}/holes");
    for path in [holes.as_str(), &format!("{}/whole", folder.path().display())] {
        fs::File::create(path).unwrap().set_len(64 << 20).unwrap();
    }
    let arguments = [&holes, "whole", "--gpu=none", "--overwrite", "--direction=read,write"];
    let more = ["--method=forebay,cpu-cached-gpu", "--block-size=1M", "--depth=1", "--repeats=1"];
    let end = ["--bytes=32M", "-o", "results"];
    let output = command(folder.path(), &[&arguments[..], &more, &end].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let all = all(&folder.path().join("results"));
    // Each path alone, and both at once.
    assert_eq!(all.len(), 12);
    for sample in &all {
        let fails = sample.point.path.contains("holes") && sample.point.read_percent == 0;
        let error = sample.error.as_deref().unwrap_or("");
        assert_eq!(error.to_lowercase().contains("no space left on device"), fails, "{sample:?}");
        assert_eq!(sample.measured.is_none(), fails, "{sample:?}");
    }
}

/// What breaks something.
type Break<'a> = Box<dyn FnOnce() + 'a>;

/// Begins a sweep of which a sample takes so long that there is time to break something.
fn begin(folder: &Path, path: &str, results: &Path) -> Child {
    let arguments = ["--gpu=sim:latency=10ms", "--block-size=64K", "--depth=1", "--bytes=256K"];
    let mut command = command(folder, &[path, "--size=8M", "--repeats=80", "--cache=warm"]);
    command.args(arguments).arg("-o").arg(results);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_path_that_vanishes_or_shrinks_ends_no_sweep() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let small = or_skip(Small::mount(&at("small"), "16m"));
    for name in ["removed", "cut", "small/unmounted"] {
        if small.is_some() || !name.contains('/') {
            fs::write(at(name), vec![7; 8 << 20]).unwrap();
        }
    }
    let remove = || fs::remove_file(at("removed")).unwrap();
    let cut = || fs::File::options().write(true).open(at("cut")).unwrap().set_len(4096).unwrap();
    let mut cases: Vec<(&str, &str, Break<'_>)> =
        vec![("removed", "no such file", Box::new(remove)), ("cut", "ends", Box::new(cut))];
    if let Some(small) = small {
        cases.push(("small/unmounted", "no such file", Box::new(|| small.vanish())));
    }
    let results = |name: &str| at(&format!("results-{}", name.replace('/', "-")));
    let started: Vec<Child> =
        cases.iter().map(|(name, ..)| begin(folder.path(), name, &results(name))).collect();
    let broken = cases.into_iter().zip(started).map(|((name, why, break_it), mut child)| {
        wait_for(&mut child, || {
            read(&results(name)).is_ok_and(|records| samples(&records).count() > 2)
        });
        break_it();
        (name, why, child)
    });
    // All are broken before the end of any is awaited.
    for (name, why, mut child) in broken.collect::<Vec<_>>() {
        assert_eq!(child.wait().unwrap().code(), Some(1), "{name}");
        let all = all(&results(name));
        assert_eq!(all.len(), 80, "{name}");
        let last = all.last().unwrap();
        let error = last.error.as_ref().unwrap_or_else(|| panic!("{name}: {last:?}"));
        assert!(error.contains(why), "{name}: {error}");
    }
}

#[test]
fn a_gpu_that_falls_away_ends_no_sweep() {
    let folder = folder();
    let arguments = ["--gpu=sim:lost-after=60", "--gpu=none", "--block-size=64K", "--depth=2"];
    let arguments = [&arguments[..], &["--size=8M", "--bytes=256K", "--repeats=20"]].concat();
    let output =
        command(folder.path(), &[&arguments[..], &["-o", "results"]].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let all = all(&folder.path().join("results"));
    assert_eq!(all.len(), 40);
    for sample in &all[20..] {
        let error = sample.error.as_deref().unwrap_or("");
        // What needs no GPU goes on.
        let is_gone = sample.point.targets != ["host"];
        assert_eq!(error.contains("LOST"), is_gone, "{sample:?}");
        assert_eq!(sample.measured.is_none(), is_gone, "{sample:?}");
    }
    assert!(scratch(folder.path()).is_empty());
}

#[test]
fn each_record_reaches_the_drive_before_the_next_is_measured() {
    let folder = folder();
    let results = folder.path().join("results");
    let arguments = ["--gpu=none", "--block-size=4K", "--depth=1", "--size=1M", "--bytes=64K"];
    let arguments = [&arguments[..], &["--repeats=3", "-o"]].concat();
    let run = |results: &Path| {
        let mut command = command(folder.path(), &arguments);
        command.arg(results).output().unwrap()
    };
    assert!(run(&results).status.success());
    let is_sample = |line: &str| line.contains("\"record\":\"sample\"");
    let text = fs::read_to_string(&results).unwrap();
    let begun: String = text.split_inclusive('\n').take_while(|line| !is_sample(line)).collect();
    let Some(fuse) = or_skip(Fuse::new(begun.clone().into_bytes())) else { return };
    fuse.set(|faults| faults.fail_syncs = Some(libc::EIO));
    let output = run(&fuse.path());
    let reported = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{reported}");
    assert!(reported.contains("cannot write to the results file"), "{reported}");
    let text = String::from_utf8(fuse.content()).unwrap();
    let more = text.strip_prefix(&begun).unwrap();
    // The run itself, and the first record that was synced: a limit if it is higher than before.
    assert!(more.lines().count() <= 2, "{more}");
}
