//! `forebay probe`: the answers of cuFile, from a helper. The library itself is not needed: one
//! that has its functions is compiled here.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use forebay_cufile::{End, Program, Seen, probe_cufile};

use crate::fake::{self, DOES, NAME, VERSION, VERSIONS};
use crate::program::program;

/// Only a bound on a hang.
const LONG: Duration = Duration::from_secs(60);

/// The library as of a version, in a folder of its own.
struct FakeLibrary {
    folder: tempfile::TempDir,
    library: PathBuf,
}

impl FakeLibrary {
    fn as_of(version: u32) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let library = fake::compile(folder.path(), version);
        let library = library.map_err(|reason| println!("skipped: {reason}")).ok()?;
        Some(Self { folder, library })
    }

    /// What a helper says of it when it does so.
    fn probe(&self, does: &str) -> (Seen, End) {
        self.probe_with(&[&format!("{DOES}={does}")], LONG)
    }

    fn probe_with(&self, variables: &[&str], bound: Duration) -> (Seen, End) {
        let start = Instant::now();
        let answer = probe_within(variables, &["--library", self.library.to_str().unwrap()], bound);
        assert!(start.elapsed() < bound + LONG);
        answer
    }
}

/// What a helper says that is started with these variables and arguments.
fn probe_within(variables: &[&str], arguments: &[&str], bound: Duration) -> (Seen, End) {
    let program = program();
    let words = [program.to_str().unwrap(), "probe"];
    let all = variables.iter().copied().chain(words).chain(arguments.iter().copied());
    let program = Program { file: "env".into(), arguments: all.map(Into::into).collect() };
    probe_cufile(&program, bound)
}

#[test]
fn a_driver_that_opens_says_what_it_serves() {
    let Some(mock) = FakeLibrary::as_of(1190) else { return };
    let (seen, end) = mock.probe("nvidia-fs");
    assert_eq!((end, seen.opened, seen.failed), (End::Exited(0), true, None));
    assert_eq!(seen.library.as_deref(), Some(mock.library.as_path()));
    assert_eq!(seen.version.as_deref(), Some("1.19"));
    assert_eq!(seen.nvidia_fs.as_deref(), Some("2.28"));
    let ways = vec!["p2pdma".to_owned(), "nvidia-fs".to_owned()];
    assert_eq!(seen.storage, [("nvme".to_owned(), ways)]);
    assert_eq!(seen.features, ["dynamic-routing", "batch", "streams", "parallel"]);
    assert_eq!(seen.limits, Some((16384, 128)));
    assert!(seen.settings.contains(&("allow_compat_mode".to_owned(), true)));
    let (seen, end) = mock.probe("posix");
    assert_eq!((end, seen.opened, seen.nvidia_fs), (End::Exited(0), true, None));
    assert_eq!(seen.storage, []);
}

#[test]
fn each_version_is_queried_for_its_own_functions() {
    for version in VERSIONS {
        let Some(mock) = FakeLibrary::as_of(version) else { return };
        let (seen, end) = mock.probe("");
        assert_eq!((end, seen.opened, seen.failed), (End::Exited(0), true, None), "{version}");
        let text = format!("1.{}", version % 1000 / 10);
        assert_eq!(seen.version, Some(text));
        assert_eq!(seen.settings.is_empty(), version < 1140, "{version}");
        let ways = if version < 1160 { vec![] } else { vec!["p2pdma".to_owned()] };
        assert_eq!(seen.storage, [("nvme".to_owned(), ways)], "{version}");
    }
}

#[test]
fn one_of_another_version_is_not_opened() {
    let Some(old) = FakeLibrary::as_of(1090) else { return };
    let why = |mock: &FakeLibrary, variables: &[&str]| {
        let (seen, end) = mock.probe_with(variables, LONG);
        assert_eq!((end, seen.opened, seen.version), (End::Exited(0), false, None));
        seen.failed.unwrap()
    };
    let missing = why(&old, &[]);
    assert!(missing.contains("has no `cuFileGetVersion`: it is older than 1.11"), "{missing}");
    let mock = FakeLibrary::as_of(1190).unwrap();
    for (number, text) in [("1090", "1.9"), ("1100", "1.10"), ("2000", "2.0"), ("-1", "0.0")] {
        let reported = why(&mock, &[&format!("{VERSION}={number}")]);
        assert!(
            reported.contains(&format!("is version {text}: 1.11 or a later one")),
            "{reported}"
        );
    }
    let failed = why(&mock, &[&format!("{DOES}=version=5030")]);
    assert!(failed.contains("cuFileGetVersion failed: INTERNAL_ERROR (5030)"), "{failed}");
}

#[test]
fn a_driver_that_fails_says_why_and_what_to_do() {
    let Some(mock) = FakeLibrary::as_of(1190) else { return };
    for (open, says, hint) in [
        ("open=5001", "DRIVER_NOT_INITIALIZED (5001)", "modprobe nvidia-fs"),
        ("open=5027", "HANDLE_NOT_REGISTERED (5027)", "/run/udev"),
        ("open=5030", "INTERNAL_ERROR (5030)", "cufile.log"),
        ("open=5033", "NVFS_SETUP_ERROR (5033)", "libcuda.so.1"),
        ("open=5011:999", "(CUDA error 999)", "nvidia-smi"),
        ("open=4711", "cuFile's error 4711", ""),
    ] {
        let (seen, end) = mock.probe(open);
        assert_eq!((end, seen.opened), (End::Exited(0), false), "{open}");
        assert!(seen.failed.as_ref().is_some_and(|text| text.contains(says)), "{seen:?}");
        assert!(seen.hint.unwrap_or_default().contains(hint), "{open}");
        assert_eq!(seen.version.as_deref(), Some("1.19"));
    }
}

#[test]
fn a_library_that_hangs_or_crashes_ends_only_the_helper() {
    let Some(mock) = FakeLibrary::as_of(1190) else { return };
    for (does, ends) in [
        ("init-crash", End::Killed(11)),
        ("init-exit", End::Exited(3)),
        ("open-crash", End::Killed(11)),
    ] {
        let (seen, end) = mock.probe(does);
        assert_eq!((end, seen.opened), (ends, false), "{does}");
        // Earlier output is kept; nothing is before the initialiser.
        assert_eq!(seen.version.is_some(), does == "open-crash", "{does}");
    }
    let spins = |does: &str, bound| {
        let (seen, end) = mock.probe_with(&[&format!("{DOES}={does}")], bound);
        assert_eq!((end, seen.opened), (End::TimedOut(bound), false), "{does}");
        seen.version
    };
    let [short, longer, longest] = [700, 3000, 15_000].map(Duration::from_millis);
    spins("init-spin", short);
    // On a busy machine it may not come to its version at first.
    let version = [short, longer, longest].into_iter().find_map(|bound| spins("open-spin", bound));
    assert_eq!(version.as_deref(), Some("1.19"));
}

/// A library that spins is ended with its process even if the parent is gone, also within its
/// initialiser, where it holds locks of other threads.
#[test]
fn a_hanging_probe_does_not_outlive_its_caller() {
    let Some(mock) = FakeLibrary::as_of(1190) else { return };
    for does in ["open-spin", "init-spin"] {
        let mut asker = Command::new("sh");
        asker.args(["-c", r#""$0" probe --library "$1" & echo "$!"; wait"#]);
        asker.arg(program()).arg(&mock.library);
        asker.env(DOES, does);
        let mut asker = asker.stdout(Stdio::piped()).spawn().unwrap();
        let mut printed =
            BufReader::new(asker.stdout.take().unwrap()).lines().map_while(Result::ok);
        let id = printed.find(|line| line.parse::<u32>().is_ok()).expect("a number");
        // It has come as far as the library.
        let start = Instant::now();
        let is_loaded = || {
            let maps = fs::read_to_string(format!("/proc/{id}/maps")).unwrap_or_default();
            maps.contains(mock.library.to_str().unwrap())
        };
        while !is_loaded() {
            assert!(start.elapsed() < LONG, "{does}: it is not loaded");
            std::thread::sleep(Duration::from_millis(5));
        }
        let (report, reported) = std::sync::mpsc::channel();
        // Its end of the pipe is the last.
        std::thread::spawn(move || report.send(printed.count()));
        let early = reported.recv_timeout(Duration::from_millis(300));
        assert!(early.is_err(), "{does}: a process waits for it");
        asker.kill().unwrap();
        asker.wait().unwrap();
        // Less than it may take in all, so that this is not what ends it.
        let ended = reported.recv_timeout(Duration::from_secs(20));
        assert!(ended.is_ok(), "{does}: it is still there");
    }
}

#[test]
fn other_libraries_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join(NAME);
    let why = |library: &Path| {
        let (seen, end) = probe_within(&[], &["--library", library.to_str().unwrap()], LONG);
        assert_eq!((end, seen.opened, seen.library), (End::Exited(0), false, None));
        seen.failed.unwrap()
    };
    fs::write(&library, "text").unwrap();
    assert!(why(&library).contains("is no library"));
    assert!(why(&folder.path().join("none.so")).contains("pip install nvidia-cufile"));
    assert!(why(folder.path()).contains("is no library"));
    let Some(mock) = FakeLibrary::as_of(1190) else { return };
    let whole = fs::read(&mock.library).unwrap();
    for (at, byte, says) in [
        (18, if whole[18] == 62 { 183 } else { 62 }, "is built for "),
        (18, 243, "another machine (ELF 243)"),
        (4, 1, "is built for "),
        (0, 0, "is no library"),
    ] {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        fs::write(&library, bytes).unwrap();
        assert!(why(&library).contains(says), "{at}: {}", why(&library));
    }
    // The loader may stumble over what is cut off, in the helper.
    for len in [64, 1000, whole.len() / 2] {
        fs::write(&library, &whole[..len]).unwrap();
        let (seen, end) = probe_within(&[], &["--library", library.to_str().unwrap()], LONG);
        let reported = end == End::Exited(0) && seen.failed.is_some();
        assert!(!seen.opened && (reported || end == End::Killed(7)), "{len}: {seen:?}, {end:?}");
    }
}

#[test]
fn the_loader_finds_it_and_folders_of_packages_come_last() {
    let Some(mock) = FakeLibrary::as_of(1150) else { return };
    let path = format!("LD_LIBRARY_PATH={}", mock.folder.path().display());
    let (seen, _) = probe_within(&[&path], &[], LONG);
    assert_eq!((seen.library, seen.opened), (Some(NAME.into()), true));
    let packages = tempfile::tempdir().unwrap();
    let inside = packages.path().join("nvidia/cufile/lib");
    fs::create_dir_all(&inside).unwrap();
    let of_wheel = inside.join(NAME);
    fs::copy(&mock.library, &of_wheel).unwrap();
    fs::write(&mock.library, "text").unwrap();
    // What the loader finds is no library, so the next one counts.
    let folder = packages.path().to_str().unwrap();
    let (seen, _) = probe_within(&[&path], &["--packages", folder], LONG);
    assert!(seen.opened, "{seen:?}");
    if seen.library.as_ref().is_some_and(|path| path.starts_with("/usr/local")) {
        return println!("skipped: a wheel's cuFile: a toolkit has one, which comes first");
    }
    assert_eq!(seen.library, Some(of_wheel));
}

#[test]
fn a_program_that_is_not_ours_is_no_danger() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("forebay");
    let says = |bytes: &[u8], mode: u32, bound| {
        fs::write(&program, bytes).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
        let start = Instant::now();
        let program = Program { file: program.clone(), arguments: vec![] };
        loop {
            match probe_cufile(&program, bound) {
                // Another test's fork has the descriptor that it was written by for a moment.
                (_, End::NotRun(why)) if why.contains("busy") => {}
                answer => return answer,
            }
            assert!(start.elapsed() < bound + LONG, "it stays busy");
        }
    };
    let script = b"#!/bin/sh\necho library /x\necho opened\necho storage nvme p2pdma\nexit 7\n";
    let (seen, end) = says(script, 0o755, LONG);
    assert_eq!((end, seen.opened, seen.storage.len()), (End::Exited(7), true, 1));
    // A process that it leaves behind keeps its output open for longer than it has; on a busy
    // machine it may need more than that to end.
    let bounds = [500, 3000, 15_000].map(Duration::from_millis);
    let mut left = bounds.map(|bound| (bound, b"#!/bin/sh\necho opened\nsleep 30 &\n")).into_iter();
    let ended = left.find_map(|(bound, script)| {
        let (seen, end) = says(script, 0o755, bound);
        (end != End::TimedOut(bound)).then_some((end, seen.opened))
    });
    assert_eq!(ended, Some((End::Exited(0), true)));
    let [bound, ..] = bounds;
    let (seen, end) = says(b"#!/bin/sh\nexec cat /dev/zero\n", 0o755, bound);
    assert_eq!((end, seen), (End::TimedOut(bound), Seen::default()));
    let mut elf = vec![0; 4096];
    elf[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\0");
    (elf[16], elf[18]) = (2, 243); // a program, of no machine that tests run on
    for (bytes, mode) in [(elf.as_slice(), 0o755), (b"", 0o755), (script, 0o644)] {
        let (seen, end) = says(bytes, mode, LONG);
        let reported = matches!(&end, End::NotRun(why) if why.contains(program.to_str().unwrap()));
        assert!(reported && seen == Seen::default(), "{end:?}");
    }
}

/// Without its driver, the vendor's own library says so or hangs; it has a version.
#[test]
fn the_real_library_has_every_used_function() {
    let folder = std::env::var_os("FOREBAY_CUFILE_WHEELS").map(PathBuf::from);
    let entries = folder.and_then(|folder| fs::read_dir(folder).ok());
    let libraries = entries.into_iter().flatten().flatten().map(|entry| entry.path().join(NAME));
    let mut libraries: Vec<PathBuf> = libraries.filter(|library| library.exists()).collect();
    libraries.sort();
    let (Some(oldest), Some(newest)) = (libraries.first(), libraries.last()) else {
        return println!("skipped: cuFile's library: `cargo xtask test` fetches it, where it can");
    };
    for library in [oldest, newest] {
        let text = library.to_str().unwrap();
        let version = [2, 10, 40].into_iter().find_map(|seconds| {
            let (seen, end) = probe_within(&[], &["--library", text], Duration::from_secs(seconds));
            assert!(matches!(end, End::Exited(0) | End::TimedOut(_)), "{text}: {end:?}, {seen:?}");
            seen.version
        });
        let version = version.expect(text);
        let folder = library.parent().unwrap().file_name().unwrap().to_str().unwrap();
        assert!(folder.starts_with(&format!("{version}.")), "{text}: {version}");
    }
}

/// What the command comes to.
fn probe(arguments: &[&str], output: Stdio) -> Output {
    let mut command = Command::new(program());
    command.arg("probe").args(arguments).stdout(output).stderr(Stdio::piped()).output().unwrap()
}

#[test]
fn its_status_says_whether_it_could_judge() {
    let none = ["--library", "/nowhere/libcufile.so.0"];
    let reported = probe(&none, Stdio::piped());
    assert_eq!(reported.status.code(), Some(0), "why there is none is an answer");
    assert!(String::from_utf8_lossy(&reported.stdout).starts_with("failed there is no `libcufile"));
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let lost = probe(&none, full.into());
    assert_eq!(lost.status.code(), Some(1));
    let text = String::from_utf8_lossy(&lost.stderr);
    assert!(text.contains("error: cannot write to stdout"), "{text}");
    assert_eq!(probe(&["--library"], Stdio::piped()).status.code(), Some(2));
}
