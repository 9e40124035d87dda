//! What control groups leave a process of the machine's cores.
//!
//! A group and each one above it may have a quota, and the least of them binds: `cpu.max` in
//! version 2 (the kernel's `Documentation/admin-guide/cgroup-v2.rst`), `cpu.cfs_quota_us` in
//! version 1 (`Documentation/scheduler/sched-bwc.rst`).

use std::path::{Component, Path, PathBuf};

use super::mount::{self, Mount};
use super::system::System;

/// Groups that are looked at above one another.
const DEPTH_MAX: usize = 64;

/// Which kind of control group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    /// Where its tree usually is, for processors.
    fn places(self) -> &'static [&'static str] {
        match self {
            Self::One => &["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"],
            Self::Two => &["sys/fs/cgroup"],
        }
    }

    fn is_of(self, mount: &Mount) -> bool {
        match self {
            Self::One => mount.file_system == "cgroup" && mount.option("cpu").is_some(),
            Self::Two => mount.file_system == "cgroup2",
        }
    }

    /// A file that each of its groups has, so that others' folders are told apart.
    fn mark(self) -> &'static str {
        match self {
            Self::One => "cgroup.procs",
            Self::Two => "cgroup.controllers",
        }
    }
}

impl System {
    /// Processor time that the process may use, in thousandths of a core; `None`: all there is, or
    /// nothing is told.
    pub(crate) fn cpu_quota(&self) -> Option<u64> {
        let groups = self.own_table("cgroup").ok()?;
        let groups = String::from_utf8_lossy(&groups);
        let quotas = groups.lines().filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let version = match fields.next()? {
                "" => Version::Two,
                list if list.split(',').any(|name| name == "cpu") => Version::One,
                _ => return None,
            };
            let path = Path::new(fields.next()?).strip_prefix("/").ok()?;
            // A group outside of the namespace of this process is above its tree, out of sight.
            let outside = path.components().any(|part| part == Component::ParentDir);
            if outside { None } else { self.least_quota(version, path) }
        });
        quotas.min()
    }

    /// The least quota of the group at `path` and of those above it.
    fn least_quota(&self, version: Version, path: &Path) -> Option<u64> {
        let place = || {
            let usual = version.places().iter().map(PathBuf::from);
            usual
                .map(|place| (place.clone(), place.join(path)))
                .find(|(_, group)| self.exists(&group.join(version.mark())))
        };
        let (root, group) = place().or_else(|| self.mounted_at(version, path))?;
        let groups = group.ancestors().take_while(|above| above.starts_with(&root));
        groups.take(DEPTH_MAX).filter_map(|group| self.quota(version, group)).min()
    }

    /// The same place where the tree, or a part of it, is mounted elsewhere: the part of a
    /// container that was not given names of its own.
    fn mounted_at(&self, version: Version, path: &Path) -> Option<(PathBuf, PathBuf)> {
        let table = self.own_table("mountinfo").ok()?;
        mount::all(&table).filter(|mount| version.is_of(mount)).find_map(|mount| {
            let inside = path.strip_prefix(mount.subtree.strip_prefix("/").ok()?).ok()?;
            let root = mount.point.strip_prefix("/").ok()?.to_owned();
            let group = root.join(inside);
            self.exists(&group.join(version.mark())).then_some((root, group))
        })
    }

    /// The quota of one group.
    fn quota(&self, version: Version, group: &Path) -> Option<u64> {
        let text = |name: &str| self.text(&group.join(name)).ok();
        let (time, period) = match version {
            Version::One => (text("cpu.cfs_quota_us")?, text("cpu.cfs_period_us")?),
            Version::Two => {
                let text = text("cpu.max")?;
                let (time, period) = text.split_once(' ')?;
                (time.to_owned(), period.to_owned())
            }
        };
        // No quota is `-1` or `max`.
        let (time, period) = (time.parse::<u64>().ok()?, period.parse::<u64>().ok()?);
        time.saturating_mul(1000).checked_div(period)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    /// A system with these files.
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

    /// A group of this machine with a quota; removed when dropped.
    struct Group(PathBuf);

    impl Group {
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

    impl Drop for Group {
        fn drop(&mut self) {
            // The child that was in it has ended.
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
        let group = match Group::new() {
            Ok(group) => group,
            Err(error) => return println!("skipped: no control group with a quota: {error}"),
        };
        let test = std::env::current_exe().expect("a path");
        let child = std::process::Command::new("sh")
            .args(["-c", "echo $$ >\"$1/cgroup.procs\" && exec \"$2\" --exact \"$3\"", "sh"])
            .arg(&group.0)
            .arg(test)
            .arg("topology::quota::tests::the_quota_of_this_process_is_read")
            .env(CHILD, "1")
            .output()
            .expect("a shell");
        let text = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && text.contains("1 passed"), "{text}");
    }

    #[test]
    fn nonsense_tells_nothing() {
        for groups in ["", "0", "0::", "0::x", "0::/../a", "::::", "0:cpu", "\u{fffd}"] {
            let files = [("proc/self/cgroup", groups), ("sys/fs/cgroup/cpu.max", "100000 100000")];
            assert_eq!(quota(&files), None, "{groups}");
        }
        assert_eq!(quota(&[]), None);
    }
}
