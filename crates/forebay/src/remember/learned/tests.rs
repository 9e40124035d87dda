//! Real folders and files, well-formed and hostile.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::*;
use crate::tune::Rate;

const ME: Direction = Direction::Read;

fn learned(depth: usize) -> Learned {
    Learned { depth, size: 128 << 10, rate: Rate(200_000_000) }
}

/// A folder that does not exist yet, in one that does.
fn place() -> (tempfile::TempDir, PathBuf) {
    let above = tempfile::tempdir().expect("a temporary folder");
    let folder = above.path().join("cache/forebay");
    (above, folder)
}

fn remember(folder: &Path, identity: &str, depth: usize) -> bool {
    let mut memory = Memory::at(folder.to_owned());
    memory.note(identity, ME, learned(depth));
    memory.save()
}

#[test]
fn what_is_noted_is_recalled_by_the_next() {
    let (_above, folder) = place();
    let mut memory = Memory::at(folder.clone());
    assert_eq!(memory.recall("a drive", ME), None);
    memory.note("a drive", ME, learned(3));
    memory.note("a drive", Direction::Write, learned(5));
    assert_eq!(memory.recall("a drive", ME), Some(learned(3)));
    assert!(memory.save() && memory.save());
    let next = Memory::at(folder.clone());
    assert_eq!(next.recall("a drive", ME), Some(learned(3)));
    assert_eq!(next.recall("a drive", Direction::Write), Some(learned(5)));
    assert_eq!(next.recall("another", ME), None);
    assert_eq!(fs::metadata(&folder).expect("made").mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(folder.join(NAME)).expect("made").mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 1, "nothing is left beside it");
}

#[test]
fn switched_off_it_touches_nothing() {
    let (above, _) = place();
    let home = above.path().to_owned();
    let lookup = |name: &str| (name == "HOME").then(|| home.clone());
    let mut memory = Memory::found(false, lookup);
    memory.note("a drive", ME, learned(3));
    assert!(memory.save() && memory.recall("a drive", ME).is_none());
    assert_eq!(fs::read_dir(&home).expect("a folder").count(), 0);
    let mut memory = Memory::found(true, lookup);
    memory.note("a drive", ME, learned(3));
    assert!(memory.save() && home.join(".cache/forebay/learned").is_file());
}

#[test]
fn the_cache_folder_is_where_the_variables_say() {
    let sheet = |xdg: &str, home: &str| {
        let named = |name: &str| if name == "HOME" { home } else { xdg }.to_owned();
        Memory::found(true, |name| Some(PathBuf::from(named(name)))).sheet
    };
    let within = |folder: &str| Some(Sheet::at(folder.into(), NAME, format::FILE_MAX));
    assert_eq!(sheet("/x", "/h"), within("/x/forebay"));
    assert_eq!(sheet("relative", "/h"), within("/h/.cache/forebay"));
    assert_eq!(sheet("", ""), None);
    assert_eq!(Memory::found(true, |_| None).sheet, None);
}

#[test]
fn those_who_write_at_once_lose_nothing() {
    let (_above, folder) = place();
    assert!(remember(&folder, "first", 1));
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let folder = &folder;
            scope.spawn(move || {
                for turn in 0..10 {
                    let mut memory = Memory::at(folder.clone());
                    memory.note(&format!("{writer}-{turn}"), ME, learned(turn + 1));
                    // Who waited for the others too long tries again with the next.
                    while !memory.save() {}
                }
            });
        }
    });
    let memory = Memory::at(folder);
    assert_eq!(memory.known.len(), 41);
    assert_eq!(memory.recall("3-9", ME), Some(learned(10)));
}

#[test]
fn a_damaged_file_is_read_as_far_as_it_goes_and_mended() {
    let (_above, folder) = place();
    assert!(remember(&folder, "good", 7));
    let path = folder.join(NAME);
    let text = fs::read_to_string(&path).expect("written");
    fs::write(&path, format!("{text}\0\u{7f} nonsense\nbad read 1 2 3 4\n{}", &text[..60]))
        .unwrap();
    assert_eq!(Memory::at(folder.clone()).recall("good", ME), Some(learned(7)));
    for bytes in [&b""[..], b"\xff\xfe\0\0", &b"x".repeat(10_000_000)] {
        fs::write(&path, bytes).expect("our own file");
        assert!(Memory::at(folder.clone()).known.is_empty());
        assert!(remember(&folder, "new", 2));
        assert_eq!(Memory::at(folder.clone()).recall("new", ME), Some(learned(2)));
    }
}

#[test]
fn a_clock_that_was_set_back_does_not_keep_what_is_old() {
    let (_above, folder) = place();
    assert!(remember(&folder, "a drive", 7));
    let path = folder.join(NAME);
    let text = fs::read_to_string(&path).expect("written");
    let (line, time) = text.trim_end_matches(" .\n").rsplit_once(' ').expect("words");
    assert!(time.parse::<u64>().is_ok_and(|time| time > 1_000_000_000));
    fs::write(&path, format!("{line} {} .\n", u64::MAX)).expect("our own file");
    assert_eq!(Memory::at(folder.clone()).recall("a drive", ME), Some(learned(7)));
    assert!(remember(&folder, "a drive", 2));
    assert_eq!(Memory::at(folder).recall("a drive", ME), Some(learned(2)));
}

#[test]
fn a_file_of_a_later_version_is_left_alone() {
    let (_above, folder) = place();
    assert!(remember(&folder, "old", 7));
    let later = "forebay learned, version 2\nsomething else\n";
    fs::write(folder.join(NAME), later).expect("our own file");
    assert!(Memory::at(folder.clone()).known.is_empty());
    assert!(!remember(&folder, "new", 2));
    assert_eq!(fs::read_to_string(folder.join(NAME)).expect("still there"), later);
}

#[test]
fn links_and_things_that_are_no_files_are_neither_followed_nor_waited_for() {
    let (above, folder) = place();
    assert!(remember(&folder, "a drive", 7));
    let path = folder.join(NAME);
    let victim = above.path().join("victim");
    fs::write(&victim, "precious").expect("a file");
    let hostile: [&dyn Fn(); 2] = [&|| symlink(&victim, &path).expect("a link"), &|| {
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, mode, 0).expect("a FIFO");
    }];
    for make in hostile {
        fs::remove_file(&path).expect("it was there");
        make();
        assert!(Memory::at(folder.clone()).known.is_empty());
        assert!(remember(&folder, "new", 2), "the name is ours to give again");
        assert!(fs::symlink_metadata(&path).expect("there").is_file());
        assert_eq!(fs::read_to_string(&victim).expect("there"), "precious");
    }
    fs::remove_file(&path).expect("it was there");
    fs::create_dir(&path).expect("a folder");
    assert!(Memory::at(folder.clone()).known.is_empty() && !remember(&folder, "new", 2));
    assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 1, "nothing is left beside it");
}

#[test]
fn a_folder_that_others_may_change_is_not_used() {
    let (above, folder) = place();
    assert!(remember(&folder, "a drive", 7));
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("our own");
    assert!(Memory::at(folder.clone()).known.is_empty() && !remember(&folder, "new", 2));
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("our own");
    let link = above.path().join("link");
    symlink(&folder, &link).expect("a link");
    assert!(Memory::at(link.clone()).known.is_empty() && !remember(&link, "new", 2));
    // Another user's, where this one may play another.
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&folder, Some(65534), None).expect("root may");
        assert!(Memory::at(folder.clone()).known.is_empty() && !remember(&folder, "new", 2));
        std::os::unix::fs::chown(&folder, Some(0), None).expect("root may");
        std::os::unix::fs::chown(folder.join(NAME), Some(65534), None).expect("root may");
        assert!(Memory::at(folder.clone()).known.is_empty());
    } else {
        println!("skipped: another user's folder: needs root");
    }
}

#[test]
fn what_cannot_be_written_is_no_error() {
    let (above, _) = place();
    let file = above.path().join("file");
    fs::write(&file, "").expect("a file");
    for folder in ["/proc/self/forebay", "/dev/null/forebay", "/no/such/place/forebay"] {
        assert!(!remember(Path::new(folder), "a drive", 7), "{folder}");
    }
    assert!(!remember(&file.join("forebay"), "a drive", 7));
    assert!(!remember(&file, "a drive", 7));
}

#[test]
fn what_a_killed_process_left_is_no_hindrance() {
    let (_above, folder) = place();
    assert!(remember(&folder, "a drive", 7));
    let own = rustix::thread::gettid().as_raw_nonzero();
    fs::write(folder.join(format!("{NAME}.{own}.new")), "half a li").expect("a file");
    assert!(remember(&folder, "new", 2));
    assert_eq!(Memory::at(folder.clone()).known.len(), 2);
    assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 1);
}
