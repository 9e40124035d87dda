//! Runs the same work on every piece of a range or of a slice, on several threads.

use std::convert::Infallible;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use forebay::units::ByteRange;

/// Threads that can run concurrently.
#[must_use]
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Runs `work` on each piece of `len` bytes, in no particular order, with a state for each thread.
/// The first error stops the rest.
///
/// # Errors
/// The first error that `work` returned.
pub fn each_range<S, E: Send>(
    len: u64,
    piece: u64,
    threads: usize,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, ByteRange) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let next = AtomicU64::new(0);
    run(threads.min(usize::try_from(len.div_ceil(piece)).unwrap_or(usize::MAX)), || {
        let mut state = state();
        loop {
            let start = next.fetch_add(piece, Ordering::Relaxed);
            if start >= len {
                return Ok(());
            }
            let range = ByteRange { start, end: len.min(start + piece) };
            if let Err(error) = work(&mut state, range) {
                next.store(len, Ordering::Relaxed);
                return Err(error);
            }
        }
    })
}

/// Runs `work` on each piece of `bytes` with the piece's position, in no particular order.
pub fn each_piece(
    bytes: &mut [u8],
    piece: usize,
    threads: usize,
    work: impl Fn(u64, &mut [u8]) + Sync,
) {
    let work = |at, piece: &mut [u8]| {
        work(at, piece);
        Ok::<(), Infallible>(())
    };
    let Ok(()) = try_each_piece(bytes, piece, threads, work);
}

/// Like [`each_piece`]; an error ends a thread's work.
///
/// # Errors
/// The first error that `work` returned.
pub fn try_each_piece<E: Send>(
    bytes: &mut [u8],
    piece: usize,
    threads: usize,
    work: impl Fn(u64, &mut [u8]) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let count = bytes.len().div_ceil(piece);
    let pieces = Mutex::new(bytes.chunks_mut(piece).enumerate());
    run(threads.min(count), || {
        loop {
            let taken = pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((index, bytes)) = taken else { return Ok(()) };
            work((index * piece) as u64, bytes)?;
        }
    })
}

fn run<E: Send>(threads: usize, work: impl Fn() -> Result<(), E> + Sync) -> Result<(), E> {
    if threads <= 1 {
        return work();
    }
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            // If a thread cannot be spawned, the others do its work.
            .filter_map(|_| thread::Builder::new().spawn_scoped(scope, &work).ok())
            .collect();
        let mine = work();
        others.into_iter().fold(mine, |result, other| match other.join() {
            Ok(theirs) => result.and(theirs),
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_visited_once() {
        for len in [0, 1, 99, 100, 101, 1000] {
            let mut bytes = vec![0_u8; len];
            each_piece(&mut bytes, 100, 4, |at, piece| {
                assert!(at.is_multiple_of(100));
                piece.iter_mut().for_each(|byte| *byte += 1);
            });
            assert!(bytes.iter().all(|byte| *byte == 1));
            let seen = AtomicU64::new(0);
            each_range(
                len as u64,
                100,
                4,
                || (),
                |(), range| {
                    seen.fetch_add(range.len(), Ordering::Relaxed);
                    Ok::<(), ()>(())
                },
            )
            .unwrap();
            assert_eq!(seen.into_inner(), len as u64);
        }
    }

    #[test]
    fn an_error_is_returned() {
        let work = |at: u64| if at == 300 { Err("no") } else { Ok(()) };
        assert_eq!(each_range(1000, 100, 3, || (), |(), range| work(range.start)), Err("no"));
    }
}
