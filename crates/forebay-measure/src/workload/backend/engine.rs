//! The engine as a method: blocking calls at depth 1, otherwise calls that do not block.

use std::time::Instant;

use forebay::units::MIB;
use forebay::{
    Buffer, Completions, Engine, File, ManyOutcome, ManyTransfer, OpenOptions, Outcome, Piece,
    RequestOptions, Route, RouteShare, SyncMode, Transfer,
};

use super::pool::Places;
use super::{Backend, Call, Context, Done, Taken, add};
use crate::failure::{Failure, Result};
use crate::results::{Cache, Direction};
use crate::steps::Step;

/// The shortest write that is synced by its own call; the others are synced together.
const SYNCED_MIN: u64 = 16 * MIB;

/// A call in flight in a place.
enum Running {
    One(Transfer),
    Many(ManyTransfer),
}

/// Makes requests with the engine.
pub(super) struct EngineBackend {
    engine: Engine,
    file: File,
    options: RequestOptions,
    request_size: u64,
    memory: Places,
    running: Vec<Option<(Direction, Running)>>,
    /// Where calls that do not block report their end, by their place.
    ends: Completions,
    routes: Vec<Taken>,
}

impl EngineBackend {
    /// Opens the file and allocates memory.
    ///
    /// # Errors
    /// Engine errors.
    pub(super) fn new(route: Option<Route>, context: &Context<'_>) -> Result<Self> {
        let mut how = OpenOptions::default();
        how.write = context.writes;
        let opening = Step::begin("open", context.path);
        let file = context.engine.open_with(context.path, &how)?;
        drop(opening);
        let mut options = RequestOptions { route, exact: true, ..RequestOptions::default() };
        // A cold load ends with its bytes on the drive, and a large write says so.
        if context.writes && context.cache == Cache::Cold && context.request_size >= SYNCED_MIN {
            options.sync = SyncMode::Data;
        }
        Ok(Self {
            engine: context.engine.clone(),
            file,
            options,
            request_size: context.request_size,
            running: (0..context.depth).map(|_| None).collect(),
            memory: context.places(context.device)?,
            ends: Completions::new(),
            routes: Vec::new(),
        })
    }

    fn pieces(&self, offsets: &[u64]) -> Vec<Piece<'_>> {
        let size = self.request_size;
        let piece = |(index, &offset)| Piece::new(&self.file, offset, size, index as u64 * size);
        offsets.iter().enumerate().map(piece).collect()
    }

    fn take(&mut self, place: usize) -> Buffer {
        self.memory.buffers[place].take().expect("the place is free")
    }

    /// Makes one call and waits for it.
    fn block(&mut self, call: Call<'_>) -> Result<()> {
        let mut buffer = self.take(0);
        let moved = self.block_with(call, &mut buffer);
        self.memory.buffers[0] = Some(buffer);
        self.count(call.direction, &moved?);
        Ok(())
    }

    fn block_with(&self, call: Call<'_>, buffer: &mut Buffer) -> Result<Vec<RouteShare>> {
        let write = call.direction == Direction::Write;
        if let [offset] = *call.offsets {
            let request = if write { self.file.write(&*buffer) } else { self.file.read(buffer) };
            return Ok(request.at(offset).options(self.options).run()?.routes);
        }
        let pieces = self.pieces(call.offsets);
        let request = if write {
            self.engine.write_many(&pieces, [&*buffer])
        } else {
            self.engine.read_many(&pieces, [buffer])
        };
        whole(request.options(self.options).run()?)
    }

    /// Starts a call that does not block.
    fn begin(&mut self, place: usize, call: Call<'_>) -> Result<()> {
        let buffer = self.take(place);
        let write = call.direction == Direction::Write;
        let running = if let [offset] = *call.offsets {
            let request = if write { self.file.write(buffer) } else { self.file.read(buffer) };
            Running::One(request.at(offset).options(self.options).start()?)
        } else {
            let pieces = self.pieces(call.offsets);
            let request = if write {
                self.engine.write_many(&pieces, [buffer])
            } else {
                self.engine.read_many(&pieces, [buffer])
            };
            Running::Many(request.options(self.options).start()?)
        };
        let transfer = match &running {
            Running::One(transfer) => transfer,
            Running::Many(many) => many.transfer(),
        };
        transfer.report_to(&self.ends, place as u64);
        self.running[place] = Some((call.direction, running));
        Ok(())
    }

    fn end(&mut self, place: usize) -> Result<()> {
        let (direction, running) = self.running[place].take().expect("it was started");
        let (result, buffer) = match running {
            Running::One(transfer) => {
                let (outcome, buffer) = transfer.wait();
                (outcome.map(|Outcome { routes, .. }| routes).map_err(Failure::from), buffer)
            }
            Running::Many(many) => {
                let (outcome, mut buffers) = many.wait();
                (outcome.map_err(Failure::from).and_then(whole), buffers.pop())
            }
        };
        self.memory.buffers[place] = buffer;
        self.count(direction, &result?);
        Ok(())
    }

    fn count(&mut self, direction: Direction, shares: &[RouteShare]) {
        for RouteShare { route, reason, bytes, .. } in shares {
            let (route, reason, bytes) = (*route, reason.text().into(), *bytes);
            add(&mut self.routes, Taken { direction, route, is_engines: true, reason, bytes });
        }
    }
}

/// The routes of many requests, all of which must be complete.
fn whole(outcome: ManyOutcome) -> Result<Vec<RouteShare>> {
    let ManyOutcome { results, whole, .. } = outcome;
    for result in results {
        result.map_err(|error| Failure::from(*error))?;
    }
    Ok(whole.routes)
}

impl Backend for EngineBackend {
    fn start(&mut self, place: usize, call: Call<'_>) -> Result<Option<Instant>> {
        if self.running.len() > 1 {
            self.begin(place, call)?;
            return Ok(None);
        }
        self.block(call)?;
        Ok(Some(Instant::now()))
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<Option<Done>> {
        let Some(place) = self.ends.wait(until) else { return Ok(None) };
        let (place, at) = (usize::try_from(place).expect("a place"), Instant::now());
        self.end(place)?;
        Ok(Some(Done { place, at }))
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.file.sync_data()?)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(self.file.clone().close()?)
    }

    fn memory(&mut self, place: usize) -> Option<&mut Buffer> {
        self.memory.buffers[place].as_mut()
    }

    fn routes(&self, _moved: [u64; 2]) -> Vec<Taken> {
        self.routes.clone()
    }
}
