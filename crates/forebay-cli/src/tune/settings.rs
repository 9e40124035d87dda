//! The result, as settings of this engine and of other programs.

use std::path::Path;

use forebay::units::{KIB, MIB};

use super::curve::{Cell, Curve};
use super::json::Setting;
use crate::report::json::Direction;
use crate::shell_word;

/// Size of the file that fio makes in a folder.
const FIO_LEN: u64 = 1024 * MIB;

/// The measured file, in a form that another program can use.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ground<'a> {
    /// A file of the user's.
    File(&'a Path),
    /// A folder; its scratch file is already removed.
    Folder(&'a Path),
}

/// Settings of one direction. `first`: include those that apply to both directions.
pub(crate) fn settings(
    direction: Direction,
    found: Cell,
    curve: &Curve,
    ground: Ground<'_>,
    first: bool,
) -> Vec<Setting> {
    let mut settings = Vec::new();
    if first {
        settings.push(ours(direction, found));
    }
    settings.push(fio(direction, found, ground));
    if first {
        settings.extend(kvikio(direction, found, curve));
    }
    settings
}

fn ours(direction: Direction, found: Cell) -> Setting {
    let Cell { request_size, depth } = found;
    let text = format!("FOREBAY_DEPTH={depth} FOREBAY_SEGMENT_SIZE={}", short(request_size));
    let note = "optional: the engine finds its queue depth by itself";
    let (tool, note) = ("forebay".into(), Some(note.into()));
    Setting { tool, direction, text, estimate: false, note }
}

fn fio(direction: Direction, found: Cell, ground: Ground<'_>) -> Setting {
    let Cell { request_size, depth } = found;
    let name = direction.name();
    let place = match (ground, direction) {
        (Ground::File(path), _) => {
            format!("--filename={} --readonly", shell_word(&path.to_string_lossy()))
        }
        (Ground::Folder(folder), _) => {
            let folder = shell_word(&folder.to_string_lossy());
            format!("--directory={folder} --size={} --unlink=1", short(FIO_LEN))
        }
    };
    let text = format!(
        "fio --name={name} --rw={name} --ioengine=io_uring --direct=1 --bs={} --iodepth={depth} \
         {place} --time_based --runtime=10",
        short(request_size).to_lowercase()
    );
    Setting { tool: "fio".into(), direction, text, estimate: false, note: None }
}

/// Each thread of `KvikIO` has one request in flight, and none during its copy to the GPU. So the
/// number of threads is the queue depth.
fn kvikio(direction: Direction, found: Cell, curve: &Curve) -> Option<Setting> {
    let cell = curve.found_for_threads().map_or(found, |point| point.cell);
    let Cell { request_size, depth } = cell;
    // KvikIO accepts sizes in bytes only: it reads `4MiB` as 4.
    let mut text = format!("KVIKIO_NTHREADS={depth} KVIKIO_TASK_SIZE={request_size}");
    if direction == Direction::Read {
        text += " KVIKIO_AUTO_DIRECT_IO_READ=on";
    }
    let note = "an estimate from this curve: each thread has one request in flight, and none \
                during its copy to the GPU; try a few more threads";
    let (tool, note) = ("kvikio".into(), Some(note.into()));
    Some(Setting { tool, direction, text, estimate: true, note })
}

/// A power of two in the notation of programs: `512K`, `4M`.
pub(super) fn short(size: u64) -> String {
    if size.is_multiple_of(1024 * MIB) {
        format!("{}G", size / (1024 * MIB))
    } else if size.is_multiple_of(MIB) {
        format!("{}M", size / MIB)
    } else {
        format!("{}K", size / KIB)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::curve::tests::pipe;

    fn texts(direction: Direction, ground: Ground<'_>) -> String {
        let sizes = [128 * KIB, 512 * KIB, MIB, 4 * MIB];
        let curve = pipe(3e9, 0.0003, &sizes, &[1, 2, 4, 8, 16]);
        let found = curve.found(MIB).unwrap().cell;
        let settings = settings(direction, found, &curve, ground, true);
        let text: String = settings.into_iter().map(|setting| setting.text + "\n").collect();
        text.replace(" --iodepth", "\n    --iodepth")
    }

    #[test]
    fn settings_of_a_file() {
        let path = Path::new("/data/my model");
        insta::assert_snapshot!(texts(Direction::Read, Ground::File(path)), @"
        FOREBAY_DEPTH=2 FOREBAY_SEGMENT_SIZE=1M
        fio --name=read --rw=read --ioengine=io_uring --direct=1 --bs=1m
            --iodepth=2 --filename='/data/my model' --readonly --time_based --runtime=10
        KVIKIO_NTHREADS=2 KVIKIO_TASK_SIZE=1048576 KVIKIO_AUTO_DIRECT_IO_READ=on
        ");
    }

    #[test]
    fn settings_of_a_folder() {
        let folder = Path::new("/data");
        insta::assert_snapshot!(texts(Direction::Write, Ground::Folder(folder)), @"
        FOREBAY_DEPTH=2 FOREBAY_SEGMENT_SIZE=1M
        fio --name=write --rw=write --ioengine=io_uring --direct=1 --bs=1m
            --iodepth=2 --directory=/data --size=1G --unlink=1 --time_based --runtime=10
        KVIKIO_NTHREADS=2 KVIKIO_TASK_SIZE=1048576
        ");
    }
}
