//! The plain method: a few threads that `pread` pieces of 1 MiB into host memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use forebay_measure::parallel::try_each_piece;

/// Bytes of one piece.
const PIECE_LEN: usize = 1 << 20;

/// Reads `target.len()` bytes from the start of `file` by `threads` threads.
pub(crate) fn read(file: &File, target: &mut [u8], threads: usize) -> io::Result<()> {
    try_each_piece(target, PIECE_LEN, threads, |offset, piece| file.read_exact_at(piece, offset))
}

#[cfg(test)]
mod tests {
    use forebay::units::MIB;

    use super::*;
    use crate::data;

    #[test]
    fn every_byte_arrives_with_any_number_of_threads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        data::write(&path, 5 * MIB + 17).unwrap();
        let file = File::open(&path).unwrap();
        for threads in 1..4 {
            let mut target = vec![0; (5 << 20) + 17];
            read(&file, &mut target, threads).unwrap();
            data::check(&target, 0).unwrap();
        }
    }
}
