//! Reads and writes whose bytes go straight between a drive and a GPU: which do, and what of them.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Engine;
use super::start::Call;
use crate::direct::Session;
use crate::error::Result;
use crate::events::Begin;
use crate::file::Port;
use crate::options::DirectIo;
use crate::plan::{Alignment, Io, Reason, Route};
use crate::queue::{Direction, Peer, Request, Share, Staged};
use crate::units::{ByteRange, align_down, align_up};

/// What goes straight, and what stands beside it.
#[derive(Debug)]
pub(super) struct Straight {
    port: Arc<dyn Port>,
    reason: Reason,
    /// The queue by which it is asked for.
    queue: usize,
    /// Whole units, all of them together.
    body: ByteRange,
    /// What is left before and behind.
    edges: Vec<ByteRange>,
}

impl Engine {
    /// The driver of cuFile, where this engine uses it: its counters say which way bytes took.
    #[must_use]
    pub fn cufile(&self) -> Option<Arc<Session>> {
        self.inner.providers.in_use()
    }

    /// What of a call's range goes straight; `None`: nothing does. `is_sized`: it is known that the
    /// file reaches so far.
    ///
    /// # Errors
    /// Why nothing does, where that was demanded.
    pub(super) fn straight(
        &self,
        call: &Call<'_>,
        range: ByteRange,
        is_sized: bool,
    ) -> Result<Option<Straight>> {
        let demanded = call.options.route == Some(Route::Direct);
        if !demanded && (call.options.route.is_some() || !is_sized || !may_be_straight(call)) {
            return Ok(None);
        }
        if !is_sized {
            let why = "its file system does not say how long the file is";
            return Err(call.unavailable(Route::Direct, why.into()));
        }
        match self.straight_or_why(call, range, demanded) {
            Ok(straight) => Ok(straight),
            Err(why) if demanded => Err(call.unavailable(Route::Direct, why)),
            Err(_) => Ok(None),
        }
    }

    fn straight_or_why(
        &self,
        call: &Call<'_>,
        range: ByteRange,
        demanded: bool,
    ) -> Result<Option<Straight>, String> {
        let Some(device) = &call.span.gpu else { return Err("the memory is the host's".into()) };
        let options = self.options();
        if !options.cufile {
            return Err("cuFile is switched off (`FOREBAY_CUFILE=off`)".into());
        }
        if options.direct_io == DirectIo::Off {
            return Err("O_DIRECT is switched off (`FOREBAY_DIRECT_IO=off`)".into());
        }
        let providers = &self.inner.providers;
        if !demanded && !providers.may_serve(&**device) {
            return Ok(None); // most machines, at every read
        }
        let port = providers.port(call.file, device, options.probe.as_ref(), demanded)?;
        let unit = port.unit();
        let whole = match call.direction {
            Direction::Read => unit,
            Direction::Write => unit.max(call.file.cache_unit()),
        };
        if unit > options.segment_size {
            return Err(format!(
                "it takes units of {unit} bytes, which `FOREBAY_SEGMENT_SIZE` is below"
            ));
        }
        let (body, edges) = cut(range, whole);
        if body.is_empty() && demanded && !range.is_empty() {
            return Err(format!("the range holds no whole unit of {whole} bytes"));
        }
        let address = call.span.address + (body.start - range.start);
        if !address.is_multiple_of(unit) {
            return Err(format!(
                "the memory does not lie at the file's offset within units of {unit} bytes"
            ));
        }
        // What is in memory already is there sooner.
        if body.is_empty() || !demanded && call.file.is_resident(body) {
            return Ok(None);
        }
        let queue = self.straight_queue(call.file, &port, call.direction, demanded)?;
        if let Some(keep) = &call.span.keep {
            keep.become_known(|address, len| port.keep_known(address, len));
        }
        let reason = if demanded { Reason::Demanded } else { Reason::PeerToPeer };
        Ok(Some(Straight { port, reason, queue, body, edges }))
    }

    /// Has a request that was to go through slots go straight, as far as `straight` says.
    pub(super) fn send_straight(&self, straight: Straight, request: &mut Request) {
        let Request { link: Some(link), drive, alignment, .. } = *request else { return };
        let Straight { port, reason, queue, body, edges } = straight;
        let unit = port.unit();
        let edges = edges.into_iter().map(|edge| (edge, Io::Buffered, Reason::UnalignedEdge));
        let parts: VecDeque<_> = edges.collect();
        let beside = (!parts.is_empty()).then_some(Share { drive, parts });
        request.beside = beside.into_iter().collect();
        request.peer = Some(Peer { port, staged: Staged { link, drive, alignment } });
        request.link = None;
        request.drive = queue;
        request.parts = [(body, Io::Direct, reason)].into();
        request.alignment = Some(Alignment::of(unit, unit));
        request.cold = false;
    }
}

impl Straight {
    /// What subscribers are told of a transfer, of which `straight` goes straight.
    pub(super) fn told(straight: Option<&Self>, begin: Begin) -> Begin {
        let way = straight.map(|straight| (Route::Direct, straight.reason));
        Begin { way: way.or(begin.way), ..begin }
    }
}

/// Whether a call of which nothing is demanded may go straight: writes go through the page cache,
/// and so does what lives in it.
fn may_be_straight(call: &Call<'_>) -> bool {
    call.direction == Direction::Read
        && call.span.gpu.is_some()
        && !call.is_part
        && !call.is_block
        && !call.file.is_memory()
}

/// Cuts a range into its whole units and what is left before and behind. What the page cache writes
/// as one may not be half of either.
fn cut(range: ByteRange, unit: u64) -> (ByteRange, Vec<ByteRange>) {
    let start = align_up(range.start, unit).min(range.end);
    let body = ByteRange { start, end: align_down(range.end, unit).max(start) };
    let edges = [
        ByteRange { start: range.start, end: body.start },
        ByteRange { start: body.end, end: range.end },
    ];
    (body, edges.into_iter().filter(|edge| !edge.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_byte_is_in_the_body_or_in_one_edge(start in 0_u64..1 << 20, len in 0_u64..1 << 20,
            unit in (0_u32..21).prop_map(|bits| 1 << bits)) {
            let range = ByteRange::at(start, len);
            let (body, edges) = cut(range, unit);
            let mut parts = edges;
            if !body.is_empty() {
                prop_assert_eq!((body.start % unit, body.end % unit), (0, 0));
                parts.push(body);
            }
            parts.sort_by_key(|part| part.start);
            let mut at = range.start;
            for part in parts {
                prop_assert!(part.start == at && !part.is_empty());
                prop_assert!(part == body || part.len() < 2 * unit);
                at = part.end;
            }
            prop_assert_eq!(at, range.end);
        }
    }
}
