//! `forebay gdsio`: lines that scripts can read, and words that make no sense.

mod files;
mod help;

use std::fs;
use std::path::Path;

use crate::program::{self, folder, names};

/// The target where it does not matter.
const TARGETS: [&str; 2] = ["none", "sim"];

/// Runs `forebay gdsio` with the words of `line`; the exit code, and the output.
fn run(folder: &Path, line: &str) -> (i32, String, String) {
    let output = program::run(folder, ["gdsio"].into_iter().chain(line.split_whitespace()));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[track_caller]
fn good(folder: &Path, line: &str) -> (String, String) {
    let (code, text, talk) = run(folder, line);
    assert_eq!(code, 0, "{line}: {text}{talk}");
    (text, talk)
}

#[track_caller]
fn bad(folder: &Path, line: &str) -> (i32, String) {
    let (code, text, talk) = run(folder, line);
    assert_eq!(text, "", "{line}");
    (code, talk)
}

/// What a script takes behind `key`: letters up to the next blank, which for numbers may be a
/// comma.
#[track_caller]
fn word<'a>(line: &'a str, key: &str) -> &'a str {
    let (_, rest) = line.split_once(key).unwrap_or_else(|| panic!("no `{key}` in {line}"));
    rest.split([' ', ',', '\n']).next().unwrap()
}

#[track_caller]
fn number(line: &str, key: &str) -> f64 {
    word(line, key).parse().unwrap_or_else(|error| panic!("{key} in {line}: {error}"))
}

/// The file system may have no O_DIRECT, as in memory, and then there is nothing past the cache.
fn has_direct_io(folder: &Path) -> bool {
    use std::os::unix::fs::OpenOptionsExt as _;
    let path = folder.join("probe");
    fs::write(&path, "").unwrap();
    let opened = fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
    fs::remove_file(&path).unwrap();
    if opened.is_err() {
        println!("skipped: plain reads: no O_DIRECT in the current folder");
    }
    opened.is_ok()
}

#[test]
fn a_line_adds_up() {
    let folder = folder();
    let (text, talk) = good(folder.path(), "-D . -d 0 -w 3 -s 1M -i 64k -x 4 -I 0 --gpu sim");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(talk.contains("making files of 3 MiB") && talk.contains("removed"), "{talk}");
    assert!(names(folder.path()).is_empty(), "what was made to be read goes");
    assert!(text.starts_with("IoType: READ XferType: CPU_CACHED_GPU Threads: 3 DataSetSize: "));
    assert!(text.contains(" DataSetSize: 3072/3072(KiB) IOSize: 64(KiB) Throughput: "), "{text}");
    assert!(text.ends_with(" secs\n") && text.contains(" GiB/sec, "), "{text}");
    assert_eq!(number(&text, "ops: "), 48.0);
    let seconds = number(&text, "total_time ");
    let gib = 3072.0 / 1024.0 / 1024.0;
    let exact = gib / seconds;
    // Both are rounded to six digits.
    let (low, high) = (gib / (seconds + 1e-6) - 1e-6, gib / (seconds - 1e-6).max(1e-9) + 1e-6);
    let reported = number(&text, "Throughput: ");
    assert!((low..=high).contains(&reported), "{reported} is not {exact}");
    // Three threads at most wait at once, each for its own request.
    let latency = number(&text, "Avg_Latency: ");
    assert!(latency > 0.0 && latency * 48.0 <= 3.1 * (seconds * 1e6 + 1.0), "{text}");
}

#[test]
fn every_type_runs_on_a_simulated_gpu() {
    let folder = folder();
    if !has_direct_io(folder.path()) {
        return;
    }
    let line = "-D . -w 2 -s 512K -i 64k --gpu sim";
    good(folder.path(), &format!("{line} -I 1 -x 4"));
    for (number, label) in
        [(1, "CPUONLY"), (2, "CPU_GPU"), (3, "CPU_ASYNC_GPU"), (4, "CPU_CACHED_GPU")]
    {
        for io in [number % 4, (number + 1) % 4] {
            let (text, talk) = good(folder.path(), &format!("{line} -x {number} -I {io}"));
            assert!(text.contains(&format!("XferType: {label} Threads: 2 ")), "{text}");
            assert_eq!(talk, "", "{number}");
        }
    }
    for number in [0, 5, 6, 7] {
        let line = format!("{line} -x {number} -I 0");
        let (text, talk) = good(folder.path(), &line);
        // What was just written is in the page cache, and some of it may be on its way out.
        let label = word(&text, "XferType: ");
        assert!(["CPU_CACHED_GPU", "CPU_ASYNC_GPU"].contains(&label), "{text}");
        let stands = [5, 7].contains(&number);
        assert_eq!(talk.lines().count(), 2 + usize::from(stands), "{talk}");
        assert_eq!(talk.contains("without a CUDA stream"), stands, "{talk}");
        assert!(talk.contains(&format!("`-x {number}` (G")), "{talk}");
        assert!(!verdict(&talk).contains("direct"), "{talk}");
        assert!(talk.contains("GPU lacks cuFile") && talk.contains("--gpu sim:cufile"), "{talk}");
        assert_eq!(text.contains(" Threads: 1 IoDepth: 2 DataSetSize: "), number >= 6, "{text}");
        assert_eq!(number_of(&text, "ops: "), 16);
        let (code, talk) = bad(folder.path(), &format!("{line} --strict"));
        assert!(code == 1 && talk.contains("by the route `direct`"), "{talk}");
    }
}

/// The verdict by counters.
#[track_caller]
fn verdict(talk: &str) -> &str {
    let mut reported = talk.lines().filter_map(|line| line.split_once("verdict by counters: "));
    let (_, verdict) = reported.next().unwrap_or_else(|| panic!("no verdict: {talk}"));
    assert!(verdict.contains(", simulated"), "{talk}");
    verdict
}

#[track_caller]
fn number_of(line: &str, key: &str) -> u64 {
    word(line, key).parse().unwrap()
}

#[test]
fn more_files_than_requested_give_no_verdict() {
    let folder = folder();
    for (threads, is_judged) in [(64, true), (65, false)] {
        let line = format!("-D . -w {threads} -s 4k -i 4k -x 0 -I 0 --gpu sim");
        let (_, talk) = good(folder.path(), &line);
        assert_eq!(talk.contains("verdict by counters: "), is_judged, "{talk}");
        let why = "no verdict: cached pages of 65 files were not queried, 64 is the most";
        assert_eq!(talk.contains(why), !is_judged, "{talk}");
    }
}

#[test]
fn direct_transfers_have_the_direct_types() {
    let folder = folder();
    if !has_direct_io(folder.path()) {
        return;
    }
    let line = "-D . -w 2 -s 512K -i 64k --gpu sim:cufile --strict";
    for (number, label) in
        [(0, "GPUD"), (5, "GPUD_ASYNC"), (6, "GPU_BATCH"), (7, "GPU_BATCH_STREAM")]
    {
        for io in [number % 4, 3 - number % 4] {
            let (text, talk) = good(folder.path(), &format!("{line} -x {number} -I {io} -V"));
            // Who reads back is judged as well.
            let runs = 1 + usize::from(io % 2 == 1);
            assert_eq!(talk.matches("verdict by counters: ").count(), runs, "{talk}");
            verdict(&talk);
            let as_other = match number {
                5 => "`-x 5` makes the requests of `-x 0`",
                7 => "`-x 7` makes the requests of `-x 6`",
                _ => "",
            };
            assert!(talk.contains(as_other), "{talk}");
            assert_eq!(talk.contains("makes the requests of"), !as_other.is_empty(), "{talk}");
            for line in text.lines().filter(|line| *line != "Verifying data ") {
                assert_eq!(word(line, "XferType: "), label, "{text}");
            }
        }
    }
}

#[test]
fn unaligned_jobs_take_another_route() {
    let folder = folder();
    if !has_direct_io(folder.path()) {
        return;
    }
    let cases = ["-s 512K -i 64k -I 2 -U", "-s 100000 -i 1000", "-s 512K -i 64k -o 512"];
    let unaligned = cases.iter().map(|case| format!("-D . -w 2 {case}"));
    let shared = "-f one -w 2 -s 100000 -i 50000".to_owned();
    for line in unaligned.chain([shared]) {
        for (number, io) in [(0, ""), (6, ""), (0, " -I 1")] {
            if line.contains("-I 2") && !io.is_empty() {
                continue;
            }
            let line = format!("{line} -x {number}{io} --gpu sim:cufile");
            let (text, talk) = good(folder.path(), &line);
            let is_direct = word(&text, "XferType: ").starts_with("GPU");
            // Some drives and paths take more than others.
            assert_eq!(talk.contains("is not available"), !is_direct, "{line}: {text}{talk}");
            let (code, _, talk) = run(folder.path(), &format!("{line} --strict"));
            assert_eq!(code == 0, is_direct, "{line}: {talk}");
        }
    }
}

#[test]
fn every_type_runs_without_a_gpu() {
    let folder = folder();
    if !has_direct_io(folder.path()) {
        return;
    }
    for number in 0..8 {
        let line = format!("-D . -d 0 -w 2 -s 256K -i 64k -x {number} --gpu none");
        let (text, talk) = good(folder.path(), &line);
        assert_eq!(word(&text, "XferType: "), "CPUONLY", "{text}");
        let printed = talk.matches("`--gpu none` was given").count();
        assert_eq!(printed, usize::from(number != 1), "{talk}");
        assert!(!talk.contains("verdict by counters"), "of the host's memory: {talk}");
        if number < 3 {
            let (code, talk, _) = run(folder.path(), &format!("{line} --strict"));
            assert_eq!(code, i32::from(number != 1), "{talk}");
        }
    }
    assert!(names(folder.path()).is_empty());
}

const PAGE: &str = include_str!("../../../../../docs/gdsio.md");

#[test]
fn the_commands_of_a_study_run_as_printed() {
    let folder = folder();
    let lines = PAGE.lines().filter_map(|line| line.strip_prefix("forebay gdsio "));
    let printed: Vec<&str> = lines.filter(|line| line.starts_with("-T 45 ")).collect();
    assert_eq!(printed.len(), 5);
    for (index, line) in printed.into_iter().enumerate() {
        // Smaller, and all but one for as long as one pass takes.
        let time = if index == 0 { "-T 1 " } else { "" };
        let large = if line.ends_with("4096k") { "4M" } else { "1M" };
        let line = line.replace("-T 45 ", time).replace("512M", "256K").replace("2048M", large);
        let (text, _) = good(folder.path(), &line);
        let kib = if large == "4M" { 4096 } else { 1024 };
        let (threads, kib) = if line.contains("-w 32") { (32, 256) } else { (24, kib) };
        assert!(text.contains(&format!(" Threads: {threads} ")), "{text}");
        assert!(text.contains(&format!("/{}(KiB)", threads * kib)), "{text}");
        if index == 0 {
            assert!((1.0..30.0).contains(&number(&text, "total_time ")), "{text}");
        }
    }
    assert!(names(folder.path()).is_empty());
}

#[test]
fn the_page_s_job_file_runs() {
    let folder = folder();
    fs::create_dir(folder.path().join("other")).unwrap();
    let (_, jobs) = PAGE.split_once("```ini\n").unwrap();
    let (jobs, _) = jobs.split_once("```").unwrap();
    let jobs = jobs.replace("directory=/tmp", "directory=other").replace("runtime=1", "runtime=0");
    fs::write(folder.path().join("jobs"), jobs).unwrap();
    let (text, _) = good(folder.path(), "jobs --gpu sim");
    assert!(text.starts_with("IoType: RANDREAD ") && text.contains(" Threads: 3 "), "{text}");
}

#[test]
fn the_page_lists_every_option() {
    let (_, talk, _) = run(Path::new("."), "-h");
    let options = talk.lines().filter_map(|line| line.trim_start().strip_prefix('-'));
    let short = options.filter(|option| !option.starts_with('-') && !option.starts_with('h'));
    let mut count = 0;
    for option in short {
        let option = format!("`-{}`", &option[..1]);
        let (_, table) = PAGE.split_once("## All options").unwrap();
        assert!(table.contains(&option), "docs/gdsio.md should name {option}");
        count += 1;
    }
    // Options without effect are hidden.
    assert_eq!(count, 21, "gdsio's own");
}

#[test]
fn other_words_do_what_they_say() {
    let folder = folder();
    let line = "-D . -w 2 -s 256K --gpu sim";
    let (text, _) = good(folder.path(), &format!("{line} -x 4 -i 4k:64k:20k"));
    assert!(text.contains(" IOSize: 4-64-20(KiB) "), "{text}");
    let (text, talk) = good(folder.path(), &format!("{line} -x 2 -O 1 -i 64k -U -I 2 -J"));
    assert!(talk.contains("`-O 1` uses the page cache"), "{talk}");
    assert_eq!(text.lines().count(), 2, "a line for the job, and one for all");
    assert_eq!(word(&text, "XferType: "), "CPU_CACHED_GPU", "{text}");
    let (text, _) = good(folder.path(), &format!("{line} -x 6 -O 1 -i 16k -B 4 -M 50 -I 0"));
    assert_eq!(number_of(&text, "ops: "), 32, "{text}");
    for (percent, io, label) in [(0, 0, "WRITE"), (0, 2, "RANDWRITE"), (100, 1, "READ")] {
        let words = format!("{line} -x 6 -O 1 -i 16k -M {percent} -I {io}");
        let (text, _) = good(folder.path(), &words);
        assert!(text.starts_with(&format!("IoType: {label} ")), "{words}: {text}");
    }
    let (text, talk) = good(folder.path(), &format!("{line} -x 0 -m 3 -i 64k -p -b -F -I 1"));
    assert_eq!(word(&text, "XferType: "), "CPUONLY", "{text}");
    for note in ["`-m 4` are the", "`-m 0` moves"] {
        assert!(talk.contains(note), "{note}: {talk}");
    }
    assert!(!talk.contains("has no effect"), "{talk}");
}

#[test]
fn a_job_file_runs_its_jobs_at_once() {
    let folder = folder();
    for name in ["a", "b"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    let text = "[global]\nname=two\nxfer_type=4\nrw=read\nbs=64K\nsize=256K\ndo_verify=1\n\
                [job1]\ngpu_dev_id=0\nnum_threads=2\ndirectory=a\n\
                [job2]\nnum_threads=1\ndirectory=b\nio_size=32K\nstart_offset=64K\n";
    fs::write(folder.path().join("two.gdsio"), text).unwrap();
    let (text, _) = good(folder.path(), "two.gdsio --gpu sim -J");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "Verifying data ");
    let sums = [2 * 4, 8, 2 * 4 + 8];
    for (line, (threads, requests)) in lines[1..].iter().zip([2, 1, 3].into_iter().zip(sums)) {
        assert!(line.contains(&format!(" Threads: {threads} ")), "{line}");
        assert_eq!(number_of(line, "ops: "), requests, "{line}");
        let all = format!("{0}/{0}(KiB)", threads * 256);
        assert_eq!(word(line, "DataSetSize: "), all, "{line}");
    }
    assert_eq!(lines.len(), 4);
    for name in ["a", "b"] {
        assert!(names(&folder.path().join(name)).is_empty());
    }
    fs::write(folder.path().join("bad"), "[global]\nsize=1M\nbz=3\n").unwrap();
    let (code, talk) = bad(folder.path(), "bad");
    assert!(code == 2 && talk.contains("`bad`: line 3: ") && talk.contains("`bz`"), "{talk}");
    assert!(talk.contains("perhaps `bs` was meant"), "{talk}");
    for arguments in ["two.gdsio -w 3", "two.gdsio -D a"] {
        let (code, talk) = bad(folder.path(), arguments);
        assert!(code == 2 && talk.contains("cannot be used with"), "{talk}");
    }
    assert_eq!(bad(folder.path(), ".").0, 2);
    assert_eq!(bad(folder.path(), "missing").0, 1);
}

#[test]
fn a_line_may_have_several_jobs() {
    let folder = folder();
    for name in ["a", "b"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    let threads =
        |text: &str| text.lines().map(|line| number_of(line, " Threads: ")).collect::<Vec<_>>();
    let rest = "-s 256K -i 64k -x 4 --gpu sim -J";
    let line = format!("-D a -d 0 -n 0 -w 2 -D b -d 0 -n 0 -w 1 {rest} -I 1");
    let (text, talk) = good(folder.path(), &line);
    assert_eq!((threads(&text), talk.as_str()), (vec![2, 1, 3], ""), "{text}");
    assert!(text.ends_with(" secs\n") && text.contains(" DataSetSize: 768/768(KiB) "), "{text}");
    let files = |name| {
        let mut names = names(&folder.path().join(name));
        names.retain(|name| !name.starts_with('.'));
        names
    };
    assert_eq!(
        (files("a"), files("b")),
        (vec!["gdsio.0".into(), "gdsio.1".into()], vec!["gdsio.0".to_owned()])
    );
    // What stands before all is for all, and files are jobs like folders.
    let line = format!("-w 2 -f a/gdsio.0 -f b/gdsio.0 -w 1 {rest} -I 0 -s 128K");
    let (text, _) = good(folder.path(), &line.replacen("-s 256K", "", 1));
    assert_eq!(threads(&text), [2, 1, 3], "{text}");
    // Two jobs may read the same files, also what is made for them.
    let (text, _) = good(folder.path(), &format!("-D . -w 2 {rest} -D ."));
    assert_eq!(threads(&text), [2, 1, 3], "{text}");
    assert_eq!(names(folder.path()), ["a", "b"]);
    let (_, talk) = good(folder.path(), &format!("-D a -D b -w 1 {rest}"));
    assert!(talk.contains("`-w` after `-D b` applies to that job only"), "{talk}");
}

#[test]
fn words_that_make_no_sense_are_exit_code_2() {
    let folder = folder();
    for line in [
        "",
        "-D .",
        "-s 1M",
        "-D . -f x -s 1M",
        "-D . -s 1.5M",
        "-D . -s 1T",
        "-D . -s 0",
        "-D . -s 1M -i 2M",
        "-D . -s 100000 -i 64k",
        "-D . -s 1M -i 96k -I 1 -V",
        "-D . -s 1M -i 4k:8k",
        "-D . -s 1M -x 8",
        "-D . -s 1M -I 4",
        "-D . -s 1M -w 0",
        "-D . -s 1M -w 99999",
        "-D . -s 900000000G -w 1024",
        "-D . -s 1M -T 0",
        "-D . -s 1M -T 99999999",
        "-D . -s 1M -d -1",
        "-D . -s 1M -m 5",
        "-D . -s 1M -m 2 -x 2",
        "-D . -s 1M -M 50 -x 2",
        "-D . -s 1M -M 101 -x 6",
        "-D . -s 1M -O 2",
        "-D . -s 1M -x 6 -w 1024 -B 5",
        "-D . -s 1M -I 2 -a 3K",
        "-D . -s 1M -P rdma://server",
        "-D . -s 1M -D . -I 1",
        "-D . -s 1M -s 1M",
        "-D . -d 0 -s 1M -D x -d 1 -d 2",
        "-d 0 -D . -d 0 -s 1M",
        "-w 1 -D . -w 2 -D x -s 1M",
        "-D . -w 1000 -D x -w 1000 -s 1M",
        "-D . -s 1M -Z",
        "-D . -s 1M --stric",
    ] {
        let (code, talk) = bad(folder.path(), line);
        assert_eq!(code, 2, "{line}: {talk}");
        assert!(talk.starts_with("error: ") && talk.contains("hint: "), "{line}: {talk}");
    }
    let (_, talk) = bad(folder.path(), "-D . -s 1M --stric");
    assert!(talk.contains("perhaps `--strict` was meant"), "{talk}");
    let (_, talk) = bad(folder.path(), "-D . -Z");
    assert!(talk.contains("`--help`"), "{talk}");
    assert!(names(folder.path()).is_empty());
}

#[test]
fn unavailable_features_are_reported() {
    let folder = folder();
    for (line, says) in [
        ("-D nowhere -s 64K -i 64k -x 4 --gpu none", "nowhere"),
        ("-D . -s 900000G -x 4 --gpu none", "stay free"),
        ("-D . -s 900000G -x 4 -I 1 --gpu none", "stay free"),
        ("-f /proc/self -s 64K -i 64k -x 4 --gpu none", "folder"),
        ("-D . -s 64K -i 64k -x 4 -n 4000000 --gpu none", "NUMA node 4000000"),
    ] {
        if says.contains("NUMA") && !Path::new("/sys/devices/system/node/online").exists() {
            println!("skipped: a NUMA node that is not there: this kernel knows of none");
            continue;
        }
        let (code, talk) = bad(folder.path(), line);
        assert!(code == 1 && talk.contains(says), "{line}: {talk}");
        assert!(names(folder.path()).is_empty(), "{line}: {:?}", names(folder.path()));
    }
}

#[test]
fn an_option_that_no_drive_takes_is_reported() {
    let folder = folder();
    if !has_direct_io(folder.path()) {
        return;
    }
    let line = "-D . -w 1 -s 100000 -i 1000 --gpu sim";
    let (code, text, talk) = run(folder.path(), &format!("{line} -x 2"));
    if code == 0 {
        println!("skipped: requests that are too small: this file system takes any ({text})");
        return;
    }
    assert!(
        talk.contains("`-O 1`, which uses the page cache") && !talk.contains("`forebay`"),
        "{talk}"
    );
    good(folder.path(), &format!("{line} -x 2 -O 1"));
    good(folder.path(), "-D . -w 1 -s 100000 -i 64k -x 4 -I 2 --gpu none");
    good(folder.path(), &format!("{line} -x 0"));
    assert!(names(folder.path()).is_empty());
}
