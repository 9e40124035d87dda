//! What the command says about itself, whole.

use crate::program::program;
use assert_cmd::Command;

pub(crate) fn stdout(arguments: &[&str]) -> String {
    let mut command = Command::new(program());
    let output = command.args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    // Long help has blanks in empty lines, which no file here may have.
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[test]
fn short_help_of_the_command() {
    insta::assert_snapshot!(stdout(&["-h"]), @"
        Move bytes between files and GPU memory at the speed of the slowest link

        Usage: forebay <COMMAND>

        Commands:
          bench   Compare methods to move files to a GPU; lists of values make a sweep
          read    Read a file into GPU or host memory; print checksum, route and proof
          doctor  Find what prevents direct transfers to the GPU, and how to fix it
          report  Show results as a table, page, CSV or Markdown; compare several files
          help    Print this message or the help of the given subcommand(s)

        Options:
          -h, --help     Print help (see more with '--help')
          -V, --version  Print version

        Other tools' command lines:
          gdsio               Run gdsio's command lines and job files
          gpu-file-benchmark  Run the GPU file benchmark's modes
        ");
}

#[test]
fn help_follows_the_width_and_has_no_group_of_one() {
    let at = |columns: &str| {
        let mut command = Command::new(program());
        let output = command.args(["bench", "-h"]).env("COLUMNS", columns).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let longest = |text: &str| text.lines().map(|line| line.chars().count()).max();
    assert!(longest(&at("70")) <= Some(70), "{}", at("70"));
    assert!(longest(&at("300")) <= Some(90) && longest(&at("300")) > Some(70));
    let text = at("80");
    assert!(!text.contains("\nOptions:\n") && text.contains("-h, --help"), "{text}");
}

#[test]
fn long_help_of_the_command() {
    let text = stdout(&["--help"]);
    let (text, _) = text.split_once("\nVariables that set").unwrap();
    insta::assert_snapshot!(text, @"
        Move bytes between files and GPU memory at the speed of the slowest link

        Usage: forebay <COMMAND>

        Commands:
          bench   Compare methods to move files to a GPU; lists of values make a sweep
          read    Read a file into GPU or host memory; print checksum, route and proof
          doctor  Find what prevents direct transfers to the GPU, and how to fix it
          report  Show results as a table, page, CSV or Markdown; compare several files
          help    Print this message or the help of the given subcommand(s)

        Options:
          -h, --help
                  Print help (see a summary with '-h')

          -V, --version
                  Print version

        Other tools' command lines:
          gdsio               Run gdsio's command lines and job files
          gpu-file-benchmark  Run the GPU file benchmark's modes

        Examples:
          forebay bench                           measure a scratch file in this folder
          forebay bench model.safetensors         measure reads of your file
          forebay bench /data --block-size 4K,1M --depth 1,32
          forebay read model.safetensors          read a file into GPU memory
          forebay doctor /data                    what prevents direct transfers
          forebay doctor --tree /data             drives, and their distance to each GPU
          forebay report results -o report.html   results as a page for a browser
          forebay report before.jsonl after.jsonl ratios of two results
          forebay report fio.json                 results of another tool

        Exit codes:
          0    success
          1    failure, or a mismatch in the data
          2    wrong command line or variable
          130  stopped by Ctrl-C, as a shell reports it

        Sizes: K, M, G (or k, m, g), KiB, MiB, GiB are powers of two; kB, MB, GB are powers
        of ten (of two for `gdsio`).
        NO_COLOR switches colours off.
        ");
}

#[test]
fn long_help_names_every_variable() {
    let text = stdout(&["--help"]);
    let (_, variables) = text.split_once("NO_COLOR switches colours off.\n\n").unwrap();
    insta::assert_snapshot!(variables, @"
        Variables that set limits of the engine, all optional:
          FOREBAY_ARENA_SIZE [default: 320M for each GPU in use]
                  maximum pinned memory of the engine
          FOREBAY_SLOT_SIZE [default: 16M]
                  size of a staging buffer; resident bytes fill it
          FOREBAY_SEGMENT_SIZE [default: 1M, or the nearest size that fits the slot]
                  block size of requests to a drive or the page cache
          FOREBAY_READERS [default: 7 of 8 cores, 2 to 12 for each GPU in use]
                  threads that read from the page cache
          FOREBAY_DEPTH [default: found for each drive, up to 128]
                  queue depth of one drive
          FOREBAY_IN_FLIGHT [default: 1024]
                  queue depth of all drives together
          FOREBAY_THREADS [default: 256]
                  maximum threads of the engine
          FOREBAY_SMALL_SIZE [default: 256K]
                  largest transfer that the calling thread makes itself
          FOREBAY_DIRECT_IO [default: auto]
                  whether O_DIRECT may be used
          FOREBAY_RING [default: auto]
                  interface for requests to the kernel
          FOREBAY_WATCHDOG [default: 30s]
                  how long a path or a stream's transfer may make no progress
          FOREBAY_CUFILE [default: auto]
                  whether cuFile's direct path may be used

        Variables of the command:
          FOREBAY_LOG [default: off]
                  log level of engine events, on stderr: `off`, `warn`, `info` or `debug`
          FOREBAY_TOKEN [default: the launcher's, or a random one]
                  any text that all ranks of one run have, and other runs do not
        ");
}

#[test]
fn help_of_bench_is_in_groups() {
    let (short, long) = (stdout(&["bench", "-h"]), stdout(&["bench", "--help"]));
    for text in [&short, &long] {
        let groups = ["Targets:", "Workload:", "Duration:", "Output:"].map(|group| {
            text.lines().position(|line| line == group).unwrap_or_else(|| panic!("{group}: {text}"))
        });
        assert!(groups.is_sorted(), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }
    for flag in
        ["--method", "--block-size", "--depth", "--time", "--repeats", "--output", "--format"]
    {
        assert!(short.contains(flag) && long.contains(flag), "{flag}: {short}");
    }
    // Rare flags are in the long help only.
    for flag in ["--overwrite-device", "--warm-up", "--power-command"] {
        assert!(!short.contains(flag) && long.contains(flag), "{flag}: {short}");
    }
    assert!(short.lines().count() <= 60, "{short}");
    let (_, examples) = long.split_once("\nExamples:\n").unwrap();
    assert_eq!(examples.matches("forebay bench").count(), 10, "{examples}");
}

#[test]
fn names_of_fio_are_taken() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let words = ["bench", "--gpu=none", "--bs=4k", "--iodepth=2", "--numjobs=1", "--runtime=1s"];
    let more = ["--repeats=1", "--size=1m", "--cache=warm", "--format=json"];
    let mut command = Command::new(program());
    command.current_dir(folder.path());
    let output = command.args(words).args(more).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\"request_size\":4096,\"depth\":2"), "{text}");
}

#[test]
fn long_help_of_read() {
    insta::assert_snapshot!(stdout(&["read", "--help"]), @"
        Read a file into GPU or host memory; print checksum, route and proof

        The engine takes the fastest route that this file and this machine allow, and reports the
        reason. Counters of the kernel, the driver and libraries verify the route. The checksum is
        of the bytes in the target.

        Usage: forebay read [OPTIONS] <FILE>

        Arguments:
          <FILE>
                  File or block device to read

        Options:
              --offset <SIZE>
                  Offset of the first byte

                  [default: 0]

              --len <SIZE>
                  Bytes to read [default: all up to the end]

              --gpu <WHICH>
                  GPU: an index, a UUID, a PCI address, `none`, or `sim`

                  By default the first GPU, or host memory if there is none.
                  `sim:bandwidth=50GB/s,latency=10us` configures a simulated GPU.

              --route <ROUTE>
                  Require this route: `direct`, `staged`, `cached` or `host`

          -o, --output <FILE>
                  Copy the bytes from the target to this new file; `-` is stdout

              --trace <FILE>
                  Write a trace of the engine's threads to this new JSON file

                  Open it in `https://ui.perfetto.dev`. Readers, rings, slots and copies have a
                  track each. An arrow leads from each request to the copy of its bytes.

          -q, --quiet
                  Print the checksum alone, and no warnings

          -v, --verbose
                  Print how long the stages of the read took as well

              --format <FORMAT>
                  `table`, or `json` with the stages: docs/json-schema.md describes it

          -h, --help
                  Print help (see a summary with '-h')

        Examples:
          forebay read model.safetensors
          forebay read model.safetensors --offset 8 --len 1M
          forebay read /dev/nvme0n1 --len 1G --gpu 0
          forebay read model.safetensors --trace read.json
          forebay read model.safetensors --offset 4K --len 4K --output - | xxd
        ");
}

#[test]
fn short_help_fits_on_one_screen() {
    let verbs = ["read", "doctor"].map(|verb| vec![verb, "-h"]);
    for arguments in [vec!["-h"]].into_iter().chain(verbs) {
        let arguments = &arguments;
        let text = stdout(arguments);
        assert!(text.lines().count() <= 24, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }
}

#[test]
fn the_version_is_that_of_the_package() {
    assert_eq!(stdout(&["--version"]), format!("forebay {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn help_is_a_verb_too() {
    assert_eq!(stdout(&["help", "report"]), stdout(&["report", "--help"]));
    assert_eq!(stdout(&["help"]), stdout(&["--help"]));
}
