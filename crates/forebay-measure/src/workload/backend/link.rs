//! Copies from host memory to host memory, by the number of threads that copies fastest. Their rate
//! is the limit of a target in host memory.

use std::time::Instant;

use forebay::Buffer;
use forebay::units::MIB;

use super::call::{Taken, taken};
use super::pool::Places;
use super::{Backend, Call, Context};
use crate::failure::Result;
use crate::memory::whole;
use crate::parallel::{cores, each_piece};

/// Copies from one buffer into another.
pub(super) struct Link {
    source: Places,
    target: Places,
    threads: usize,
}

impl Link {
    /// Allocates the memory, and finds the number of threads: a power of two, or one for each core.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(super) fn new(context: &Context<'_>) -> Result<Self> {
        let (source, target) = (context.places(None)?, context.places(None)?);
        let mut link = Self { source, target, threads: 1 };
        let powers = (0..).map(|shift| 1_usize << shift).take_while(|count| *count < cores());
        let timed = powers.chain([cores()]).map(|threads| {
            link.threads = threads;
            let start = Instant::now();
            link.copy();
            (start.elapsed(), threads)
        });
        link.threads = timed.min().map_or(1, |(_, threads)| threads);
        Ok(link)
    }

    fn copy(&mut self) {
        let [source, target] = [&mut self.source, &mut self.target]
            .map(|own| own.get(0).as_mut_slice().expect("it is the host's"));
        each_piece(target, whole(MIB), self.threads, |at, piece| {
            piece.copy_from_slice(&source[whole(at)..][..piece.len()]);
        });
    }
}

impl Backend for Link {
    fn start(&mut self, _place: usize, _call: Call<'_>) -> Result<Option<Instant>> {
        self.copy();
        Ok(Some(Instant::now()))
    }

    fn memory(&mut self, _place: usize) -> Option<&mut Buffer> {
        None
    }

    fn routes(&self, moved: [u64; 2]) -> Vec<Taken> {
        let s = if self.threads == 1 { "" } else { "s" };
        let how = format!("copies in host memory by {} thread{s}", self.threads);
        taken(moved, forebay::Route::Host, how)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use forebay::Engine;

    use super::*;
    use crate::results::{Cache, Direction};

    #[test]
    fn host_copies_reach_the_target() {
        let engine = Engine::new(forebay::Options::default()).unwrap();
        let context = Context {
            engine: &engine,
            pool: &Arc::default(),
            device: None,
            path: Path::new(""),
            writes: false,
            cache: Cache::Warm,
            request_size: 5 * MIB + 3,
            depth: 1,
            batch: 1,
            key: 7,
            life: &Arc::default(),
        };
        let mut link = Link::new(&context).unwrap();
        link.source.get(0).fill(5).unwrap();
        let call = Call { direction: Direction::Read, offsets: &[0] };
        assert!(link.start(0, call).unwrap().is_some());
        assert!(link.target.get(0).as_slice().unwrap().iter().all(|byte| *byte == 5));
        let taken = link.routes([9, 0]);
        assert!(taken[0].reason.starts_with("copies in host memory by "), "{taken:?}");
    }
}
