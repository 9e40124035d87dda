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
          bench   Measure each method's throughput against the machine's limits
          read    Read a file into GPU or host memory; print checksum, route and proof
          sweep   Measure every combination of block size, queue depth and more
          doctor  Find what prevents direct transfers to the GPU, and how to fix it
          report  Show results as a table, page, CSV or Markdown; compare several files

        Options:
          -h, --help     Print help (see more with '--help')
          -V, --version  Print version

        Other tools' command lines:
          gdsio               Run gdsio's command lines and job files; print its result line
          gpu-file-benchmark  Run the GPU file benchmark's modes
        ");
}

#[test]
fn long_help_of_the_command() {
    let text = stdout(&["--help"]);
    let (text, _) = text.split_once("\nVariables that set").unwrap();
    insta::assert_snapshot!(text, @"
        Move bytes between files and GPU memory at the speed of the slowest link

        Usage: forebay <COMMAND>

        Commands:
          bench   Measure each method's throughput against the machine's limits
          read    Read a file into GPU or host memory; print checksum, route and proof
          sweep   Measure every combination of block size, queue depth and more
          doctor  Find what prevents direct transfers to the GPU, and how to fix it
          report  Show results as a table, page, CSV or Markdown; compare several files

        Options:
          -h, --help
                  Print help (see a summary with '-h')

          -V, --version
                  Print version

        Other tools' command lines:
          gdsio               Run gdsio's command lines and job files; print its result line
          gpu-file-benchmark  Run the GPU file benchmark's modes

        Examples:
          forebay bench                           measure a scratch file in this folder
          forebay bench model.safetensors         measure reads of your file
          forebay bench --size 1G,8G --repeats 5  two sizes, five samples of each
          forebay bench --gpu sim --json          simulated GPU, results as JSON
          forebay read model.safetensors          read a file into GPU memory
          forebay sweep /data                     block sizes and queue depths
          forebay doctor /data                    what prevents direct transfers
          forebay doctor --map /data              drives, and their distance to each GPU
          forebay report results -o report.html   results as a page for a browser
          forebay report before.jsonl after.jsonl ratios of two results
          forebay report fio.json                 results of another tool

        Exit codes:
          0    success
          1    failure, or a mismatch in the data
          2    wrong command line or variable
          130  stopped by Ctrl-C, as a shell reports it

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
        Variables that set limits of the engine, all optional:
          FOREBAY_ARENA_SIZE [default: 256M for each GPU in use]
                  maximum pinned memory of the engine
          FOREBAY_SLOT_SIZE [default: 16M]
                  size of a staging buffer; resident bytes fill it
          FOREBAY_SEGMENT_SIZE [default: 1M, or the nearest size that fits the slot]
                  block size of requests to a drive or the page cache
          FOREBAY_READERS [default: 7 of 8 cores, 2 to 12]
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
        ");
}

#[test]
fn short_help_of_bench() {
    insta::assert_snapshot!(stdout(&["bench", "-h"]), @"
        Measure each method's throughput against the machine's limits

        Usage: forebay bench [OPTIONS] [PATH]...

        Arguments:
          [PATH]...  Files or block devices to read, or folders for scratch files [default: this
                     folder]

        Options:
              --size <SIZE,…>  Bytes to move, or a list of sizes
              --repeats <N>    Samples of each method, 3 or more [default: 3]
              --gpu <WHICH>    GPU: an index, a UUID, a PCI address, `none`, or `sim`
              --route <ROUTE>  Require this route in `forebay` rows: `direct`, `staged`, `cached`
                               or `host`
              --read           Measure reads (default; for one folder, writes as well)
              --write          Measure writes, to a scratch file
              --cold           Measure cold files, not in the page cache (default; for one path,
                               warm as well)
              --resident       Measure warm files, in the page cache (also the default for one
                               path)
              --threads <N>    Threads that read warm bytes [default: the engine chooses]
              --find-depth     Find the queue depth that a drive needs
              --json           Print JSON instead of a table; docs/json-schema.md describes it
          -h, --help           Print help (see more with '--help')
        ");
}

#[test]
fn long_help_of_bench() {
    let text = stdout(&["bench", "--help"]);
    let (text, examples) = text.split_once("\nExamples:\n").unwrap();
    assert_eq!(examples.matches("forebay bench").count(), 7);
    let (about, options) = text.split_once("\nOptions:\n").unwrap();
    insta::assert_snapshot!(about, @"
        Measure each method's throughput against the machine's limits

        One interleaved run measures the limits (the PCIe link and the storage) and each method.
        The methods are `standard` (read into pageable memory, then copy), `mmap` (map, then
        copy), `cufile-compat` (cuFile's compat mode, at its defaults and at its best settings;
        requires cuFile and a GPU) and `forebay`. With several paths they are `one-queue` (one
        pool of threads for all files), `kvikio` and `forebay`. Every byte that was moved is
        verified. Without a GPU the target is host memory.

        Usage: forebay bench [OPTIONS] [PATH]...

        Arguments:
          [PATH]...
                  Files or block devices to read, or folders for scratch files [default: this
                  folder]

                  Your files are only read. Writes go to a scratch file in the same folder, which
                  is removed afterwards. Several paths, such as one on each drive, are measured
                  one by one and all at once. All at once, one engine is compared with one pool of
                  threads and with KvikIO, if Python has it.
        ");
    options_of_bench(options);
}

fn options_of_bench(text: &str) {
    insta::assert_snapshot!(text, @"
              --size <SIZE,…>
                  Bytes to move, or a list of sizes

                  By default a size that suits the free memory, the free disk space and the speed
                  of the storage.

              --repeats <N>
                  Samples of each method, 3 or more

                  [default: 3]

              --gpu <WHICH>
                  GPU: an index, a UUID, a PCI address, `none`, or `sim`

                  By default the first GPU, or host memory if there is none.
                  `sim:bandwidth=50GB/s,latency=10us` configures a simulated GPU.

              --route <ROUTE>
                  Require this route in `forebay` rows: `direct`, `staged`, `cached` or `host`

              --read
                  Measure reads (default; for one folder, writes as well)

              --write
                  Measure writes, to a scratch file

              --cold
                  Measure cold files, not in the page cache (default; for one path, warm as well)

                  Only the file's own pages are dropped from the page cache, and the drop is
                  verified. A cold write ends when its bytes are on the drive.

              --resident
                  Measure warm files, in the page cache (also the default for one path)

              --threads <N>
                  Threads that read warm bytes [default: the engine chooses]

              --find-depth
                  Find the queue depth that a drive needs

                  Cold reads of one path are measured at depths that double. The lowest sufficient
                  one is compared with the depth that the engine finds by itself, in interleaved
                  pairs. It is recommended only if it is faster in every pair. Nothing is stored.

              --json
                  Print JSON instead of a table; docs/json-schema.md describes it

          -h, --help
                  Print help (see a summary with '-h')

        ");
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

              --output <FILE>
                  Copy the bytes from the target to this new file; `-` is stdout

              --trace <FILE>
                  Write a trace of the engine's threads to this new JSON file

                  Open it in `https://ui.perfetto.dev`. Readers, rings, slots and copies have a
                  track each. An arrow leads from each request to the copy of its bytes.

              --json
                  Print JSON, with the stages; docs/json-schema.md describes it

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
    let verbs = ["bench", "read", "doctor"].map(|verb| vec![verb, "-h"]);
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
