//! CPU limits that control groups set for the process.
//!
//! A group and its ancestors may set quotas, and the lowest binds: `cpu.max` in
//! version 2 (the kernel's `Documentation/admin-guide/cgroup-v2.rst`), `cpu.cfs_quota_us` in
//! version 1 (`Documentation/scheduler/sched-bwc.rst`).

use super::groups::{Group, Version};
use super::system::System;

impl System {
    /// CPU time that the process may use, in thousandths of a core; `None` if there is no quota or
    /// it cannot be read.
    pub fn cpu_quota(&self) -> Option<u64> {
        self.groups("cpu").iter().filter_map(|group| self.quota(group)).min()
    }

    /// The quota of a group.
    fn quota(&self, group: &Group) -> Option<u64> {
        let text = |name: &str| self.text(group.path.join(name)).ok();
        let (time, period) = match group.version {
            Version::One => (text("cpu.cfs_quota_us")?, text("cpu.cfs_period_us")?),
            Version::Two => {
                let text = text("cpu.max")?;
                let (time, period) = text.split_once(' ')?;
                (time.to_owned(), period.to_owned())
            }
        };
        // `-1` or `max` means no quota.
        let (time, period) = (time.parse::<u64>().ok()?, period.parse::<u64>().ok()?);
        time.saturating_mul(1000).checked_div(period)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use tempfile::TempDir;

    use super::*;

    /// The quota read from a system with these files.
    fn quota(files: &[(&str, &str)]) -> Option<u64> {
        let folder = TempDir::new().expect("a temporary folder");
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        System::at(folder.path()).cpu_quota()
    }

    #[test]
    fn the_least_quota_on_the_way_up_binds() {
        let group = |path: &'static str, max: &'static str| {
            let mark = format!("sys/fs/cgroup/{path}cgroup.controllers");
            [(mark, "cpu"), (format!("sys/fs/cgroup/{path}cpu.max"), max)]
        };
        let with = |maxima: [(&'static str, &'static str); 3]| {
            let own = [("proc/self/cgroup".to_owned(), "0::/a/b\n")];
            let files: Vec<_> =
                maxima.into_iter().flat_map(|(path, max)| group(path, max)).chain(own).collect();
            let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
            quota(&files)
        };
        assert_eq!(with([("", "max 100000"), ("a/", "max 100000"), ("a/b/", "max 1")]), None);
        let binds = |[top, middle, own]: [&'static str; 3]| {
            with([("", top), ("a/", middle), ("a/b/", own)])
        };
        assert_eq!(binds(["max 100000", "350000 100000\n", "max 100000"]), Some(3_500));
        assert_eq!(binds(["150000 100000", "350000 100000", "max 100000"]), Some(1_500));
        assert_eq!(binds(["max 100000", "350000 100000", "50000 1000"]), Some(3_500));
        assert_eq!(binds(["1", "x y", "18446744073709551615 1"]), Some(u64::MAX));
        assert_eq!(binds(["1 0", "-1 5", "9 0"]), None);
    }

    #[test]
    fn the_first_version_is_read_where_it_has_the_processors() {
        let groups = "3:cpu,cpuacct:/a\n2:cpuset:/x\n1:name=systemd:/y\n0::/z\n";
        let with = |place: &str| {
            quota(&[
                ("proc/self/cgroup", groups),
                (&format!("sys/fs/cgroup/{place}/a/cgroup.procs"), ""),
                (&format!("sys/fs/cgroup/{place}/a/cpu.cfs_quota_us"), "250000\n"),
                (&format!("sys/fs/cgroup/{place}/a/cpu.cfs_period_us"), "100000\n"),
                (&format!("sys/fs/cgroup/{place}/cpu.cfs_quota_us"), "-1\n"),
                (&format!("sys/fs/cgroup/{place}/cpu.cfs_period_us"), "100000\n"),
            ])
        };
        assert_eq!(with("cpu"), Some(2_500));
        assert_eq!(with("cpu,cpuacct"), Some(2_500));
        assert_eq!(with("cpuset"), None);
    }

    #[test]
    fn a_part_of_the_tree_is_found_where_it_is_mounted() {
        let with = |mounts: &str| {
            quota(&[
                ("proc/self/cgroup", "0::/docker/c1/app\n"),
                ("proc/self/mountinfo", mounts),
                ("groups/app/cgroup.controllers", "cpu\n"),
                ("groups/app/cpu.max", "max 100000\n"),
                ("groups/cpu.max", "450000 100000\n"),
            ])
        };
        let line = |subtree| format!("9 1 0:26 {subtree} /groups ro - cgroup2 cgroup rw\n");
        assert_eq!(with(&line("/docker/c1")), Some(4_500));
        assert_eq!(with(&line("/docker/c2")), None);
        assert_eq!(with("9 1 0:26 /docker/c1 /groups ro - cgroup cpuset rw,cpuset\n"), None);
        assert_eq!(with(""), None);
    }

    /// A real control group with a quota; removed when dropped.
    struct Limited(PathBuf);

    impl Limited {
        fn new() -> std::io::Result<Self> {
            let name = format!("forebay-quota-{}", std::process::id());
            let one = Path::new("/sys/fs/cgroup/cpu");
            if one.join("cgroup.procs").exists() {
                let group = Self(one.join(name));
                fs::create_dir(&group.0)?;
                fs::write(group.0.join("cpu.cfs_quota_us"), "150000")?;
                return Ok(group);
            }
            let group = Self(Path::new("/sys/fs/cgroup").join(name));
            fs::create_dir(&group.0)?;
            fs::write(group.0.join("cpu.max"), "150000 100000")?;
            Ok(group)
        }
    }

    impl Drop for Limited {
        fn drop(&mut self) {
            // The child process in the group has ended.
            let _ = fs::remove_dir(&self.0);
        }
    }

    #[test]
    fn the_quota_of_this_process_is_read() {
        const CHILD: &str = "FOREBAY_TEST_QUOTA";
        if std::env::var_os(CHILD).is_some() {
            assert_eq!(System::live().cpu_quota(), Some(1_500));
            return;
        }
        let group = match Limited::new() {
            Ok(group) => group,
            Err(error) => return println!("skipped: no control group with a quota: {error}"),
        };
        let test = std::env::current_exe().expect("a path");
        let child = std::process::Command::new("sh")
            .args(["-c", "echo $$ >\"$1/cgroup.procs\" && exec \"$2\" --exact \"$3\"", "sh"])
            .arg(&group.0)
            .arg(test)
            .arg("quota::tests::the_quota_of_this_process_is_read")
            .env(CHILD, "1")
            .output()
            .expect("a shell");
        let text = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && text.contains("1 passed"), "{text}");
    }

    #[test]
    fn nonsense_is_ignored() {
        for groups in ["", "0", "0::", "0::x", "0::/../a", "::::", "0:cpu", "\u{fffd}"] {
            let files = [("proc/self/cgroup", groups), ("sys/fs/cgroup/cpu.max", "100000 100000")];
            assert_eq!(quota(&files), None, "{groups}");
        }
        assert_eq!(quota(&[]), None);
    }
}
