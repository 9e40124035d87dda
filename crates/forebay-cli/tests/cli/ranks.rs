//! `forebay bench` as several ranks, as launchers start them.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use forebay_measure::results::file::{read, samples};
use forebay_measure::results::{Cache, Record, Run, Sample};
use forebay_measure::stats::{Spread, rate};

use crate::program::program;

/// A port whose neighbour above is free now.
fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port() - 1
}

fn rank(folder: &Path, place: (u32, u32, u16), arguments: &[&str]) -> Command {
    let mut command = environment(place);
    command.current_dir(folder).args(["bench", ".", "--gpu", "none", "--size", "8M"]);
    command.args(arguments);
    command
}

/// The command as a rank, in the environment of `torchrun`.
fn environment((rank, size, port): (u32, u32, u16)) -> Command {
    let mut command = Command::new(program());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
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

/// A number with three digits, below a thousand.
fn digits(number: f64) -> String {
    match number {
        ..1.0 => format!("{number:.3}"),
        ..10.0 => format!("{number:.2}"),
        _ => format!("{number:.1}"),
    }
}

fn run_of(records: &[Record]) -> &Run {
    let runs = records.iter().filter_map(|record| match record {
        Record::Run(run) => Some(&**run),
        _ => None,
    });
    let runs: Vec<&Run> = runs.collect();
    assert_eq!(runs.len(), 1, "one record of all ranks");
    runs[0]
}

/// Checks that each sample is the total of all ranks; returns the samples.
fn totals(records: &[Record], ranks: usize) -> Vec<&Sample> {
    assert_eq!(run_of(records).ranks.len(), ranks);
    let all: Vec<&Sample> = samples(records).map(|(_, sample)| sample).collect();
    assert!(!all.is_empty());
    for sample in &all {
        let measured = sample.measured.as_ref().unwrap();
        let (bytes, seconds) = (measured.bytes.unwrap(), measured.seconds.unwrap());
        assert_eq!(measured.shares.len(), ranks, "each rank made each sample");
        assert_eq!(bytes, measured.shares.iter().map(|share| share.bytes).sum::<u64>());
        let common = rate(bytes, seconds);
        assert!((measured.bytes_per_second / common - 1.0).abs() < 1e-9, "{measured:?}");
        // No rank took longer than all of them, from the first start to the last end.
        for share in measured.shares.iter().filter(|share| share.bytes > 0) {
            let own = rate(share.bytes, share.bytes_per_second);
            assert!(own <= seconds * (1.0 + 1e-9), "{own}, {measured:?}");
        }
        let latency = measured.latency.unwrap();
        assert!(latency.count.unwrap() >= ranks as u64 && latency.max_ns >= latency.p50_ns);
    }
    all
}

#[test]
fn ranks_measure_together_and_each_form_has_the_total() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let file = folder.path().join("results");
    let forms = [("table", "GB/s"), ("csv", "bytes_per_second"), ("html", "<html")];
    for ranks in [2, 3] {
        let port = port();
        let arguments = ["--method=forebay", "--repeats=3", "-o", "results"];
        let outputs = succeed(
            (0..ranks).map(|number| rank(folder.path(), (number, ranks, port), &arguments)),
        );
        assert!(outputs[1..].iter().all(|one| one.stdout.is_empty() && one.stderr.is_empty()));
        let table = String::from_utf8(outputs[0].stdout.clone()).unwrap();
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
        let title = format!("{ranks} ranks on 1 host");
        let sections = ["READ, cold", "WRITE, synced to the drive", "±", "Forebay: "];
        for word in sections.into_iter().chain([title.as_str(), "Ranks differ most in"]) {
            assert!(table.contains(word), "{word}: {table}");
        }
        let records = read(&file).unwrap();
        let samples = totals(&records, ranks as usize);
        let own =
            |sample: &&&Sample| sample.point.method == "forebay" && sample.point.read_percent == 0;
        let rates =
            samples.iter().filter(own).map(|one| one.measured.as_ref().unwrap().bytes_per_second);
        let median = Spread::of(rates).unwrap().median;
        for (form, word) in forms {
            let mut report = Command::new(program());
            report.arg("report").arg(&file).args(["--format", form]);
            let output = report.output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success() && text.contains(word), "{}", printed(&output));
            let rate = match form {
                "csv" => median.to_string(),
                _ => digits(median * 1e-9),
            };
            assert!(text.contains(&rate), "{form} lacks {rate}: {text}");
            let words = [&title, "Ranks differ most in"];
            assert!(
                form == "csv" || words.iter().all(|word| text.contains(*word)),
                "{form}: {text}"
            );
            assert!(!text.contains("incomplete"), "{text}");
        }
        fs::remove_file(&file).unwrap();
    }
}

#[test]
fn a_named_file_is_read_whole_by_ranks_together_or_by_each() {
    let folder = tempfile::tempdir_in(".").unwrap();
    for len in [4_u64 << 20, (6 << 20) + 5] {
        let file = folder.path().join("file");
        let bytes: Vec<u8> = (0..len / 8 + 1).flat_map(u64::to_le_bytes).collect();
        fs::write(&file, &bytes[..usize::try_from(len).unwrap()]).unwrap();
        for (how, own) in
            [(None, len), (Some("--one-file=all"), len), (Some("--one-file=stripes"), len / 2)]
        {
            let port = port();
            let ranks = (0..2).map(|number| {
                let mut command = environment((number, 2, port));
                command.current_dir(folder.path()).args(["bench", "file", "--gpu=none"]);
                command.args(["--repeats=1", "--format=json", "--method=forebay", "--time=100ms"]);
                command.args(how);
                command
            });
            let outputs = succeed(ranks);
            let lines = String::from_utf8(outputs[0].stdout.clone()).unwrap();
            let records: Vec<Record> =
                lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            for sample in totals(&records, 2) {
                // Parts of a file begin at multiples of a page.
                let missing = own - sample.point.request_size;
                assert!(missing < 4096, "{how:?}, {len}: {}", sample.point.request_size);
            }
        }
    }
}

#[test]
fn ranks_of_a_host_read_no_page_that_another_one_cached() {
    let folder = tempfile::tempdir_in(".").unwrap();
    fs::write(folder.path().join("file"), vec![7; 24 << 20]).unwrap();
    let run = |arguments: &[&str]| -> Vec<Record> {
        let port = port();
        let ranks = (0..3).map(|number| {
            let mut command = environment((number, 3, port));
            command.current_dir(folder.path()).args(["bench", "file", "--gpu=none"]);
            command.args(["--repeats=2", "--format=json"]).args(arguments);
            command
        });
        let lines = String::from_utf8(succeed(ranks).swap_remove(0).stdout).unwrap();
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let is_doubt = |words: &str, records: &[Record]| {
        let has = |one: &Record| matches!(one, Record::Doubt { text } if text.contains(words));
        records.iter().any(has)
    };
    let records = run(&[]);
    let all = totals(&records, 3);
    let methods: Vec<&str> = all.iter().map(|one| one.point.method.as_str()).collect();
    assert!(methods.iter().all(|name| *name == "forebay"), "{methods:?}");
    assert!(!is_doubt("O_DIRECT from the page cache", &records), "{records:?}");
    if !all.iter().any(|one| one.point.cache == Some(Cache::Cold)) {
        return println!("skipped: pages of other ranks: this file system has no cold rows");
    }
    let words = "pages that others of their host had cached";
    assert!(!is_doubt(words, &records), "{records:?}");
    assert!(is_doubt(words, &run(&["--method=standard", "--cache=cold"])));
}

#[test]
fn a_lost_rank_ends_the_run_of_all_with_its_name() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let port = port();
    let rows = ["--block-size=64K", "--depth=1,2,4,8,16"];
    let arguments = [&rows[..], &["--time=2s", "--repeats=20", "-o", "results"]].concat();
    let start = |rank| start(folder.path(), (rank, 3, port), &arguments);
    let (first, mut second, third) = (start(0), start(1), start(2));
    let file = folder.path().join("results");
    // Rank 0 can show the first sample once the second is written.
    let count = |text: String| text.matches("\"measured\":{").count();
    let has_sample = || fs::read_to_string(&file).is_ok_and(|text| count(text) > 1);
    let begun = Instant::now();
    while !has_sample() {
        assert!(begun.elapsed() < Duration::from_secs(60), "there is no sample");
        sleep(Duration::from_millis(20));
    }
    second.kill().unwrap();
    second.wait().unwrap();
    let killed = Instant::now();
    for (number, output) in
        [first, third].map(|rank| rank.wait_with_output().unwrap()).iter().enumerate()
    {
        assert!(killed.elapsed() < Duration::from_secs(10));
        assert_eq!(output.status.code(), Some(1));
        assert!(printed(output).contains("rank 1 on "), "{}", printed(output));
        let continues = printed(output).contains("the same command continues from there");
        assert_eq!(continues, number == 0, "{}", printed(output));
        assert_eq!(output.stdout.is_empty(), number == 1, "one table, of rank 0");
        let names_rows = printed(output).contains("not measured: forebay read, cold, ");
        assert_eq!(names_rows, number == 0, "{}", printed(output));
    }
    assert!(samples(&read(&file).unwrap()).count() >= 1, "what was measured stays");
    let left = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    // The killed rank's own scratch is left for the next run to remove.
    let left = left.filter(|name| name.to_string_lossy().contains("scratch")).count();
    assert!(left <= 1, "{left}");
}

#[test]
fn the_same_command_continues_the_run_of_ranks() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let file = folder.path().join("results");
    let run = |ranks: u32, repeats: &str| -> Vec<Output> {
        let (port, own) = (port(), ["--repeats", repeats, "--time=100ms", "-o", "results"]);
        let all = (0..ranks).map(|number| start(folder.path(), (number, ranks, port), &own));
        let all: Vec<Child> = all.collect();
        all.into_iter().map(|one| one.wait_with_output().unwrap()).collect()
    };
    assert!(run(2, "2").iter().all(|output| output.status.success()));
    // As if it had been stopped in the second round.
    let text = fs::read_to_string(&file).unwrap();
    let cut = text.match_indices("{\"record\":\"sample\"").nth(8).unwrap().0;
    fs::write(&file, &text[..cut]).unwrap();
    for output in run(3, "2") {
        assert!(!output.status.success());
        assert!(printed(&output).contains("other `ranks`"), "{}", printed(&output));
    }
    // The second of these has nothing left to measure.
    for _ in 0..2 {
        for output in run(2, "2") {
            assert!(output.status.success(), "{}", printed(&output));
        }
        let records = read(&file).unwrap();
        let all: Vec<&Sample> = samples(&records).map(|(_, sample)| sample).collect();
        assert_eq!(all.len(), text.matches("{\"record\":\"sample\"").count());
        assert!(all.iter().all(|one| one.measured.as_ref().unwrap().shares.len() == 2));
    }
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

    /// A rank on each host. The name of the first host leads to loopback there, as in Debian.
    fn start(&self, folder: &Path, arguments: &[&str]) -> Vec<Child> {
        let hosts = self.0[1..].iter().enumerate();
        let start = |(rank, host): (usize, &String)| {
            let mut command = Command::new("ip");
            let first = if rank == 0 { "127.0.1.1" } else { "10.77.0.1" };
            let names = folder.canonicalize().unwrap().join(format!("hosts{rank}"));
            fs::write(&names, format!("127.0.0.1 localhost\n{first} host0\n")).unwrap();
            let mount = format!("mount --bind '{}' /etc/hosts", names.display());
            command.args(["netns", "exec", host, "unshare", "--uts", "--mount", "sh", "-c"]);
            command.arg(format!("hostname host{rank} && {mount} && exec \"$0\" \"$@\""));
            command.arg(program());
            command.current_dir(folder).args(["bench", ".", "--gpu", "none", "--size", "8M"]);
            command.args(arguments).env("RANK", rank.to_string());
            command.env("WORLD_SIZE", (self.0.len() - 1).to_string());
            command.env("MASTER_ADDR", "host0").env("MASTER_PORT", "29500");
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
    assert!(table.contains("4 ranks on 4 hosts"), "{table}");
    let records = read(&folder.path().join("results")).unwrap();
    assert_eq!(run_of(&records).ranks, ["host0", "host1", "host2", "host3"]);
    totals(&records, 4);

    let ranks = hosts.start(folder.path(), &["--block-size=64K", "--time=1s", "--repeats=60"]);
    sleep(Duration::from_secs(3));
    run(&format!("ip -n {} link set eth0 down", hosts.0[3])).unwrap();
    let cut = Instant::now();
    for (rank, output) in ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).enumerate()
    {
        assert!(cut.elapsed() < Duration::from_secs(11), "{:?}", cut.elapsed());
        let lost = if rank == 2 { "rank 0 on host0" } else { "rank 2 on host2" };
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
        totals(&read(&file).unwrap(), size);
        fs::remove_file(&file).unwrap();
    }
}

/// The stage of a run in which a rank is killed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    BeforeJoining,
    Joining,
    Plan,
    Sample,
    End,
}

#[test]
fn a_rank_killed_at_any_stage_is_named_within_ten_seconds() {
    for stage in [Stage::BeforeJoining, Stage::Joining, Stage::Plan, Stage::Sample, Stage::End] {
        let folder = tempfile::tempdir_in(".").unwrap();
        let port = port();
        let log = folder.path().join("log");
        let arguments = ["--block-size=64K", "--time=300ms", "--repeats=4", "-o", "results"];
        let start = |number| rank(folder.path(), (number, 3, port), &arguments);
        let printed = fs::File::create(&log).unwrap();
        let mut first = start(0).stdout(Stdio::null()).stderr(printed).spawn().unwrap();
        let mut second = start(1).spawn().unwrap();
        if stage == Stage::BeforeJoining {
            second.kill().unwrap();
        }
        let third = (stage != Stage::Joining).then(|| start(2).spawn().unwrap());
        let log_has = |text: &str| fs::read_to_string(&log).unwrap().contains(text);
        let samples = || {
            let results = fs::read_to_string(folder.path().join("results")).unwrap_or_default();
            results.matches("\"measured\":{").count()
        };
        let is_reached = || match stage {
            Stage::BeforeJoining => true,
            Stage::Joining => log_has("1 of 3 ranks are missing: rank 2"),
            Stage::Plan => has_thread(&second, "beat"),
            Stage::Sample => samples() > 0,
            Stage::End => samples() == 4,
        };
        wait(Duration::from_secs(60), &format!("{stage:?}"), is_reached);
        second.kill().unwrap();
        second.wait().unwrap();
        let most = Duration::from_secs(10);
        if stage == Stage::BeforeJoining {
            wait(most, "rank 1 is named", || log_has("missing: rank 1"));
            first.kill().unwrap();
        }
        wait(most, &format!("the end after {stage:?}"), || first.try_wait().unwrap().is_some());
        let is_done = first.wait().unwrap().success();
        assert!(!is_done || stage == Stage::End, "{stage:?}");
        assert!(is_done || log_has("rank 1"), "{stage:?}: {}", fs::read_to_string(&log).unwrap());
        let is_left = folder.path().join("results").exists();
        assert_eq!(is_left, samples() > 0, "{stage:?}");
        let Some(mut third) = third else { continue };
        if stage == Stage::BeforeJoining {
            third.kill().unwrap();
        }
        wait(most, &format!("rank 2 after {stage:?}"), || third.try_wait().unwrap().is_some());
    }
}

#[test]
fn stores_of_ranks_are_filled_before_they_serve_together() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let port = port();
    let arguments = ["--kv=deepseek-r1:fp8:page1", "--size=32M", "--time=1s", "--repeats=1"];
    let ranks = (0..2).map(|number| {
        let mut command = environment((number, 2, port));
        let common = ["bench", ".", "--gpu=none", "--format=json"];
        command.current_dir(folder.path()).args(common).args(arguments);
        command
    });
    let lines = String::from_utf8(succeed(ranks).swap_remove(0).stdout).unwrap();
    let records = lines.lines().map(|line| serde_json::from_str(line).unwrap());
    let records: Vec<Record> = records.collect();
    let kv = totals(&records, 2)[0].measured.as_ref().unwrap().kv.unwrap();
    assert!(kv.hits == 0 || kv.first.is_some_and(|first| first.count > Some(0)), "{kv:?}");
}

#[test]
fn a_default_run_of_ranks_has_the_time_limit_of_one_process() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let (port, file) = (port(), folder.path().join("results"));
    let arguments = ["--method=forebay", "-o", "results"];
    let mut ranks = [0, 1].map(|number| start(folder.path(), (number, 2, port), &arguments));
    let is_begun = || fs::read_to_string(&file).is_ok_and(|text| text.contains('\n'));
    wait(Duration::from_secs(60), "the record of the run", is_begun);
    for rank in &mut ranks {
        rank.kill().unwrap();
        rank.wait().unwrap();
    }
    assert!(run_of(&read(&file).unwrap()).request["repeats"].is_null());
}

#[test]
fn a_signal_to_a_rank_is_named_by_all() {
    use std::os::unix::process::ExitStatusExt as _;

    use rustix::process::{Pid, Signal, kill_process};

    let most = Duration::from_secs(60);
    for (joins, number, signal, name) in [
        (false, 0, Signal::INT, "SIGINT"),
        (false, 1, Signal::TERM, "SIGTERM"),
        (true, 0, Signal::INT, "SIGINT"),
        (true, 1, Signal::TERM, "SIGTERM"),
    ] {
        let folder = tempfile::tempdir_in(".").unwrap();
        let (port, size) = (port(), if joins { 3 } else { 2 });
        let arguments = ["--block-size=64K", "--time=300ms", "--repeats=90", "-o", "results"];
        let log = |rank: usize| folder.path().join(format!("log{rank}"));
        let printed = |rank: usize| fs::read_to_string(log(rank)).unwrap();
        let mut ranks = [0, 1].map(|number| {
            let mut command = rank(folder.path(), (number, size, port), &arguments);
            let file = fs::File::create(log(number as usize)).unwrap();
            command.stdout(Stdio::null()).stderr(file).spawn().unwrap()
        });
        let missing = "1 of 3 ranks are missing: rank 2";
        let is_there = |rank: &Child| match joins {
            true => printed(0).contains(missing),
            false => has_thread(rank, "beat"),
        };
        wait(most, "both ranks", || ranks.iter().all(is_there));
        kill_process(Pid::from_child(&ranks[number]), signal).unwrap();
        let most = Duration::from_secs(10);
        wait(most, name, || ranks.iter_mut().all(|rank| rank.try_wait().unwrap().is_some()));
        for (rank, end) in ranks.map(|mut rank| rank.wait().unwrap()).iter().enumerate() {
            let printed = printed(rank);
            let words = format!(" was interrupted by {name}");
            assert!(printed.contains(&format!("rank {number} on ")), "{rank}: {printed}");
            assert!(printed.contains(&words) && !printed.contains("was lost"), "{rank}: {printed}");
            let own = (rank == number).then_some(signal.as_raw());
            assert_eq!((end.signal(), end.code()), (own, own.is_none().then_some(1)), "{printed}");
        }
    }
}

fn wait(most: Duration, what: &str, is: impl FnMut() -> bool) {
    let (begun, mut is) = (Instant::now(), is);
    while !is() {
        assert!(begun.elapsed() < most, "{what}");
        sleep(Duration::from_millis(10));
    }
}

/// Whether a process has a thread of this name.
fn has_thread(process: &Child, name: &str) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", process.id()));
    let threads = threads.into_iter().flatten().flatten();
    let names = threads.map(|thread| fs::read_to_string(thread.path().join("comm")));
    names.flatten().any(|thread| thread.trim_end() == name)
}

#[test]
fn what_the_environment_holds_and_cannot_be_used_is_named() {
    let folder = tempfile::tempdir_in(".").unwrap();
    for (name, value, words) in [
        ("WORLD_SIZE", "", "`RANK` is set, and `WORLD_SIZE` is unset or empty"),
        ("WORLD_SIZE", "0", "`WORLD_SIZE` is `0`"),
        ("RANK", "one", "`RANK` is `one`"),
        ("MASTER_PORT", "70000", "`MASTER_PORT` is `70000`"),
        ("MASTER_ADDR", "[::1]:29500", "`MASTER_ADDR` is `[::1]:29500`"),
        ("MASTER_ADDR", "node0:29500", "`MASTER_ADDR` is `node0:29500`"),
        ("MASTER_ADDR", "./missing", "`MASTER_ADDR` is `./missing`"),
    ] {
        let mut command = rank(folder.path(), (1, 2, port()), &[]);
        let begun = Instant::now();
        let output = command.env(name, value).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", printed(&output));
        assert!(printed(&output).contains(words), "{}", printed(&output));
        assert!(begun.elapsed() < Duration::from_secs(30), "it waits for no rank");
    }
    // What the hint says, in a shell.
    let script = |line: &str| {
        let shell = rank(folder.path(), (2, 2, port()), &[]);
        let program = shell.get_program().to_owned();
        let variables: Vec<_> = shell
            .get_envs()
            .map(|(name, value)| (name.to_owned(), value.unwrap().to_owned()))
            .collect();
        let mut command = Command::new("sh");
        command.envs(variables).current_dir(folder.path()).arg("-c");
        let run =
            "exec \"$0\" bench . --gpu none --size 8M --block-size 64K --time 0.1 --repeats 1";
        command.arg(format!("{line}\n{run}")).arg(program).output().unwrap()
    };
    let refused = printed(&script(""));
    let hint = refused.lines().find(|line| line.contains("hint: ")).unwrap();
    let line = hint.split('`').nth(1).unwrap();
    let output = script(line);
    assert!(line.starts_with("unset ") && output.status.success(), "{line}: {}", printed(&output));
}

#[test]
fn rank_0_says_that_its_host_has_no_address() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let log = folder.path().join("log");
    let mut first = rank(folder.path(), (0, 2, port()), &[]);
    let first = first.env("MASTER_ADDR", "a..b").stderr(fs::File::create(&log).unwrap());
    let mut first = first.spawn().unwrap();
    let says = || fs::read_to_string(&log).unwrap().contains("`a..b` has no address");
    wait(Duration::from_secs(30), "the warning", says);
    first.kill().unwrap();
    first.wait().unwrap();
}

#[test]
fn ranks_find_each_other_by_a_folder() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let meeting = folder.path().canonicalize().unwrap().join("meeting");
    fs::create_dir(&meeting).unwrap();
    let arguments = ["--block-size=64K", "--time=300ms", "--repeats=1"];
    let outputs = succeed((0..2).map(|number| {
        let mut command = rank(folder.path(), (number, 2, port()), &arguments);
        command.env("MASTER_ADDR", &meeting).env("FOREBAY_TOKEN", "a/b");
        command
    }));
    assert!(String::from_utf8_lossy(&outputs[0].stdout).contains("2 ranks on 1 host"));
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
        assert_eq!(run(&[how, "--block-size=64K", "--depth=4"]), 1, "{how}");
    }
    let stripes = ["--one-file=stripes", "--block-size=64K", "--direction=write"];
    assert_eq!(run(&stripes), 1);
    // Every rank writes its part of the user's file.
    let file = folder.path().join("file");
    fs::write(&file, vec![0; 12 << 20]).unwrap();
    let place = ["--one-file=stripes", "--size=12M", "--overwrite", "--direction=write"];
    let whole = [&place[..], &["--method=forebay", "file"]].concat();
    let port = port();
    let ranks = (0..3).map(|number| {
        let mut command = environment((number, 3, port));
        let command_line = ["bench", "--gpu=none", "--repeats=1"];
        command.current_dir(folder.path()).args(command_line).args(&whole);
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
        let words = "other arguments than rank 0: `block-size` differs";
        assert!(printed(&output).contains(words), "{}", printed(&output));
    }
    let ranks = [(0, 2), (1, 3)].map(|(number, size)| {
        rank(folder.path(), (number, size, port), &[]).env("FOREBAY_TOKEN", "a").spawn().unwrap()
    });
    for output in ranks.map(|rank| rank.wait_with_output().unwrap()) {
        let words = " expects 3 ranks, rank 0 expects 2";
        assert!(printed(&output).contains(words), "{}", printed(&output));
    }
    let alone = start(folder.path(), (2, 2, port), &[]).wait_with_output().unwrap();
    assert_eq!(alone.status.code(), Some(2), "{}", printed(&alone));
    assert!(printed(&alone).contains("`unset RANK WORLD_SIZE`"), "{}", printed(&alone));
}
