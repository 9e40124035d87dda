//! A file system that reports only at the close of a file that written bytes are lost.

use std::fs;
use std::process::Command;

use forebay_measure::results::file::{read, samples};

use crate::lab::fuse::{Faults, Fuse};
use crate::lab::or_skip;
use crate::lab::watchdog::Watchdog;
use crate::program::{program, run};

fn full() -> Option<Fuse> {
    let faults = Faults { closes: true, fail_closes: Some(libc::EDQUOT), ..Faults::default() };
    or_skip(Fuse::with(vec![7; 1 << 20], faults))
}

#[test]
fn a_load_says_what_the_close_of_a_written_file_reports() {
    let _watchdog = Watchdog::start();
    let Some(fuse) = full() else { return };
    let folder = tempfile::tempdir_in(".").unwrap();
    let file = fuse.path().display().to_string();
    let run = |line: &str| run(folder.path(), line.split_whitespace());
    let end = "--overwrite --gpu none";
    let output = run(&format!("gdsio -f {file} -w 1 -s 1M -i 64K -x 4 -I 1 {end}"));
    let reported = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{reported}");
    assert!(reported.contains("close") && reported.contains("quota"), "{reported}");
    let output = run(&format!(
        "bench {file} --direction write --method forebay,standard,mmap,cpu --block-size 64K \
         --depth 1 --bytes 256K --repeats 1 --size 1M --cache warm {end} -o results"
    ));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let records = read(&folder.path().join("results")).unwrap();
    let all: Vec<_> = samples(&records).map(|(_, sample)| sample).collect();
    assert_eq!(all.len(), 4);
    for sample in all {
        let error = sample.error.as_deref().unwrap_or_default();
        assert!(error.contains("close") && error.contains("uota"), "{sample:?}");
    }
}

/// As the kernel does on NFS where a quota is used up: from the close after so many others on, each
/// of a file that may be written fails. `FOREBAY_TEST_CLOSES` is the number.
const FAILS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
static int before;
int close(int fd) {
  static int (*real)(int);
  struct stat facts;
  if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "close");
  int flags = fcntl(fd, F_GETFL), written = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
  int fails = written && !fstat(fd, &facts) && S_ISREG(facts.st_mode)
              && __sync_fetch_and_add(&before, 1) >= atoi(getenv("FOREBAY_TEST_CLOSES"));
  int closed = real(fd);
  if (!fails) return closed;
  errno = EDQUOT;
  return -1;
}
"#;

#[test]
fn other_verbs_say_what_the_close_of_a_written_file_reports() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir_in(".").unwrap();
    let at = |name: &str| std::path::absolute(folder.path()).unwrap().join(name);
    fs::write(at("closes.c"), FAILS).unwrap();
    fs::create_dir(at("place")).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).args([at("closes.so"), at("closes.c")]);
    if !compiler.arg("-ldl").status().is_ok_and(|status| status.success()) {
        println!("skipped: closes that fail: no C compiler");
        return;
    }
    let run = |line: &str, before: u32| {
        let mut command = Command::new(program());
        command.current_dir(folder.path()).args(line.split_whitespace());
        command.env("LD_PRELOAD", at("closes.so")).env("FOREBAY_TEST_CLOSES", before.to_string());
        let output = command.output().unwrap();
        let reported = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&reported).into_owned())
    };

    let file = vec![7; 1 << 20];
    fs::write(at("file"), &file).unwrap();
    let (code, reported) =
        run("gdsio -f file -w 1 -s 2M -i 64K -x 4 -I 1 --overwrite --gpu none", 0);
    assert_eq!(code, Some(1), "{reported}");
    assert!(reported.contains("cannot write to") && reported.contains("quota"), "{reported}");
    assert_eq!(fs::read(at("file")).unwrap()[..file.len()], file, "nothing was written");

    // The first files that are closed are scratch, then those that the engine has written.
    let reported: Vec<_> = (0..12).map(|before| run("doctor place --gpu none", before)).collect();
    for (word, code) in [("cannot close", 1), ("cannot write", 0)] {
        let fits = |(is, reported): &(Option<i32>, String)| {
            *is == Some(code) && reported.contains(word) && reported.contains("uota")
        };
        assert!(reported.iter().any(fits), "{word}: {reported:?}");
    }
}
