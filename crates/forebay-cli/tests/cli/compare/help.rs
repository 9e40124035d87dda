//! What `forebay compare` says about itself.

use std::process::Command;

use crate::program::program;

fn stdout(arguments: &[&str]) -> String {
    let output = Command::new(program()).arg("compare").args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[test]
fn short_help() {
    insta::assert_snapshot!(stdout(&["-h"]), @"
    Compare a standard copy with Forebay and the direct route

    Usage: forebay compare [OPTIONS]

    Options:
      -m, --mode <MODE>       What to compare [default: all] [possible values: compare, dma,
                              all]
      -s, --size <SIZE_MB>    Bytes of each run: a number of MiB, or a size such as `512M` or
                              `8G` [default: 512]
      -f, --file <FILE>       New file, or folder for a scratch file [default: this folder]
      -r, --runs <RUNS>       Runs of each method; the first is shown separately [default: 3]
          --gpu <WHICH>       GPU: an index, a UUID, a PCI address, `none`, or `sim`
          --overwrite         Overwrite FILE if it exists; its content is lost
          --overwrite-device  Overwrite FILE if it is a block device; its content is lost
          --json              Print JSON instead of text; docs/json-schema.md describes it
      -h, --help              Print help (see more with '--help')
    ");
}

#[test]
fn long_help() {
    insta::assert_snapshot!(stdout(&["--help"]), @"
    Compare a standard copy with Forebay and the direct route

    A file is written from the GPU and read back, by each method in turn: a standard copy
    (pageable memory and the page cache), Forebay by the route that it chooses, and the direct
    route if it is available. Every byte of every run is verified. The first run is shown
    separately, since it includes setup. Counters of the kernel, the driver and libraries
    decide whether bytes went by DMA, not the speed. Without a GPU the target is host memory.

    Usage: forebay compare [OPTIONS]

    Options:
      -m, --mode <MODE>
              What to compare

              Possible values:
              - compare: The standard copy, Forebay, and the direct route if it is available
              - dma:     The standard copy and the direct route, which is required
              - all:     As `compare`, and a GPU kernel alone and during a read

              [default: all]

      -s, --size <SIZE_MB>
              Bytes of each run: a number of MiB, or a size such as `512M` or `8G`

              [default: 512]

      -f, --file <FILE>
              New file, or folder for a scratch file [default: this folder]

              A new file is removed afterwards. An existing one requires `--overwrite`, a
              block device `--overwrite-device`.

      -r, --runs <RUNS>
              Runs of each method; the first is shown separately

              [default: 3]

          --gpu <WHICH>
              GPU: an index, a UUID, a PCI address, `none`, or `sim`

              By default the first GPU, or host memory if there is none.
              `sim:bandwidth=50GB/s,latency=10us` configures a simulated GPU.

          --overwrite
              Overwrite FILE if it exists; its content is lost

              Afterwards it holds SIZE_MB of test data, and is not removed.

          --overwrite-device
              Overwrite FILE if it is a block device; its content is lost

              A device that is mounted, or part of another, is still refused.

          --json
              Print JSON instead of text; docs/json-schema.md describes it

      -h, --help
              Print help (see a summary with '-h')

    Examples:
      forebay compare                        scratch file of 512 MiB in this folder
      forebay compare -s 8G -r 5 -f /data    8 GiB in `/data`, five runs
      forebay compare -m dma -f /data/new    the direct route, or an error
      forebay compare --gpu sim              simulated GPU
      forebay compare --json >compare.json   JSON for a program
    ");
}
