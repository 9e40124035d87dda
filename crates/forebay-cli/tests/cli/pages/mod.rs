//! What the pages of the documentation say: their examples run as they are pasted, quoted numbers
//! are those of the archived run that the page names, and the checks that it names exist.
//!
//! Each block that begins with `sh` is run by the shell, in the order of the page and in one fresh
//! folder for it. It ends with 0, or each of its commands with one of the codes `exit-N`. Of a
//! block with `slow`, and of one with `needs-…` that names what a machine may lack, the commands
//! are parsed; those with `slow` run in the slow tests. `with-PROGRAM` runs where that program is.

mod archived;
mod block;

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Output, Stdio};

use block::{Block, blocks};
use clap::Parser as _;
use forebay_cli::args::Arguments;
use tempfile::TempDir;

use crate::program::program;
use crate::proof::stays_in_memory;

const MEASURE: &str = include_str!("../../../../../docs/measure.md");

/// A folder on a drive, with the command below `bin`.
fn folder() -> TempDir {
    let folder = tempfile::tempdir_in(".").unwrap();
    for name in ["bin", "home", "here"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    symlink(program(), folder.path().join("bin/forebay")).unwrap();
    folder
}

/// Runs a script in the folder `here`, with `forebay` as the only word that is put in its way.
fn shell(folder: &TempDir, script: &str) -> Output {
    let root = std::path::absolute(folder.path()).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("sh");
    command.arg("-ec").arg(script).current_dir(root.join("here")).stdin(Stdio::null());
    command.env("PATH", format!("{}:{path}", root.join("bin").display()));
    for variable in ["HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"] {
        command.env(variable, root.join("home"));
    }
    command.output().unwrap()
}

fn printed(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}", text(&output.stdout), text(&output.stderr))
}

/// Runs one block of a page: whole, or command by command if these may end with several codes.
fn run(folder: &TempDir, page: &str, block: &Block) {
    let exits = block.exits();
    let commands = if exits == [0] { vec![block.text.clone()] } else { block.commands() };
    for command in commands {
        let output = shell(folder, &command);
        let code = output.status.code();
        assert!(
            exits.contains(&code.unwrap_or(-1)),
            "{page}:{}: ended with {code:?}:\n{command}\n{}",
            block.line,
            printed(&output)
        );
    }
}

/// Has the shell part the words of each command of a block, and the command line read them.
fn parse(folder: &TempDir, page: &str, block: &Block) -> usize {
    // What a loop would set.
    let words =
        "queues=1; readers=1; exec 3>&1; forebay() { printf '%s\\0' forebay \"$@\" >&3; }; ";
    let commands = block.commands();
    for command in &commands {
        // No words are written to where the command would write its results.
        let output = shell(folder, &format!("{words}{command}"));
        assert!(output.status.success(), "{page}:{}: {command}: {}", block.line, printed(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        let parsed = Arguments::try_parse_from(text.trim_end_matches('\0').split('\0'));
        if let Err(error) = parsed {
            panic!("{page}:{}: {command}: {error}", block.line);
        }
    }
    commands.len()
}

/// Has what follows run on the simulated GPU, with little to do, in this folder.
const SMALL: &str = "
forebay() {
  verb=$1; shift
  case $verb in
    bench) set -- --gpu sim:cufile --size 4M --time 500ms --repeats 1 \"$@\" ;;
    gpu-file-benchmark) set -- --gpu sim:cufile -s 2 -r 1 \"$@\" ;;
  esac
  command forebay $verb \"$@\"
}
";

/// Runs a block for hardware with as much less as it takes to run here.
fn run_small(folder: &TempDir, page: &str, block: &Block) {
    let mut small = block.clone();
    small.text = format!("{SMALL}{}", block.text);
    run(folder, page, &small);
}

/// Runs the blocks of a page, in its order; those that are slow only if `slow` says so.
fn run_page(page: &str, text: &str, slow: bool) {
    let folder = folder();
    let all = blocks(text);
    for block in all.iter().filter(|block| block.is("sh")) {
        let is_kept = block.needs().is_some() || (block.has("slow") && !slow);
        let has_program = block.with().is_none_or(|program| {
            shell(&folder, &format!("command -v {program}")).status.success()
        });
        if is_kept || !has_program {
            assert!(parse(&folder, page, block) > 0 || block.needs().is_some(), "{page}");
        } else {
            run(&folder, page, block);
        }
    }
    let left = fs::read_dir(folder.path().join("here")).unwrap();
    let left: Vec<String> =
        left.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    let scratch = left.iter().filter(|name| name.starts_with(".forebay"));
    assert_eq!(scratch.count(), 0, "{page}: {left:?}");
    let known = ["sh", "python", "text", "rust", "toml", "ini", "json"];
    let unknown = all.iter().find(|block| !known.iter().any(|kind| block.is(kind)));
    assert_eq!(unknown, None, "{page}: a block of no known kind");
}

macro_rules! pages {
    ($($page:ident: $file:literal),*) => {
        $(mod $page {
            const PAGE: &str = include_str!(concat!("../../../../../docs/", $file));

            #[test]
            fn runs_as_pasted() {
                super::run_page($file, PAGE, false);
            }

            #[test]
            #[ignore = "takes up to two minutes"]
            fn runs_whole() {
                super::run_page($file, PAGE, true);
            }
        })*

        #[test]
        fn each_page_is_here() {
            let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
            let Ok(entries) = fs::read_dir(folder) else {
                return println!("skipped: pages without tests: the documentation is elsewhere");
            };
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let pages = names.filter(|name| name.ends_with(".md"));
            let mut unknown = pages.filter(|name| ![$($file),*].contains(&name.as_str()));
            assert_eq!(unknown.next(), None);
        }
    };
}

pages! {
    bench: "bench.md", coming_from: "coming-from.md", decisions: "decisions.md",
    doctor: "doctor.md", drives: "drives.md", errors: "errors.md", gdsio: "gdsio.md",
    internals: "internals.md", json_schema: "json-schema.md", kv_cache: "kv-cache.md",
    kvikio: "kvikio.md", layers: "layers.md", measure: "measure.md", models: "models.md",
    observe: "observe.md", proof: "proof.md", python: "python.md", python_torch: "python-torch.md",
    report: "report.md", serve: "serve.md", variables: "variables.md"
}

#[test]
#[ignore = "takes half a minute"]
fn the_examples_for_hardware_run_on_a_simulated_gpu() {
    let folder = folder();
    let probe = folder.path().join("probe");
    fs::write(&probe, vec![7; 1 << 20]).unwrap();
    if let Some(reason) = stays_in_memory(&probe) {
        return println!("skipped: examples for drives: {reason}");
    }
    let needing = blocks(MEASURE).into_iter().filter(|block| block.needs().is_some());
    let ran = needing.map(|block| run_small(&folder, "measure.md", &block));
    assert!(ran.count() >= 3, "there are some");
}
