//! Machines with little room: memory that a control group limits, and disks that others fill.

use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::Signal;

use crate::program::program;

/// A control group of our own inside that of this process, where the system has them mounted in the
/// usual place and lets this user make one.
struct Group {
    folder: PathBuf,
}

/// Tests run at the same time, and each group has a folder of its own.
static NUMBER: AtomicU32 = AtomicU32::new(0);

impl Group {
    fn with_limit(limit: u64) -> Result<Self, String> {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap();
        let places = groups.lines().filter_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let path = path.trim_start_matches('/');
            match controllers {
                "" => Some((Path::new("/sys/fs/cgroup").join(path), "memory.max")),
                "memory" => {
                    Some((Path::new("/sys/fs/cgroup/memory").join(path), "memory.limit_in_bytes"))
                }
                _ => None,
            }
        });
        let mut refused = "there are no control groups".to_owned();
        for (own, name) in places {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let folder = own.join(format!("forebay-test-{}-{number}", std::process::id()));
            let made = fs::create_dir(&folder);
            let group = Self { folder };
            match made.and_then(|()| existing(&group.folder.join(name), limit)) {
                Ok(()) => return Ok(group),
                Err(error) => refused = error.to_string(),
            }
        }
        Err(refused)
    }

    /// Runs the program inside the group.
    fn run(&self, folder: &Path, arguments: &[&str]) -> Output {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]);
        shell.arg(self.folder.join("cgroup.procs")).arg(program()).args(arguments);
        shell.current_dir(folder).output().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Writes to a file that must be there already.
fn existing(path: &Path, number: u64) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(path)?;
    io::Write::write_all(&mut file, number.to_string().as_bytes())
}

#[test]
fn memory_beyond_the_control_group_is_refused_in_time() {
    let group = match Group::with_limit(256 << 20) {
        Ok(group) => group,
        Err(reason) => {
            println!("skipped: memory of a control group: {reason}");
            return;
        }
    };
    let folder = tempfile::tempdir_in(".").unwrap();
    let file = fs::File::create(folder.path().join("file")).unwrap();
    file.set_len(1 << 30).unwrap();
    // A file of holes alone has no cold rows.
    std::os::unix::fs::FileExt::write_all_at(&file, &[1], 0).unwrap();
    for (arguments, flag) in [
        (&["gpu-file-benchmark", "-s", "1G", "--gpu", "none"][..], "--size"),
        (&["read", "file", "--gpu", "none"], "--len"),
        (&["read", "file", "--gpu", "sim"], "--len"),
    ] {
        let output = group.run(folder.path(), arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
        assert!(text.starts_with("error: cannot move 1 GiB: "), "{text}");
        assert!(text.contains("of host memory are required\n"), "{text}");
        assert!(text.contains("this control group leaves "), "{text}");
        assert!(text.contains(" of 256 MiB\n"), "{text}");
        assert!(text.contains(flag), "{text}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "something was left");
    }
    // A file without room in memory is measured in pieces.
    let words = "bench file --size 1G --gpu none --method forebay --repeats 1 -v";
    let output = group.run(folder.path(), &words.split(' ').collect::<Vec<_>>());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("a file of 1 GiB is moved in pieces of "), "{text}");
    assert!(text.contains("no row is warm: the page cache has no room for 1 GiB"), "{text}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("files of 1 GiB") && table.contains("All data verified"), "{table}");
    assert!(!table.contains("READ, warm"), "{table}");
    // Where the size is ours to choose, it is one that fits.
    let output =
        group.run(folder.path(), &["bench", "--gpu", "none", "--format=json", "--repeats", "1"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let run: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(run["environment"]["memory"]["total"], 256 << 20);
}

/// Runs the program by a shell that first does `before`, with the words of `line`.
fn limited(folder: &Path, before: &str, line: &str) -> (Option<i32>, String) {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{before} && exec \"$0\" \"$@\"")]).arg(program());
    let output = shell.args(line.split_whitespace()).current_dir(folder).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_run_whose_requests_have_no_room_is_refused_before_its_first_sample() {
    let folder = tempfile::tempdir_in(".").unwrap();
    fs::write(folder.path().join("file"), vec![1; 32 << 20]).unwrap();
    let many = [
        "bench file --block-size 1M --depth 64 --threads 8 --time 100ms --repeats 1 --gpu none",
        "bench file --method cpu --block-size 16M --threads 32 --time 100ms --repeats 1 --gpu none",
        "bench file --method io-uring --block-size 1M --depth 256 --repeats 1 --gpu none",
        "bench file --block-size 1M --depth 64 --threads 2 --repeats 1 --gpu sim",
        "gdsio -f file -w 40 -s 8M -i 8M -x 1 -I 0 -d 0 --gpu none",
    ];
    let few = "bench file --block-size 64K --depth 4 --bytes 1M --repeats 1 --gpu none -o results";
    let check = |code: Option<i32>, reported: &str, line: &str| {
        assert_eq!(code, Some(1), "{line}: {reported}");
        assert!(reported.contains("of requests in memory"), "{line}: {reported}");
        let part = if line.starts_with("bench") { "--block-size" } else { "`-i`" };
        assert!(reported.contains(part), "{line}: {reported}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{line}");
    };
    for line in many {
        // The allocator may reserve 64 MiB for each thread, and leave none for a thread's stack.
        let before = "export MALLOC_ARENA_MAX=1; ulimit -v 500000";
        let (code, reported) = limited(folder.path(), before, line);
        check(code, &reported, line);
    }
    match Group::with_limit(150 << 20) {
        Err(reason) => println!("skipped: memory of a control group: {reason}"),
        Ok(group) => {
            for line in many {
                let words: Vec<&str> = line.split_whitespace().collect();
                let output = group.run(folder.path(), &words);
                check(output.status.code(), &String::from_utf8_lossy(&output.stderr), line);
            }
            // What measures the limits is made to fit.
            let words: Vec<&str> = few.split_whitespace().collect();
            let output = group.run(folder.path(), &words);
            assert_eq!(output.status.code(), Some(0), "{output:?}");
        }
    }
}

#[test]
fn the_doctor_takes_little_memory() {
    let folder = tempfile::tempdir_in(".").unwrap();
    fs::write(folder.path().join("file"), vec![1; 8 << 20]).unwrap();
    // 147 MB on an idle machine, most of them stacks of 26 threads; a few more on a busy one.
    let before = "export MALLOC_ARENA_MAX=1; ulimit -d 165000";
    for line in ["doctor file --gpu sim", "doctor . --gpu sim"] {
        let (code, reported) = limited(folder.path(), before, line);
        assert_eq!(code, Some(0), "{line}: {reported}");
    }
}

/// The kernel counts the memory of io_uring itself there.
#[test]
fn a_limit_on_locked_memory_slows_and_is_named() {
    let folder = tempfile::tempdir_in(".").unwrap();
    fs::write(folder.path().join("file"), vec![1; 32 << 20]).unwrap();
    let run = |line: &str| {
        let mut shell = Command::new("setpriv");
        shell.args(["--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "sh", "-c"]);
        shell.arg("ulimit -l 0 && exec \"$0\" \"$@\"").arg(program());
        let shell = shell.args(line.split_whitespace()).current_dir(folder.path());
        let output = shell.output().ok()?;
        let reported = String::from_utf8_lossy(&output.stderr).into_owned();
        (!reported.contains("setpriv:")).then(|| (output.status.code(), reported))
    };
    let sweep = "bench file --block-size 64K --depth 4 --bytes 1M --repeats 1 --gpu sim -o";
    for line in [
        "read file --gpu sim",
        "doctor file --gpu sim",
        &format!("{sweep} first"),
        &format!("{sweep} second --method io-uring"),
    ] {
        let Some((code, reported)) = run(line) else {
            return println!("skipped: a limit on locked memory: `setpriv` cannot set one");
        };
        // Not every kernel refuses it.
        let refused = line.contains("io-uring") && reported.contains("ring` is not available");
        assert_eq!(code, Some(i32::from(refused)), "{line}: {reported}");
        let slows = reported.contains("io_uring is refused here (Cannot allocate memory");
        assert!(!(refused || slows) || reported.contains("`ulimit -l`"), "{line}: {reported}");
    }
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_leaves_nothing() {
    let folder = tempfile::tempdir_in(".").unwrap();
    fs::write(folder.path().join("file"), vec![1; 4 << 20]).unwrap();
    for line in [
        "bench . --size 8M --repeats 3 --gpu none",
        "gpu-file-benchmark -s 8 -r 1 --gpu none",
        "bench . --block-size 1M --depth 1 --size 8M --repeats 1 --gpu none -o results",
        "gdsio -D . -w 1 -s 8M -i 1M -x 4 -I 0 --gpu none",
        "gdsio -D . -w 1 -s 8M -i 1M -x 4 -I 1 --gpu none",
        "read file --output out --gpu none",
    ] {
        // Blocks of 512 bytes or of 1 KiB, as the shell has them.
        let (code, reported) = limited(folder.path(), "ulimit -f 1000", line);
        assert_eq!(code, Some(1), "{line}: {reported}");
        assert!(reported.to_lowercase().contains("file too large"), "{line}: {reported}");
        assert!(reported.contains("`ulimit -f`"), "{line}: {reported}");
        let left = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> = left.filter(|name| name != "file" && name != "results").collect();
        assert!(left.is_empty(), "{line}: {left:?}");
    }
}

#[test]
fn scratch_has_more_files_than_may_be_open_at_first() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let line = "bench . --files 300 --size 8M --block-size 4K --depth 1 --bytes 64K --repeats 1 \
                --cache warm --gpu none";
    let (code, message) = limited(folder.path(), "ulimit -Sn 200", line);
    assert_eq!(code, Some(0), "{message}");
    let (code, message) = limited(folder.path(), "ulimit -n 200", line);
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains("scratch") && message.contains("`ulimit -n`"), "{message}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_small_stack_is_enough() {
    let folder = tempfile::tempdir_in(".").unwrap();
    fs::write(folder.path().join("file"), vec![1; 4 << 20]).unwrap();
    for kib in [100, 256] {
        for line in
            ["read file --gpu none", "read file --gpu sim", "read --help", "doctor --tree file"]
        {
            let (code, reported) = limited(folder.path(), &format!("ulimit -s {kib}"), line);
            assert_eq!(code, Some(0), "{kib} KiB: {line}: {reported}");
        }
    }
}

#[test]
fn a_limit_on_cpu_time_is_named_and_scratch_is_removed() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -c 0; ulimit -St 1 && exec \"$0\" \"$@\""]).arg(program());
    shell.args(["bench", "--size", "4M", "--repeats", "1000", "--gpu", "none"]);
    let output = shell.current_dir(folder.path()).output().unwrap();
    assert_eq!(output.status.signal(), Some(Signal::XCPU.as_raw()), "{output:?}");
    let reported = String::from_utf8(output.stderr).unwrap();
    assert!(reported.contains("CPU time") && reported.contains("`ulimit -t`"), "{reported}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_refused_thread_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::copy(program(), at("forebay")).unwrap();
    fs::write(at("file"), "data").unwrap();
    for (name, mode) in [("forebay", 0o755), ("file", 0o644), ("", 0o755)] {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    // A user without other processes: the limit is on all processes of a user.
    let user = 61_000 + std::process::id() % 1000;
    let mut printed = 0;
    for limit in [2, 3, 4, 5, 6, 7, 8, 9] {
        let mut limited = Command::new("prlimit");
        limited.arg(format!("--nproc={limit}:{limit}")).arg("setpriv");
        limited.args([format!("--reuid={user}"), format!("--regid={user}")]);
        limited.args(["--clear-groups", "./forebay", "read", "file", "--gpu", "sim"]);
        let output = match limited.current_dir(folder.path()).output() {
            Ok(output) => output,
            Err(error) => {
                println!("skipped: a limit on processes: {error}");
                return;
            }
        };
        let reported = String::from_utf8_lossy(&output.stderr).into_owned();
        if reported.contains("setpriv:") || reported.contains("prlimit:") {
            println!("skipped: a limit on processes of another user: {reported}");
            return;
        }
        if !output.status.success() {
            printed += 1;
            assert!(reported.contains("error: cannot start"), "{limit}: {output:?}");
            assert!(
                reported.contains("raise the limit on processes (`ulimit -u`)\n"),
                "{limit}: {reported}"
            );
        }
    }
    assert!(printed > 0, "some of the limits bind");
}

#[test]
fn where_memory_is_too_small_for_a_thread_only_that_limit_is_named() {
    let folder = tempfile::tempdir_in(".").unwrap();
    fs::write(folder.path().join("file"), "data").unwrap();
    let mut printed = 0;
    for kib in (6_000..60_000).step_by(2_000) {
        let before = format!("ulimit -v {kib}");
        let (_, reported) = limited(folder.path(), &before, "read file --gpu none");
        if reported.contains("error: cannot start") {
            printed += 1;
            assert!(
                reported.ends_with("raise the limit on memory (`ulimit -v`)\n"),
                "{kib}: {reported}"
            );
        }
    }
    assert!(printed > 0, "some of the limits bind");
}
