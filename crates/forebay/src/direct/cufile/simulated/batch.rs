//! Batches of the library that is played: each request is carried out when somebody asks how the
//! batch stands, in no order that anybody could rely on.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::MutexGuard;

use super::super::failure::Answer;
use super::super::layout::{BatchEvent, BatchRequest, Pause};
use super::super::table::BatchHandle;
use super::{NOT_SUPPORTED, OK, read, takes_calls_only, write};
use crate::lock::Lock;

/// `CU_FILE_BATCH_FULL` and `CU_FILE_INVALID_VALUE`.
const FULL: c_int = 5037;
const INVALID: c_int = 5022;

/// Requests that are carried out each time that somebody asks, at least.
const AT_ONCE: usize = 3;

#[derive(Debug)]
struct Batch {
    most: usize,
    /// Where the requests are, which may be looked at until the last is over.
    left: Vec<usize>,
}

static BATCHES: Lock<Option<HashMap<usize, Batch>>> = Lock::new(None);

fn batches() -> MutexGuard<'static, Option<HashMap<usize, Batch>>> {
    BATCHES.lock()
}

const fn error(error: c_int) -> Answer {
    Answer { error, cuda: 0 }
}

pub(super) unsafe extern "C" fn set_up(handle: *mut BatchHandle, most: c_uint) -> Answer {
    if most > super::BATCH_TOLD {
        return error(INVALID);
    }
    let mut batches = batches();
    let batches = batches.get_or_insert_default();
    let number = (1..).find(|number| !batches.contains_key(number)).expect("there are enough");
    batches.insert(number, Batch { most: most as usize, left: Vec::new() });
    // SAFETY: the caller's output. A number that nobody follows.
    unsafe { handle.write(number as *mut c_void) };
    OK
}

pub(super) unsafe extern "C" fn submit(
    handle: BatchHandle,
    count: c_uint,
    requests: *mut BatchRequest,
    _flags: c_uint,
) -> Answer {
    let mut batches = batches();
    let Some(batch) = batches.get_or_insert_default().get_mut(&(handle as usize)) else {
        return error(INVALID);
    };
    let most = batch.most.min(super::BATCH as usize);
    if !batch.left.is_empty() || count as usize > most {
        return error(FULL);
    }
    // SAFETY: the caller's, of which there are so many.
    let files = (0..count as usize).map(|at| unsafe { (*requests.add(at)).file });
    if files.into_iter().any(takes_calls_only) {
        return error(NOT_SUPPORTED);
    }
    batch.left = (0..count as usize).map(|at| requests.wrapping_add(at) as usize).collect();
    OK
}

pub(super) unsafe extern "C" fn status(
    handle: BatchHandle,
    least: c_uint,
    count: *mut c_uint,
    events: *mut BatchEvent,
    _longest: *mut Pause,
) -> Answer {
    let taken = {
        let mut batches = batches();
        let Some(batch) = batches.get_or_insert_default().get_mut(&(handle as usize)) else {
            return error(INVALID);
        };
        // SAFETY: the caller's.
        let room = unsafe { count.read() } as usize;
        let most = batch.left.len().min(room).min(AT_ONCE.max(least as usize));
        // The last come first.
        batch.left.split_off(batch.left.len() - most)
    };
    for (index, request) in taken.iter().enumerate() {
        // SAFETY: the caller keeps it until it is over.
        let request = unsafe { (*request as *const BatchRequest).read() };
        let moved = carry_out(&request);
        let state = if moved < 0 { BatchEvent::FAILED } else { BatchEvent::COMPLETE };
        // SAFETY: the caller has room for so many.
        unsafe { events.add(index).write(BatchEvent::new(request.token, state, moved)) };
    }
    // SAFETY: the caller's.
    unsafe { count.write(c_uint::try_from(taken.len()).unwrap_or(0)) };
    OK
}

fn carry_out(request: &BatchRequest) -> isize {
    let BatchRequest { file, base, len, offset, at, .. } = *request;
    // SAFETY: the caller's memory.
    unsafe {
        match request.writes() {
            true => write(file, base, len, offset, at),
            false => read(file, base, len, offset, at),
        }
    }
}

pub(super) unsafe extern "C" fn destroy(handle: BatchHandle) {
    batches().get_or_insert_default().remove(&(handle as usize));
}
