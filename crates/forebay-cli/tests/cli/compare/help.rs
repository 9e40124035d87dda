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
    Compare the standard way with the direct path and with ours, run by run

    Usage: forebay compare [OPTIONS]

    Options:
      -m, --mode <MODE>       What to compare [default: all] [possible values: compare, dma,
                              all]
      -s, --size <SIZE_MB>    Bytes of each run, in MiB, or a size such as `512M` or `8G`
                              [default: 512]
      -f, --file <FILE>       A new file, or a folder for a scratch file; by default this
                              folder
      -r, --runs <RUNS>       How often each way is run; the first run is shown apart from the
                              others [default: 3]
          --gpu <WHICH>       Which GPU: an index, a UUID, a PCI address, `none`, or `sim`
          --overwrite         Take a FILE that is there already: all that it holds is lost
          --overwrite-device  Take a block device as FILE: all that is on it is lost
          --json              Print JSON instead of text; docs/json-schema.md describes it
      -h, --help              Print help (see more with '--help')
    ");
}

#[test]
fn long_help() {
    insta::assert_snapshot!(stdout(&["--help"]), @"
    Compare the standard way with the direct path and with ours, run by run

    A file is written from the GPU and read back: in the standard way (by pageable memory and
    the page cache), by our engine as it chooses, and straight where there is a path for that.
    Every byte of every run is checked, the first run is shown apart from the others, and
    whether bytes went by DMA is said by what others counted, never by a speed. Without a GPU
    the target is host memory.

    Usage: forebay compare [OPTIONS]

    Options:
      -m, --mode <MODE>
              What to compare

              Possible values:
              - compare: The standard way, ours, and the direct path where there is one
              - dma:     The standard way and the direct path, which has to be there
              - all:     As `compare`, and a kernel that works on the GPU's memory, alone and
                beside a read

              [default: all]

      -s, --size <SIZE_MB>
              Bytes of each run, in MiB, or a size such as `512M` or `8G`

              [default: 512]

      -f, --file <FILE>
              A new file, or a folder for a scratch file; by default this folder

              What is made is removed afterwards. A file that is there already is not touched
              without `--overwrite`, nor a block device without `--overwrite-device`.

      -r, --runs <RUNS>
              How often each way is run; the first run is shown apart from the others

              [default: 3]

          --gpu <WHICH>
              Which GPU: an index, a UUID, a PCI address, `none`, or `sim`

              By default the first GPU, else host memory. `sim:bandwidth=50GB/s,latency=10us`
              sets what a simulated GPU plays.

          --overwrite
              Take a FILE that is there already: all that it holds is lost

              It has SIZE_MB of test data afterwards, and stays.

          --overwrite-device
              Take a block device as FILE: all that is on it is lost

              A device that is mounted, or part of another, is refused all the same.

          --json
              Print JSON instead of text; docs/json-schema.md describes it

      -h, --help
              Print help (see a summary with '-h')

    Examples:
      forebay compare                        a scratch file of 512 MiB in this folder
      forebay compare -s 8G -r 5 -f /data    a larger one in `/data`, five runs
      forebay compare -m dma -f /data/new    straight to the GPU, or an error
      forebay compare --gpu sim              a simulated GPU
      forebay compare --json >compare.json   for a program to read
    ");
}
