//! The line of a result, character for character as gdsio prints it, since scripts read it: pure.

use std::fmt;
use std::time::Duration;

use forebay::units::{GIB, KIB};

use super::words::{Io, Sizes, Transfer};

/// The contents of a line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ResultLine {
    pub(crate) io: Io,
    /// The transfer that ran, which may differ from the request.
    pub(crate) transfer: Transfer,
    pub(crate) threads: u32,
    /// Requests in flight of a batch.
    pub(crate) depth: Option<u32>,
    /// Bytes that were moved.
    pub(crate) done: u64,
    /// Bytes of a pass over everything.
    pub(crate) whole: u64,
    pub(crate) sizes: Sizes,
    pub(crate) requests: u64,
    /// Microseconds that a request took, on average.
    pub(crate) latency_us: f64,
    pub(crate) time: Duration,
}

impl ResultLine {
    #[expect(clippy::cast_precision_loss, reason = "six digits are shown")]
    fn gib_per_second(&self) -> f64 {
        let seconds = self.time.as_secs_f64();
        if seconds > 0.0 { self.done as f64 / GIB as f64 / seconds } else { 0.0 }
    }
}

impl fmt::Display for ResultLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (io, transfer) = (self.io.label(), self.transfer.label());
        write!(f, "IoType: {io} XferType: {transfer} Threads: {} ", self.threads)?;
        if let Some(depth) = self.depth {
            write!(f, "IoDepth: {depth} ")?;
        }
        let (done, whole) = (self.done / KIB, self.whole / KIB);
        write!(f, "DataSetSize: {done}/{whole}(KiB) IOSize: {} ", self.sizes)?;
        write!(f, "Throughput: {:.6} GiB/sec, ", self.gib_per_second())?;
        write!(f, "Avg_Latency: {:.6} usecs ops: {} ", self.latency_us, self.requests)?;
        write!(f, "total_time {:.6} secs", self.time.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use forebay::units::MIB;

    use super::*;

    /// A run of gdsio 1.1 that is published with its line.
    fn published() -> ResultLine {
        ResultLine {
            io: Io { writes: true, is_random: false },
            transfer: Transfer::Direct,
            threads: 4,
            depth: None,
            done: 4_156_416 * KIB,
            whole: 4 * GIB,
            sizes: Sizes::one(MIB),
            requests: 4059,
            latency_us: 3_721.307_952,
            time: Duration::from_micros(3_777_586),
        }
    }

    #[test]
    fn a_line_is_gdsios() {
        assert_eq!(
            published().to_string(),
            "IoType: WRITE XferType: GPUD Threads: 4 DataSetSize: 4156416/4194304(KiB) IOSize: \
             1024(KiB) Throughput: 1.049312 GiB/sec, Avg_Latency: 3721.307952 usecs ops: 4059 \
             total_time 3.777586 secs"
        );
    }

    #[test]
    fn a_batch_names_its_depth() {
        let line =
            ResultLine { threads: 1, depth: Some(8), transfer: Transfer::Batch, ..published() };
        let text = line.to_string();
        assert!(text.contains("XferType: GPU_BATCH Threads: 1 IoDepth: 8 DataSetSize: "), "{text}");
    }

    #[test]
    fn a_run_without_time_has_no_speed() {
        let line = ResultLine { time: Duration::ZERO, done: 0, requests: 0, ..published() };
        assert!(line.to_string().contains("Throughput: 0.000000 GiB/sec"), "{line}");
    }
}
