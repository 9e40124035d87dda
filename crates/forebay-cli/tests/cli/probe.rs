//! `forebay probe`: what cuFile says, as a helper tells it. The library itself is not needed: what
//! has its functions is compiled here, and what has not is one.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use forebay::direct::{End, Program, ask_cufile};

use crate::program::program;

/// A library with the functions that are called, whose driver opens as `open` says.
fn library(folder: &Path, open: &str) -> Option<PathBuf> {
    let (source, library) = (folder.join("cufile.c"), folder.join("libcufile.so.0"));
    let text = format!(
        "struct answer {{ int error, cuda; }};\n\
         struct answer cuFileDriverOpen(void) {{ {open} }}\n\
         struct answer cuFileGetVersion(int *v) {{ *v = 1190; return (struct answer) {{0, 0}}; }}\n\
         struct answer cuFileDriverGetProperties(unsigned *p) {{\n\
           p[0] = 2; p[1] = 28; p[4] = 16384; p[6] = 1 << 4; p[8] = 1 << 1; p[12] = 128;\n\
           return (struct answer) {{0, 0}}; }}\n\
         long cuFileUseCount(void) {{ return 0; }}\n\
         struct answer cuFileHandleRegister(void **h, void *d) {{\n\
           *h = d; return (struct answer) {{0, 0}}; }}\n\
         void cuFileHandleDeregister(void *h) {{}}\n\
         struct answer cuFileBufRegister(const void *b, unsigned long n, int f) {{\n\
           return (struct answer) {{0, 0}}; }}\n\
         struct answer cuFileBufDeregister(const void *b) {{ return (struct answer) {{0, 0}}; }}\n\
         long cuFileRead(void *h, void *b, unsigned long n, long o, long a) {{ return 0; }}\n\
         long cuFileWrite(void *h, void *b, unsigned long n, long o, long a) {{ return 0; }}\n\
         struct answer cuFileDriverGetP2PFlags(int kind, int *flags) {{\n\
           *flags = kind == 4 ? 3 : 0; return (struct answer) {{0, 0}}; }}\n"
    );
    std::fs::write(&source, text).unwrap();
    let mut compiler = Command::new("cc");
    match compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status() {
        Ok(status) if status.success() => Some(library),
        _ => {
            println!("skipped: no C compiler");
            None
        }
    }
}

/// What a helper says of a library within a bound, and how long that took.
fn ask(library: &Path, bound: Duration) -> (forebay::direct::Seen, End, Duration) {
    let arguments = vec!["probe".into(), "--library".into(), library.display().to_string()];
    let start = Instant::now();
    let asked = Program { file: program(), arguments };
    let (seen, end) = ask_cufile(&asked, bound);
    (seen, end, start.elapsed())
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_driver_that_opens_says_what_it_serves() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = library(folder.path(), "return (struct answer) {0, 0};") else { return };
    let (seen, end, _) = ask(&library, LONG);
    assert_eq!((end, seen.opened, seen.failed), (End::Exited(0), true, None));
    assert_eq!(seen.library.as_deref(), Some(library.as_path()));
    assert_eq!(seen.version.as_deref(), Some("1.19"));
    assert_eq!(seen.nvidia_fs.as_deref(), Some("2.28"));
    let ways = vec!["p2pdma".to_owned(), "nvidia-fs".to_owned()];
    assert_eq!(seen.storage, [("nvme".to_owned(), ways)]);
    assert_eq!((seen.features, seen.limits), (vec!["batch".to_owned()], Some((16384, 128))));
}

#[test]
fn a_driver_that_fails_says_why_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let open = "return (struct answer) {5027, 0};";
    let Some(library) = library(folder.path(), open) else { return };
    let (seen, end, _) = ask(&library, LONG);
    assert_eq!((end, seen.opened), (End::Exited(0), false));
    assert!(seen.failed.unwrap().contains("HANDLE_NOT_REGISTERED (5027)"));
    assert!(seen.hint.unwrap().contains("/run/udev"));
}

#[test]
fn a_driver_that_hangs_or_crashes_takes_only_the_helper() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = library(folder.path(), "for (;;) __asm__ volatile (\"\");") else { return };
    let bound = Duration::from_secs(1);
    let (seen, end, took) = ask(&library, bound);
    assert_eq!((end, seen.opened), (End::TimedOut(bound), false));
    assert_eq!(seen.version.as_deref(), Some("1.19"), "what was said before is kept");
    assert!(took < LONG);
    let folder = tempfile::tempdir().unwrap();
    let crash = "*(volatile int *)0 = 0; return (struct answer) {0, 0};";
    let library = self::library(folder.path(), crash).unwrap();
    let (seen, end, _) = ask(&library, LONG);
    assert_eq!((end, seen.opened), (End::Killed(11), false));
}

#[test]
fn what_is_no_cufile_is_said_to_be_none() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libcufile.so.0");
    std::fs::write(&library, "text").unwrap();
    assert!(ask(&library, LONG).0.failed.unwrap().contains("is no library"));
    let (seen, _, _) = ask(&folder.path().join("none.so"), LONG);
    assert!(seen.failed.unwrap().contains("pip install nvidia-cufile"));
}

/// Runs `forebay probe` as somebody at a terminal would, with a cache folder of his own.
fn by_hand(library: &Path, cache: &Path, remember: &str) -> bool {
    let mut probe = Command::new(program());
    probe.arg("probe").arg("--library").arg(library);
    probe.env("XDG_CACHE_HOME", cache).env("FOREBAY_REMEMBER", remember);
    probe.env_remove("CUFILE_ENV_PATH_JSON").output().unwrap().status.success()
}

#[test]
fn what_is_asked_by_hand_is_remembered_and_what_an_engine_asks_is_its_own_matter() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = library(folder.path(), "return (struct answer) {0, 0};") else { return };
    let (cache, kept) = (folder.path().join("cache"), folder.path().join("cache/forebay/cufile"));
    assert!(by_hand(&library, &cache, "off") && !cache.exists());
    assert!(by_hand(&library, &cache, "nonsense") && !cache.exists(), "that is for others to tell");
    let variable = format!("XDG_CACHE_HOME={}", cache.display());
    let words = [&variable, program().to_str().unwrap(), "probe", "--library"].map(str::to_owned);
    let arguments = [&words[..], &[library.display().to_string()]].concat();
    let (seen, _) = ask_cufile(&Program { file: "/usr/bin/env".into(), arguments }, LONG);
    assert!(seen.opened && !cache.exists());
    // Without a driver of a GPU nobody can tell how long an answer would hold.
    let has_driver = Path::new("/proc/driver/nvidia/version").exists();
    assert!(by_hand(&library, &cache, "on"));
    assert_eq!(kept.exists(), has_driver);
    let answers = || std::fs::read_to_string(&kept).map_or(0, |text| text.lines().count() - 1);
    assert_eq!(answers(), usize::from(has_driver));
    // One that is lost has at least done away with what was known before.
    let folder = tempfile::tempdir().unwrap();
    let crash = "*(volatile int *)0 = 0; return (struct answer) {0, 0};";
    let library = self::library(folder.path(), crash).unwrap();
    assert!(!by_hand(&library, &cache, "on"));
    assert_eq!(answers(), 0);
}
