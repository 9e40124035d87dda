//! Results whose values take many times their text in memory.

use std::fs;
use std::process::Command;

use serde_json::Value;

use super::results::small;
use crate::lab::note;
use crate::program::program;

#[test]
fn json_that_takes_many_times_its_size_in_memory_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("mutated");
    let text = small();
    let (run, rest) = text.split_once('\n').expect("lines");
    let with = |object: &str, values: &str| {
        let end = object.rfind('}').expect("an object");
        format!("{},\"x\":[{values}0]}}\n", &object[..end])
    };
    let request = |values: &str| {
        let mut run: Value = serde_json::from_str(run).expect("a run");
        run["request"] = "@".into();
        let text = run.to_string().replace(",\"record\":\"run\"", "");
        let text = text.replacen('{', "{\"record\":\"run\",", 1);
        text.replace("\"@\"", &format!("[{values}0]"))
    };
    let limit = rest.lines().next().expect("a limit");
    let sample = rest.lines().last().expect("a sample");
    for (value, count) in [("0,", 24 << 20), ("[],", 16 << 20), ("{\"\":0},", 3 << 20)] {
        let (values, few) = (value.repeat(count), value.repeat(count / 6));
        let sample = format!("{run}\n{limit}\n{}", with(sample, &values));
        let runs = (0..9).map(|n| request(&format!("{few}{n},")) + "\n").collect();
        let files = [
            ("report", "line 1: ", with(run, &values) + rest),
            ("report", "line 3: ", sample),
            ("report", "line ", runs),
            ("report --as fio", "", with("{\"fio version\":\"fio-3.40\",\"jobs\":[]}", &values)),
        ];
        for (verb, place, text) in files {
            fs::write(&path, &text).expect("a file");
            note(format!("{verb} of {value}, {place}"));
            let mut shell = Command::new("sh");
            let limited = format!("ulimit -d 900000 && exec \"$0\" {verb} mutated");
            shell.args(["-c", &limited]).arg(program()).current_dir(folder.path());
            let output = shell.output().expect("a shell");
            let printed = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{verb} of {value}: {printed}");
            let names = printed.contains("`mutated`") && printed.contains(place);
            assert!(
                names && printed.contains("the limit is 512 MiB"),
                "{verb} of {value}: {printed}"
            );
        }
    }
}
