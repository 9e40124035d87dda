//! `forebay doctor`: on this machine, on machines made by hand, and on what makes no sense.

use std::fs;
use std::path::Path;
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;

use crate::machine::Machine;
use crate::program::program;

const PAGE: &str = include_str!("../../../../docs/json-schema.md");

fn doctor(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.current_dir(folder).env("COLUMNS", "90").env("LC_ALL", "C.UTF-8");
    command.env_remove("CUFILE_ENV_PATH_JSON").env("NO_COLOR", "1");
    command.arg("doctor").args(arguments).output().unwrap()
}

/// The report of a run that ended with `code`.
#[track_caller]
fn report(folder: &Path, arguments: &[&str], code: i32) -> Value {
    let output = doctor(folder, &[arguments, &["--format=json"]].concat());
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["broken"], code == 1, "{report:#}");
    report
}

fn folder() -> tempfile::TempDir {
    // On a drive, where the system's folder for such files may be in memory.
    tempfile::tempdir_in(".").unwrap()
}

/// Direction, required route and end of each transfer.
fn ends(report: &Value) -> Vec<String> {
    let words = |transfer: &Value| {
        ["direction", "required", "end"].map(|key| text(&transfer[key]).to_owned()).join(" ")
    };
    list(&report["transfers"]).iter().map(words).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    list(&report["checks"]).iter().find(|check| check["name"] == name).unwrap()
}

#[test]
fn bytes_are_moved_each_way_and_nothing_stays() {
    let folder = folder();
    let report = report(folder.path(), &["--gpu", "sim"], 0);
    let expected = [
        "write direct refused",
        "read direct refused",
        "write staged moved",
        "read staged moved",
        "write cached moved",
        "read cached moved",
    ];
    assert_eq!(ends(&report), expected, "{report:#}");
    assert!(text(&report["sentence"]).contains("to a simulated GPU through pinned host memory"));
    assert_eq!(report["target"], "sim:0");
    for transfer in list(&report["transfers"]).iter().filter(|one| one["end"] == "moved") {
        assert_eq!(transfer["bytes"], 4 << 20);
        let routes = list(&transfer["routes"]);
        let counted: u64 = routes.iter().map(|share| share["bytes"].as_u64().unwrap()).sum();
        assert_eq!(transfer["bytes"], counted, "the engine's own account");
        assert!(routes.iter().all(|share| share["route"] == transfer["required"]));
        let verdict = &transfer["verdict"];
        assert!(verdict["simulated"] == true && verdict["grounds"][0].is_string(), "{verdict}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "scratch is removed");
}

#[test]
fn an_available_direct_path_is_taken_and_proven() {
    let folder = folder();
    let report = report(folder.path(), &["--gpu", "sim:cufile"], 0);
    assert_eq!(ends(&report)[..2], ["write direct moved", "read direct moved"], "{report:#}");
    let page = PAGE.split_once("\n# The JSON of `forebay doctor --format json`\n").unwrap().1;
    for part in [&report, &report["checks"][0], &report["ways"][0], &report["transfers"][0]] {
        for key in part.as_object().unwrap().keys() {
            assert!(page.contains(&format!("`{key}`")), "the page lacks `{key}`");
        }
    }
    assert!(
        text(&report["sentence"]).ends_with("to a simulated GPU without a copy in host memory")
    );
    assert!(
        text(&report["answer"]).starts_with("yes. Counters verify it: direct (p2pdma)"),
        "{report:#}"
    );
    for transfer in list(&report["transfers"]) {
        assert_eq!(transfer["verdict"]["simulated"], true, "host memory simulates the GPU");
    }
}

#[test]
fn false_reports_and_failures_of_cufile_are_found() {
    let folder = folder();
    let lying = report(folder.path(), &["--gpu", "sim:cufile=lie"], 1);
    assert_eq!(ends(&lying)[..2], ["write direct failed", "read direct failed"], "{lying:#}");
    assert!(text(&lying["sentence"]).contains("through pinned host memory"), "{lying:#}");
    let printed = doctor(folder.path(), &["--gpu", "sim:cufile=lie"]);
    let printed = String::from_utf8(printed.stderr).unwrap();
    let cause = "caused by: read by `direct`: the bytes that arrived differ from the file";
    assert!(printed.contains(cause), "{printed}");
    assert!(printed.contains("hint: `FOREBAY_CUFILE=off` disables cuFile"), "{printed}");
    let refusing = report(folder.path(), &["--gpu", "sim:cufile=refuse"], 0);
    assert_eq!(ends(&refusing)[..2], ["write direct refused", "read direct refused"]);
    assert!(text(&refusing["transfers"][1]["reason"]).contains("5008"), "{refusing:#}");
    // One that takes the file, and then fails.
    let failing = report(folder.path(), &["--gpu", "sim:cufile=fail"], 1);
    assert_eq!(ends(&failing)[..2], ["write direct failed", "read direct failed"], "{failing:#}");
    assert!(text(&failing["transfers"][1]["reason"]).contains("IO_ERROR (5044)"));
    assert!(text(&failing["sentence"]).contains("through pinned host memory"), "{failing:#}");
}

#[test]
fn a_file_is_only_read() {
    let folder = folder();
    let file = folder.path().join("file");
    fs::write(&file, vec![7; 70_001]).unwrap();
    let before = fs::metadata(&file).unwrap().modified().unwrap();
    let report = report(folder.path(), &["file", "--gpu", "sim"], 0);
    let expected = ["read direct refused", "read staged moved", "read cached moved"];
    assert_eq!(ends(&report), expected);
    assert!(report["transfers"][1]["bytes"] == 70_001 && report["path"] == "file");
    assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), before);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no other file is made");
}

#[test]
fn without_a_gpu_bytes_go_to_host_memory() {
    let folder = folder();
    let report = report(folder.path(), &["--gpu", "none"], 0);
    assert_eq!(ends(&report), ["write host moved", "read host moved"]);
    assert!(report["gpu"].is_null() && text(&report["sentence"]).contains("to host memory"));
    let class = check(&report, "gpu_class");
    assert_eq!((&class["state"], &class["broken"]), (&"problem".into(), &false.into()));
}

#[test]
fn an_impossible_transfer_is_reported() {
    let folder = folder();
    fs::write(folder.path().join("empty"), "").unwrap();
    let report = report(folder.path(), &["empty", "--gpu", "sim"], 0);
    assert_eq!(ends(&report), [""; 0]);
    assert_eq!(report["not_moved"], "cannot move bytes of `empty`: it is empty");
    let report = self::report(folder.path(), &["/proc", "--gpu", "sim"], 0);
    assert!(text(&report["not_moved"]).contains("cannot make a scratch file in `/proc`"));
    assert!(text(&report["sentence"]).contains("nothing was moved"), "nothing is claimed");
}

#[test]
fn settings_that_are_damaged_are_a_failure() {
    let folder = folder();
    let file = folder.path().join("own.json");
    fs::write(&file, "{ \"properties\": {\n }} }").unwrap();
    let mut command = Command::new(program());
    command.current_dir(folder.path()).env("CUFILE_ENV_PATH_JSON", "own.json");
    let output = command.args(["doctor", "own.json", "--gpu", "none"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    let expected = [
        "error: a part of the data path of `own.json` does not work",
        "caused by: cufile_json: own.json (`CUFILE_ENV_PATH_JSON`), line 2: Text cannot",
        "hint: correct the file",
    ];
    assert!(expected.iter().all(|part| error.contains(part)), "{error}");
}

#[test]
fn a_gpu_that_is_lost_meanwhile_is_a_failure() {
    let folder = folder();
    let report = report(folder.path(), &["--gpu", "sim:lost-after=6"], 1);
    let failed = list(&report["transfers"]).iter().map(|transfer| text(&transfer["reason"]));
    let reported: Vec<&str> = failed.chain([text(&report["not_moved"])]).collect();
    assert!(reported.iter().any(|reason| reason.contains("sim:0")), "{report:#}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "scratch is removed");
}

#[test]
fn a_named_gpu_that_is_missing_is_a_failure() {
    let folder = folder();
    let report = report(folder.path(), &["--gpu", "0000:fe:1f.7"], 1);
    assert!(text(&report["not_moved"]).contains("0000:fe:1f.7"));
    let class = check(&report, "gpu_class");
    assert!(class["broken"] == true && text(&class["seen"]).contains("0000:fe:1f.7"), "{class}");
}

#[test]
fn a_record_is_replayed_and_never_written_over() {
    let folder = folder();
    let live = report(folder.path(), &["--gpu", "none"], 0);
    let output = doctor(folder.path(), &[".", "--record", "dir"]);
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("replay    forebay doctor --fixture dir\n"), "{printed}");
    let replayed = report(folder.path(), &["--fixture", "dir", "--gpu", "none"], 0);
    assert_eq!(replayed["replay"], "dir");
    let reported = |report: &Value| {
        let checks = list(&report["checks"]).iter().filter(|one| one["name"] != "memory_limit");
        checks.map(|one| (one["name"].clone(), one["state"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(reported(&replayed), reported(&live));
    assert_eq!(ends(&replayed), [""; 0]);
    let output = doctor(folder.path(), &[".", "--record", "dir"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && error.contains("cannot write a record to `dir`"));
}

#[test]
fn contradictory_arguments_are_refused() {
    let folder = folder();
    for arguments in [
        &["--gpu", "fast"][..],
        &[".", "/"],
        &["s3://bucket/file"],
        &["--extents"],
        &["--record", "a", "--fixture", "b"],
        &["--record", "a", "--format=json"],
        &["a", "b"],
    ] {
        let output = doctor(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
    }
    for (arguments, part) in
        [(&["nowhere"][..], "cannot inspect `nowhere`"), (&["--fixture", "."], "cannot replay `.`")]
    {
        let output = doctor(folder.path(), arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && error.contains(part), "{error}");
        assert!(error.contains("hint: give a"), "{error}");
    }
}

#[test]
fn a_recorded_h200_is_diagnosed_anywhere() {
    let folder = crate::scratch();
    let archive = folder.path().join("h200.tar.gz");
    fs::write(&archive, include_bytes!("../../../forebay-doctor/tests/doctor/h200.tar.gz"))
        .unwrap();
    let unpacked = Command::new("tar").arg("-xzf").arg(&archive).current_dir(&folder).output();
    if let Err(error) = unpacked {
        println!("skipped: a recorded machine: no `tar`: {error}");
        return;
    }
    let output = doctor(folder.path(), &["--fixture", "h200"]);
    assert!(output.status.success(), "nothing was set up: {output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let answer = "GPUDirect: no. 3 things missing for nvidia-fs: an NVMe drive, a udev that";
    assert!(printed.starts_with(answer), "{printed}");
    assert!(printed.contains("\nproblem   drive: ") && !printed.contains("\nok  "), "{printed}");
    let output = doctor(folder.path(), &["--fixture", "h200", "-v"]);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.starts_with(answer), "{printed}");
    assert!(printed.contains("\nok        gpu_class: NVIDIA H200\n"), "{printed}");
    assert!(
        printed.contains("\nok        cufile_library: 1.15, libcufile.so.0; its driver opens\n")
    );
}

/// What it says where nothing is broken.
fn printed(dir: &Path, args: &[&str]) -> String {
    let output = doctor(dir, args);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_machine_without_a_direct_path_reads_like_this() {
    let machine = Machine::virtual_h200();
    insta::assert_snapshot!(printed(&machine.settle(), &["/data/f", "--fixture", "."]), @r#"
    GPUDirect: no. 3 things missing for nvidia-fs: an NVMe drive, a udev that says what is on
               the block device, the module `nvidia-fs`

    problem   drive: vda: virtio
              next  use a path on a local NVMe drive
    problem   udev: there is no /run/udev
              next  start udev: `systemctl start systemd-udevd`, then `udevadm trigger`
    problem   nvidia_fs: the module `nvidia_fs` is not loaded
              next  install `nvidia-gds` (`nvidia-fs-dkms`) and `modprobe nvidia-fs`
    warning   mount_options: the table of mounts shows no `data=`, as kernels do for the
              default
              next  mount it again with `data=ordered` (`umount`, then `mount -o
                    data=ordered`), and in /etc/fstab
    21 more checks (4 problems, 1 unknown, 16 ok) and 0 transfers: `forebay doctor -v`
    "#);
}

#[test]
fn long_help_of_doctor() {
    insta::assert_snapshot!(crate::help::stdout(&["doctor", "--help"]), @"
        Find what prevents direct transfers to the GPU, and how to fix it

        The checks cover kernel, driver, PCI, storage, network, limits and cuFile's settings. Each
        reports what it found, why that matters and the next step; the largest obstacle comes
        first. Then a few MiB are read by each route, and written too if the path is a folder.
        Every byte is verified. The first line answers whether bytes can go to the GPU directly.
        Neither root nor a GPU is required. The exit code is 1 if something installed is broken.
        Lacking a direct path is no error.

        Usage: forebay doctor [OPTIONS] [PATH]...

        Arguments:
          [PATH]...
                  File, folder or block device [default: this folder]

                  A file or device is only read. In a folder a scratch file is made, and removed
                  afterwards. Several paths require `--tree`, which reads and writes none of them.

        Options:
              --gpu <WHICH>
                  GPU: an index, a UUID, a PCI address, `none`, or `sim`

                  By default the first GPU. With `--fixture`, an index or a PCI address.

          -q, --quiet
                  Print the answer alone, and no warnings

          -v, --verbose
                  Show every check and transfer

              --format <FORMAT>
                  `table`, or `json`: docs/json-schema.md describes it

          -h, --help
                  Print help (see a summary with '-h')

        Storage map:
              --tree
                  Show the storage map instead: drives under the paths, distance to each GPU

                  The map leads from the path through mounts, file systems, arrays and volumes to
                  the drives (marked `●`) and their PCI devices. Warnings name settings that cost
                  speed. All facts come from the kernel; what it does not report is shown as
                  unknown. Paths need not exist.

              --extents
                  With `--tree`: show where the bytes of the files are

              --measured <FILE>
                  With `--tree`: predict from what `forebay bench -o FILE` measured on one drive
                  and one GPU

                  The table of ceilings then uses the shares of theory that these reached.

        Recorded systems:
              --record <DIR>
                  Record what is checked, or mapped, in a new folder, and move nothing

              --fixture <DIR>
                  Diagnose or map the system recorded in this folder instead of this machine

                  With `--tree` and without a path, all recorded paths are shown.

        Examples:
          forebay doctor                       this folder and the first GPU
          forebay doctor /data -v              every check and transfer
          forebay doctor /data --gpu 1 --format json
          forebay doctor --tree /data /scratch drives, and their distance to each GPU
          forebay doctor /data --record DIR    record what is checked
          forebay doctor --fixture DIR         diagnose the record, on any machine
        ");
}
