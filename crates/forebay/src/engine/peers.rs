//! Direct reads and writes, between a drive and a GPU: which transfers use the route, and how.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_base::units::{ByteRange, align_down, align_up};

use super::Engine;
use super::call::Call;
use crate::direct::Session;
use crate::events::Begin;
use crate::file::{Handle, Port};
use crate::gpu::Device;
use crate::options::DirectIo;
use crate::plan::{Alignment, Direction, Io, Reason, Route};
use crate::queue::{Peer, Request, Share};

/// The direct part of a transfer, and the rest.
#[derive(Debug)]
pub(super) struct DirectPart {
    port: Arc<dyn Port>,
    reason: Reason,
    /// Whole units, in one range.
    body: ByteRange,
    /// The parts before and after the body.
    edges: Vec<ByteRange>,
}

/// The direct part; otherwise the reason why there is none, if there may be a path.
pub(super) type FoundDirectPart = Result<DirectPart, Option<Arc<str>>>;

/// Why pieces of one call, stream-ordered transfers and writes are not direct.
pub(super) const OF_PIECES: &str = "pieces of one call use slots";
pub(super) const WRITE_NOT_REQUIRED: &str = "writes are direct only if the route is required";
pub(super) const RESIDENT: &str = "the bytes are in the page cache, which is faster";
pub(super) const IN_ORDER: &str = "stream-ordered transfers use slots";

impl Engine {
    /// Why a transfer to or from a GPU is not direct; `None` if there is no direct path anyway.
    pub(super) fn why_not_direct(
        &self,
        gpu: Option<&Arc<dyn Device>>,
        why: &str,
    ) -> Option<Arc<str>> {
        let may = |gpu: &&Arc<dyn Device>| self.inner.providers.may_serve(&***gpu);
        gpu.filter(|_| self.options().cufile).filter(may).map(|_| why.into())
    }

    /// The driver of cuFile, if this engine uses it; its counters prove the route that bytes took.
    #[must_use]
    pub fn cufile(&self) -> Option<Arc<Session>> {
        self.inner.providers.in_use()
    }

    /// The direct part of a call's range, or why there is none. `is_sized`: the file is known to
    /// reach that far, which is not required for a write.
    ///
    /// # Errors
    /// Why there is none, if the route was demanded.
    pub(super) fn direct_part(
        &self,
        call: &Call<'_>,
        range: ByteRange,
        is_sized: bool,
    ) -> crate::Result<FoundDirectPart> {
        let demanded = call.options.route == Some(Route::Direct);
        let is_sized = is_sized || call.direction == Direction::Write;
        if !demanded && (call.options.route.is_some() || !is_sized || !self.may_be_direct(call)) {
            let plain = call.direction == Direction::Write && call.options.route.is_none();
            let gpu = call.span.gpu.as_ref().filter(|_| plain && !call.is_block && !call.is_part);
            let why = self.why_not_direct(gpu, WRITE_NOT_REQUIRED);
            return Ok(Err(why));
        }
        if !is_sized {
            let why = "its file system does not say how long the file is";
            return Err(call.unavailable(Route::Direct, why.into()));
        }
        let found = self.find_direct_part(call, range, demanded);
        if let (Err(Some(why)), true) = (&found, demanded) {
            return Err(call.unavailable(Route::Direct, why.to_string()));
        }
        Ok(found)
    }

    /// Whether a call without a demanded route may be direct; on most machines no read may. Writes
    /// go through the page cache, and so do files that exist only there.
    fn may_be_direct(&self, call: &Call<'_>) -> bool {
        let gpu = call.span.gpu.as_ref().filter(|_| self.options().cufile);
        call.direction == Direction::Read
            && !call.is_part
            && !call.is_block
            && !call.file.is_memory()
            && gpu.is_some_and(|gpu| self.inner.providers.may_serve(&**gpu))
    }

    fn find_direct_part(
        &self,
        call: &Call<'_>,
        range: ByteRange,
        demanded: bool,
    ) -> Result<DirectPart, Option<Arc<str>>> {
        let why = |text: &str| Err(Some(text.into()));
        let Some(device) = &call.span.gpu else { return why("the memory is the host's") };
        let (options, providers) = (self.options(), &self.inner.providers);
        if !options.cufile {
            return why("cuFile is switched off (`FOREBAY_CUFILE=off`)");
        }
        if options.direct_io == DirectIo::Off {
            return why("O_DIRECT is switched off (`FOREBAY_DIRECT_IO=off`)");
        }
        if call.direction == Direction::Write && copies_writes(call.file) {
            let system = call.file.file_system();
            return why(&format!("cuFile writes to `{system}` file systems through the host"));
        }
        let port = providers.port(call.file, device, options.probe.as_ref(), demanded);
        let port = port.map_err(|no| Some(no.into()))?;
        let unit = port.unit();
        let whole = match call.direction {
            Direction::Read => unit,
            Direction::Write => unit.max(call.file.cache_unit()),
        };
        if unit > options.segment_size {
            let below = "which `FOREBAY_SEGMENT_SIZE` is below";
            return why(&format!("it takes units of {unit} bytes, {below}"));
        }
        let (body, edges) = cut(range, whole);
        if range.is_empty() {
            return Err(None);
        }
        if body.is_empty() {
            return why(&format!("the range holds no whole unit of {whole} bytes"));
        }
        let address = call.span.address + (body.start - range.start);
        if !address.is_multiple_of(unit) {
            let within = format!("within units of {unit} bytes");
            return why(&format!("the memory does not lie at the file's offset {within}"));
        }
        if !demanded && call.file.is_resident(body) {
            return why(RESIDENT);
        }
        let reason = if demanded { Reason::Demanded } else { Reason::PeerToPeer };
        Ok(DirectPart { port, reason, body, edges })
    }

    /// Converts a staged request to a direct one, as far as `part` covers it.
    pub(super) fn use_direct_part(&self, part: DirectPart, request: &mut Request) {
        let Request { link: Some(link), drive, alignment, .. } = *request else { return };
        let DirectPart { port, reason, body, edges } = part;
        let unit = port.unit();
        let edges = edges.into_iter().map(|edge| (edge, Io::Buffered, Reason::UnalignedEdge));
        let parts: VecDeque<_> = edges.collect();
        let share = (!parts.is_empty()).then_some(Share { drive, parts });
        request.shares = share.into_iter().collect();
        request.peer = Some(Peer { port, link, alignment });
        request.link = None;
        request.parts = [(body, Io::ODirect, reason)].into();
        request.alignment = Some(Alignment::of(unit, unit));
        request.cold = false;
    }
}

/// Event fields of the transfer, with its direct part if there is one.
pub(super) fn with_direct_part(found: &FoundDirectPart, begin: Begin) -> Begin {
    match found {
        Ok(part) => Begin { route: Some((Route::Direct, part.reason)), ..begin },
        Err(why) => Begin { not_direct: why.clone(), ..begin },
    }
}

/// True if cuFile writes through host memory on the file system of `file`, whatever its settings
/// (cuFile's reference, "cuFile Compatibility Mode"): GPFS, and WekaFS, which has no name here.
fn copies_writes(file: &Handle) -> bool {
    matches!(file.file_system(), "gpfs" | "unknown")
}

/// Cuts a range into its whole units and the edges. A unit that the page cache writes as one must
/// not be split between them.
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
