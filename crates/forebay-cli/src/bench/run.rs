//! One size of a run: measures every limit and every method once in each round.
//!
//! Every second round runs backwards, so that a machine that becomes slower or faster favours no
//! line.

use forebay::units::MIB;
use forebay::{Engine, Route};

use super::ceilings::fio::Fio;
use super::ceilings::link::Link;
use super::ceilings::storage::Storage;
use super::data::{Expected, Pattern};
use super::line::Line;
use super::make;
use super::measure::{Content, sample};
use super::memory::Memory;
use super::methods::cufile::{self, CufileCompat, Tuning};
use super::methods::forebay::Forebay;
use super::methods::mmap::Mmap;
use super::methods::standard::Standard;
use super::methods::{Job, Method};
use super::proof::Prover;
use super::subject::Subject;
use crate::failure::{Failure, Result};
use crate::report::json::{Direction, MethodName};
use crate::steps;

/// Minimum number of copies for a link's limit, which is the best of them.
pub(super) const LINK_SAMPLES: u32 = 5;
/// Bytes that the engine moves once before it is measured: enough to start all its threads and to
/// fill its pinned memory.
const WARM: u64 = 256 * MIB;

/// A method, with its required route or its settings.
struct Way {
    demand: Option<Route>,
    tuning: Option<Tuning>,
    method: Box<dyn Method>,
}

impl Way {
    fn of(line: &Line, engine: &Engine, cufile: Option<&cufile::Shared>) -> Result<Self> {
        let method: Box<dyn Method> = match line.method {
            MethodName::Standard => Box::new(Standard::default()),
            MethodName::Mmap => Box::new(Mmap::default()),
            MethodName::Forebay => Box::new(Forebay::new(engine.clone(), line.demand)),
            MethodName::CufileCompat => match (cufile, line.tuning) {
                (Some(cufile), Some(tuning)) => Box::new(CufileCompat::new(cufile.clone(), tuning)),
                _ => return Err(Failure::new("cuFile has no process")),
            },
            other => return Err(Failure::new(format!("`{}` is not a method", other.name()))),
        };
        Ok(Self { demand: line.demand, tuning: line.tuning, method })
    }

    fn is_of(&self, line: &Line) -> bool {
        let used = self.demand == line.demand && self.tuning == line.tuning;
        self.method.name() == line.method && used
    }
}

/// One size of a run.
pub struct Run<'a> {
    engine: &'a Engine,
    subject: &'a Subject,
    memory: &'a mut Memory,
    len: u64,
    repeats: u32,
    expected: Expected,
    written: Pattern,
    route: Option<Route>,
    cufile: Option<cufile::Shared>,
    ways: Vec<Way>,
    link: Link,
    storage: [Option<Storage>; 2],
    fio: Option<Fio>,
    prover: Prover,
}

impl<'a> Run<'a> {
    /// Prepares to move `len` bytes. The scratch that is read exists.
    ///
    /// # Errors
    /// System or engine errors, above all an unavailable route.
    pub fn new(
        engine: &'a Engine,
        subject: &'a Subject,
        memory: &'a mut Memory,
        len: u64,
        repeats: u32,
        route: Option<Route>,
    ) -> Result<Self> {
        let link = Link::new(engine, memory, len)?;
        let prover = Prover::new(memory.info());
        Ok(Self {
            engine,
            subject,
            len,
            repeats,
            expected: Expected::Pieces(Vec::new()),
            written: Pattern::new(0),
            route,
            cufile: None,
            ways: Vec::new(),
            link,
            memory,
            storage: [None, None],
            fio: None,
            prover,
        })
    }

    /// Sets the process that measures cuFile.
    #[must_use]
    pub fn with_cufile(self, cufile: Option<cufile::Shared>) -> Self {
        Self { cufile, ..self }
    }

    /// Measures all `lines`; `tell` is called before each sample.
    ///
    /// # Errors
    /// Errors of the engine. A baseline method or a limit that fails is left out.
    pub fn measure(&mut self, lines: &mut [Line], tell: &mut dyn FnMut(&Line)) -> Result<()> {
        self.prepare(lines)?;
        for repeat in 0..self.repeats {
            let count = lines.len();
            for index in 0..count {
                let index = if repeat % 2 == 0 { index } else { count - 1 - index };
                let line = &mut lines[index];
                tell(line);
                if line.left_out.is_none() {
                    self.turn(line, repeat)?;
                }
            }
        }
        Ok(())
    }

    fn prepare(&mut self, lines: &mut [Line]) -> Result<()> {
        let any = |direction| lines.iter().any(|line| line.direction == direction);
        if any(Direction::Read) {
            self.expected = self.subject.expected(self.len)?;
        }
        if any(Direction::Write) {
            self.written = self.subject.make_write(self.len)?;
        }
        for line in lines.iter().filter(|line| line.cache.is_some()) {
            if !self.ways.iter().any(|way| way.is_of(line)) {
                self.ways.push(Way::of(line, self.engine, self.cufile.as_ref())?);
            }
        }
        for direction in [Direction::Read, Direction::Write] {
            let ours = |line: &&Line| line.direction == direction && self.is_chosen(line);
            if let Some(line) = lines.iter().find(ours) {
                self.warm(line)?;
            }
            let others = |line: &&mut Line| line.tuning.is_some() && line.direction == direction;
            for line in lines.iter_mut().filter(others) {
                if let Err(failure) = self.warm(line) {
                    line.left_out = Some(failure.in_one_line());
                    self.restore(line)?;
                }
            }
        }
        Ok(())
    }

    /// Whether it is the engine by its own choice, or by the required route if there is one. If it
    /// fails, the run fails.
    fn is_chosen(&self, line: &Line) -> bool {
        line.method == MethodName::Forebay && line.demand == self.route
    }

    /// Runs a method once, so that samples do not include its start.
    fn warm(&mut self, line: &Line) -> Result<()> {
        let Some(job) = self.job(line) else { return Ok(()) };
        let job = Job { len: job.len.min(WARM), ..job };
        let Some(way) = self.ways.iter_mut().find(|way| way.is_of(line)) else { return Ok(()) };
        let method = &mut way.method;
        method.open(&job, self.memory)?;
        let moved = match line.direction {
            Direction::Read => {
                let _reading = method.reading(&job);
                method.read(&job, self.memory)
            }
            // Writes what the file already holds, so that it keeps its pattern.
            Direction::Write => method
                .put(self.memory, self.written, job.len)
                .and_then(|()| method.write(&job, self.memory)),
        };
        let closed = method.close(&job);
        moved?;
        closed
    }

    /// The job of a line; `None` for limits.
    fn job(&self, line: &Line) -> Option<Job> {
        let path = match line.direction {
            Direction::Read => self.subject.read_path(),
            Direction::Write => self.subject.write_path(),
        };
        Some(Job { path, len: self.len, direction: line.direction, cache: line.cache? })
    }

    /// Measures one line once.
    fn turn(&mut self, line: &mut Line, repeat: u32) -> Result<()> {
        self.subject.check_scratch()?;
        let result = match line.method {
            MethodName::Link => self.link(line),
            MethodName::Storage => self.storage(line),
            MethodName::Fio => self.fio(line),
            _ => self.way(line, repeat),
        };
        match result {
            Err(failure) if !self.is_chosen(line) => {
                line.left_out = Some(failure.in_one_line());
                self.restore(line)
            }
            other => other,
        }
    }

    fn link(&mut self, line: &mut Line) -> Result<()> {
        for _ in 0..LINK_SAMPLES.div_ceil(self.repeats) {
            let spent = self.link.sample(line.direction, self.memory)?;
            line.add_ceiling(self.link.len(), spent, self.link.how(line.direction));
        }
        Ok(())
    }

    fn storage(&mut self, line: &mut Line) -> Result<()> {
        let path = match line.direction {
            Direction::Read => self.subject.read_path(),
            Direction::Write => self.subject.write_path(),
        };
        let place = &mut self.storage[line.direction as usize];
        if place.is_none() {
            match Storage::open(&path, line.direction, self.len)? {
                Ok(storage) => *place = Some(storage),
                Err(reason) => {
                    line.left_out = Some(reason);
                    return Ok(());
                }
            }
        }
        let Some(storage) = place else { return Ok(()) };
        // Cached pages would make direct I/O wait for their write-back.
        steps::open(self.engine, &path)?.evict()?;
        let spent = storage.sample()?;
        line.add_ceiling(storage.bytes(), spent, storage.how());
        if line.direction == Direction::Write {
            self.after_direct_writes()?;
        }
        Ok(())
    }

    /// Handles the unaligned end after direct writes: the rest of the file now holds even bytes,
    /// and the end must not keep the bytes that the next method will write there.
    fn after_direct_writes(&mut self) -> Result<()> {
        let odd = Pattern::new(self.written.key());
        self.written = odd.inverse();
        let end = self.storage[Direction::Write as usize].as_ref().map_or(0, Storage::bytes);
        make::put(&self.subject.write_path(), self.written, end, self.len)
    }

    fn fio(&mut self, line: &mut Line) -> Result<()> {
        if self.fio.is_none() {
            match Fio::open(&self.subject.read_path(), self.len)? {
                Ok(fio) => self.fio = Some(fio),
                Err(reason) => {
                    line.left_out = Some(reason);
                    return Ok(());
                }
            }
        }
        let Some(fio) = &self.fio else { return Ok(()) };
        match fio.sample()? {
            Some(spent) => line.add_ceiling(fio.bytes(), spent, fio.how()),
            None => {
                let reason = "`fio` counts whole milliseconds: try a larger `--size`";
                line.left_out = Some(reason.into());
            }
        }
        Ok(())
    }

    fn way(&mut self, line: &mut Line, repeat: u32) -> Result<()> {
        let Some(job) = self.job(line) else { return Ok(()) };
        let Some(way) = self.ways.iter_mut().find(|way| way.is_of(line)) else { return Ok(()) };
        let file = steps::open(self.engine, &job.path)?;
        let mut content = match line.direction {
            Direction::Read => Content::Read(&self.expected),
            Direction::Write => Content::Write(&mut self.written),
        };
        let sources = self.prover.sources(self.engine, &[(file.clone(), job.len)]);
        let method = way.method.as_mut();
        let sources = if method.is_elsewhere() { sources.elsewhere() } else { sources };
        let counters = Some((&self.prover, &sources));
        match sample(method, &job, self.memory, &mut content, &file, repeat, counters)? {
            Ok(sample) => {
                line.add(self.len, sample);
                line.settings = way.method.settings();
            }
            Err(reason) => line.left_out = Some(reason),
        }
        Ok(())
    }

    /// Restores the written file after a failure.
    fn restore(&mut self, line: &Line) -> Result<()> {
        match line.direction {
            Direction::Read => Ok(()),
            Direction::Write => make::fill(&self.subject.write_path(), self.written, self.len),
        }
    }
}
