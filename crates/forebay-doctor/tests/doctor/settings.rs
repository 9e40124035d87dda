//! cuFile's settings: missing, damaged, of another kind, contradictory, and what variables make of
//! them.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use forebay_doctor::{Report, State};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::check;
use crate::faults::{BOTH, P2PDMA, after, closes, warns};
use crate::lab::{self, or_skip};
use crate::machine::{Machine, SETTINGS};

#[test]
fn settings_of_cufile() {
    let settings = |text: &str| {
        let text = text.to_owned();
        after(move |m| m.tree.write("etc/cufile.json", text))
    };
    let damaged = settings("{ \"properties\": {\n \"use_pci_p2pdma\": tru }\n}");
    closes(&damaged, "cufile_json", BOTH, "line 2: Unexpected word");
    assert!(damaged.is_broken());
    let marked = settings(&format!("\u{feff}{SETTINGS}"));
    closes(&marked, "cufile_json", BOTH, "line 1: it begins with a byte-order mark");
    assert!(marked.is_broken());
    let nested = settings(
        r#"{"properties":{"use_pci_p2pdma":true},"fs":{"block":{"nvme":{"use_pci_p2pdma":true}}}}"#,
    );
    assert!(check(&nested, "cufile_json").seen.contains("inside `fs`") && nested.is_broken());
    closes(&nested, "cufile_p2pdma", P2PDMA, "`block.nvme.use_pci_p2pdma` is not set");
    let off = settings("{\"properties\": {\"use_pci_p2pdma\": false}}");
    closes(&off, "cufile_p2pdma", P2PDMA, "is false");
    assert!(!off.is_broken(), "it is not wanted");
    let half = settings(&SETTINGS.replace(
        r#""nvme": { "use_pci_p2pdma": true }"#,
        r#""nvme": { "use_pci_p2pdma": false }"#,
    ));
    closes(&half, "cufile_p2pdma", P2PDMA, "the global key is true");
    assert!(half.is_broken(), "both keys contradict each other");
    for (list, name) in [
        ("mounts", "/data"),
        ("devices", "/dev/nvme1n1"),
        ("filesystems", "ext4"),
        ("drivers", "nvme"),
    ] {
        let text =
            SETTINGS.replace(&format!("\"{list}\": []"), &format!("\"{list}\": [\"{name}\"]"));
        closes(&settings(&text), "cufile_denylist", BOTH, name);
    }
    let array = SETTINGS.replace("\"devices\": []", "\"devices\": [\"/dev/nvme1n1p1\"]");
    assert_eq!(check(&settings(&array), "cufile_denylist").state, State::Ok, "not this one");
    let elsewhere = SETTINGS.replace("\"mounts\": []", "\"mounts\": [\"/dat\", \"/data/sub\"]");
    assert_eq!(check(&settings(&elsewhere), "cufile_denylist").state, State::Ok);
    let forced = SETTINGS.replace("\"allow_compat", "\"force_compat_mode\": true, \"allow_compat");
    closes(&settings(&forced), "cufile_compat", BOTH, "force_compat_mode");
    let both = forced.replace("\"allow_compat_mode\": true", "\"allow_compat_mode\": false");
    assert!(check(&settings(&both), "cufile_compat").is_broken);
    let twice = SETTINGS.replace("\"allow_compat", "\"use_pci_p2pdma\": true, \"allow_compat");
    warns(&settings(&twice), "cufile_json", "stands twice");
    let long = format!("{SETTINGS}{}", " ".repeat(70_000));
    assert_eq!(check(&settings(&long), "cufile_json").state, State::Unknown);
    let none = after(|m| m.remove("etc/cufile.json"));
    assert_eq!(check(&none, "cufile_json").state, State::Warning);
}

#[test]
fn variables_of_cufile() {
    let named = |lines: &str| {
        let lines = lines.to_owned();
        after(move |m| m.tree.write("proc/self/environ", lines))
    };
    let missing = named("CUFILE_ENV_PATH_JSON=/nowhere.json\0HOME=/root\0");
    closes(&missing, "cufile_json", BOTH, "/nowhere.json (`CUFILE_ENV_PATH_JSON`): no such file");
    let folder = named("CUFILE_ENV_PATH_JSON=/etc\0");
    closes(&folder, "cufile_json", BOTH, "/etc");
    let other = named("CUFILE_LOGGING_LEVEL=TRACE\0");
    warns(&other, "cufile_environment", "CUFILE_LOGGING_LEVEL=TRACE");
    let rules = after(|m| {
        m.tree.write("proc/self/environ", "CUFILE_ENV_PATH_JSON=/opt/own.json\0");
        m.tree.link("opt/own.json", "/srv/own.json");
        m.tree.write("srv/own.json", SETTINGS);
        m.tree.write("etc/cufile.json", "damaged");
    });
    assert_eq!(check(&rules, "cufile_json").seen, "/opt/own.json (`CUFILE_ENV_PATH_JSON`)");
}

/// What a machine says whose settings are no text that could be read.
#[test]
fn settings_that_are_no_file_are_neither_waited_for_nor_passed_over() {
    let put = |make: &dyn Fn(&Path)| {
        let machine = Machine::p2pdma();
        machine.settle();
        let file = machine.tree.root().join("etc/cufile.json");
        fs::remove_file(&file).unwrap();
        make(&file);
        machine.examine_settled("/data/f")
    };
    let step = |report: &Report| check(report, "cufile_json").step.clone().unwrap();
    let pipe = put(&|file| mknodat(CWD, file, FileType::Fifo, Mode::RUSR, 0).unwrap());
    let folder = put(&|file| fs::create_dir(file).unwrap());
    let circle = put(&|file| symlink("cufile.json", file).unwrap());
    for report in [&pipe, &folder, &circle] {
        closes(report, "cufile_json", BOTH, "/etc/cufile.json: not a file");
        assert!(report.is_broken());
        assert_eq!(step(report), "put a file in the place of /etc/cufile.json");
        assert_eq!(check(report, "cufile_p2pdma").state, State::Unknown);
        assert!(report.check("cufile_compat").is_none(), "it says nothing");
    }
    let empty = put(&|file| fs::write(file, "").unwrap());
    closes(&empty, "cufile_json", BOTH, "line 1: there is no value in it");
    let deep = put(&|file| fs::write(file, "[".repeat(60_000)).unwrap());
    closes(&deep, "cufile_json", BOTH, "line 1: Maximum nesting depth exceeded");
    let binary = put(&|file| fs::write(file, [0xff; 1000]).unwrap());
    closes(&binary, "cufile_json", BOTH, "line 1: Unexpected token");
}

#[test]
fn unreadable_settings_say_so() {
    let machine = Machine::p2pdma();
    machine.settle();
    let root = machine.tree.root();
    let allow = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    allow(root.parent().unwrap(), 0o755);
    allow(&root.join("etc/cufile.json"), 0o600);
    let looked = lab::unprivileged(|| machine.examine_settled("/data/f"));
    let Some(report) = or_skip(looked) else { return };
    closes(&report, "cufile_json", BOTH, "/etc/cufile.json: permission denied");
    let step = check(&report, "cufile_json").step.as_deref();
    assert_eq!(step, Some("`chmod a+r /etc/cufile.json`"));
    assert_eq!(check(&report, "kernel_version").state, State::Ok, "the rest may be read");
}

#[test]
fn flags_of_another_kind_are_reported() {
    let text = SETTINGS.replace("\"use_pci_p2pdma\": true,", "\"use_pci_p2pdma\": \"true\",");
    let report = after(|m| m.tree.write("etc/cufile.json", text));
    let found = check(&report, "cufile_json");
    assert_eq!(found.state, State::Warning);
    assert!(found.seen.ends_with("neither `true` nor `false`: `properties.use_pci_p2pdma`"));
    assert!(found.step.as_ref().unwrap().contains("without quotes"));
    let text = r#"{"properties": {"use_pci_p2pdma": 1, "force_compat_mode": null}}"#;
    let report = after(|m| m.tree.write("etc/cufile.json", text));
    let seen = &check(&report, "cufile_json").seen;
    assert!(seen.ends_with("`properties.use_pci_p2pdma`, `properties.force_compat_mode`"));
}

#[test]
fn half_of_what_p2pdma_takes_contradicts_itself_whichever_half_it_is() {
    let text = SETTINGS.replace(
        "\"properties\": { \"use_pci_p2pdma\": true,",
        "\"properties\": { \"use_pci_p2pdma\": false,",
    );
    let report = after(|m| m.tree.write("etc/cufile.json", text));
    let seen = "is false, though `block.nvme.use_pci_p2pdma` is true";
    closes(&report, "cufile_p2pdma", P2PDMA, seen);
    assert!(report.is_broken());
    // That of another kind of storage is none of this path's.
    let other = r#"{"block": {"raid": {"use_pci_p2pdma": true}}}"#;
    let report = after(|m| m.tree.write("etc/cufile.json", other));
    closes(&report, "cufile_p2pdma", P2PDMA, "`properties.use_pci_p2pdma` is not set");
    assert!(!report.is_broken());
}

/// What a machine says in whose processes these variables are set.
fn with(variables: &str, settings: &str) -> Report {
    let (variables, settings) = (variables.to_owned(), settings.to_owned());
    after(move |m| {
        m.tree.write("proc/self/environ", variables);
        m.tree.write("etc/cufile.json", settings);
    })
}

#[test]
fn variables_go_before_the_file() {
    let off = SETTINGS.replacen("\"use_pci_p2pdma\": true", "\"use_pci_p2pdma\": false", 1);
    let on = with("CUFILE_USE_PCIP2PDMA=TRUE\0", &off);
    assert_eq!(check(&on, "cufile_p2pdma").state, State::Ok, "{on:#?}");
    assert!(on.ways[0].is_open);
    let off = with("CUFILE_USE_PCIP2PDMA=false\0", SETTINGS);
    closes(&off, "cufile_p2pdma", P2PDMA, "`CUFILE_USE_PCIP2PDMA` is false");
    let step = check(&off, "cufile_p2pdma").step.clone().unwrap();
    assert_eq!(step, "unset `CUFILE_USE_PCIP2PDMA`, or set it to true");
    for unclear in ["", "0", "yes"] {
        let report = with(&format!("CUFILE_USE_PCIP2PDMA={unclear}\0"), SETTINGS);
        assert_eq!(check(&report, "cufile_p2pdma").state, State::Ok, "the file rules: {unclear}");
    }
    let forced = with("CUFILE_FORCE_COMPAT_MODE=true\0", SETTINGS);
    closes(&forced, "cufile_compat", BOTH, "`CUFILE_FORCE_COMPAT_MODE` is true");
    let force = SETTINGS.replace("\"allow_compat", "\"force_compat_mode\": true, \"allow_compat");
    let taken_back = with("CUFILE_FORCE_COMPAT_MODE=false\0", &force);
    assert_eq!(check(&taken_back, "cufile_compat").state, State::Ok);
    let forbidden = with("CUFILE_ALLOW_COMPAT_MODE=false\0", SETTINGS);
    let seen = &check(&forbidden, "cufile_compat").seen;
    assert!(seen.starts_with("not allowed (`CUFILE_ALLOW_COMPAT_MODE`)"), "{seen}");
    let both = with("CUFILE_ALLOW_COMPAT_MODE=false\0", &force);
    let seen = "`properties.force_compat_mode` is true and `CUFILE_ALLOW_COMPAT_MODE` is false";
    closes(&both, "cufile_compat", BOTH, seen);
    assert!(both.is_broken());
    // Also where there is no file.
    let alone = after(|m| {
        m.tree.write("proc/self/environ", "CUFILE_FORCE_COMPAT_MODE=true\0");
        m.remove("etc/cufile.json");
    });
    closes(&alone, "cufile_compat", BOTH, "`CUFILE_FORCE_COMPAT_MODE` is true");
}
