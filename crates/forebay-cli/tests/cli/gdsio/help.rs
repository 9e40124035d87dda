//! What the verb says about itself.

use crate::help::stdout;

#[test]
fn short_help_of_gdsio() {
    insta::assert_snapshot!(stdout(&["gdsio", "-h"]), @"
        Run gdsio's command lines and job files; print its result line

        Usage: forebay gdsio [OPTIONS] [JOBS]

        Arguments:
          [JOBS]  Job file, instead of gdsio's options

        Options:
          -f <FILE>               File or block device for all threads; each further `-f` begins
                                  another job
          -D <DIR>                Folder with a file for each thread (`gdsio.0`, `gdsio.1`, …);
                                  each further `-D` begins another job
          -d <INDEX>              GPU index; host memory if the machine has no GPU [default: 0]
          -n <NODE>               NUMA node whose processors run the threads
          -w <N>                  Threads; with `-x` 6 and 7, calls in flight of one thread
                                  [default: 1]
          -m <TYPE>               Memory: 0 and 1 the GPU's; 2, 3 and 4 the host's (only with `-x`
                                  0, 5, 6 and 7) [default: 0]
          -s <SIZE>               Bytes of each thread
          -o <SIZE>               Offset of the first byte in the file [default: 0]
          -i <SIZE>               Block size, or a range of sizes: `MIN:MAX:STEP` [default: 1M]
          -V                      Verify the bytes that were moved; written bytes are read back
          -x <TYPE>               Data path: 0, 5, 6 and 7 direct to the GPU, 1 to 4 through the
                                  host [default: 0]
          -B <N>                  Requests in one call of a batch (`-x` 6 and 7) [default: 1]
          -I <TYPE>               Operation: 0 read, 1 write, 2 random read, 3 random write
                                  [default: 0]
          -T <SECONDS>            Run for this many seconds, over the same bytes [default: one
                                  pass]
          -k <SEED>               Seed of random offsets; overrides a job file's `random_seed`
                                  [default: 0]
          -U                      Shift random offsets by 512 bytes, so that they are unaligned
          -a <SIZE>               Alignment of random offsets; it must divide `-i`
          -M <PERCENT>            Percentage of reads in a batch (`-x` 6 and 7)
          -P <URL>                RDMA server (not supported)
          -J                      Print a line for each job before the line for all
          -O <0|1>                Use the page cache if 1 [default: 0]
              --gpu <WHICH>       GPU instead of `-d` and job files: an index, a UUID, a PCI
                                  address, `none`, or `sim`
              --strict            Fail if the data path of `-x` is not available
              --overwrite         Overwrite files that `forebay gdsio` did not make
              --overwrite-device  Overwrite block devices; their content is lost
          -h, --help              Print help (see more with '--help')
        ");
}
