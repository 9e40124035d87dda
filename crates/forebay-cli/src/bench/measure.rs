//! One sample of one method: prepare, move (timed), check.
//!
//! Before a read the target is filled with other bytes, which differ from repeat to repeat. So a
//! byte that is never moved cannot match each time. A write moves bytes that all differ from the
//! file's previous contents, and the file is read back after its pages have been evicted.

use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use forebay::direct::Counters;
use forebay_evidence::{Seen, Sources};

use super::cache::{PageCache, make_cold, make_resident, read_plainly};
use super::cpu::{Spent, timed};
use super::data::{Expected, Pattern};
use super::make;
use super::memory::Memory;
use super::methods::{Job, Method, Moved};
use super::proof::{Proof, Prover};
use crate::failure::{Failure, Result};
use crate::report::json::{Cache, Direction};

/// The time of one move, and whether its data match.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Wall-clock time and CPU time.
    pub spent: Spent,
    /// The method's own report.
    pub moved: Moved,
    /// Whether every byte arrived.
    pub verified: bool,
    /// The proven route of the bytes, if it was checked.
    pub proof: Option<Proof>,
}

/// The contents of a job's file.
#[derive(Debug)]
pub enum Content<'a> {
    /// A file that is read.
    Read(&'a Expected),
    /// Scratch that is written: the pattern that it holds now.
    Write(&'a mut Pattern),
}

/// Takes one sample, with `counters` read before and after; the text says why the file could not be
/// made cold or resident.
///
/// # Errors
/// Errors of the method, and of the system.
pub fn sample(
    method: &mut dyn Method,
    job: &Job,
    memory: &mut Memory,
    content: &mut Content<'_>,
    file: &dyn PageCache,
    repeat: u32,
    counters: Option<(&Prover, &Sources)>,
) -> Result<Result<Sample, String>> {
    method.open(job, memory)?;
    let sample = opened(method, job, memory, content, file, repeat, counters);
    let closed = method.close(job);
    let sample = sample?;
    closed?;
    Ok(sample)
}

/// The byte that fills a target before a read. Both values are even, so both differ from every byte
/// of test data.
pub(crate) const fn other_byte(repeat: u32) -> u8 {
    if repeat.is_multiple_of(2) { 0xA4 } else { 0x5A }
}

fn opened(
    method: &mut dyn Method,
    job: &Job,
    memory: &mut Memory,
    content: &mut Content<'_>,
    file: &dyn PageCache,
    repeat: u32,
    counters: Option<(&Prover, &Sources)>,
) -> Result<Result<Sample, String>> {
    match content {
        Content::Read(_) => method.set(memory, other_byte(repeat))?,
        Content::Write(pattern) => method.put(memory, pattern.inverse(), job.len)?,
    }
    let ready = match job.cache {
        Cache::Cold => make_cold(file, job.len)?,
        Cache::Resident => make_resident(&job.path, file, job.len)?,
    };
    if let Err(reason) = ready {
        return Ok(Err(reason));
    }
    // Writes have no time limit, since they may sync.
    let reading = matches!(job.direction, Direction::Read).then(|| method.reading(job));
    let counted = method.counters();
    let span = counters.map(|(prover, sources)| (prover, sources.begin()));
    let (moved, spent) = timed(|| match job.direction {
        Direction::Read => method.read(job, memory),
        Direction::Write => method.write(job, memory),
    });
    drop(reading);
    let evidence = span.map(|(prover, span)| (prover, span.end()));
    let moved = moved?;
    let proof = evidence.map(|(prover, mut seen)| {
        if let (Some(before), Some(after)) = (counted, method.counters()) {
            seen.cufile = grown(before, after);
        }
        prover.proof(seen, &moved, job.direction)
    });
    let spent = method.spent().unwrap_or(spent);
    let right = match content {
        Content::Read(expected) => method.holds(memory, expected, job.len)?,
        Content::Write(pattern) => {
            **pattern = pattern.inverse();
            // On a file system in memory this has no effect.
            file.evict()?;
            let right = file_holds(&job.path, job.len, **pattern)?;
            if !right {
                // The next method requires a file that matches the pattern.
                make::fill(&job.path, **pattern, job.len)?;
            }
            right
        }
    };
    let verified = right && moved.bytes == job.len;
    Ok(Ok(Sample { spent, moved, verified, proof }))
}

/// The growth of cuFile's counters between two readings.
fn grown(before: Seen<Counters>, after: Seen<Counters>) -> Seen<Counters> {
    match (before, after) {
        (Seen::Value(before), Seen::Value(after)) => {
            let again = "measure again: its counters were reset";
            after.since(&before).map_or_else(|why| Seen::missing(why, again), Seen::Value)
        }
        (Seen::Value(_), missing) | (missing, _) => missing,
    }
}

/// Whether the file at `path` is `len` bytes of `pattern`.
pub(crate) fn file_holds(path: &Path, len: u64, pattern: Pattern) -> Result<bool> {
    let facts = std::fs::metadata(path)
        .map_err(|error| Failure::io(format!("cannot inspect `{}`", path.display()), &error))?;
    // The length of a device cannot change.
    if !facts.file_type().is_block_device() && facts.len() != len {
        return Ok(false);
    }
    let wrong = || Failure::new("");
    let read =
        read_plainly(
            path,
            len,
            |offset, bytes| {
                if pattern.matches(offset, bytes) { Ok(()) } else { Err(wrong()) }
            },
        );
    match read {
        Ok(()) => Ok(true),
        Err(failure) if failure == wrong() => Ok(false),
        Err(failure) => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::FileExt;

    use forebay::Residency;
    use forebay::units::MIB;
    use twox_hash::XxHash3_64;

    use super::*;
    use crate::bench::data::PIECE;
    use crate::bench::memory::{HostMemory, whole};
    use crate::bench::methods::mmap::Mmap;
    use crate::bench::methods::standard::Standard;
    use crate::report::json::MethodName;

    const LEN: u64 = 3 * MIB + 4099;

    /// A page cache that always obeys.
    struct Obedient;

    impl PageCache for Obedient {
        fn evict(&self) -> Result<()> {
            Ok(())
        }

        fn residency(&self, len: u64) -> Result<Residency> {
            Ok(Residency::Known { resident: 0, len })
        }
    }

    /// The fault of a broken method.
    #[derive(Clone, Copy, Debug)]
    enum Fault {
        Nothing,
        OnePieceTwice,
        OneByteShort,
        OneByteShortAndSaysSo,
        LastTime,
    }

    const FAULTS: [Fault; 5] = [
        Fault::Nothing,
        Fault::OnePieceTwice,
        Fault::OneByteShort,
        Fault::OneByteShortAndSaysSo,
        Fault::LastTime,
    ];

    /// The standard method with a fault.
    struct Broken {
        fault: Fault,
        earlier: Vec<u8>,
    }

    impl Broken {
        /// The bytes that arrive instead of `right`, from offset zero, and the reported count.
        fn spoil(&mut self, right: &[u8]) -> (Vec<u8>, u64) {
            let mut bytes = right.to_vec();
            let mut told = bytes.len() as u64;
            match self.fault {
                Fault::Nothing => bytes.clear(),
                Fault::OnePieceTwice => bytes.copy_within(0..whole(MIB), whole(MIB)),
                Fault::OneByteShort => drop(bytes.pop()),
                Fault::OneByteShortAndSaysSo => {
                    bytes.pop();
                    told -= 1;
                }
                Fault::LastTime => {
                    // The bytes of the previous turn.
                    std::mem::swap(&mut bytes, &mut self.earlier);
                }
            }
            (bytes, told)
        }
    }

    impl Method for Broken {
        fn name(&self) -> MethodName {
            MethodName::Standard
        }

        fn open(&mut self, _job: &Job, _memory: &Memory) -> Result<()> {
            Ok(())
        }

        fn read(&mut self, job: &Job, target: &mut Memory) -> Result<Moved> {
            let right = std::fs::read(&job.path).unwrap();
            let (bytes, told) = self.spoil(&right[..whole(job.len)]);
            let Memory::Host(host) = target else { unreachable!() };
            host.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
            Ok(Moved { bytes: told, route: None, reason: None, said: Vec::new() })
        }

        fn write(&mut self, job: &Job, source: &Memory) -> Result<Moved> {
            let Memory::Host(host) = source else { unreachable!() };
            let (bytes, told) = self.spoil(&host.bytes()[..whole(job.len)]);
            let file = OpenOptions::new().write(true).open(&job.path).unwrap();
            file.write_all_at(&bytes, 0).unwrap();
            Ok(Moved { bytes: told, route: None, reason: None, said: Vec::new() })
        }

        fn close(&mut self, _job: &Job) -> Result<()> {
            Ok(())
        }
    }

    fn scratch(pattern: Pattern) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        make::fill(file.path(), pattern, LEN).unwrap();
        file
    }

    /// Whether all of `repeats` samples match.
    fn all_right(
        method: &mut dyn Method,
        file: &tempfile::NamedTempFile,
        content: &mut Content<'_>,
        cache: Cache,
        repeats: u32,
    ) -> bool {
        let direction = match content {
            Content::Read(_) => Direction::Read,
            Content::Write(_) => Direction::Write,
        };
        let job = Job { path: file.path().to_owned(), len: LEN, direction, cache };
        let mut memory = Memory::Host(HostMemory::allocate(LEN).unwrap());
        let mut right = true;
        for repeat in 0..repeats {
            let memory = &mut memory;
            let sample = sample(method, &job, memory, content, &Obedient, repeat, None).unwrap();
            right &= sample.unwrap().verified;
        }
        right
    }

    #[test]
    fn broken_ways_are_found_reading_our_data() {
        let pattern = Pattern::new(3);
        let file = scratch(pattern);
        let expected = Expected::Pattern(pattern);
        for fault in FAULTS {
            let mut broken = Broken { fault, earlier: Vec::new() };
            let mut content = Content::Read(&expected);
            assert!(!all_right(&mut broken, &file, &mut content, Cache::Cold, 1), "{fault:?}");
        }
    }

    #[test]
    fn broken_ways_are_found_reading_a_file_that_is_not_ours() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // Its last byte equals the byte that fills targets at first.
        let mut bytes: Vec<u8> = (0..LEN).map(|at| u8::try_from(at / MIB * 7).unwrap()).collect();
        *bytes.last_mut().unwrap() = 0xA4;
        std::fs::write(file.path(), &bytes).unwrap();
        let hashes = bytes.chunks(whole(PIECE)).map(XxHash3_64::oneshot).collect();
        let expected = Expected::Pieces(hashes);
        for fault in FAULTS {
            let mut broken = Broken { fault, earlier: Vec::new() };
            let mut content = Content::Read(&expected);
            assert!(!all_right(&mut broken, &file, &mut content, Cache::Cold, 3), "{fault:?}");
        }
        for method in [&mut Standard::default() as &mut dyn Method, &mut Mmap::default()] {
            assert!(all_right(method, &file, &mut Content::Read(&expected), Cache::Cold, 3));
        }
    }

    #[test]
    fn broken_ways_are_found_writing() {
        let mut pattern = Pattern::new(4);
        let file = scratch(pattern);
        for fault in FAULTS {
            let mut broken = Broken { fault, earlier: Vec::new() };
            let content = &mut Content::Write(&mut pattern);
            assert!(!all_right(&mut broken, &file, content, Cache::Cold, 1), "{fault:?}");
            // The next method is judged independently.
            let content = &mut Content::Write(&mut pattern);
            assert!(all_right(&mut Standard::default(), &file, content, Cache::Cold, 1));
        }
    }

    #[test]
    fn sound_ways_are_right_in_both_directions() {
        let mut pattern = Pattern::new(6);
        let file = scratch(pattern);
        for method in [&mut Standard::default() as &mut dyn Method, &mut Mmap::default()] {
            {
                let cache = Cache::Cold;
                let content = &mut Content::Write(&mut pattern);
                assert!(all_right(method, &file, content, cache, 3));
                let expected = Expected::Pattern(pattern);
                assert!(all_right(method, &file, &mut Content::Read(&expected), cache, 3));
            }
        }
    }

    #[test]
    fn a_written_file_of_another_length_is_wrong() {
        let mut pattern = Pattern::new(8);
        let file = scratch(pattern);
        OpenOptions::new().write(true).open(file.path()).unwrap().set_len(LEN + 1).unwrap();
        let content = &mut Content::Write(&mut pattern);
        assert!(!all_right(&mut Standard::default(), &file, content, Cache::Cold, 1));
    }

    #[test]
    fn a_cold_file_that_stays_is_left_out() {
        struct Stubborn;
        impl PageCache for Stubborn {
            fn evict(&self) -> Result<()> {
                Ok(())
            }
            fn residency(&self, len: u64) -> Result<Residency> {
                Ok(Residency::Known { resident: len, len })
            }
        }
        let expected = Expected::Pattern(Pattern::new(1));
        let file = scratch(Pattern::new(1));
        let path = file.path().to_owned();
        let job = Job { path, len: LEN, direction: Direction::Read, cache: Cache::Cold };
        let mut memory = Memory::Host(HostMemory::allocate(LEN).unwrap());
        let mut content = Content::Read(&expected);
        let method = &mut Standard::default();
        let content = &mut content;
        let left_out = sample(method, &job, &mut memory, content, &Stubborn, 0, None).unwrap();
        assert!(left_out.unwrap_err().contains("stayed in the page cache"));
    }
}
