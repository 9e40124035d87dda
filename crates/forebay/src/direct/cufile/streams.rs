//! Requests that are each queued in a stream of the GPU.
//!
//! What one stream holds goes one by one, so each request has a stream of its own, and the library
//! moves as many at a time as there are streams in use.

#![expect(unsafe_code, reason = "calls the library")]

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::failure::CuFileFailure;
use super::flight::Flight;
use super::session::{Session, signed};
use super::table::NativeStream;
use crate::file::{Landed, Lane, LaneRequest, PortError};
use crate::gpu::{Device, DeviceResult, Event, Stream};

/// Streams at most. The library keeps buffers for each that was used, out of those that batches
/// take as well: so each has room for one request as long as it is there.
const STREAMS: usize = 32;

/// Between two looks whether a request has landed.
const LOOKS_EVERY: Duration = Duration::from_micros(20);

/// `CU_FILE_STREAM_FIXED_BUF_OFFSET`, `_FILE_OFFSET` and `_FILE_SIZE`: what a request says does not
/// change before it is carried out.
const FIXED: u32 = 7;

/// See the module's own text.
#[derive(Debug)]
pub(super) struct StreamLane {
    session: Arc<Session>,
    device: Arc<dyn Device>,
    idle: Vec<Track>,
    queued: Vec<Queued>,
}

/// A request in its stream.
#[derive(Debug)]
struct Queued {
    track: Track,
    flight: Flight,
    said: Box<Said>,
    call: &'static str,
    /// Whether the stream's event shows when it is over; else nobody knows.
    is_marked: bool,
}

/// A stream, and what shows how far it is.
#[derive(Debug)]
struct Track {
    stream: Stream,
    native: NativeStream,
    event: Event,
    is_registered: bool,
}

// SAFETY: the stream's name is the driver's, which any thread may use.
unsafe impl Send for Track {}

/// What the library reads when the stream comes to it, and where it leaves its answer.
#[derive(Debug)]
struct Said {
    len: usize,
    offset: i64,
    at: i64,
    moved: isize,
}

impl StreamLane {
    /// # Errors
    /// The library does not queue requests in streams.
    pub(super) fn new(session: &Arc<Session>, device: &Arc<dyn Device>) -> Result<Self, String> {
        let table = session.table();
        let has = table.read_async.is_some() && table.write_async.is_some();
        if !has || !session.limits().streams {
            return Err(format!("cuFile {} queues nothing in streams", session.version()));
        }
        let (session, device) = (Arc::clone(session), Arc::clone(device));
        let mut lane = Self { session, device, idle: Vec::new(), queued: Vec::new() };
        let first = lane.track().map_err(|errno| format!("no stream for it: {errno}"))?;
        lane.idle.push(first);
        Ok(lane)
    }

    /// A stream that nothing is queued in.
    fn track(&mut self) -> Result<Track, Errno> {
        if let Some(track) = self.idle.pop() {
            return Ok(track);
        }
        if self.session.take_room(1) == 0 {
            return Err(Errno::AGAIN); // batches have it all
        }
        self.make_track().inspect_err(|_| self.session.leave_room(1))
    }

    fn make_track(&self) -> Result<Track, Errno> {
        let stream = self.device.create_stream().map_err(|_| Errno::NODEV)?;
        let event = self.device.create_event();
        let (Ok(event), Some(native)) = (event, self.device.native(stream)) else {
            // It is lost to this process where the driver refuses.
            let _ = self.device.destroy_stream(stream);
            return Err(Errno::NODEV);
        };
        let native = native as NativeStream;
        let register = self.session.table().stream_register;
        let mut is_registered = false;
        let _ = self.device.within(&mut || {
            // SAFETY: the stream is ours. One that is not registered is served as well.
            let told = register.map(|register| unsafe { register(native, FIXED) }.checked(""));
            is_registered = told.is_some_and(|told| told.is_ok());
        });
        Ok(Track { stream, native, event, is_registered })
    }

    /// Queues a request.
    fn queue(&self, track: &Track, flight: &Flight, said: &mut Said, writes: bool) -> Told {
        let table = self.session.table();
        let function = if writes { table.write_async } else { table.read_async };
        let (base, file) = (flight.place() as *mut c_void, flight.handle());
        let mut told = Err(CuFileFailure::Io(Errno::NODEV));
        let entered = self.device.within(&mut || {
            let Some(function) = function else { return };
            let Said { len, offset, at, moved } = &mut *said;
            // SAFETY: what is pointed to is boxed, and stays so until the stream is past it, as
            // does the memory.
            let answer = unsafe {
                let (len, offset, at) = (&raw mut *len, &raw mut *offset, &raw mut *at);
                function(file, base, len, offset, at, &raw mut *moved, track.native)
            };
            told = answer.checked(call_of(writes)).map_err(CuFileFailure::Refused);
        });
        entered.map_err(|_| CuFileFailure::Io(Errno::NODEV)).and(told)
    }

    /// Whether the stream is past it.
    ///
    /// # Errors
    /// The GPU is lost: its context carries out nothing more, and its memory is nobody's any more.
    fn is_past(&self, queued: &Queued) -> DeviceResult<bool> {
        Ok(queued.is_marked && self.device.is_done(queued.track.event)?)
    }

    fn take_landed(&mut self, landed: &mut Vec<Landed>) {
        let mut index = 0;
        while let Some(queued) = self.queued.get(index) {
            let past = self.is_past(queued);
            if past == Ok(false) {
                index += 1;
                continue;
            }
            let Queued { track, flight, said, call, .. } = self.queued.swap_remove(index);
            let moved = match past {
                Ok(_) => {
                    // SAFETY: the stream is past it: the library has written it for the last time.
                    let moved = unsafe { std::ptr::read_volatile(&raw const said.moved) };
                    flight.answered(call, moved)
                }
                Err(_) => {
                    std::mem::forget((track, said)); // the library may come to write there
                    landed.push(flight.land(&self.session, Err(CuFileFailure::Io(Errno::NODEV))));
                    continue;
                }
            };
            landed.push(flight.land(&self.session, moved));
            self.idle.push(track);
        }
    }
}

/// The library's function, for what is said of it.
const fn call_of(writes: bool) -> &'static str {
    if writes { "cuFileWriteAsync" } else { "cuFileReadAsync" }
}

type Told = Result<(), CuFileFailure>;

impl Lane for StreamLane {
    fn room(&self) -> usize {
        let more = (STREAMS - self.queued.len() - self.idle.len()).min(self.session.room());
        self.idle.len() + more
    }

    unsafe fn begin(&mut self, request: LaneRequest<'_>) -> Result<(), PortError> {
        let writes = request.writes;
        let len = usize::try_from(request.len).map_err(|_| Errno::INVAL)?;
        let offset = signed(request.offset).map_err(|_| Errno::OVERFLOW)?;
        let track = self.track()?;
        let flight = match Flight::begin(&self.session, &self.device, request) {
            Ok(flight) => flight,
            Err(error) => {
                self.idle.push(track);
                return Err(error);
            }
        };
        let mut said = Box::new(Said { len, offset, at: 0, moved: 0 });
        if let Err(failure) = self.queue(&track, &flight, &mut said, writes) {
            let (_, result) = flight.land(&self.session, Err(failure));
            self.idle.push(track);
            return result.map(|_| ());
        }
        // Where no mark can be set behind it, it is waited for; where that fails too, nobody knows
        // whether it is over, and its memory stays in use.
        let is_marked = self.device.record(track.event, track.stream).is_ok()
            || self.device.synchronize(track.stream).is_ok();
        let call = call_of(writes);
        self.queued.push(Queued { track, flight, said, call, is_marked });
        Ok(())
    }

    fn collect(&mut self, wait: Duration, landed: &mut Vec<Landed>) {
        let start = Instant::now();
        loop {
            self.take_landed(landed);
            if !landed.is_empty() || self.queued.is_empty() || start.elapsed() >= wait {
                return;
            }
            std::thread::sleep(LOOKS_EVERY);
        }
    }
}

impl Drop for StreamLane {
    fn drop(&mut self) {
        std::mem::take(&mut self.queued).into_iter().for_each(std::mem::forget);
        if !self.session.is_here() {
            return;
        }
        for track in self.idle.drain(..) {
            let deregister = self.session.table().stream_deregister.filter(|_| track.is_registered);
            // A driver that refuses leaves nothing to do: it is lost to this process.
            let _ = self.device.within(&mut || {
                // SAFETY: registered once, and nothing is queued in it.
                let _ = deregister.map(|deregister| unsafe { deregister(track.native) });
            });
            self.session.leave_room(1);
            let _ = self.device.destroy_event(track.event);
            let _ = self.device.destroy_stream(track.stream);
        }
    }
}
