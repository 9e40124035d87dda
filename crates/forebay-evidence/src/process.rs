//! The kernel's counters for this process alone: bytes from and to storage, and CPU time.
//!
//! `read_bytes` of `/proc/self/io` (proc(5)) counts bytes that the process requested from a block
//! device or an NFS server, its io_uring threads included. Both O_DIRECT reads and reads into the
//! page cache count. Bytes found in memory and bytes read by a FUSE server do not. So it separates
//! this process's bytes from those of all processes. `write_bytes` counts pages when they become
//! dirty.

use std::time::Duration;

use forebay_base::counts::Counts;
use forebay_topology::{System, entry};
use rustix::time::{ClockId, clock_gettime};

use serde::Serialize;

use super::seen::Seen;

const IO: &str = "proc/self/io";

/// Storage bytes of this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ProcessBytes {
    /// Bytes read from storage.
    pub read: u64,
    /// Bytes written to storage, or made dirty in the page cache.
    pub written: u64,
}

impl ProcessBytes {
    pub(super) fn look(system: &System) -> Seen<Self> {
        let none = || {
            let remedy = "mount `/proc`, with a kernel that has CONFIG_TASK_IO_ACCOUNTING";
            Seen::missing(format!("there is no `/{IO}`"), remedy)
        };
        Seen::read(IO, system.table(IO), none).and_then(|text| {
            let remedy = "a kernel with CONFIG_TASK_IO_ACCOUNTING counts them";
            Seen::of(Self::parse(&text), format!("`/{IO}` has no `read_bytes`"), remedy)
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let number = |name: &str| entry(text, name)?.parse().ok();
        Some(Self { read: number("read_bytes:")?, written: number("write_bytes:")? })
    }
}

impl Counts for ProcessBytes {
    fn counts(&mut self) -> Vec<&mut u64> {
        vec![&mut self.read, &mut self.written]
    }

    fn name(&self) -> String {
        format!("a counter in `/{IO}`")
    }
}

/// The CPU time of all threads of this process, or of this thread, so far.
pub(super) fn processor_time(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_two_counters_are_read() {
        let text = "rchar: 6976\nwchar: 0\nsyscr: 10\nsyscw: 0\nread_bytes: 4096\n\
                    write_bytes: 512\ncancelled_write_bytes: 7\n";
        let earlier = ProcessBytes::parse(text).unwrap();
        assert_eq!(earlier, ProcessBytes { read: 4096, written: 512 });
        let later = ProcessBytes { read: 5000, written: 512 };
        assert_eq!(later.since(earlier), Ok(ProcessBytes { read: 904, written: 0 }));
        assert!(earlier.since(later).unwrap_err().contains("went back"));
        assert_eq!(ProcessBytes::parse("rchar: 1\n"), None);
    }

    #[test]
    fn where_nothing_is_counted_it_says_how_to() {
        let root = tempfile::tempdir().unwrap();
        let look = || ProcessBytes::look(&System::at(root.path())).absence().unwrap();
        assert!(look().contains("there is no `/proc/self/io`"), "{}", look());
        std::fs::create_dir_all(root.path().join("proc/self")).unwrap();
        std::fs::write(root.path().join(IO), "rchar: 5\n").unwrap();
        assert!(look().contains("CONFIG_TASK_IO_ACCOUNTING"), "{}", look());
    }

    #[test]
    fn time_of_this_process_passes_while_it_works() {
        let before = processor_time(ClockId::ProcessCPUTime);
        while processor_time(ClockId::ProcessCPUTime) == before {}
        assert!(processor_time(ClockId::ProcessCPUTime) > before);
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(text in "(read_bytes|write_bytes|:| |[0-9]|\n|x){0,40}") {
            let _ = ProcessBytes::parse(&text);
        }
    }
}
