//! Every limit of the engine, by name, with the measurement behind its default.
//!
//! Each can be set in code or by an environment variable, `FOREBAY_` and its name in capitals.

use crate::error::{Error, Result};
use crate::units::{KIB, MIB, parse_size};

/// Whether the engine may read and write around the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DirectIo {
    /// O_DIRECT for what is not resident, where the file system has it.
    #[default]
    Auto,
    /// Everything through the page cache.
    Off,
}

/// How requests reach the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RingChoice {
    /// `io_uring` where the kernel allows it, else threads that `pread`.
    #[default]
    Auto,
    /// `io_uring`, or an error.
    Uring,
    /// Threads that `pread` and `pwrite`.
    Pread,
}

/// The limits of one [`Engine`](crate::Engine). The defaults need no change.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Options {
    /// Bytes of pinned memory at most over the whole engine; `None` is 256 MiB for each GPU in use
    /// (`FOREBAY_ARENA_SIZE`). The engine starts with four slots, which reach the link's limit for
    /// resident files (8 readers × 16 MiB × 4: 54.6 of 55.5 GB/s), and takes more only while slots
    /// are what a transfer waits for.
    pub arena_size: Option<u64>,
    /// Bytes of one staging slot, a power of two from 256 KiB (`FOREBAY_SLOT_SIZE`). A copy costs
    /// the link 2.7 µs, so 16 MiB copies reach 55.1 of 55.5 GB/s, 1 MiB copies 48.3.
    pub slot_size: u64,
    /// Bytes of one request to a drive or to the page cache, a power of two from 4 KiB to the slot
    /// size (`FOREBAY_SEGMENT_SIZE`). Eight readers fill 1 MiB pieces at 56 GB/s.
    pub segment_size: u64,
    /// Threads that read resident bytes; `None` is one for each core, from 2 to 10
    /// (`FOREBAY_READERS`). 8 readers fill 56 GB/s and 12 fill 72; the link takes 55.5.
    pub readers: Option<usize>,
    /// Requests in flight on one drive (`FOREBAY_DEPTH`), 1 to 1024.
    pub depth: usize,
    /// Blocking reads of resident bytes and writes through the page cache up to this many bytes are
    /// made by the calling thread (`FOREBAY_SMALL_SIZE`); 0 switches that off. At most 1 MiB.
    pub small_size: u64,
    /// Whether O_DIRECT may be used (`FOREBAY_DIRECT_IO`: `auto`, `off`).
    pub direct_io: DirectIo,
    /// How requests reach the kernel (`FOREBAY_RING`: `auto`, `uring`, `pread`).
    pub ring: RingChoice,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            arena_size: None,
            slot_size: 16 * MIB,
            segment_size: MIB,
            readers: None,
            depth: 32,
            small_size: 64 * KIB,
            direct_io: DirectIo::Auto,
            ring: RingChoice::Auto,
        }
    }
}

impl Options {
    /// The defaults, changed by the `FOREBAY_` variables of this process.
    ///
    /// # Errors
    /// [`Error::BadOption`] names the variable and what it may hold.
    pub fn from_env() -> Result<Self> {
        Self::from_lookup(|name| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned()))
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let mut options = Self::default();
        for (name, set) in SETTERS {
            if let Some(value) = lookup(name) {
                set(&mut options, &value).ok_or_else(|| Error::BadOption {
                    name: (*name).into(),
                    value,
                    expected: expected(name).into(),
                })?;
            }
        }
        options.check()?;
        Ok(options)
    }

    /// Whether all limits fit together.
    ///
    /// # Errors
    /// [`Error::BadOption`] names the first that does not.
    pub fn check(&self) -> Result<()> {
        let bad = |name: &str, value: String, expected: &str| {
            Err(Error::BadOption { name: name.into(), value, expected: expected.into() })
        };
        if !self.slot_size.is_power_of_two() || !(256 * KIB..=1024 * MIB).contains(&self.slot_size)
        {
            return bad(
                "FOREBAY_SLOT_SIZE",
                self.slot_size.to_string(),
                expected("FOREBAY_SLOT_SIZE"),
            );
        }
        if !self.segment_size.is_power_of_two()
            || self.segment_size < 4 * KIB
            || self.segment_size > self.slot_size
            || self.slot_size / self.segment_size > 64
        {
            let text = "a power of two from 4 KiB to the slot size, and at least a 64th of it";
            return bad("FOREBAY_SEGMENT_SIZE", self.segment_size.to_string(), text);
        }
        if let Some(size) = self.arena_size
            && size < 2 * self.slot_size
        {
            return bad(
                "FOREBAY_ARENA_SIZE",
                size.to_string(),
                "at least two slots (32 MiB by default)",
            );
        }
        if self.readers.is_some_and(|n| !(1..=1024).contains(&n)) {
            let value = self.readers.unwrap_or_default().to_string();
            return bad("FOREBAY_READERS", value, expected("FOREBAY_READERS"));
        }
        if !(1..=1024).contains(&self.depth) {
            return bad("FOREBAY_DEPTH", self.depth.to_string(), expected("FOREBAY_DEPTH"));
        }
        if self.small_size > MIB {
            return bad(
                "FOREBAY_SMALL_SIZE",
                self.small_size.to_string(),
                expected("FOREBAY_SMALL_SIZE"),
            );
        }
        Ok(())
    }
}

type Setter = fn(&mut Options, &str) -> Option<()>;

const SETTERS: &[(&str, Setter)] = &[
    ("FOREBAY_ARENA_SIZE", |o, v| parse_size(v).map(|n| o.arena_size = Some(n))),
    ("FOREBAY_SLOT_SIZE", |o, v| parse_size(v).map(|n| o.slot_size = n)),
    ("FOREBAY_SEGMENT_SIZE", |o, v| parse_size(v).map(|n| o.segment_size = n)),
    ("FOREBAY_READERS", |o, v| v.trim().parse().ok().map(|n| o.readers = Some(n))),
    ("FOREBAY_DEPTH", |o, v| v.trim().parse().ok().map(|n| o.depth = n)),
    ("FOREBAY_SMALL_SIZE", |o, v| parse_size(v).map(|n| o.small_size = n)),
    ("FOREBAY_DIRECT_IO", |o, v| {
        o.direct_io = match v.trim() {
            "auto" => DirectIo::Auto,
            "off" => DirectIo::Off,
            _ => return None,
        };
        Some(())
    }),
    ("FOREBAY_RING", |o, v| {
        o.ring = match v.trim() {
            "auto" => RingChoice::Auto,
            "uring" => RingChoice::Uring,
            "pread" => RingChoice::Pread,
            _ => return None,
        };
        Some(())
    }),
];

fn expected(name: &str) -> &'static str {
    match name {
        "FOREBAY_SLOT_SIZE" => "a power of two from 256K to 1G, such as `16M`",
        "FOREBAY_READERS" => "a number of threads from 1 to 1024",
        "FOREBAY_DEPTH" => "a number of requests from 1 to 1024",
        "FOREBAY_SMALL_SIZE" => "a size from 0 to 1M, such as `64K`",
        "FOREBAY_DIRECT_IO" => "`auto` or `off`",
        "FOREBAY_RING" => "`auto`, `uring` or `pread`",
        _ => "a size such as `64M`, `1GiB` or `2GB`",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(name: &str, value: &str) -> Result<Options> {
        Options::from_lookup(|n| (n == name).then(|| value.to_owned()))
    }

    #[test]
    fn every_variable_is_read() {
        assert_eq!(from("FOREBAY_ARENA_SIZE", "64M").unwrap().arena_size, Some(64 * MIB));
        assert_eq!(from("FOREBAY_SLOT_SIZE", "8MiB").unwrap().slot_size, 8 * MIB);
        assert_eq!(from("FOREBAY_SEGMENT_SIZE", "512K").unwrap().segment_size, 512 * KIB);
        assert_eq!(from("FOREBAY_READERS", "3").unwrap().readers, Some(3));
        assert_eq!(from("FOREBAY_DEPTH", "64").unwrap().depth, 64);
        assert_eq!(from("FOREBAY_SMALL_SIZE", "0").unwrap().small_size, 0);
        assert_eq!(from("FOREBAY_DIRECT_IO", "off").unwrap().direct_io, DirectIo::Off);
        assert_eq!(from("FOREBAY_RING", "pread").unwrap().ring, RingChoice::Pread);
    }

    #[test]
    fn nonsense_names_the_variable_and_what_it_may_hold() {
        for (name, _) in SETTERS {
            let error = from(name, "-3 bananas").unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("it takes"), "{error}");
        }
        for (name, value) in [
            ("FOREBAY_SLOT_SIZE", "3M"),
            ("FOREBAY_SEGMENT_SIZE", "1K"),
            ("FOREBAY_SEGMENT_SIZE", "32M"),
            ("FOREBAY_ARENA_SIZE", "16M"),
            ("FOREBAY_READERS", "0"),
            ("FOREBAY_DEPTH", "0"),
            ("FOREBAY_SMALL_SIZE", "2M"),
        ] {
            assert!(from(name, value).unwrap_err().to_string().contains(name), "{name}={value}");
        }
    }
}
