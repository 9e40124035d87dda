//! What is measured, and what is left behind: nothing.

use std::fs;

use forebay_cli::report::json::{Cache, Direction, MethodName, Report, Row};

use super::{command, folder_with, names, report, run, stderr};

fn rows(report: &Report, method: MethodName) -> Vec<&Row> {
    report.results.iter().filter(|row| row.method == method).collect()
}

/// Whether this folder's files can be cold.
fn has_cold_rows(report: &Report) -> bool {
    report.results.iter().any(|row| row.cache == Some(Cache::Cold))
}

#[test]
fn files_are_measured_each_alone_and_all_together() {
    let files = [("a", 3_000_001), ("b", 5_000_000), ("c", 100)];
    let folder = folder_with(&files);
    let before = fs::read(folder.path().join("b")).unwrap();
    for gpu in ["none", "sim"] {
        let output = run(folder.path(), &["a", "b", "c", "--gpu", gpu, "--json"]);
        assert!(output.status.success(), "{}", stderr(&output));
        let report = report(&output);
        if !has_cold_rows(&report) {
            println!("skipped: cold rows: this folder's files cannot be cold");
            return;
        }
        let ours = rows(&report, MethodName::Forebay);
        let paths: Vec<_> = ours.iter().map(|row| row.paths.clone().unwrap()).collect();
        assert_eq!(paths, [vec!["a"], vec!["b"], vec!["c"], vec!["a", "b", "c"]]);
        let bytes: Vec<_> = ours.iter().map(|row| row.bytes).collect();
        assert_eq!(bytes[3], bytes[..3].iter().sum::<u64>());
        assert!(bytes.iter().zip(files).all(|(bytes, (_, len))| *bytes <= len as u64));
        for row in &report.results {
            assert!(row.seconds.len() >= 3, "{row:?}");
            assert_eq!(row.verified, (!row.method.is_ceiling()).then_some(true), "{row:?}");
            assert_eq!(row.simulated, gpu == "sim");
            assert_eq!(row.direction, Direction::Read);
        }
        assert_eq!(rows(&report, MethodName::OneQueue).len(), 1);
        let one_queue = rows(&report, MethodName::OneQueue)[0];
        assert_eq!(one_queue.settings.as_ref().unwrap().values["threads"], "16");
        // They lie on one drive, which is never counted twice.
        let storage = rows(&report, MethodName::Storage);
        let best = |row: &&&Row| row.bytes_per_second.max;
        if let Some(limit) = ours[3].limit.filter(|limit| limit.name == MethodName::Storage) {
            let most = storage.iter().map(|row| best(&row)).fold(0.0, f64::max);
            assert!((limit.bytes_per_second - most).abs() <= most * 1e-9);
        }
        let text = report.warnings.join("\n");
        assert!(text.contains("3 paths are on 1 drive"), "{text}");
        assert!(text.contains("KvikIO is not compared"), "{text}");
        assert_eq!(report.environment.versions.kvikio, None);
        assert_eq!(names(folder.path()), ["a", "b", "c"]);
    }
    assert_eq!(fs::read(folder.path().join("b")).unwrap(), before);
}

#[test]
fn folders_get_scratch_of_their_own() {
    let folder = folder_with(&[]);
    for name in ["one", "two"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    let arguments = ["one", "two", "--size", "2000001", "--gpu", "none", "--json"];
    let all = [&arguments[..], &["--read", "--write", "--cold", "--resident"]].concat();
    let output = run(folder.path(), &all);
    assert!(output.status.success(), "{}", stderr(&output));
    let report = report(&output);
    if !has_cold_rows(&report) {
        println!("skipped: cold rows: this folder's files cannot be cold");
        return;
    }
    for direction in [Direction::Read, Direction::Write] {
        for cache in [Cache::Cold, Cache::Resident] {
            for (method, count) in [(MethodName::Forebay, 3), (MethodName::OneQueue, 1)] {
                let found = rows(&report, method).into_iter().filter(|row| {
                    (row.direction, row.cache, row.verified) == (direction, Some(cache), Some(true))
                });
                let told = || format!("{method:?} {direction:?} {cache:?}: {:#?}", report.warnings);
                assert_eq!(found.count(), count, "{}", told());
            }
        }
    }
    let path = &rows(&report, MethodName::OneQueue)[0].paths.as_ref().unwrap()[1];
    assert!(path.starts_with("two/.forebay-scratch-") && path.ends_with("/read"), "{path}");
    for name in ["one", "two"] {
        assert!(names(&folder.path().join(name)).is_empty(), "scratch was left");
    }
}

#[test]
fn one_folder_is_a_place_for_scratch() {
    let folder = folder_with(&[]);
    fs::create_dir(folder.path().join("one")).unwrap();
    let output = run(folder.path(), &["one", "--size", "1M", "--resident", "--gpu", "none"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(names(&folder.path().join("one")).is_empty(), "scratch was left");
}

#[test]
fn a_table_shows_shares() {
    let folder = folder_with(&[("a", 2_000_000), ("b", 2_000_000)]);
    let output = run(folder.path(), &["a", "b", "--resident", "--gpu", "none"]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("read, resident, each alone"), "{table}");
    assert!(table.contains("read, resident, all together"), "{table}");
    assert!(table.lines().any(|line| line.starts_with("one-queue") && line.contains("right")));
    assert!(!table.contains('\u{1b}'));
}

#[test]
fn files_in_memory_are_never_called_cold() {
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped: files in memory: there is no tmpfs at /dev/shm");
        return;
    };
    let folder = folder_with(&[("a", 1_000_000)]);
    fs::write(memory.path().join("b"), vec![3; 1_000_000]).unwrap();
    let b = memory.path().join("b").display().to_string();
    let output = run(folder.path(), &["a", &b, "--gpu", "none", "--json"]);
    let found = report(&output);
    if found.environment.drives.iter().all(|drive| drive.kind != "memory") {
        println!("skipped: files in memory: /dev/shm is no tmpfs");
        return;
    }
    assert!(!has_cold_rows(&found));
    assert!(found.warnings.iter().any(|text| text.starts_with("no cold rows")));
    let output = run(folder.path(), &["a", &b, "--cold", "--gpu", "none"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(&format!("cold file at `{b}`")), "{}", stderr(&output));
}

#[test]
fn a_demanded_route_is_taken_by_our_engine() {
    let folder = folder_with(&[("a", 1_000_000), ("b", 1_000_000)]);
    let arguments = ["a", "b", "--gpu", "sim", "--route", "cached", "--resident", "--json"];
    let output = command(folder.path(), &arguments).output().unwrap();
    let report = report(&output);
    let ours = rows(&report, MethodName::Forebay);
    assert_eq!(ours.len(), 3);
    assert!(ours.iter().all(|row| row.route.as_deref() == Some("cached")));
    assert!(ours.iter().all(|row| row.demanded.as_deref() == Some("cached")));
}
