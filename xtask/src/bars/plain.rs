//! The plain way to read a file into host memory: a few threads that `pread` pieces of 1 MiB.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Mutex;
use std::thread;

/// Bytes of one piece.
const PIECE_LEN: usize = 1 << 20;

/// Reads `target.len()` bytes from the start of `file` by `threads` threads.
pub(crate) fn read(file: &File, target: &mut [u8], threads: usize) -> io::Result<()> {
    let pieces = Mutex::new((0_u64..).step_by(PIECE_LEN).zip(target.chunks_mut(PIECE_LEN)));
    let work = || -> io::Result<()> {
        loop {
            let next = pieces.lock().expect("no thread panics while it holds this").next();
            let Some((offset, piece)) = next else { return Ok(()) };
            file.read_exact_at(piece, offset)?;
        }
    };
    // The calling thread is one of them, so that one thread costs no start of another.
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let own = work();
        others.into_iter().fold(own, |result, thread| {
            let other =
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
            result.and(other)
        })
    })
}

#[cfg(test)]
mod tests {
    use crate::data;

    #[test]
    fn every_byte_arrives_with_any_number_of_threads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        data::write(&path, (5 << 20) + 17).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        for threads in 1..4 {
            let mut target = vec![0; (5 << 20) + 17];
            super::read(&file, &mut target, threads).unwrap();
            assert_eq!(data::check(&target, 0), Ok(()));
        }
    }
}
