//! NVTX ranges, as a tool sees them that is loaded as NVIDIA's are: by a variable, into a process
//! of its own.

mod lab;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;

use forebay::gpu::{DeviceId, GpuSelector};
use forebay::{Engine, Options, RequestOptions};
use lab::{Offer, child, or_skip, pattern};

const LEN: usize = 12_000_001;

/// The tool, which cargo builds beside the tests.
fn tool() -> Offer<PathBuf> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = program.parent().and_then(|tests| tests.parent()).map(|all| all.join("examples"));
    let tool = folder.map(|folder| folder.join("libnvtx_tool.so")).filter(|tool| tool.exists());
    tool.ok_or_else(|| "NVTX: the tool of the tests is not beside this program".into())
}

fn engine(change: impl FnOnce(&mut Options)) -> (Engine, DeviceId) {
    let mut options = Options::default();
    options.slot_size = 1 << 20;
    options.segment_size = 256 << 10;
    change(&mut options);
    let engine = Engine::new(options).expect("limits that fit");
    let gpu = engine.device(&"sim".parse::<GpuSelector>().expect("a name"));
    let gpu = gpu.expect("it is simulated").expect("a GPU").id();
    (engine, gpu)
}

/// Has a child do what tools see; what it is told is in the file beside its data.
fn told_of(role: &str, tool: &OsStr) -> Vec<String> {
    let folder = tempfile::tempdir_in(".").expect("a folder");
    fs::write(folder.path().join("data"), pattern(3, LEN)).expect("room for a file");
    let out = folder.path().join("told");
    let path = folder.path().join("data");
    let role = format!("{role}\n{}", path.to_str().expect("plain letters"));
    let variables = [("NVTX_INJECTION64_PATH", tool), ("NVTX_TOOL_OUT", out.as_os_str())];
    child::finish(child::start_with(&role, &variables));
    let told = fs::read_to_string(&out).unwrap_or_default();
    told.lines().map(str::to_owned).collect()
}

/// What a child is to do, and with which file.
fn role() -> Option<(String, String)> {
    let role = child::role()?;
    role.split_once('\n').map(|(role, path)| (role.to_owned(), path.to_owned()))
}

/// A range: its category, its bytes and its name.
type Range = (u32, u64, String);

/// The ranges that were told, each of which has ended once.
fn ranges(told: &[String]) -> Vec<Range> {
    let mut open: BTreeMap<&str, Range> = BTreeMap::new();
    let mut all = Vec::new();
    for line in told {
        let words: Vec<&str> = line.splitn(6, ' ').collect();
        match words[..] {
            ["start", "208", number, category, len, name] => {
                let number_of = |text: &str| text.parse::<u64>().expect("a number");
                let category = u32::try_from(number_of(category)).expect("a small one");
                let range = (category, number_of(len), name.to_owned());
                assert!(open.insert(number, range).is_none(), "{line}");
            }
            ["end", "208", number] => all.push(open.remove(number).expect("it has begun")),
            ["domain" | "category", ..] => {}
            _ => panic!("{line}"),
        }
    }
    assert!(open.is_empty(), "{open:?}");
    all
}

#[test]
fn a_tool_sees_transfers_requests_and_copies() {
    if let Some((_, path)) = role() {
        let (engine, gpu) = engine(|_| ());
        assert_eq!(engine.notes().iter().find(|note| note.contains("NVTX")), None);
        let file = engine.open(&path).expect("the file opens");
        file.read_whole(Some(gpu)).expect("all bytes");
        let cold = file.evict().is_ok();
        file.read_whole(Some(gpu)).expect("all bytes, from the drive perhaps");
        assert!(cold);
        file.read(5, &mut [0; 100][..]).expect("some bytes");
        let buffer = engine.allocate(gpu, LEN as u64).expect("memory");
        drop(file.start_read(0, buffer, &RequestOptions::exactly()).expect("it begins"));
        return;
    }
    let Some(tool) = or_skip(tool()) else { return };
    let told = told_of("reads", tool.as_os_str());
    assert_eq!(told[0], "domain forebay");
    let categories = ["1 transfers", "2 requests", "3 plans", "4 copies"];
    assert_eq!(told[1..5], categories.map(|name| format!("category 208 {name}")));
    let all = ranges(&told);
    let of = |kind: u32| all.iter().filter(move |range| range.0 == kind);
    let transfers: Vec<&str> = of(1).map(|range| range.2.as_str()).collect();
    let whole = |name: &&&str| name.starts_with("read ") && name.ends_with(&format!("at 0+{LEN}"));
    assert_eq!(transfers.iter().filter(whole).count(), 3, "{transfers:?}");
    let is_short = |name: &&&str| **name == "small" || name.ends_with("at 5+100");
    assert!(transfers.iter().any(|name| is_short(&name)), "{transfers:?}");
    // Two whole reads, and what came of the one that was dropped.
    let sum = |kind: u32| of(kind).map(|range| range.1).sum::<u64>();
    assert!((2 * LEN as u64..=3 * LEN as u64).contains(&sum(4)), "{} were copied", sum(4));
    // The first window of each is planned by the caller, before there is anything to see.
    assert!(sum(2) >= 2 * LEN as u64 && sum(3) > 0);
    assert!(
        of(2).all(|range| range.2 == "read") && of(4).all(|range| range.2 == "copy to the GPU")
    );
}

#[test]
fn who_wants_no_ranges_has_none() {
    if let Some((_, path)) = role() {
        let (engine, gpu) = engine(|options| options.nvtx = false);
        engine.open(&path).expect("it opens").read_whole(Some(gpu)).expect("all bytes");
        return;
    }
    let Some(tool) = or_skip(tool()) else { return };
    assert!(told_of("off", tool.as_os_str()).is_empty());
}

#[test]
fn a_tool_that_cannot_be_used_is_a_note() {
    if let Some((reason, path)) = role() {
        let (engine, gpu) = engine(|_| ());
        let notes = engine.notes();
        let note = notes.iter().find(|note| note.contains("NVTX")).expect("a note");
        assert!(note.contains(&reason), "{note}");
        engine.open(&path).expect("it opens").read_whole(Some(gpu)).expect("all bytes");
        return;
    }
    for (tool, reason) in [
        ("/nowhere/tool.so", "/nowhere/tool.so: cannot open shared object file"),
        ("libm.so.6", "`libm.so.6` is no tool of NVTX 3"),
    ] {
        assert!(told_of(reason, tool.as_ref()).is_empty());
    }
}
