//! The engine's limits, by name, with the measurement behind each default.
//!
//! Each can be set in code, or by an environment variable named `FOREBAY_` plus its name in
//! capitals.

use std::str::FromStr;
use std::time::Duration;

use forebay_base::units::{GIB, KIB, MIB, parse_duration, parse_size};

use crate::error::{Error, Result};
use crate::outcome::SyncMode;
use crate::plan::Route;
use forebay_cufile::Program;

/// Maximum number of segments per slot: a window keeps one bit for each.
const SEGMENTS_MAX: u64 = 64;

/// Whether the engine may bypass the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DirectIo {
    /// Use O_DIRECT for bytes that are not resident, if the file system supports it.
    #[default]
    Auto,
    /// Use the page cache for everything.
    Off,
}

/// How requests are submitted to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RingChoice {
    /// `io_uring` if the kernel allows it, else threads that call `pread`. Threads are always used
    /// for file systems that may complete requests in part (FUSE, 9p, CIFS, NFS and others): see
    /// [`File::no_io_uring`](crate::File::no_io_uring).
    #[default]
    Auto,
    /// Like `Auto`, but an error if the kernel refuses `io_uring`.
    Uring,
    /// Threads that call `pread` and `pwrite`.
    Pread,
}

/// The limits of one [`Engine`](crate::Engine). The defaults suit most uses.
///
/// ```
/// use forebay::{DirectIo, Engine, Options};
///
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("weights.bin");
/// # std::fs::write(&path, vec![7; 100_000]).unwrap();
/// let mut options = Options::default().with(|options| options.direct_io = DirectIo::Off);
/// options.set("FOREBAY_THREADS", "64")?; // by name, as text
/// options.check()?;
/// options.arena_size = forebay::units::parse_size("1G");
/// let engine = Engine::new(options)?;
/// for variable in Options::VARIABLES {
///     println!("{}: {}, {}", variable.name, variable.about, variable.default);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Options {
    /// Limit of pinned memory for the whole engine, in bytes; `None` is 320 MiB per GPU in use
    /// (`FOREBAY_ARENA_SIZE`). A limit that is set grows by one slot with each further GPU. Slots
    /// use at most four fifths. Stream-ordered transfers, reads to several GPUs and copies of
    /// buffers borrow from the rest: at the limit they use smaller blocks, or wait for other calls.
    /// Memory that callers allocate does not count. The engine starts
    /// with four slots, which reach the link's limit for resident files (8 readers × 16 MiB × 4:
    /// 54.6 of 55.5 GB/s). It adds more only while transfers wait for slots.
    pub arena_size: Option<u64>,
    /// Bytes per staging slot, a power of two from 256 KiB (`FOREBAY_SLOT_SIZE`). A copy costs the
    /// link 2.7 µs, so 16 MiB copies reach 55.1 of 55.5 GB/s and 1 MiB copies 48.3. Resident bytes
    /// fill whole slots; bytes from a drive fill parts, down to a sixteenth.
    pub slot_size: u64,
    /// Bytes per request to a drive or the page cache, a power of two from 4 KiB to the slot size
    /// and at least a 64th of it (`FOREBAY_SEGMENT_SIZE`). Eight readers fill 1 MiB pieces at 56
    /// GB/s. If only the slot size is set by a variable, this becomes the valid value nearest to 1
    /// MiB.
    pub segment_size: u64,
    /// Threads that read resident bytes (`FOREBAY_READERS`); `None` is seven eighths of the
    /// available cores, from 2 to 12 for each GPU in use. Without other load on the memory, 8
    /// readers fill 56 GB/s and 12 fill 72; the link carries 55.5.
    pub readers: Option<usize>,
    /// Queue depth per drive (`FOREBAY_DEPTH`), 1 to 1024. `None`: the engine finds the depth, up
    /// to 128, and the block size (`docs/internals.md#depth`).
    pub depth: Option<usize>,
    /// Requests in flight on all drives together (`FOREBAY_IN_FLIGHT`), 1 to 65536; each drive may
    /// always have one. The default is full depth for eight drives.
    pub in_flight: usize,
    /// Thread limit for all drives and GPUs together (`FOREBAY_THREADS`), 8 to 4096. Up to a
    /// quarter read bytes that are in memory, an eighth drive rings, and half wait for drives
    /// without io_uring. The rest is for one thread per GPU, for the kernel's io_uring threads (at
    /// most a quarter), and for threads that close files and free memory. Not counted are the
    /// threads that serve layer streams and stream-ordered transfers, and those that query cuFile
    /// or a path that may hang: `docs/variables.md` lists them.
    pub threads: usize,
    /// Blocking reads of resident bytes, and writes through the page cache, up to this many bytes
    /// run on the calling thread (`FOREBAY_SMALL_SIZE`); 0 disables this. At most 1 MiB. Up to 256
    /// KiB, waking other threads costs more than the copy. To an H200, on the calling thread and by
    /// readers: 4 KiB take 8 and 70 µs, 64 KiB 19 and 81, 256 KiB 57 and 76, but 512 KiB 103 and
    /// 88.
    pub small_size: u64,
    /// Whether O_DIRECT may be used (`FOREBAY_DIRECT_IO`: `auto`, `off`).
    pub direct_io: DirectIo,
    /// How requests are submitted to the kernel (`FOREBAY_RING`: `auto`, `uring`, `pread`).
    pub ring: RingChoice,
    /// How long a stream-ordered transfer may make no progress before it is abandoned
    /// (`FOREBAY_WATCHDOG`): the stream waits for it, and so does the GPU.
    pub watchdog: Duration,
    /// Whether cuFile may be used for the route `direct` (`FOREBAY_CUFILE`: `auto`, `off`).
    pub cufile: bool,
    pub(crate) probe: Option<Program>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            arena_size: None,
            slot_size: 16 * MIB,
            segment_size: MIB,
            readers: None,
            depth: None,
            in_flight: 1024,
            threads: 256,
            small_size: 256 * KIB,
            direct_io: DirectIo::Auto,
            ring: RingChoice::Auto,
            watchdog: Duration::from_secs(30),
            cufile: true,
            probe: None,
        }
    }
}

impl Options {
    /// The defaults, overridden by this process's `FOREBAY_` variables.
    ///
    /// # Errors
    /// [`Error::BadOption`] names the variable and the values that it accepts.
    pub fn from_env() -> Result<Self> {
        Self::from_lookup(|name| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned()))
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let mut options = Self::default();
        for Variable { name, takes, set, .. } in Self::VARIABLES {
            if let Some(value) = lookup(name) {
                let set = set(&mut options, &value);
                set.ok_or_else(|| Error::bad_option(*name, value, *takes))?;
            }
        }
        if lookup("FOREBAY_SEGMENT_SIZE").is_none() {
            let slot = options.slot_size;
            options.segment_size = options.segment_size.max(slot / SEGMENTS_MAX).min(slot);
        }
        options.check()?;
        Ok(options)
    }

    /// Changes limits: `Options::default().with(|options| options.threads = 64)`.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Sets the limit that belongs to the variable `name` (such as `FOREBAY_SLOT_SIZE`), without
    /// checking it against other limits: [`check`](Self::check) and [`Engine::new`] do that. Unlike
    /// in [`from_env`](Self::from_env), the segment size does not follow the slot size.
    ///
    /// [`Engine::new`]: crate::Engine::new
    ///
    /// # Errors
    /// [`Error::BadOption`] for an unknown name or an invalid value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let bad = |expected: String| Err(Error::bad_option(name, value, expected));
        let Some(known) = Self::VARIABLES.iter().find(|known| known.name == name) else {
            let names: Vec<_> = Self::VARIABLES.iter().map(|known| known.name).collect();
            return bad(format!("no value: the variables are {}", names.join(", ")));
        };
        (known.set)(self, value).map_or_else(|| bad(known.takes.into()), Ok)
    }

    /// Checks that all limits fit together.
    ///
    /// # Errors
    /// [`Error::BadOption`] names the first limit that does not fit.
    pub fn check(&self) -> Result<()> {
        let bad = |name: &str, value: u64| {
            let found = Self::VARIABLES.iter().find(|variable| variable.name == name);
            let expected = found.map_or("", |variable| variable.takes);
            Err(Error::bad_option(name, value.to_string(), expected))
        };
        let Self { slot_size: slot, segment_size: segment, .. } = *self;
        if !slot.is_power_of_two() || !(256 * KIB..=GIB).contains(&slot) {
            return bad("FOREBAY_SLOT_SIZE", slot);
        }
        if !segment.is_power_of_two()
            || segment < 4 * KIB
            || segment > slot
            || slot / segment > SEGMENTS_MAX
        {
            return bad("FOREBAY_SEGMENT_SIZE", segment);
        }
        if let Some(size) = self.arena_size.filter(|size| *size < 2 * slot) {
            return bad("FOREBAY_ARENA_SIZE", size);
        }
        if let Some(readers) = self.readers.filter(|readers| !(1..=1024).contains(readers)) {
            return bad("FOREBAY_READERS", readers as u64);
        }
        if let Some(depth) = self.depth.filter(|depth| !(1..=1024).contains(depth)) {
            return bad("FOREBAY_DEPTH", depth as u64);
        }
        if !(1..=65536).contains(&self.in_flight) {
            return bad("FOREBAY_IN_FLIGHT", self.in_flight as u64);
        }
        if !(8..=4096).contains(&self.threads) {
            return bad("FOREBAY_THREADS", self.threads as u64);
        }
        if self.small_size > MIB {
            return bad("FOREBAY_SMALL_SIZE", self.small_size);
        }
        let (least, most) = (Duration::from_millis(100), Duration::from_secs(3600));
        if !(least..=most).contains(&self.watchdog) {
            return bad("FOREBAY_WATCHDOG", self.watchdog.as_secs());
        }
        Ok(())
    }

    /// Largest queue depth per drive that the engine chooses itself; on a volume that reads from
    /// several drives at once, per member. An NVMe drive of an H200 machine reached 0.88 of its
    /// rate with 32 requests of 1 MiB, and 0.91 with 64.
    pub(crate) const DEPTH_MAX: usize = 128;

    /// Every variable that [`from_env`](Self::from_env) reads.
    pub const VARIABLES: &[Variable] = &[
        Variable {
            name: "FOREBAY_ARENA_SIZE",
            about: "maximum pinned memory of the engine",
            default: "320M for each GPU in use",
            takes: "a size of at least two slots, such as `64M`, `1GiB` or `2GB`",
            set: |options, text| parse_size(text).map(|size| options.arena_size = Some(size)),
        },
        Variable {
            name: "FOREBAY_SLOT_SIZE",
            about: "size of a staging buffer; resident bytes fill it",
            default: "16M",
            takes: "a power of two from 256K to 1G, such as `16M`",
            set: |options, text| parse_size(text).map(|size| options.slot_size = size),
        },
        Variable {
            name: "FOREBAY_SEGMENT_SIZE",
            about: "block size of requests to a drive or the page cache",
            default: "1M, or the nearest size that fits the slot",
            takes: "a power of two from 4K to the slot size, and at least a 64th of it",
            set: |options, text| parse_size(text).map(|size| options.segment_size = size),
        },
        Variable {
            name: "FOREBAY_READERS",
            about: "threads that read from the page cache",
            default: "7 of 8 cores, 2 to 12 for each GPU in use",
            takes: "a number of threads from 1 to 1024",
            set: |options, text| text.trim().parse().ok().map(|n| options.readers = Some(n)),
        },
        Variable {
            name: "FOREBAY_DEPTH",
            about: "queue depth of one drive",
            default: "found for each drive, up to 128",
            takes: "a number of requests from 1 to 1024",
            set: |options, text| text.trim().parse().ok().map(|n| options.depth = Some(n)),
        },
        Variable {
            name: "FOREBAY_IN_FLIGHT",
            about: "queue depth of all drives together",
            default: "1024",
            takes: "a number of requests from 1 to 65536",
            set: |options, text| text.trim().parse().ok().map(|n| options.in_flight = n),
        },
        Variable {
            name: "FOREBAY_THREADS",
            about: "maximum threads of the engine",
            default: "256",
            takes: "a number of threads from 8 to 4096",
            set: |options, text| text.trim().parse().ok().map(|n| options.threads = n),
        },
        Variable {
            name: "FOREBAY_SMALL_SIZE",
            about: "largest transfer that the calling thread makes itself",
            default: "256K",
            takes: "a size from 0 to 1M, such as `64K`",
            set: |options, text| parse_size(text).map(|size| options.small_size = size),
        },
        Variable {
            name: "FOREBAY_DIRECT_IO",
            about: "whether O_DIRECT may be used",
            default: "auto",
            takes: "`auto` or `off`",
            set: |options, text| {
                let choices = [("auto", DirectIo::Auto), ("off", DirectIo::Off)];
                choice(text, &choices).map(|chosen| options.direct_io = chosen)
            },
        },
        Variable {
            name: "FOREBAY_RING",
            about: "interface for requests to the kernel",
            default: "auto",
            takes: "`auto`, `uring` or `pread`",
            set: |options, text| {
                let choices = [
                    ("auto", RingChoice::Auto),
                    ("uring", RingChoice::Uring),
                    ("pread", RingChoice::Pread),
                ];
                choice(text, &choices).map(|chosen| options.ring = chosen)
            },
        },
        Variable {
            name: "FOREBAY_WATCHDOG",
            about: "how long a path or a stream's transfer may make no progress",
            default: "30s",
            takes: "a time from 100ms to 1h, such as `30s`",
            set: |options, text| parse_duration(text).map(|time| options.watchdog = time),
        },
        Variable {
            name: "FOREBAY_CUFILE",
            about: "whether cuFile's direct path may be used",
            default: "auto",
            takes: "`auto` or `off`",
            set: |options, text| {
                choice(text, &[("auto", true), ("off", false)]).map(|on| options.cufile = on)
            },
        },
    ];
}

/// An environment variable that sets one of the [`Options`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// Description of the setting, as a phrase.
    pub about: &'static str,
    /// The default, as text.
    pub default: &'static str,
    /// The values that it accepts, as a phrase after "it takes".
    pub takes: &'static str,
    set: fn(&mut Options, &str) -> Option<()>,
}

/// Order of a transfer's requests relative to those of other transfers on the same drive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Priority {
    /// In turn with other normal transfers.
    #[default]
    Normal,
    /// Before all transfers that are not urgent.
    Urgent,
}

/// The settings of a [`Request`](crate::Request), for callers that make many alike.
///
/// ```
/// use forebay::{Engine, OpenOptions, Options, Priority, RequestOptions, Route, SyncMode};
///
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("weights.bin");
/// # std::fs::write(&path, vec![7; 100_000]).unwrap();
/// let engine = Engine::new(Options::default())?;
/// let file = engine.open_with(&path, &OpenOptions::writing())?;
/// let data = vec![7; 100_000];
/// let urgent = RequestOptions { priority: Priority::Urgent, ..RequestOptions::default() };
/// file.write(&data).options(urgent).preallocate().sync(SyncMode::Data).run()?;
/// let mut bytes = vec![0; 100_000];
/// let outcome = file.read(&mut bytes).route(Route::Host).priority(Priority::Normal).run()?;
/// assert!(bytes == data && outcome.routes.iter().all(|share| share.route == Route::Host));
/// for route in Route::ALL {
///     println!("{}", route.name());
/// }
/// # file.read(&mut bytes).past_cache().run()?;
/// # let gpu = engine.device(&"sim".parse()?)?.expect("a GPU").id();
/// # let mut targets = [engine.allocate(gpu, 4096)?];
/// # file.read_to_all(&mut targets).run()?;
/// # let pieces = [forebay::Piece::new(&file, 0, 4096, 0)];
/// # engine.read_many_to_all(&pieces, &mut targets).run()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestOptions {
    /// See [`Request::route`](crate::Request::route).
    pub route: Option<Route>,
    /// See [`Request::exact`](crate::Request::exact).
    pub exact: bool,
    /// See [`Request::sync`](crate::Request::sync).
    pub sync: SyncMode,
    /// See [`Request::preallocate`](crate::Request::preallocate).
    pub preallocate: bool,
    /// See [`Request::past_cache`](crate::Request::past_cache).
    pub past_cache: bool,
    /// See [`Request::priority`](crate::Request::priority).
    pub priority: Priority,
}

fn choice<T: Copy>(text: &str, choices: &[(&str, T)]) -> Option<T> {
    choices.iter().find(|(name, _)| *name == text.trim()).map(|(_, chosen)| *chosen)
}

// Here, since `plan` names no errors.
impl FromStr for Route {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let known = Self::ALL.into_iter().find(|route| route.name() == text);
        let expected = "`direct`, `staged`, `cached` or `host`";
        known.ok_or_else(|| Error::bad_option("route", text, expected))
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
        assert_eq!(from("FOREBAY_DEPTH", "64").unwrap().depth, Some(64));
        assert_eq!(from("FOREBAY_IN_FLIGHT", "640").unwrap().in_flight, 640);
        assert_eq!(from("FOREBAY_THREADS", "64").unwrap().threads, 64);
        assert_eq!(from("FOREBAY_SMALL_SIZE", "0").unwrap().small_size, 0);
        let watchdog = from("FOREBAY_WATCHDOG", "2s").unwrap().watchdog;
        assert_eq!(watchdog, Duration::from_secs(2));
        assert_eq!(from("FOREBAY_DIRECT_IO", "off").unwrap().direct_io, DirectIo::Off);
        assert_eq!(from("FOREBAY_RING", "pread").unwrap().ring, RingChoice::Pread);
    }

    #[test]
    fn nonsense_names_the_variable_and_what_it_may_hold() {
        for Variable { name, .. } in Options::VARIABLES {
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
            ("FOREBAY_WATCHDOG", "1ms"),
            ("FOREBAY_WATCHDOG", "soon"),
        ] {
            assert!(from(name, value).unwrap_err().to_string().contains(name), "{name}={value}");
        }
    }
    #[test]
    fn a_segment_size_that_is_not_set_follows_the_slot() {
        for (slot, segment) in
            [("256K", 256 * KIB), ("1M", MIB), ("64M", MIB), ("128M", 2 * MIB), ("1G", 16 * MIB)]
        {
            assert_eq!(from("FOREBAY_SLOT_SIZE", slot).unwrap().segment_size, segment, "{slot}");
        }
        let both = |slot: &'static str, segment: &'static str| {
            Options::from_lookup(|name| match name {
                "FOREBAY_SLOT_SIZE" => Some(slot.into()),
                "FOREBAY_SEGMENT_SIZE" => Some(segment.into()),
                _ => None,
            })
        };
        assert_eq!(both("1G", "16M").unwrap().segment_size, 16 * MIB);
        let error = both("1G", "1M").unwrap_err().to_string();
        assert_eq!(
            error,
            "`FOREBAY_SEGMENT_SIZE` cannot be `1048576`: it takes a power of two from 4K to the \
             slot size, and at least a 64th of it"
        );
    }

    #[test]
    fn the_documented_defaults_are_the_real_ones() {
        let options = Options::default();
        for Variable { name, default, set, .. } in Options::VARIABLES {
            let text = default.split(',').next().unwrap_or_default();
            let mut changed = options.clone();
            if !text.contains(' ') {
                set(&mut changed, text).unwrap();
            }
            assert_eq!(changed, options, "{name}");
        }
    }

    #[test]
    fn every_limit_is_set_by_its_name_alone() {
        let mut options = Options::default();
        for Variable { name, default, takes, .. } in Options::VARIABLES {
            let text = default.split(',').next().unwrap_or_default();
            if !text.contains(' ') {
                options.set(name, text).unwrap();
            }
            let before = options.clone();
            for bad in ["", "many", "-1", "1e3", "99999999999999999999999"] {
                let error = options.set(name, bad).unwrap_err().to_string();
                assert_eq!(error, format!("`{name}` cannot be `{bad}`: it takes {takes}"));
            }
            assert_eq!(options, before, "{name}");
        }
        assert_eq!(options, Options::default());
        options.set("FOREBAY_SLOT_SIZE", "256K").unwrap();
        assert_eq!((options.slot_size, options.segment_size), (256 * KIB, MIB));
        let error = options.check().unwrap_err().to_string();
        assert!(error.contains("FOREBAY_SEGMENT_SIZE"), "no other limit follows: {error}");
        for unknown in ["", "slot_size", "FOREBAY_", "FOREBAY_SLOTS"] {
            let error = options.set(unknown, "1").unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{unknown}` cannot be `1`")), "{error}");
            assert!(error.contains("FOREBAY_SLOT_SIZE"), "{error}");
        }
    }
}
