//! Machines with little room: memory that a control group limits, and disks that others fill.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::program::program;

/// A control group of our own inside that of this process, where the system has them mounted in the
/// usual place and lets this user make one.
struct Group {
    folder: PathBuf,
}

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
            let folder = own.join(format!("forebay-test-{}", std::process::id()));
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
fn what_a_control_group_does_not_grant_is_refused_in_time() {
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
    for (arguments, flag) in [
        (&["bench", "--size", "1G", "--gpu", "none"][..], "--size"),
        (&["bench", "file", "--size", "1G", "--gpu", "none"], "--size"),
        (&["compare", "-s", "1G", "--gpu", "none"], "--size"),
        (&["read", "file", "--gpu", "none"], "--len"),
        (&["read", "file", "--gpu", "sim"], "--len"),
    ] {
        let output = group.run(folder.path(), arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
        assert!(text.starts_with("error: cannot move 1 GiB: it takes "), "{text}");
        assert!(text.contains("of the 256 MiB of this control group"), "{text}");
        assert!(text.contains(flag), "{text}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "something was left");
    }
    // Where the size is ours to choose, it is one that fits.
    let output = group.run(folder.path(), &["bench", "--gpu", "none", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let report: forebay_cli::report::json::Report = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report.environment.memory.total, 256 << 20);
}
