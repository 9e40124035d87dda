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
        Moves bytes between files and GPU memory at the speed of the slowest link on the way

        Usage: forebay <COMMAND>

        Commands:
          bench        Measure how fast bytes move, by every way, against what the machine can do
          compare      Compare the standard way with the direct path and with ours, run by run
          read         Move a file to the GPU (or host memory) and say what moved and how
          map          Show the drives under a path, how far from each GPU, and what costs speed
          tune         Find how much to keep in flight on a drive, and show the curve
          sweep        Measure every size, depth and way that is named, and keep the results
          stream       Stream a model's layers to the GPU behind their compute, beside other ways
          doctor       Say what keeps bytes from going to the GPU directly, and what to do
          report       Make a report of results: a page for a browser, text, or tables
          diff         Show results side by side: ratios, and how far to trust them
          gdsio        Run gdsio's command lines and job files, and print its result line
          import       Read what gdsio, fio, nixlbench or any table measured, to stand beside ours
          completions  Print completions for a shell
          man          Print the manual page

        Options:
          -h, --help     Print help (see more with '--help')
          -V, --version  Print version
        ");
}

#[test]
fn long_help_of_the_command() {
    let text = stdout(&["--help"]);
    let (text, _) = text.split_once("\nVariables that set").unwrap();
    insta::assert_snapshot!(text, @"
        Moves bytes between files and GPU memory at the speed of the slowest link on the way

        Usage: forebay <COMMAND>

        Commands:
          bench        Measure how fast bytes move, by every way, against what the machine can do
          compare      Compare the standard way with the direct path and with ours, run by run
          read         Move a file to the GPU (or host memory) and say what moved and how
          map          Show the drives under a path, how far from each GPU, and what costs speed
          tune         Find how much to keep in flight on a drive, and show the curve
          sweep        Measure every size, depth and way that is named, and keep the results
          stream       Stream a model's layers to the GPU behind their compute, beside other ways
          doctor       Say what keeps bytes from going to the GPU directly, and what to do
          report       Make a report of results: a page for a browser, text, or tables
          diff         Show results side by side: ratios, and how far to trust them
          gdsio        Run gdsio's command lines and job files, and print its result line
          import       Read what gdsio, fio, nixlbench or any table measured, to stand beside ours
          completions  Print completions for a shell
          man          Print the manual page

        Options:
          -h, --help
                  Print help (see a summary with '-h')

          -V, --version
                  Print version

        Examples:
          forebay bench                          measure a scratch file in this folder
          forebay bench model.safetensors        measure reading your file; it is never written
          forebay bench --size 1G,8G --repeats 5 choose how much and how often
          forebay bench --gpu sim --json         a simulated GPU, results as JSON
          forebay compare                        standard against direct and ours, run by run
          forebay read model.safetensors         move a file to the GPU and say how it went
          forebay map /data                      the drives under it, and how far from the GPUs
          forebay sweep /data                    every size and depth, with latencies
          forebay stream --tokens 1024,8192      a model's layers behind their compute
          forebay tune /data                     how much to keep in flight there
          forebay doctor /data                   what keeps bytes from going to the GPU directly
          forebay import fio f.json -o results   what another tool measured, beside ours
          forebay report results -o report.html  results as a page for a browser
          forebay diff before.jsonl after.jsonl  two results side by side

        Exit codes:
          0    done
          1    something failed, or wrong data were found
          2    the command makes no sense
          130  stopped by Ctrl-C, as a shell tells it

        Sizes: K, M, G, KiB, MiB, GiB are powers of two; kB, MB, GB are powers of ten
        (of two for `gdsio`).
        NO_COLOR switches colours off.
        ");
}

#[test]
fn long_help_tells_of_every_variable() {
    let text = stdout(&["--help"]);
    let (_, variables) = text.split_once("NO_COLOR switches colours off.\n\n").unwrap();
    insta::assert_snapshot!(variables, @"
        Variables that set limits of the engine; none needs to be set:
          FOREBAY_ARENA_SIZE [default: 256M for each GPU in use]
                  pinned memory at most, over the whole engine
          FOREBAY_SLOT_SIZE [default: 16M]
                  one staging slot, which one copy moves
          FOREBAY_SEGMENT_SIZE [default: 1M, or what is nearest to that and fits the slot]
                  one request to a drive or to the page cache
          FOREBAY_READERS [default: 7 of 8 cores, 2 to 12]
                  threads that read resident bytes
          FOREBAY_DEPTH [default: found for each drive, up to 128]
                  requests in flight on one drive
          FOREBAY_IN_FLIGHT [default: 1024]
                  requests in flight on all drives together
          FOREBAY_THREADS [default: 256]
                  threads for all drives and GPUs together
          FOREBAY_SMALL_SIZE [default: 256K]
                  transfers up to this are made by the calling thread
          FOREBAY_DIRECT_IO [default: auto]
                  whether O_DIRECT may be used
          FOREBAY_RING [default: auto]
                  how requests reach the kernel
          FOREBAY_WATCHDOG [default: 30s]
                  how long what does not answer, or a stream's transfer, may stand still
          FOREBAY_CUFILE [default: auto]
                  whether bytes may go straight to the GPU by cuFile

        Variables of the command:
          FOREBAY_LOG [default: off]
                  what the engine decides and what befalls it, line by line on stderr: `off`,
                  `warn`, `info` or `debug`
        ");
}

#[test]
fn short_help_of_bench() {
    insta::assert_snapshot!(stdout(&["bench", "-h"]), @"
        Measure how fast bytes move, by every way, against what the machine can do

        Usage: forebay bench [OPTIONS] [PATH]...

        Arguments:
          [PATH]...  Files or block devices to read, or folders for scratch files; by default this
                     folder

        Options:
              --size <SIZE,…>  How many bytes to move, or a list of sizes
              --repeats <N>    How often each way is measured, 3 or more [default: 3]
              --gpu <WHICH>    Which GPU: an index, a UUID, a PCI address, `none`, or `sim`
              --route <ROUTE>  Take this route in `forebay` rows, or fail: `direct`, `staged`,
                               `cached` or `host`
              --read           Measure reading (the default; with one place for scratch both are)
              --write          Measure writing, to a scratch file
              --cold           Measure with the pages dropped from the page cache (the default;
                               with one path both are)
              --resident       Measure with the file in the page cache (with one path the default
                               as well)
              --threads <N>    Threads that read resident bytes in `forebay` rows, instead of the
                               engine's choice
              --json           Print JSON instead of a table; docs/json-schema.md describes it
          -h, --help           Print help (see more with '--help')
        ");
}

#[test]
fn long_help_of_bench() {
    let text = stdout(&["bench", "--help"]);
    let (text, examples) = text.split_once("\nExamples:\n").unwrap();
    assert_eq!(examples.matches("forebay bench").count(), 6);
    let (about, options) = text.split_once("\nOptions:\n").unwrap();
    insta::assert_snapshot!(about, @"
        Measure how fast bytes move, by every way, against what the machine can do

        One interleaved run measures the ceilings (the link to the GPU, the storage) and the ways
        to move bytes: `standard` (read into pageable memory, then copy), `mmap` (map, then copy),
        `cufile-compat` (cuFile's compat mode, where there are a GPU and cuFile: at its defaults
        and in its best settings) and `forebay`; of several paths `one-queue`, `kvikio` and
        `forebay`. Every byte that a way moved is checked. Without a GPU the target is host
        memory.

        Usage: forebay bench [OPTIONS] [PATH]...

        Arguments:
          [PATH]...
                  Files or block devices to read, or folders for scratch files; by default this
                  folder

                  Files are only ever read. Writes go to a scratch file beside them, and scratch
                  is removed afterwards. Several paths, on several drives say, are measured each
                  alone and all together in one engine, beside one pool of threads for all and
                  KvikIO, where Python has it.
        ");
    options_of_bench(options);
}

fn options_of_bench(text: &str) {
    insta::assert_snapshot!(text, @"
              --size <SIZE,…>
                  How many bytes to move, or a list of sizes

                  By default as much as suits the memory, the free room and the speed of this
                  machine.

              --repeats <N>
                  How often each way is measured, 3 or more

                  [default: 3]

              --gpu <WHICH>
                  Which GPU: an index, a UUID, a PCI address, `none`, or `sim`

                  By default the first GPU, else host memory. `sim:bandwidth=50GB/s,latency=10us`
                  sets what a simulated GPU plays.

              --route <ROUTE>
                  Take this route in `forebay` rows, or fail: `direct`, `staged`, `cached` or
                  `host`

              --read
                  Measure reading (the default; with one place for scratch both are)

              --write
                  Measure writing, to a scratch file

              --cold
                  Measure with the pages dropped from the page cache (the default; with one path
                  both are)

                  Only the file's own pages are dropped, never the machine's, and the drop is
                  checked. A cold write counts only once its bytes are on the drive.

              --resident
                  Measure with the file in the page cache (with one path the default as well)

              --threads <N>
                  Threads that read resident bytes in `forebay` rows, instead of the engine's
                  choice

              --json
                  Print JSON instead of a table; docs/json-schema.md describes it

          -h, --help
                  Print help (see a summary with '-h')

        ");
}

#[test]
fn long_help_of_read() {
    insta::assert_snapshot!(stdout(&["read", "--help"]), @"
        Move a file to the GPU (or host memory) and say what moved and how

        The engine takes the fastest route that this file and this machine have, and says why it
        was that one.

        Usage: forebay read [OPTIONS] <FILE>

        Arguments:
          <FILE>
                  File or block device to read

        Options:
              --offset <SIZE>
                  Where to begin

                  [default: 0]

              --len <SIZE>
                  How many bytes; by default all up to the end

              --gpu <WHICH>
                  Which GPU: an index, a UUID, a PCI address, `none`, or `sim`

                  By default the first GPU, else host memory. `sim:bandwidth=50GB/s,latency=10us`
                  sets what a simulated GPU plays.

              --route <ROUTE>
                  Take this route, or fail: `direct`, `staged`, `cached` or `host`

              --checksum
                  Print the XXH3-64 of the bytes as they lie in the target

              --output <FILE>
                  Copy the bytes from the target to this new file; `-` is stdout

              --trace <FILE>
                  Write what the engine did, thread by thread, to this new file of JSON

                  `https://ui.perfetto.dev` opens it: readers, rings, slots and copies, each on a
                  track of its own, with an arrow from each request to the copy that took its
                  bytes away.

              --stages
                  Show how long the stages took: requests, copies, and the waits for slots and for
                  the link; and why bytes did not go straight to the GPU, where there may be a
                  path

              --json
                  Print JSON, with the stages; docs/json-schema.md describes it

          -h, --help
                  Print help (see a summary with '-h')

        Examples:
          forebay read model.safetensors
          forebay read model.safetensors --offset 8 --len 1M --checksum
          forebay read /dev/nvme0n1 --len 1G --gpu 0
          forebay read model.safetensors --stages
          forebay read model.safetensors --trace read.json
          forebay read model.safetensors --offset 4K --len 4K --output - | xxd
        ");
}

#[test]
fn long_help_of_map() {
    insta::assert_snapshot!(stdout(&["map", "--help"]), @"
        Show the drives under a path, how far from each GPU, and what costs speed

        Every step is shown, from the path through mounts, file systems, arrays and volumes to the
        drives (marked `●`) and their PCI devices. Nothing is read from a file or a drive and
        nothing is written: the kernel is asked. What it does not tell is said to be unknown.

        Usage: forebay map [OPTIONS] [PATH]...

        Arguments:
          [PATH]...
                  Files, folders or block devices, there or to be made; by default this folder

        Options:
              --extents
                  Show where the bytes of the files lie, as far as the kernel tells

              --measure-link
                  Copy to each GPU for a moment and read its link meanwhile

                  An idle GPU rests at a lower speed, so only then can a link that is too slow be
                  told.

              --record <DIR>
                  Write a record of this system, as far as these paths touch it, to a new folder

              --fixture <DIR>
                  Show the system that was recorded in this folder instead of this machine

                  Without a path, all recorded paths are shown.

              --json
                  Print JSON instead of a drawing; docs/json-schema.md describes it

          -h, --help
                  Print help (see a summary with '-h')

        Examples:
          forebay map                          this folder
          forebay map /data/model.safetensors --extents
          forebay map /data /scratch --json
          forebay map /data --record DIR       write down what it was made from
          forebay map --fixture DIR            show that again, on any machine
        ");
}

#[test]
fn long_help_of_tune() {
    insta::assert_snapshot!(stdout(&["tune", "--help"]), @"
    Find how much to keep in flight on a drive, and show the curve

    A search of a few seconds measures throughput and latency against depth and size of
    request, past the page cache, by the engine itself. What was found is kept for the engines
    to come (they find it by themselves too, a little later), and shown as settings of other
    programs.

    Usage: forebay tune [OPTIONS] [PATH]

    Arguments:
      [PATH]
              File, block device or folder on the drive; by default this folder

              A file or device is only ever read, and the file's pages are dropped from the
              page cache. In a folder a scratch file is made, and removed afterwards.

    Options:
          --read
              Measure reading (the default)

          --write
              Measure writing, to a scratch file: as from a GPU, whose writes go past the page
              cache

          --duration <TIME>
              How long each direction is searched

              [default: 6s]

          --json
              Print JSON instead of a drawing; docs/json-schema.md describes it

      -h, --help
              Print help (see a summary with '-h')

    Examples:
      forebay tune                         the drive of this folder, by a scratch file
      forebay tune /data/model.safetensors the drive of a file, which is only read
      forebay tune /data --write           how writes fare there
      forebay tune /data --json >tune.json for a program to read
    ");
}

#[test]
fn short_help_fits_on_one_screen() {
    let verbs = ["bench", "read", "map", "doctor"].map(|verb| vec![verb, "-h"]);
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
