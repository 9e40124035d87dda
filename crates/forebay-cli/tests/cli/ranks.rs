//! `forebay bench` as several ranks, as launchers start them.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use forebay_measure::results::Record;
use forebay_measure::results::file::{read, samples};

use crate::program::program;

/// A port whose neighbour above is free now.
fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port() - 1
}

fn rank(folder: &Path, (rank, size, port): (u32, u32, u16), arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.current_dir(folder).args(["bench", ".", "--gpu", "none", "--size", "8M"]);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", size.to_string());
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    command
}

fn start(folder: &Path, place: (u32, u32, u16), arguments: &[&str]) -> Child {
    rank(folder, place, arguments).spawn().unwrap()
}

/// The outputs of ranks, all of which must succeed.
fn succeed(ranks: impl Iterator<Item = Command>) -> Vec<Output> {
    let ranks: Vec<Child> = ranks.map(|mut rank| rank.spawn().unwrap()).collect();
    let outputs = ranks.into_iter().map(|one| one.wait_with_output().unwrap());
    outputs.inspect(|output| assert!(output.status.success(), "{}", printed(output))).collect()
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn ranks_measure_together_and_the_first_has_the_results_of_all() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let port = port();
    let arguments = ["--block-size=64K", "--depth=4", "--time=500ms", "-o", "results"];
    let outputs = succeed((0..3).map(|number| rank(folder.path(), (number, 3, port), &arguments)));
    assert!(outputs[1..].iter().all(|one| one.stdout.is_empty()));
    let table = String::from_utf8(outputs[0].stdout.clone()).unwrap();
    assert!(table.contains("3 ranks at once") && table.contains("median: rank"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    let records = read(&folder.path().join("results")).unwrap();
    let labels = records.iter().filter_map(|record| match record {
        Record::Run(run) => run.label.clone(),
        _ => None,
    });
    let labels: Vec<String> = labels.collect();
    assert!(labels.len() == 3 && labels[2].starts_with("rank 2 on "), "{labels:?}");
    assert_total(&table, &records, 3);
}

#[test]
fn a_lost_rank_ends_the_run_of_all_with_its_name() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let port = port();
    let arguments = ["--block-size=64K", "--time=2s", "--repeats=20", "-o", "results"];
    let start = |rank| start(folder.path(), (rank, 3, port), &arguments);
    let (first, mut second, third) = (start(0), start(1), start(2));
    let file = folder.path().join("results");
    let has_sample = || fs::read_to_string(&file).is_ok_and(|text| text.contains("\"measured\":{"));
    let begun = Instant::now();
    while !has_sample() {
        assert!(begun.elapsed() < Duration::from_secs(60), "there is no sample");
        sleep(Duration::from_millis(20));
    }
    second.kill().unwrap();
    second.wait().unwrap();
    let killed = Instant::now();
    for output in [first, third].map(|rank| rank.wait_with_output().unwrap()) {
        assert!(killed.elapsed() < Duration::from_secs(10));
        assert_eq!(output.status.code(), Some(1));
        assert!(printed(&output).contains("rank 1 on "), "{}", printed(&output));
    }
    assert!(samples(&read(&file).unwrap()).count() >= 1, "what was measured stays");
    let left = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    // The killed rank's own scratch is left for the next run to remove.
    let left = left.filter(|name| name.to_string_lossy().contains("scratch")).count();
    assert!(left <= 1, "{left}");
}

/// Hosts as network namespaces, each behind a link of 1 Mbit/s to a common bridge.
struct Hosts(Vec<String>);

impl Hosts {
    fn new(count: usize) -> Result<Self, String> {
        let pid = std::process::id();
        let mut hosts = Self(vec![format!("forebay-{pid}-bridge")]);
        let bridge = hosts.0[0].clone();
        let ip = |line: &str| run(&format!("ip {line}"));
        ip(&format!("netns add {bridge}"))?;
        ip(&format!("-n {bridge} link add bridge type bridge"))?;
        ip(&format!("-n {bridge} link set bridge up"))?;
        for number in 1..=count {
            let host = format!("forebay-{pid}-{number}");
            hosts.0.push(host.clone());
            ip(&format!("netns add {host}"))?;
            let (inner, port) = (format!("-n {host}"), format!("port{number}"));
            ip(&format!("{inner} link add eth0 type veth peer name {port} netns {bridge}"))?;
            ip(&format!("{inner} address add 10.77.0.{number}/24 dev eth0"))?;
            ip(&format!("{inner} link set eth0 up"))?;
            ip(&format!("{inner} link set lo up"))?;
            ip(&format!("-n {bridge} link set {port} master bridge up"))?;
            let limit = "tbf rate 1mbit burst 10kb latency 500ms";
            run(&format!("ip netns exec {host} tc qdisc add dev eth0 root {limit}"))?;
        }
        Ok(hosts)
    }

    /// A rank on each host.
    fn start(&self, folder: &Path, arguments: &[&str]) -> Vec<Child> {
        let hosts = self.0[1..].iter().enumerate();
        let start = |(rank, host): (usize, &String)| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", host, "unshare", "--uts", "sh", "-c"]);
            command.arg(format!("hostname host{rank}; exec \"$0\" \"$@\"")).arg(program());
            command.current_dir(folder).args(["bench", ".", "--gpu", "none", "--size", "8M"]);
            command.args(arguments).env("RANK", rank.to_string());
            command.env("WORLD_SIZE", (self.0.len() - 1).to_string());
            command.env("MASTER_ADDR", "10.77.0.1").env("MASTER_PORT", "29500");
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        };
        hosts.map(start).collect()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.0.iter().for_each(|name| drop(run(&format!("ip netns delete {name}"))));
    }
}

fn run(line: &str) -> Result<(), String> {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap());
    let output = command.args(words).output().map_err(|error| format!("{line}: {error}"))?;
    let printed = || format!("`{line}`: {}", printed(&output).trim());
    if output.status.success() { Ok(()) } else { Err(printed()) }
}

#[test]
fn hosts_behind_limited_links_measure_together_until_one_is_cut_off() {
    let hosts = match Hosts::new(4) {
        Ok(hosts) => hosts,
        Err(reason) => return println!("skipped: hosts as network namespaces: {reason}"),
    };
    let folder = tempfile::tempdir_in(".").unwrap();
    let arguments = ["--block-size=64K", "--depth=4", "--time=500ms", "-o", "results"];
    let ranks = hosts.start(folder.path(), &arguments).into_iter();
    let outputs: Vec<Output> = ranks.map(|rank| rank.wait_with_output().unwrap()).collect();
    outputs.iter().for_each(|output| assert!(output.status.success(), "{}", printed(output)));
    let table = String::from_utf8_lossy(&outputs[0].stdout).into_owned();
    for row in ["4 ranks at once", "host0, 1 rank", "host3, 1 rank", "slowest: rank"] {
        assert!(table.contains(row), "{table}");
    }
    let records = read(&folder.path().join("results")).unwrap();
    assert_total(&table, &records, 4);

    let ranks = hosts.start(folder.path(), &["--block-size=64K", "--time=1s", "--repeats=60"]);
    sleep(Duration::from_secs(3));
    run(&format!("ip -n {} link set eth0 down", hosts.0[3])).unwrap();
    let cut = Instant::now();
    for (rank, output) in ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).enumerate()
    {
        assert!(cut.elapsed() < Duration::from_secs(11), "{:?}", cut.elapsed());
        let lost = if rank == 2 { "rank 0 on 10.77.0.1" } else { "rank 2 on host2" };
        let printed = printed(&output);
        assert!(printed.contains(lost) && printed.contains("silent for 8s"), "{rank}: {printed}");
    }
}

#[test]
fn mpirun_starts_ranks() {
    ranks_start_by(&["mpirun", "--allow-run-as-root", "--oversubscribe", "-np"]);
}

#[test]
fn srun_starts_ranks() {
    let tried = Command::new("srun").args(["--immediate=10", "true"]).output();
    match tried.map(|output| output.status.success()) {
        Ok(true) => ranks_start_by(&["srun", "--overcommit", "--ntasks"]),
        Ok(false) => println!("skipped: ranks by `srun`: Slurm runs nothing here"),
        Err(error) => println!("skipped: ranks by `srun`: {error}"),
    }
}

/// Measures with 2, 4 and 8 ranks that a launcher starts, whose last argument is their number.
fn ranks_start_by(launcher: &[&str]) {
    let folder = tempfile::tempdir_in(".").unwrap();
    let (program, file) = (program(), folder.path().join("results"));
    for size in [2, 4, 8] {
        let mut command = Command::new(launcher[0]);
        command.args(&launcher[1..]).arg(size.to_string());
        command.arg(&program).args(["bench", ".", "--gpu=none", "--size=8M", "--block-size=64K"]);
        command.args(["--time=300ms", "--repeats=1", "-o", "results"]).current_dir(folder.path());
        let output = match command.stdin(Stdio::null()).output() {
            Ok(output) => output,
            Err(error) => return println!("skipped: ranks by `{}`: {error}", launcher[0]),
        };
        assert!(output.status.success(), "{}", printed(&output));
        let table = String::from_utf8_lossy(&output.stdout).into_owned();
        let table = anstream::adapter::strip_str(&table).to_string();
        assert_total(&table, &read(&file).unwrap(), size);
        fs::remove_file(&file).unwrap();
    }
}

/// Checks that the total in a table is that of what each rank did at once.
fn assert_total(table: &str, records: &[Record], ranks: usize) {
    let rates = samples(records).map(|(_, one)| one.measured.as_ref().unwrap().bytes_per_second);
    let rates: Vec<f64> = rates.collect();
    let repeats = rates.len() / ranks;
    assert_eq!(rates.len(), ranks * repeats, "each rank made each sample");
    let sum = |repeat: usize| (0..ranks).map(|rank| rates[rank * repeats + repeat]).sum::<f64>();
    let mut sums: Vec<f64> = (0..repeats).map(sum).collect();
    sums.sort_by(f64::total_cmp);
    let line = table.lines().find(|line| line.starts_with(&format!("{ranks} ranks"))).unwrap();
    let total: f64 = line.split_whitespace().nth(4).unwrap().parse().unwrap();
    assert!((total * 1e9 / sums[repeats / 2] - 1.0).abs() < 0.02, "{line}: {sums:?}");
}

/// A rank is killed after each of these times, so in each phase of its run.
#[test]
fn a_rank_killed_at_any_time_is_named_within_ten_seconds() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let arguments = ["--block-size=64K", "--time=300ms", "--repeats=2"];
    let mut ends = [0; 2];
    for milliseconds in [5, 40, 100, 250, 500, 800, 1200, 1800, 2500] {
        let port = port();
        let start = |rank| start(folder.path(), (rank, 3, port), &arguments);
        let (first, mut second, third) = (start(0), start(1), start(2));
        sleep(Duration::from_millis(milliseconds));
        second.kill().unwrap();
        second.wait().unwrap();
        let killed = Instant::now();
        // Before it has come, the others would wait for a minute.
        let most = Duration::from_secs(if milliseconds < 250 { 2 } else { 10 });
        let mut others = [first, third];
        while others.iter_mut().any(|rank| rank.try_wait().unwrap().is_none()) {
            if killed.elapsed() > most {
                assert!(milliseconds < 250, "they wait after {milliseconds} ms");
                others.iter_mut().for_each(|rank| rank.kill().unwrap());
            }
            sleep(Duration::from_millis(10));
        }
        for output in others.map(|rank| rank.wait_with_output().unwrap()) {
            match output.status.code() {
                Some(0) => ends[0] += 1, // its results had come
                Some(_) => {
                    assert!(printed(&output).contains("rank 1 on "), "{}", printed(&output));
                    ends[1] += 1;
                }
                None => {}
            }
        }
    }
    assert!(ends[1] >= 6, "{ends:?}");
}

#[test]
fn ranks_find_each_other_by_a_folder() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let meeting = folder.path().canonicalize().unwrap().join("meeting");
    fs::create_dir(&meeting).unwrap();
    let arguments = ["--block-size=64K", "--time=300ms", "--repeats=1"];
    let outputs = succeed((0..2).map(|number| {
        let mut command = rank(folder.path(), (number, 2, 0), &arguments);
        command.env("MASTER_ADDR", &meeting).env("FOREBAY_TOKEN", "a/b");
        command
    }));
    assert!(String::from_utf8_lossy(&outputs[0].stdout).contains("2 ranks at once"));
    assert_eq!(fs::read_dir(&meeting).unwrap().count(), 0, "the note is removed");
}

#[test]
fn ranks_use_one_file_in_stripes_or_all_of_it() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let run = |arguments: &[&str]| {
        let port = port();
        let common = ["--repeats=1", "--time=300ms", "--format=json"];
        let arguments = [&common[..], arguments].concat();
        let ranks = (0..3).map(|number| rank(folder.path(), (number, 3, port), &arguments));
        let outputs = succeed(ranks);
        let lines = String::from_utf8(outputs[0].stdout.clone()).unwrap();
        let records = lines.lines().map(|line| serde_json::from_str(line).unwrap());
        let records: Vec<Record> = records.collect();
        let measured = samples(&records).map(|(_, one)| one.measured.as_ref().unwrap().clone());
        let measured: Vec<_> = measured.collect();
        assert!(measured.iter().all(|one| one.verified == Some(true)), "{measured:?}");
        measured.len()
    };
    for how in ["--one-file=stripes", "--one-file=all"] {
        assert_eq!(run(&[how, "--block-size=64K", "--depth=4"]), 3, "{how}");
    }
    let stripes = ["--one-file=stripes", "--block-size=64K", "--direction=write"];
    assert_eq!(run(&stripes), 3);
    // Every rank writes its part of the user's file.
    let file = folder.path().join("file");
    fs::write(&file, vec![0; 12 << 20]).unwrap();
    let place = ["--one-file=stripes", "--size=12M", "--overwrite", "--direction=write"];
    let whole = [&place[..], &["--method=forebay", "file"]].concat();
    let port = port();
    let ranks = (0..3).map(|number| {
        let mut command = Command::new(program());
        command
            .current_dir(folder.path())
            .args(["bench", "--gpu=none", "--repeats=1"])
            .args(&whole);
        command.env("RANK", number.to_string()).env("WORLD_SIZE", "3");
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    });
    succeed(ranks);
    let bytes = fs::read(&file).unwrap();
    let zeros = bytes.chunks(4096).filter(|page| page.iter().all(|byte| *byte == 0)).count();
    assert_eq!(zeros, 0, "each page was written");
    let wrong =
        rank(folder.path(), (0, 2, port), &["--one-file=all", "--direction=write"]).output();
    let wrong = wrong.unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(printed(&wrong).contains("`--one-file all` only reads"), "{}", printed(&wrong));
}

#[test]
fn ranks_that_do_not_fit_together_are_named() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let port = port();
    let first = start(folder.path(), (0, 2, port), &["--block-size=64K"]);
    let second = start(folder.path(), (1, 2, port), &["--block-size=4K"]);
    for output in [first, second].map(|rank| rank.wait_with_output().unwrap()) {
        assert_eq!(output.status.code(), Some(1));
        assert!(printed(&output).contains("other arguments than rank 0"), "{}", printed(&output));
    }
    let alone = start(folder.path(), (2, 2, port), &[]).wait_with_output().unwrap();
    assert_eq!(alone.status.code(), Some(2), "{}", printed(&alone));
    assert!(printed(&alone).contains("unset `RANK`"), "{}", printed(&alone));
}
