//! What the verb says about itself.

use crate::help::stdout;

#[test]
fn short_help_of_gdsio() {
    insta::assert_snapshot!(stdout(&["gdsio", "-h"]), @"
        Run gdsio's command lines and job files, and print its result line

        Usage: forebay gdsio [OPTIONS] [JOBS]

        Arguments:
          [JOBS]  A job file, in the place of all options of gdsio

        Options:
          -f <FILE>               One file, or block device, for all threads; each further `-f`
                                  begins a further job
          -D <DIR>                The folder of `gdsio.0`, `gdsio.1` and so on, one for each
                                  thread; each further `-D` begins a further job
          -d <INDEX>              The GPU's index; host memory where the machine has no GPU at all
                                  [default: 0]
          -n <NODE>               The NUMA node whose processors the threads keep to
          -w <N>                  Threads; with `-x` 6 and 7 the requests that one thread has in
                                  flight [default: 1]
          -m <TYPE>               Memory: 0 and 1 the GPU's, 2, 3 and 4 the host's (only with `-x`
                                  0, 5, 6 and 7) [default: 0]
          -s <SIZE>               Bytes for each thread
          -o <SIZE>               Where they begin in the file [default: 0]
          -i <SIZE>               Bytes of one request, or a range of sizes, `MIN:MAX:STEP`
                                  [default: 1M]
          -p                      Use NVLink: taken, and of no effect
          -b                      Do not register the GPU's memory: taken, and of no effect
          -V                      Compare what was moved with the files; what was written is read
                                  back
          -x <TYPE>               How bytes go: 0, 5, 6 and 7 straight to the GPU, 1 to 4 plainly
                                  through the host [default: 0]
          -B <N>                  Requests in one call of a batch (`-x` 6 and 7) [default: 1]
          -I <TYPE>               0 reads, 1 writes, 2 reads at random, 3 writes at random
                                  [default: 0]
          -T <SECONDS>            For how many seconds, over the same bytes again and again;
                                  without it one pass
          -k <SEED>               What random places follow from; goes before a job file's
                                  `random_seed` [default: 0]
          -U                      Random places that are no multiples of 4 KiB: they lie 512 bytes
                                  behind such
          -R                      Fill memory with random bytes, as always
          -F                      Fill it anew before each write: taken, and not done
          -a <SIZE>               Random places are multiples of this; `-i` has to be one
          -M <PERCENT>            How many of 100 requests of a batch are reads
          -P <URL>                A server for RDMA: refused
          -J                      A line for each job before that of all
          -O <0|1>                1 goes through the page cache [default: 0]
              --gpu <WHICH>       Which GPU, before `-d` and job files: an index, a UUID, a PCI
                                  address, `none`, or `sim`
              --strict            Fail where the bytes cannot go as `-x` says
              --overwrite         Write to files that `forebay gdsio` did not make
              --overwrite-device  Write to block devices: what is on them is lost
          -h, --help              Print help (see more with '--help')
        ");
}
