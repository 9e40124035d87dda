//! Requests that are handed to the library many at a time.
//!
//! A batch takes nothing more while it is under way, so there are several: requests that come
//! meanwhile go together with the next one that is free. Before all of a batch are over the library
//! keeps the buffers of each, and what it says of one is not defined by its reference: so those of
//! a batch land together.

#![expect(unsafe_code, reason = "calls the library")]

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ffi::c_uint;
use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::failure::{CuFileError, CuFileFailure};
use super::flight::Flight;
use super::layout::{BatchEvent, BatchRequest, Pause};
use super::session::{Session, signed};
use super::table::BatchHandle;
use crate::events;
use crate::file::{Landed, Lane, LaneRequest, PortError};
use crate::gpu::Device;

/// Batches that are under way at once, each with its share of what the library takes.
const BATCHES: usize = 4;

/// Between two looks whether other lanes have left room.
const ROOM_EVERY: Duration = Duration::from_micros(50);

/// `CU_FILE_BATCH_SUBMIT_FAILED` and `CU_FILE_BATCH_FULL`: fewer may go.
const TOO_MANY: [i32; 2] = [5035, FULL];
const FULL: i32 = 5037;

/// How long the library may leave out how batches stand before nothing more goes by them.
const MUTE_MAX: Duration = Duration::from_secs(1);

/// Between two looks from then on, for what may land all the same.
const RESTS: Duration = Duration::from_millis(100);

/// See the module's own text.
#[derive(Debug)]
pub(super) struct BatchLane {
    session: Arc<Session>,
    device: Arc<dyn Device>,
    /// By numbers that are never used twice: the library may tell of one that is long over.
    flights: HashMap<usize, Flight>,
    next: usize,
    /// Taken in, not sent off.
    taken: Vec<BatchRequest>,
    batches: Vec<Batch>,
    /// Requests that one batch takes.
    most: usize,
    refused: Vec<Landed>,
    /// Why nothing more goes by batches.
    given_up: Option<CuFileFailure>,
    /// Since when it waits for room with nothing of its own under way.
    starves: Option<Instant>,
    /// Whether it takes no more before something lands.
    is_full: bool,
}

#[derive(Debug)]
struct Batch {
    handle: BatchHandle,
    /// What the library has of them; it may look at them until the last has landed.
    requests: Vec<BatchRequest>,
    in_flight: usize,
    /// Since when the library has not said how it stands.
    mute: Option<Instant>,
    /// Requests that are over, and what the library said of each.
    over: Vec<(usize, Result<isize, CuFileFailure>)>,
}

// SAFETY: the addresses are the library's and the GPU's, and any thread may hand them in.
unsafe impl Send for BatchLane {}

impl BatchLane {
    /// # Errors
    /// The library has no batches.
    pub(super) fn new(session: &Arc<Session>, device: &Arc<dyn Device>) -> Result<Self, String> {
        let table = session.table();
        let has = session.limits().batches
            && table.batch_set_up.is_some()
            && table.batch_submit.is_some()
            && table.batch_status.is_some()
            && table.batch_destroy.is_some();
        if !has {
            return Err(format!("cuFile {} has no batches", session.version()));
        }
        Ok(Self {
            session: Arc::clone(session),
            device: Arc::clone(device),
            flights: HashMap::new(),
            next: 0,
            taken: Vec::new(),
            batches: Vec::new(),
            most: (session.limits().batch / BATCHES).max(1),
            refused: Vec::new(),
            given_up: None,
            starves: None,
            is_full: false,
        })
    }

    /// The place of a batch that takes requests; `None`: all are under way, or no more can be had.
    fn free(&mut self) -> Result<Option<usize>, CuFileFailure> {
        if let Some(at) = self.batches.iter().position(|batch| batch.in_flight == 0) {
            return Ok(Some(at));
        }
        if self.batches.len() == BATCHES {
            return Ok(None);
        }
        let mut handle = ptr::null_mut();
        let most = c_uint::try_from(self.most).unwrap_or(c_uint::MAX);
        let set_up = self.session.table().batch_set_up;
        let told = self.within(|| {
            // SAFETY: the output outlives the call.
            unsafe { set_up?(&raw mut handle, most) }.checked("cuFileBatchIOSetUp").err()
        });
        match told {
            Ok(None) => {
                let (requests, over) = (Vec::new(), Vec::new());
                self.batches.push(Batch { handle, requests, in_flight: 0, mute: None, over });
                Ok(Some(self.batches.len() - 1))
            }
            Ok(Some(_)) if !self.batches.is_empty() => Ok(None),
            Ok(Some(error)) => Err(CuFileFailure::Refused(error)),
            Err(errno) => Err(CuFileFailure::Io(errno)),
        }
    }

    /// Has the GPU current; what `work` says is the answer.
    fn within<T>(&self, mut work: impl FnMut() -> Option<T>) -> Result<Option<T>, Errno> {
        let mut answer = None;
        self.device.within(&mut || answer = work()).map_err(|_| Errno::NODEV)?;
        Ok(answer)
    }

    /// Sends off as many as one batch takes.
    fn send(&mut self, at: usize, count: usize) -> Result<(), CuFileFailure> {
        let batch = &mut self.batches[at];
        batch.requests.clear();
        batch.requests.extend_from_slice(&self.taken[..count]);
        let (handle, requests) = (batch.handle, batch.requests.as_mut_ptr());
        let number = c_uint::try_from(count).unwrap_or(c_uint::MAX);
        let submit = self.session.table().batch_submit;
        let told = self.within(|| {
            // SAFETY: the requests stay where they are until the last has landed; the memory of
            // each is the lane's until then.
            let answer = unsafe { submit?(handle, number, requests, 0) };
            answer.checked("cuFileBatchIOSubmit").err()
        });
        match told {
            Ok(None) => {
                self.batches[at].in_flight = count;
                self.taken.drain(..count);
                Ok(())
            }
            Ok(Some(error)) => Err(CuFileFailure::Refused(error)),
            Err(errno) => Err(CuFileFailure::Io(errno)),
        }
    }

    /// Waits for room that others have. Where these never end it would wait for ever.
    fn starve(&mut self) {
        if self.batches.iter().any(|batch| batch.in_flight > 0) {
            return;
        }
        if self.starves.get_or_insert_with(Instant::now).elapsed() >= MUTE_MAX {
            self.give_up(CuFileFailure::NoBatch);
            self.refuse(&CuFileFailure::NoBatch);
        }
    }

    /// Has nothing more go by batches.
    fn give_up(&mut self, why: CuFileFailure) {
        if self.given_up.is_none() {
            events::note(&format!("nothing more goes by batches: {}", why.in_words()));
            self.given_up = Some(why);
        }
    }

    /// Hands back all that was not sent off.
    fn refuse(&mut self, failure: &CuFileFailure) {
        for request in self.taken.drain(..) {
            let Some(flight) = self.flights.remove(&(request.token as usize)) else { continue };
            self.refused.push(flight.land(&self.session, Err(failure.clone())));
        }
    }

    /// Asks how a batch stands; waits up to `wait` for one of its requests.
    fn ask(&mut self, at: usize, wait: Duration, landed: &mut Vec<Landed>) {
        let Batch { handle, in_flight, .. } = &self.batches[at];
        let (handle, in_flight) = (*handle, *in_flight);
        let mut events = vec![BatchEvent::new(ptr::null_mut(), 0, 0); in_flight];
        let mut count = c_uint::try_from(in_flight).unwrap_or(c_uint::MAX);
        let mut pause = Pause {
            seconds: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: wait.subsec_nanos().into(),
        };
        let least = if wait.is_zero() { 0 } else { count };
        let status = self.session.table().batch_status;
        let told = self.within(|| {
            let (count, pause) = (&raw mut count, &raw mut pause);
            // SAFETY: there is room for so many events.
            let answer = unsafe { status?(handle, least, count, events.as_mut_ptr(), pause) };
            answer.checked("cuFileBatchIOGetStatus").err()
        });
        match told {
            Ok(None) => {}
            Ok(Some(error)) => return self.is_mute(at, CuFileFailure::Refused(error)),
            Err(errno) => return self.is_mute(at, CuFileFailure::Io(errno)),
        }
        let batch = &mut self.batches[at];
        batch.mute = None;
        for event in events.iter().take(count as usize) {
            let token = event.token as usize;
            let is_own = batch.requests.iter().any(|request| request.token == event.token);
            let is_news = batch.over.iter().all(|(known, _)| *known != token);
            if let (Some(moved), true) = (over(event), is_own && is_news) {
                batch.over.push((token, moved));
                batch.in_flight -= 1;
            }
        }
        if batch.in_flight == 0 {
            self.land(at, landed);
        }
    }

    /// Hands back all of a batch.
    fn land(&mut self, at: usize, landed: &mut Vec<Landed>) {
        self.is_full = false;
        let over = std::mem::take(&mut self.batches[at].over);
        self.session.leave_room(over.len());
        for (token, moved) in over {
            let Some(flight) = self.flights.remove(&token) else { continue };
            let moved = moved.and_then(|moved| flight.answered("cuFileBatchIOGetStatus", moved));
            landed.push(flight.land(&self.session, moved));
        }
    }

    /// Takes note that the library does not say how a batch stands: its memory stays in use.
    fn is_mute(&mut self, at: usize, why: CuFileFailure) {
        let since = *self.batches[at].mute.get_or_insert_with(Instant::now);
        if since.elapsed() >= MUTE_MAX {
            self.give_up(why);
        }
    }
}

/// What an event says of a request that is over; `None`: its memory may be in use.
fn over(event: &BatchEvent) -> Option<Result<isize, CuFileFailure>> {
    match event.status {
        BatchEvent::COMPLETE => Some(Ok(event.moved)),
        // Less than zero it is the reason.
        BatchEvent::FAILED => Some(match event.moved {
            reason if reason < 0 => Ok(reason),
            _ => Err(CuFileFailure::Io(Errno::IO)),
        }),
        BatchEvent::CANCELED => Some(Err(CuFileFailure::Io(Errno::CANCELED))),
        BatchEvent::INVALID => Some(Err(CuFileFailure::Io(Errno::INVAL))),
        _ => None,
    }
}

impl Lane for BatchLane {
    fn room(&self) -> usize {
        // For those to be refused that would wait for it.
        let least = usize::from(self.given_up.is_some());
        self.session.limits().batch.saturating_sub(self.flights.len()).max(least)
    }

    unsafe fn begin(&mut self, request: LaneRequest<'_>) -> Result<(), PortError> {
        let writes = request.writes;
        let len = usize::try_from(request.len).map_err(|_| Errno::INVAL)?;
        let offset = signed(request.offset).map_err(|_| Errno::OVERFLOW)?;
        let flight = Flight::begin(&self.session, &self.device, request)?;
        if let Some(why) = self.given_up.clone() {
            let (_, result) = flight.land(&self.session, Err(why));
            return result.map(|_| ());
        }
        let (memory, token) = (flight.memory(), self.next);
        self.next += 1;
        self.taken.push(BatchRequest::new(flight.handle(), writes, memory, len, offset, token));
        self.flights.insert(token, flight);
        Ok(())
    }

    fn flush(&mut self) {
        if let Some(why) = self.given_up.clone() {
            return self.refuse(&why);
        }
        while !self.taken.is_empty() && !self.is_full {
            let room = self.session.take_room(self.taken.len().min(self.most));
            if room == 0 {
                return self.starve();
            }
            self.starves = None;
            let sent = match self.free() {
                // With the next that is free.
                Ok(None) => return self.session.leave_room(room),
                Ok(Some(at)) => self.send(at, room),
                Err(failure) => Err(failure),
            };
            if sent.is_err() {
                self.session.leave_room(room);
            }
            match sent {
                Err(CuFileFailure::Refused(error)) if self.may_be_fewer(&error) => {
                    self.most = (self.most.min(self.taken.len()) / 2).max(1);
                }
                Err(CuFileFailure::Refused(error)) if self.may_be_later(&error) => {
                    self.is_full = true;
                }
                Err(failure) => self.refuse(&failure),
                Ok(()) => {}
            }
        }
    }

    fn collect(&mut self, wait: Duration, landed: &mut Vec<Landed>) {
        let start = Instant::now();
        loop {
            self.under_way().into_iter().for_each(|at| self.ask(at, Duration::ZERO, landed));
            self.flush();
            landed.append(&mut self.refused);
            let left = wait.saturating_sub(start.elapsed());
            if !landed.is_empty() || left.is_zero() || self.given_up.is_some() {
                return;
            }
            match self.under_way().first() {
                Some(at) => {
                    self.ask(*at, left, landed);
                    if landed.is_empty() {
                        // It may answer at once, with nothing or with an error.
                        thread::sleep(wait.saturating_sub(start.elapsed()).min(ROOM_EVERY));
                    }
                }
                // What was taken in waits for the room of other lanes.
                None if !self.taken.is_empty() => thread::sleep(left.min(ROOM_EVERY)),
                None => return,
            }
        }
    }

    fn rests(&self) -> Duration {
        let is_mute = |at: usize| self.batches[at].mute.is_some();
        let in_vain = self.given_up.is_some() && self.under_way().into_iter().all(is_mute);
        if in_vain { RESTS } else { Duration::ZERO }
    }
}

impl BatchLane {
    /// The places of batches with requests that have not landed.
    fn under_way(&self) -> Vec<usize> {
        let batches = self.batches.iter().enumerate();
        batches.filter(|(_, batch)| batch.in_flight > 0).map(|(at, _)| at).collect()
    }

    fn may_be_fewer(&self, error: &CuFileError) -> bool {
        TOO_MANY.contains(&error.code()) && self.most.min(self.taken.len()) > 1
    }

    fn may_be_later(&self, error: &CuFileError) -> bool {
        error.code() == FULL && self.batches.iter().any(|batch| batch.in_flight > 0)
    }
}

impl Drop for BatchLane {
    fn drop(&mut self) {
        let is_idle = |batch: &Batch| batch.in_flight == 0;
        let (idle, busy): (Vec<_>, Vec<_>) = self.batches.drain(..).partition(is_idle);
        if !busy.is_empty() {
            // The library may look at the requests, and use the files and the memory of each.
            std::mem::forget((busy, std::mem::take(&mut self.flights)));
        }
        if !self.session.is_here() || self.device.within(&mut || ()).is_err() {
            return;
        }
        for batch in idle {
            if let Some(destroy) = self.session.table().batch_destroy {
                // SAFETY: nothing of it is under way.
                unsafe { destroy(batch.handle) }
            }
        }
    }
}
