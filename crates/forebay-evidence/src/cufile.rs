//! cuFile's own counters as evidence.

use forebay_cufile::{Counters, GpuCounters, Moves, Paths, Session};

use serde_json::{Value, json};

use super::seen::Seen;

/// The counts of an open driver in this process.
pub fn cufile_counters(session: &Session) -> Seen<Counters> {
    let remedy = "use cuFile 1.15 or later, and let nothing else in the process open it first";
    Seen::tried(Counters::of(session), remedy)
}

/// The counters as JSON.
pub(super) fn json(counters: &Counters) -> Value {
    let paths = |paths: Paths| {
        json!({"p2pdma": paths.p2pdma, "nvidia_fs": paths.nvidia_fs,
            "posix": paths.posix})
    };
    let moves = |moves: Moves| {
        json!({"bytes": moves.bytes, "operations": moves.operations,
            "by": paths(moves.by)})
    };
    let gpu = |gpu: &GpuCounters| {
        json!({"uuid": gpu.uuid_text(), "read": moves(gpu.reads), "written": moves(gpu.writes),
            "unaligned_reads": gpu.unaligned_reads})
    };
    json!({"level": counters.level, "batches": counters.batches,
        "batch_bytes": counters.batch_bytes, "batches_by": paths(counters.batches_by),
        "gpus": counters.gpus.iter().map(gpu).collect::<Vec<_>>()})
}
