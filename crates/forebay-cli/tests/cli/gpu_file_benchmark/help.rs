//! The help of `forebay gpu-file-benchmark`.

use crate::help::stdout;

#[test]
fn short_help() {
    insta::assert_snapshot!(stdout(&["gpu-file-benchmark", "-h"]), @"
    Run the GPU file benchmark's modes: standard copy, engine, direct route

    Usage: forebay gpu-file-benchmark [OPTIONS]

    Options:
      -m, --mode <MODE>       What to compare [default: all] [possible values: compare, dma,
                              all]
      -s, --size <SIZE_MB>    Bytes of the file: a number of MiB, or a size such as `512M` or
                              `8G` [default: 512]
      -f, --file <FILE>       New file, or folder for a scratch file [default: this folder]
      -r, --runs <RUNS>       Samples of each method [default: 3]
          --gpu <WHICH>       GPU: an index, a UUID, a PCI address, `none`, or `sim`
          --overwrite         Overwrite FILE if it exists; its content is lost
          --overwrite-device  Overwrite FILE if it is a block device; its content is lost
      -h, --help              Print help (see more with '--help')
    ");
}
