//! cuFile's own counters as evidence.

use forebay::direct::{Counters, GpuCounters, Moves, Paths, Session};

use super::json::{Json, list};
use super::seen::Seen;

/// The counts of an open driver in this process.
#[must_use]
pub fn cufile_counters(session: &Session) -> Seen<Counters> {
    let remedy = "use cuFile 1.15 or later, and let nothing else in the process open it first";
    Counters::of(session).map_or_else(|why| Seen::missing(why, remedy), Seen::Value)
}

pub(super) fn fields(counters: &Counters) -> Vec<(&'static str, Json)> {
    let gpu = |gpu: &GpuCounters| {
        Json::Object(vec![
            ("uuid", (&gpu.uuid_text()).into()),
            ("read", moves(gpu.reads)),
            ("written", moves(gpu.writes)),
            ("unaligned_reads", gpu.unaligned_reads.into()),
        ])
    };
    vec![
        ("level", u64::from(counters.level).into()),
        ("batches", counters.batches.into()),
        ("batch_bytes", counters.batch_bytes.into()),
        ("batches_by", paths(counters.batches_by)),
        ("gpus", list(counters.gpus.iter().map(gpu))),
    ]
}

fn moves(moves: Moves) -> Json {
    Json::Object(vec![
        ("bytes", moves.bytes.into()),
        ("operations", moves.operations.into()),
        ("by", paths(moves.by)),
    ])
}

fn paths(paths: Paths) -> Json {
    Json::Object(vec![
        ("p2pdma", paths.p2pdma.into()),
        ("nvidia_fs", paths.nvidia_fs.into()),
        ("posix", paths.posix.into()),
    ])
}
