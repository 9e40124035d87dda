//! A record says the same as the machine, and holds nothing private.

use std::fs;
use std::os::unix::fs::symlink;

use forebay_cufile::{End, Seen};
use forebay_doctor::{GpuWish, Wish, examine, record, recorded_answer};
use forebay_topology::System;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::lab::watchdog::Watchdog;
use crate::machine::Machine;
use crate::scratch;

fn wish() -> Wish {
    Wish { path: std::env::temp_dir(), gpu: GpuWish::First }
}

#[test]
fn a_record_of_this_machine_says_what_it_says() {
    let folder = scratch();
    let dir = folder.path().join("record");
    let text = "library /l.so\nversion 1.19\nopened\nstorage nvme p2pdma\n";
    let answer = (Seen::parse(text), End::Exited(0));
    record(&System::live(), &[wish()], Some(answer.clone()), &dir).unwrap();
    assert_eq!(recorded_answer(&dir).unwrap().as_ref(), Some(&answer));
    let live = examine(&System::live(), &wish(), Some(answer.clone()));
    let system = System::fixture(&dir).unwrap();
    assert_eq!(system.recorded_paths(), [wish().path]);
    let replayed = examine(&system, &wish(), Some(answer));
    let reported = |report: &forebay_doctor::Report| {
        let checks = report.checks.iter();
        // What a control group leaves changes from one moment to the next.
        let checks = checks.filter(|check| check.name != "memory_limit");
        checks.map(|check| (check.name, check.state, check.seen.clone())).collect::<Vec<_>>()
    };
    assert_eq!(reported(&replayed), reported(&live));
    assert!(record(&System::live(), &[wish()], None, &dir).is_err(), "nothing is written over");
}

#[test]
fn a_record_holds_only_what_is_looked_at() {
    let folder = scratch();
    let dir = folder.path().join("record");
    record(&System::live(), &[wish()], None, &dir).unwrap();
    assert_eq!(recorded_answer(&dir).unwrap(), None);
    let text = |file: &str| std::fs::read_to_string(dir.join("root/proc/self").join(file));
    for line in text("status").unwrap().lines() {
        assert!(line.starts_with("CapEff:"), "{line}");
    }
    for line in text("environ").unwrap().split_terminator('\0') {
        assert!(line.starts_with("CUFILE_") || line.starts_with("container="), "{line}");
    }
    let line = std::fs::read_to_string(dir.join("root/proc/cmdline")).unwrap_or_default();
    for word in line.split_whitespace() {
        let is_noted = ["iommu", "pci="].iter().any(|name| word.contains(name));
        assert!(is_noted, "it may hold passwords: {word}");
    }
    let settings = std::fs::metadata(dir.join("root/proc/config.gz"));
    assert!(settings.is_err() || settings.unwrap().len() < 1024, "all settings of the kernel");
}

/// Others may have made a record: nothing in it is waited for, or leads out of it.
#[test]
fn links_and_special_files_of_a_record_are_refused() {
    let _watchdog = Watchdog::start();
    let machine = Machine::p2pdma();
    let dir = machine.settle();
    let secret = dir.join("secret");
    fs::write(&secret, "library /secret\nopened\n").unwrap();
    let answers = || recorded_answer(&dir).map(drop);
    let system = || System::fixture(&dir).map(drop);
    let both: [(&str, &dyn Fn() -> std::io::Result<()>); 2] =
        [("expected/cufile.txt", &answers), ("expected/probe.jsonl", &system)];
    for (name, read) in both {
        let file = dir.join(name);
        read().expect("as it was made");
        let short = name.strip_prefix("expected/").unwrap();
        let refused = |what: &str| {
            let error = read().expect_err(what).to_string();
            assert_eq!(error, format!("`{short}`: not a file"), "{what}");
        };
        fs::remove_file(&file).unwrap();
        mknodat(CWD, &file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        refused("a FIFO");
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        refused("a folder");
        fs::remove_dir(&file).unwrap();
        for target in ["/dev/zero", secret.to_str().unwrap()] {
            symlink(target, &file).unwrap();
            refused(target);
            fs::remove_file(&file).unwrap();
        }
        fs::write(&file, vec![0; 1 << 20]).unwrap();
        read().expect("what makes no sense is left out");
        fs::remove_file(&file).unwrap();
        match name {
            "expected/cufile.txt" => assert_eq!(recorded_answer(&dir).unwrap(), None),
            _ => assert_eq!(read().unwrap_err().kind(), std::io::ErrorKind::NotFound),
        }
    }
}
