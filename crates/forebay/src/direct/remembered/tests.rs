//! A folder that plays the machine, and another that plays the user's cache.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::time::Instant;

use super::identity::Digest;
use super::*;
use proptest::prelude::*;

const LIBRARY: &str = "/opt/cufile/libcufile.so.0";
const OPENED: &str = "version 1.15\nopened\nstorage nvme p2pdma\n";

/// A machine, a cache, and a program that is asked for what `LIBRARY` says.
pub(in crate::direct) struct Rig {
    pub(in crate::direct) folder: PathBuf,
    pub(in crate::direct) answers: Answers,
    ends: Option<tempfile::TempDir>,
}

impl Rig {
    pub(in crate::direct) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut rig = Self::at(folder.path());
        rig.ends = Some(folder);
        for (file, text) in [
            ("proc/sys/kernel/random/boot_id", "1-2-3\n"),
            ("proc/driver/nvidia/version", "580.1\n"),
            ("proc/modules", "nvme 1 2 - Live\next4 1 2 - Live\n"),
            ("etc/cufile.json", "{}"),
            ("dev/nvidia0", ""),
            ("dev/tty", ""),
            ("run/udev/data/b1:2", ""),
            (&LIBRARY[1..], "bytes"),
        ] {
            rig.write(file, text);
        }
        rig
    }

    /// One that another process has made in this folder.
    pub(in crate::direct) fn at(folder: &Path) -> Self {
        let sheet = Sheet::at(folder.join("cache/forebay"), NAME, text::FILE_MAX);
        let machine = Machine::played(&folder.join("root"), &[]);
        Self { folder: folder.into(), answers: Answers { sheet: Some(sheet), machine }, ends: None }
    }

    /// Writes a file of the machine.
    pub(in crate::direct) fn write(&self, file: &str, text: &str) {
        let path = self.root(file);
        fs::create_dir_all(path.parent().expect("it has one")).expect("folders");
        fs::write(path, text).expect("a file");
    }

    fn root(&self, file: &str) -> PathBuf {
        self.folder.join("root").join(file)
    }

    fn cache(&self) -> PathBuf {
        self.folder.join("cache/forebay")
    }

    /// The same cache on a machine whose processes have these variables.
    fn with(&self, variables: &[(&str, &str)]) -> Answers {
        let machine = Machine::played(&self.folder.join("root"), variables);
        Answers { machine, ..self.answers.clone() }
    }

    fn inquiry(&self) -> Inquiry {
        self.answers.inquire(&program())
    }

    fn is_known(&self) -> bool {
        self.inquiry().known().is_some()
    }

    /// Makes all that is remembered as much older.
    pub(in crate::direct) fn age(&self, seconds: u64) {
        self.answers.change(|all| all.iter_mut().for_each(|one| one.written_s -= seconds));
    }
}

fn program() -> Program {
    let arguments = ["probe", "--library", LIBRARY].map(Into::into).to_vec();
    Program { file: "/bin/forebay".into(), arguments }
}

fn answer(text: &str, end: End) -> Answer {
    (Seen::parse(&format!("library {LIBRARY}\n{text}")), end)
}

fn opened() -> Answer {
    answer(OPENED, End::Exited(0))
}

#[test]
fn what_was_said_is_known_to_the_next() {
    let rig = Rig::new();
    assert_eq!(rig.inquiry().known(), None);
    let text = "nvidia-fs 2.28\nfeature batch\nsetting posix_io false\nlimits 16384 128\n";
    let all = answer(&(OPENED.to_owned() + text), End::Exited(0));
    rig.inquiry().keep(&all);
    assert_eq!(rig.inquiry().known().expect("it was kept").answer, all);
    // A later one takes its place.
    rig.inquiry().keep(&opened());
    assert_eq!(rig.inquiry().known().expect("it was kept").answer, opened());
    assert_eq!(rig.answers.entries().expect("a file").len(), 1);
    let held = fs::read_to_string(rig.cache().join(NAME)).expect("a file");
    assert!(!held.contains("1-2-3") && !held.contains("580.1"), "it holds numbers only: {held}");
}

#[test]
fn who_asks_for_himself_does_not_wait_for_files_without_end() {
    let start = Instant::now();
    assert_eq!(aside(|| 7), Some(7));
    assert_eq!(aside(|| std::thread::sleep(FILES_WITHIN * 2)), None);
    assert!(start.elapsed() >= FILES_WITHIN);
    // Nothing is known of such a machine, and nothing is kept.
    Renewal(None).end(&opened());
}

/// What happens to a machine.
type Change = (&'static str, fn(&Rig));

#[test]
fn whatever_it_depends_on_is_asked_for_anew_when_it_changes() {
    let changes: [Change; 14] = [
        ("another boot", |rig| rig.write("proc/sys/kernel/random/boot_id", "4-5-6\n")),
        ("another driver", |rig| rig.write("proc/driver/nvidia/version", "590.1\n")),
        ("its settings", |rig| rig.write("proc/driver/nvidia/params", "RMForceStaticBar1=1")),
        ("nvidia-fs", |rig| rig.write("proc/driver/nvidia-fs/version", "2.28")),
        ("a library of another size", |rig| rig.write(&LIBRARY[1..], "other")),
        ("another library by the same name", |rig| {
            let path = rig.root(&LIBRARY[1..]);
            fs::copy(&path, rig.root("new")).expect("a copy");
            fs::rename(rig.root("new"), path).expect("a name");
        }),
        ("no library", |rig| fs::remove_file(rig.root(&LIBRARY[1..])).expect("it was there")),
        ("the configuration", |rig| rig.write("etc/cufile.json", "{ }")),
        ("no configuration", |rig| fs::remove_file(rig.root("etc/cufile.json")).expect("a file")),
        ("a node of nvidia-fs", |rig| rig.write("dev/nvidia-fs0", "")),
        ("who may open a node", |rig| {
            let mode = fs::Permissions::from_mode(0o600);
            fs::set_permissions(rig.root("dev/nvidia0"), mode).expect("our own");
        }),
        ("udev", |rig| fs::remove_dir_all(rig.root("run/udev")).expect("a folder")),
        ("a module", |rig| rig.write("proc/modules", "nvme 1 2 - Live\nnvidia_fs 1 2 - Live\n")),
        ("no modules", |rig| fs::remove_file(rig.root("proc/modules")).expect("a file")),
    ];
    for (what, change) in changes {
        let rig = Rig::new();
        // Time stamps are as fine as the clock's ticks.
        let old = fs::File::options().write(true).open(rig.root(&LIBRARY[1..])).expect("a file");
        old.set_modified(SystemTime::UNIX_EPOCH).expect("our own");
        rig.inquiry().keep(&opened());
        assert!(rig.is_known(), "{what}");
        change(&rig);
        assert!(!rig.is_known(), "{what}");
    }
}

#[test]
fn variables_that_the_library_sees_are_told_from_others() {
    let rig = Rig::new();
    rig.write("other.json", "{}");
    rig.inquiry().keep(&opened());
    let is_known =
        |variables: &[(&str, &str)]| rig.with(variables).inquire(&program()).known().is_some();
    assert!(is_known(&[]) && is_known(&[("HOME", "/x"), ("FOREBAY_REMEMBER", "on")]));
    assert!(is_known(&[("CUFILE_LOGFILE_PATH", "/tmp/log")]));
    for (name, value) in [
        ("CUFILE_ENV_PATH_JSON", "/other.json"),
        ("CUFILE_USE_PCIP2PDMA", "true"),
        ("CUDA_VISIBLE_DEVICES", ""),
        ("LD_LIBRARY_PATH", "/x"),
    ] {
        assert!(!is_known(&[(name, value)]), "{name}");
    }
}

#[test]
fn what_has_nothing_to_do_with_it_changes_nothing() {
    let rig = Rig::new();
    rig.inquiry().keep(&opened());
    rig.write("proc/modules", "vfat 1 2 - Live\next4 7 8 - Live\nnvme 5 6 - Live\n");
    rig.write("dev/nvidia-modeset", "");
    rig.write("etc/cufile.json", "{}");
    assert!(rig.is_known());
}

#[test]
fn a_search_that_would_come_to_another_library_is_made_anew() {
    let program = Program { file: "forebay".into(), arguments: vec!["probe".into()] };
    for appears in [
        "usr/local/cuda/lib64/libcufile.so.0",
        "etc/ld.so.cache",
        "usr/lib64/libcufile.so.0",
        "opt/lib/libcufile.so.0",
    ] {
        let rig = Rig::new();
        let answers = rig.with(&[("LD_LIBRARY_PATH", "/none::/opt/lib")]);
        let seen = Seen::parse(&format!("library libcufile.so.0\nloaded {LIBRARY}\n{OPENED}"));
        answers.inquire(&program).keep(&(seen, End::Exited(0)));
        let is_known = || answers.inquire(&program).known().is_some();
        assert!(is_known(), "{appears}");
        let packages = ["probe", "--packages", "/x"].map(Into::into).to_vec();
        let other = Program { arguments: packages, ..program.clone() };
        assert!(answers.inquire(&other).known().is_none());
        rig.write(appears, "anything");
        assert!(!is_known(), "{appears}");
        fs::remove_file(rig.root(appears)).expect("it was there");
        assert!(is_known(), "{appears}");
        // The one that was found is no place of the search.
        rig.write(&LIBRARY[1..], "longer bytes");
        assert!(!is_known(), "{appears}");
    }
}

#[test]
fn what_cannot_be_told_is_not_remembered() {
    let hide: [Change; 7] = [
        ("boot", |rig| {
            fs::remove_file(rig.root("proc/sys/kernel/random/boot_id")).expect("a file")
        }),
        ("driver", |rig| fs::remove_file(rig.root("proc/driver/nvidia/version")).expect("a file")),
        ("modules", |rig| {
            fs::remove_file(rig.root("proc/modules")).expect("a file");
            fs::create_dir(rig.root("proc/modules")).expect("a folder");
        }),
        ("configuration", |rig| rig.write("etc/cufile.json", &" ".repeat(2 << 20))),
        ("nodes", |rig| {
            fs::remove_dir_all(rig.root("dev")).expect("a folder");
            symlink("dev", rig.root("dev")).expect("a link to itself");
        }),
        ("the library", |rig| {
            fs::remove_file(rig.root(&LIBRARY[1..])).expect("a file");
            symlink("libcufile.so.0", rig.root(&LIBRARY[1..])).expect("a link to itself");
        }),
        ("its file", |rig| fs::remove_file(rig.root(&LIBRARY[1..])).expect("a file")),
    ];
    for (what, hide) in hide {
        let rig = Rig::new();
        hide(&rig);
        rig.inquiry().keep(&opened());
        assert!(!rig.is_known() && !rig.cache().exists(), "{what}");
    }
    // By its bare name alone nobody can tell which file it was.
    let rig = Rig::new();
    rig.inquiry()
        .keep(&(Seen::parse(&format!("library libcufile.so.0\n{OPENED}")), End::Exited(0)));
    assert!(!rig.is_known());
}

#[test]
fn what_changes_while_cufile_is_asked_belongs_to_nothing() {
    let rig = Rig::new();
    let inquiry = rig.inquiry();
    rig.write("etc/cufile.json", "{ }");
    inquiry.keep(&opened());
    assert!(!rig.is_known() && !rig.cache().exists());
}

#[test]
fn what_does_not_work_holds_for_a_day_and_what_works_until_the_next_boot() {
    let late = End::TimedOut(OPENS_WITHIN);
    for bad in [
        answer("failed no driver\nhint install it\n", End::Exited(0)),
        answer("version 1.15\nopened\n", End::Exited(0)),
        answer("version 1.15\n", End::Killed(libc::SIGSEGV)),
        answer("", late.clone()),
        (Seen::default(), late),
    ] {
        let rig = Rig::new();
        rig.inquiry().keep(&bad);
        rig.age(A_DAY_S - 60);
        assert_eq!(rig.inquiry().known().expect("it holds").answer, bad);
        rig.age(60);
        assert!(!rig.is_known(), "{bad:?}");
        // A clock that was set back tells nothing.
        rig.inquiry().keep(&bad);
        rig.answers.change(|all| all.iter_mut().for_each(|one| one.written_s += 600));
        assert!(!rig.is_known(), "{bad:?}");
    }
    let rig = Rig::new();
    rig.inquiry().keep(&opened());
    rig.age(400 * A_DAY_S);
    assert!(rig.is_known());
}

#[test]
fn who_trusted_and_came_to_no_end_is_the_last_to() {
    let rig = Rig::new();
    rig.inquiry().keep(&opened());
    let marked = || rig.answers.entries().expect("a file")[0].opening_s;
    let seen = rig.inquiry().trusting(|| {
        // Others who come meanwhile trust as well, and leave the mark to the first.
        assert!(rig.is_known() && rig.inquiry().trusting(|| marked().is_some()));
        marked()
    });
    assert!(seen.is_some() && marked().is_none() && rig.is_known());
    // As a panic does, but for telling of it, which may take longer than the mark holds.
    let crash = || std::panic::resume_unwind(Box::new("it crashes"));
    let caught = std::panic::catch_unwind(|| rig.inquiry().trusting(crash));
    assert!(caught.is_err() && marked().is_some() && rig.is_known(), "it may still be opening");
    let later = OPENS_WITHIN.as_secs();
    rig.answers.change(|all| all[0].opening_s = all[0].opening_s.map(|since| since - later));
    assert!(!rig.is_known());
    // Whoever asks again clears it.
    rig.inquiry().keep(&opened());
    assert!(rig.is_known() && marked().is_none());
}

#[test]
fn what_says_nothing_of_cufile_is_not_remembered() {
    for end in [
        End::NotRun("no program".into()),
        End::Exited(1),
        End::Killed(libc::SIGTERM),
        End::Killed(libc::SIGINT),
        End::TimedOut(Duration::from_secs(5)),
    ] {
        let rig = Rig::new();
        rig.inquiry().keep(&answer("", end.clone()));
        assert!(!rig.is_known() && !rig.cache().exists(), "{end:?}");
    }
    let rig = Rig::new();
    let long = "failed x\n".to_owned() + &format!("storage {}\n", "y".repeat(900)).repeat(9);
    rig.inquiry().keep(&answer(&long, End::Exited(0)));
    assert!(!rig.is_known() && !rig.cache().exists(), "it is too long");
}

#[test]
fn switched_off_nothing_is_read_or_written() {
    let rig = Rig::new();
    rig.inquiry().keep(&opened());
    let off = Answers { sheet: None, ..rig.answers.clone() };
    assert_eq!(off.inquire(&program()).known(), None);
    assert!(off.inquire(&program()).turn().is_none());
    assert!(Answers::of_user(false).sheet.is_none());
    let before = fs::read(rig.cache().join(NAME)).expect("a file");
    off.inquire(&program()).keep(&answer("failed\n", End::Exited(0)));
    Renewal::of(off, None, &[]).end(&opened());
    assert_eq!(fs::read(rig.cache().join(NAME)).expect("a file"), before);
}

#[test]
fn who_asks_for_himself_has_all_of_this_boot_forgotten() {
    let rig = Rig::new();
    let other = Program { arguments: vec!["probe".into()], ..program() };
    let failed = (Seen::parse("failed no library\n"), End::Exited(0));
    rig.answers.inquire(&other).keep(&failed);
    rig.inquiry().keep(&answer("", End::Killed(libc::SIGSEGV)));
    rig.answers.change(|all| {
        let subject = Subject { boot: Digest::of(&1), ..all[0].subject };
        all.push(Entry { subject, ..all[0].clone() });
    });
    let renewal = Renewal::of(rig.answers.clone(), Some(Path::new(LIBRARY)), &[]);
    assert!(!rig.is_known() && rig.answers.inquire(&other).known().is_none());
    assert_eq!(rig.answers.entries().expect("a file").len(), 1, "that of another machine stays");
    renewal.end(&opened());
    assert_eq!(rig.inquiry().known().expect("it was kept").answer, opened());
    assert_eq!(rig.answers.entries().expect("a file").len(), 2);
    // Where there is nothing to forget nothing is written.
    let rig = Rig::new();
    let _ = Renewal::of(rig.answers.clone(), None, &[]);
    assert!(!rig.cache().exists());
}

#[test]
fn files_that_are_not_ours_are_not_believed() {
    let rig = Rig::new();
    rig.inquiry().keep(&opened());
    let path = rig.cache().join(NAME);
    let good = fs::read(&path).expect("a file");
    let elsewhere = rig.folder.join("elsewhere");
    fs::write(&elsewhere, &good).expect("a file");
    fs::remove_file(&path).expect("it was there");
    symlink(&elsewhere, &path).expect("a link");
    assert!(!rig.is_known(), "a link");
    fs::remove_file(&path).expect("it was there");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &path, fifo, mode, 0).expect("a FIFO");
    assert!(!rig.is_known(), "a FIFO");
    rig.inquiry().keep(&opened());
    assert!(rig.is_known(), "the name is ours to give again");
    let long = [good.as_slice(), &vec![b'\n'; 2 << 20]].concat();
    fs::write(&path, long).expect("our own");
    assert!(!rig.is_known(), "too long");
    fs::write(&path, "forebay answers, version 2\n").expect("our own");
    rig.inquiry().keep(&opened());
    assert_eq!(fs::read(&path).expect("a file"), b"forebay answers, version 2\n");
    fs::write(&path, &good).expect("our own");
    assert!(rig.is_known());
    fs::set_permissions(rig.cache(), fs::Permissions::from_mode(0o777)).expect("our own");
    assert!(!rig.is_known(), "others may write");
    fs::set_permissions(rig.cache(), fs::Permissions::from_mode(0o700)).expect("our own");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).expect("our own");
    assert!(!rig.is_known(), "the group may write");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("our own");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(65534), None).expect("root may");
        assert!(!rig.is_known(), "another user's");
    } else {
        println!("skipped: another user's answer: needs root");
    }
}

#[test]
fn no_file_says_which_library_is_loaded() {
    let rig = Rig::new();
    rig.write("home/evil.so", "bytes");
    let evil = Seen::parse(&format!("library /home/evil.so\n{OPENED}"));
    rig.inquiry().keep(&(evil.clone(), End::Exited(0)));
    assert!(!rig.is_known());
    rig.inquiry().keep(&opened());
    let file = rig.answers.machine.file(Path::new("/home/evil.so")).expect("a file");
    let lines = answer_to_lines(&(evil, End::Exited(0)));
    rig.answers.change(|all| (all[0].file, all[0].lines) = (file, lines));
    assert_eq!(rig.inquiry().known(), None);
}

#[test]
fn the_day_and_the_hour_are_told() {
    for (seconds, text) in [
        (0, "1970-01-01 00:00 UTC"),
        (951_782_399, "2000-02-28 23:59 UTC"),
        (951_868_800, "2000-03-01 00:00 UTC"),
        (1_709_210_096, "2024-02-29 12:34 UTC"),
        (1_798_761_599, "2026-12-31 23:59 UTC"),
        (4_107_542_400, "2100-03-01 00:00 UTC"),
    ] {
        assert_eq!(utc(seconds), text);
    }
}

proptest! {
    #[test]
    fn no_time_is_too_late(seconds in any::<u64>()) {
        prop_assert!(utc(seconds).ends_with(" UTC"));
    }
}

proptest! {
    // Each makes files; that no text is too strange is tried without any.
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn nothing_in_the_file_does_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let rig = Rig::new();
        fs::create_dir_all(rig.cache()).expect("a folder");
        fs::set_permissions(rig.cache(), fs::Permissions::from_mode(0o700)).expect("our own");
        fs::write(rig.cache().join(NAME), [&b"forebay answers, version 1\n"[..], &bytes].concat())
            .expect("a file");
        prop_assert!(!rig.is_known());
        rig.inquiry().keep(&opened());
        prop_assert!(rig.is_known());
    }
}
