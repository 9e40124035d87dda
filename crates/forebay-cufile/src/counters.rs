//! cuFile's own counters, parsed from the buffer it fills: operations by data path.
//!
//! `cuFileGetStatsL1` to `L3` fill structures whose offsets changed in version 1.19. Each level
//! includes the one before, so level 3 has everything: totals first, then a number of GPUs and a
//! record for each. Checked with version 1.15 in compatibility mode on an H200: calls are counted
//! per GPU, batches only in the totals.

use forebay_base::counts::Counts;
use forebay_base::units::grown;

use crate::Session;

/// The length of each level, before version 1.19 and since.
const ENDS: [[usize; 3]; 2] = [[512, 1024, 5000], [624, 1136, 5112]];
/// The first version with counters, and the first with the longer structures.
const FIRST: u32 = 1150;
const LONGER: u32 = 1190;
/// Number of GPU records in the structure.
const GPUS_MAX: usize = 16;
/// Length of a GPU's record in bytes.
const GPU_LEN: usize = 248;

/// Offset of the batch counts by path, with two numbers each: succeeded and failed.
const BATCHES: usize = 320;
/// Offsets of the bytes that batches read, as measured with 1.15, and wrote, according to
/// `cufile.h`. Not read from versions where this was not measured.
const BATCH_BYTES: [usize; 2] = [416, 424];

/// Counts since the library was opened or its counters were reset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// The statistics level.
    pub level: u32,
    /// Batches submitted.
    pub batches: u64,
    /// Bytes of batches, if the version reports them.
    pub batch_bytes: Option<u64>,
    /// Batches by path.
    pub batches_by: Paths,
    /// Counts per GPU; empty below level 3.
    pub gpus: Vec<GpuCounters>,
}

/// Operations by data path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Paths {
    /// Between drives and GPU by the kernel's peer-to-peer DMA.
    pub p2pdma: u64,
    /// Between drives and GPU by nvidia-fs.
    pub nvidia_fs: u64,
    /// By `read` and `write` through host memory.
    pub posix: u64,
}

impl Paths {
    /// The sum of all paths.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.p2pdma.saturating_add(self.nvidia_fs).saturating_add(self.posix)
    }
}

impl Counts for Paths {
    fn counts(&mut self) -> Vec<&mut u64> {
        vec![&mut self.p2pdma, &mut self.nvidia_fs, &mut self.posix]
    }

    fn name(&self) -> String {
        "a counter of cuFile's batches".into()
    }
}

/// The counts of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moves {
    /// Bytes over all paths; unaligned ends may count as whole blocks.
    pub bytes: u64,
    /// Operations.
    pub operations: u64,
    /// Operations by path.
    pub by: Paths,
}

impl Counts for Moves {
    fn counts(&mut self) -> Vec<&mut u64> {
        let Self { bytes, operations, by } = self;
        [bytes, operations].into_iter().chain(by.counts()).collect()
    }
}

/// One GPU's counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GpuCounters {
    /// The GPU's UUID as 16 bytes.
    pub uuid: [u8; 16],
    /// From files to the GPU.
    pub reads: Moves,
    /// From the GPU to files.
    pub writes: Moves,
    /// Reads that began or ended within a block.
    pub unaligned_reads: u64,
}

impl Counts for GpuCounters {
    fn counts(&mut self) -> Vec<&mut u64> {
        let Self { reads, writes, unaligned_reads, .. } = self;
        let moves = [reads, writes].into_iter().flat_map(Counts::counts);
        moves.chain([unaligned_reads]).collect()
    }

    fn name(&self) -> String {
        "a counter of cuFile".into()
    }
}

impl Counters {
    /// The counts of an open driver in this process.
    ///
    /// # Errors
    /// The library counts nothing here, or fills a structure that is not known.
    pub fn of(session: &Session) -> Result<Self, String> {
        let bytes = session.counters().ok_or("cuFile has no counters here")?;
        Self::parse(session.version_number(), 3, &bytes)
    }

    /// Parses the buffer that the library has filled; it may have any length.
    ///
    /// # Errors
    /// The invalid argument: an unknown version or level, a buffer that is too short, or more GPUs
    /// than the structure can hold.
    pub fn parse(version: u32, level: u32, bytes: &[u8]) -> Result<Self, String> {
        if version < FIRST {
            return Err(format!("cuFile {} has no counters", shown(version)));
        }
        let ends = ENDS[usize::from(version >= LONGER)];
        let index = level.checked_sub(1).and_then(|index| usize::try_from(index).ok());
        let Some(end) = index.and_then(|index| ends.get(index)) else {
            return Err(format!("cuFile has no counters of level {level}"));
        };
        if bytes.len() < *end {
            let len = bytes.len();
            return Err(format!("cuFile's counters of level {level} take {end} bytes, not {len}"));
        }
        let number = |at: usize| word(bytes, at);
        // Asynchronous system calls, io_uring and mixed kinds all go through host memory.
        let posix = [352, 368, 384].map(number).into_iter().fold(0, u64::saturating_add);
        let batches_by = Paths { nvidia_fs: number(BATCHES), p2pdma: number(BATCHES + 16), posix };
        let mut counters = Self {
            level,
            batches: number(176),
            batch_bytes: (version < LONGER)
                .then(|| BATCH_BYTES.map(number).into_iter().fold(0, u64::saturating_add)),
            batches_by,
            gpus: Vec::new(),
        };
        if level == 3 {
            let count = usize::try_from(number(ends[1])).unwrap_or(usize::MAX);
            if count > GPUS_MAX {
                return Err(format!(
                    "cuFile reports {count} GPUs, but at most {GPUS_MAX} are possible"
                ));
            }
            let first = ends[1] + 8;
            let records = (0..count).map(|index| gpu(bytes, first + index * GPU_LEN));
            counters.gpus = records.collect();
        }
        Ok(counters)
    }

    /// The counts since an earlier reading.
    ///
    /// # Errors
    /// The counter that went back: the library was reopened, or its counters were reset.
    pub fn since(&self, earlier: &Self) -> Result<Self, String> {
        let is_here = |uuid| self.gpus.iter().any(|gpu| gpu.uuid == uuid);
        if let Some(lost) = earlier.gpus.iter().find(|gpu| !is_here(gpu.uuid)) {
            return Err(format!("cuFile no longer counts {}", lost.uuid_text()));
        }
        let gpus = self.gpus.iter().map(|gpu| {
            let before = earlier.gpus.iter().find(|other| other.uuid == gpu.uuid);
            gpu.since(before.copied().unwrap_or_default())
        });
        let gpus = gpus.collect::<Result<_, String>>()?;
        let batch_bytes = match (earlier.batch_bytes, self.batch_bytes) {
            (Some(before), Some(now)) => Some(grown("cuFile's bytes of batches", before, now)?),
            _ => None,
        };
        Ok(Self {
            level: self.level.min(earlier.level),
            batches: grown("cuFile's batches", earlier.batches, self.batches)?,
            batch_bytes,
            batches_by: self.batches_by.since(earlier.batches_by)?,
            gpus,
        })
    }

    /// Sum of the reads of all GPUs.
    #[must_use]
    pub fn reads(&self) -> Moves {
        self.gpus.iter().fold(Moves::default(), |sum, gpu| sum.plus(gpu.reads))
    }

    /// Sum of the writes of all GPUs.
    #[must_use]
    pub fn writes(&self) -> Moves {
        self.gpus.iter().fold(Moves::default(), |sum, gpu| sum.plus(gpu.writes))
    }

    /// The counts of the GPU with this `uuid`, in the format of CUDA and other tools; `None` if it
    /// has no record.
    #[must_use]
    pub fn of_gpu(&self, uuid: &str) -> Option<GpuCounters> {
        let mut found = self.gpus.iter().filter(|gpu| gpu.is(uuid));
        let first = *found.next()?;
        Some(found.fold(first, |sum, gpu| GpuCounters {
            reads: sum.reads.plus(gpu.reads),
            writes: sum.writes.plus(gpu.writes),
            unaligned_reads: sum.unaligned_reads.saturating_add(gpu.unaligned_reads),
            ..sum
        }))
    }

    /// Number of GPUs whose `moves`, their reads or their writes, are not zero.
    #[must_use]
    pub fn busy(&self, moves: impl Fn(&GpuCounters) -> Moves) -> usize {
        self.gpus.iter().filter(|gpu| moves(gpu) != Moves::default()).count()
    }
}

impl GpuCounters {
    /// Whether `uuid` is this GPU's: `GPU-…`, or `MIG-…` for a part of a GPU.
    fn is(&self, uuid: &str) -> bool {
        let digits = |text: &str| text.split_once('-').map(|(_, rest)| rest.to_ascii_lowercase());
        digits(uuid).is_some_and(|uuid| Some(uuid) == digits(&self.uuid_text()))
    }

    /// The UUID as other tools write it: `GPU-…`.
    #[must_use]
    pub fn uuid_text(&self) -> String {
        let mut text = "GPU-".to_owned();
        for (index, byte) in self.uuid.iter().enumerate() {
            text.push_str(if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" });
            text.push_str(&format!("{byte:02x}"));
        }
        text
    }
}

fn gpu(bytes: &[u8], start: usize) -> GpuCounters {
    let number = |at: usize| word(bytes, start + at);
    let moves = |bytes: usize, total: usize| Moves {
        bytes: number(bytes),
        operations: number(total),
        by: Paths {
            p2pdma: number(total + 8),
            nvidia_fs: number(total + 16),
            posix: number(total + 24),
        },
    };
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&bytes[start..start + 16]);
    let (reads, writes) = (moves(16, 48), moves(120, 152));
    GpuCounters { uuid, reads, writes, unaligned_reads: number(80) }
}

/// The 64-bit number at an offset; 0 beyond the end.
fn word(bytes: &[u8], at: usize) -> u64 {
    let found = bytes.get(at..at.saturating_add(8)).and_then(|word| word.try_into().ok());
    found.map_or(0, u64::from_ne_bytes)
}

/// Formats 1150 as `1.15`.
fn shown(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Counts of version 1.15 in compatibility mode on an H200: reads of 16 MiB, of 1,000 bytes, of
    /// 100 at a file's end, of none behind it, and of 16 MiB through a second handle.
    const MEASURED: [(usize, u64); 25] = [
        (0, 10),
        (8, 1),
        (32, 2),
        (40, 1),
        (64, 1),
        (72, 1),
        (96, 33_559_528),
        (144, 4),
        (160, 36_467),
        (512, 1),
        (520, 1),
        (616, 2),
        (1024, 1),
        (1032, 867_296_718_743_179_676),
        (1040, 2_092_813_411_911_047_727),
        (1048, 33_563_624),
        (1072, 62_446),
        (1080, 7),
        (1104, 7),
        (1112, 3),
        (1144, 1),
        (1240, 1),
        (1248, 1),
        (1272, 67_108_864),
        (5000, 0),
    ];

    fn buffer(words: &[(usize, u64)]) -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        for (at, word) in words {
            bytes[*at..*at + 8].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn compatibility_mode_is_read_as_it_was_measured() {
        let counters = Counters::parse(1150, 3, &buffer(&MEASURED)).unwrap();
        let [gpu] = counters.gpus.as_slice() else { panic!("{counters:?}") };
        let by = Paths { posix: 7, ..Paths::default() };
        assert_eq!(gpu.reads, Moves { bytes: 33_563_624, operations: 7, by });
        assert_eq!((gpu.writes, gpu.unaligned_reads), (Moves::default(), 3));
        let uuid = gpu.uuid_text();
        assert_eq!(uuid, "GPU-9c918c43-c541-090c-2f9a-21beb52a0b1d");
        assert_eq!((counters.batches, counters.batch_bytes), (0, Some(0)));
        let batch = [(176, 1), (416, 16_777_000), (424, 216)];
        let later = Counters::parse(1150, 3, &buffer(&[&MEASURED[..], &batch].concat())).unwrap();
        let grown = later.since(&counters).unwrap();
        assert_eq!((grown.batches, grown.batch_bytes), (1, Some(16_777_216)));
        assert_eq!(grown.reads(), Moves::default());
        let back = counters.since(&later).unwrap_err();
        assert!(back.contains("went back"), "{back}");
    }

    #[test]
    fn records_moved_in_1_19() {
        // One GPU after the longer totals: reads p2pdma 3, nvidia-fs 2, POSIX 1; writes p2pdma 4.
        let first = 1136 + 8;
        let words = [
            (1136, 1),
            (first + 16, 6 << 20),
            (first + 48, 6),
            (first + 56, 3),
            (first + 64, 2),
            (first + 72, 1),
            (first + 120, 4 << 20),
            (first + 152, 4),
            (first + 160, 4),
            (320, 9),
            (336, 8),
            (352, 1),
            (368, 2),
            (384, 4),
        ];
        let counters = Counters::parse(1190, 3, &buffer(&words)).unwrap();
        let by = Paths { p2pdma: 3, nvidia_fs: 2, posix: 1 };
        assert_eq!(counters.reads(), Moves { bytes: 6 << 20, operations: 6, by });
        assert_eq!(counters.writes().by, Paths { p2pdma: 4, ..Paths::default() });
        assert_eq!(counters.batches_by, Paths { nvidia_fs: 9, p2pdma: 8, posix: 7 });
        assert_eq!(counters.batch_bytes, None);
        assert!(Counters::parse(1150, 3, &buffer(&words)).unwrap().gpus.is_empty());
    }

    #[test]
    fn impossible_counters_are_refused_with_the_reason() {
        let bytes = buffer(&MEASURED);
        let refused =
            |version, level, bytes: &[u8]| Counters::parse(version, level, bytes).unwrap_err();
        assert_eq!(refused(1140, 3, &bytes), "cuFile 1.14 has no counters");
        assert_eq!(refused(1150, 0, &bytes), "cuFile has no counters of level 0");
        assert_eq!(refused(1150, 4, &bytes), "cuFile has no counters of level 4");
        let short = refused(1190, 3, &bytes[..5111]);
        assert_eq!(short, "cuFile's counters of level 3 take 5112 bytes, not 5111");
        let many = refused(1150, 3, &buffer(&[(1024, 17)]));
        assert_eq!(many, "cuFile reports 17 GPUs, but at most 16 are possible");
        assert!(Counters::parse(1150, 1, &bytes).unwrap().gpus.is_empty());
    }

    #[test]
    fn a_gpu_that_is_met_later_begins_at_nothing() {
        let none = Counters::parse(1150, 3, &buffer(&[])).unwrap();
        let one = Counters::parse(1150, 3, &buffer(&MEASURED)).unwrap();
        assert_eq!(one.since(&none).unwrap().reads().operations, 7);
        let lost = none.since(&one).unwrap_err();
        assert!(lost.starts_with("cuFile no longer counts GPU-"), "{lost}");
    }

    #[test]
    fn a_gpu_is_found_by_its_uuid_however_it_is_written() {
        let counters = Counters::parse(1150, 3, &buffer(&MEASURED)).unwrap();
        let own = "GPU-9c918c43-c541-090c-2f9a-21beb52a0b1d";
        let part = own.replace("GPU", "MIG");
        for name in [own, &own.to_uppercase(), &part] {
            assert_eq!(counters.of_gpu(name).map(|gpu| gpu.reads.operations), Some(7), "{name}");
        }
        for name in ["", "GPU", "GPU-", "GPU-9c918c43", "é-é", &own[4..], &own.replace('1', "2")]
        {
            assert_eq!(counters.of_gpu(name), None, "{name}");
        }
        let mut twice = counters.clone();
        twice.gpus.push(counters.gpus[0]);
        assert_eq!(twice.of_gpu(own).unwrap().reads.operations, 14);
        assert_eq!((twice.busy(|gpu| gpu.reads), twice.busy(|gpu| gpu.writes)), (2, 0));
    }

    proptest! {
        #[test]
        fn no_name_is_too_strange(name in "(GPU|MIG|)-?[0-9a-fé-]{0,40}|\\PC{0,60}") {
            let counters = Counters::parse(1150, 3, &buffer(&MEASURED)).unwrap();
            let is_own = name.to_ascii_lowercase().ends_with("-2f9a-21beb52a0b1d");
            prop_assert!(counters.of_gpu(&name).is_none() || is_own);
        }

        #[test]
        fn no_buffer_is_too_strange(
            version in prop_oneof![1100_u32..1300, any::<u32>()],
            level in 0_u32..6,
            mut bytes in proptest::collection::vec(any::<u8>(), 0..6000),
            count in 0_u64..20,
        ) {
            for at in [1024, 1136] {
                if bytes.len() > at + 8 {
                    bytes[at..at + 8].copy_from_slice(&count.to_ne_bytes());
                }
            }
            if let Ok(counters) = Counters::parse(version, level, &bytes) {
                prop_assert!(counters.gpus.len() <= GPUS_MAX);
                let no = counters.since(&counters).unwrap();
                prop_assert_eq!(no.reads().by.total() + no.batches, 0);
                let _ = counters.writes();
            }
        }
    }
}
