//! What is made of the command's own definition: the manual page and completions.

use std::process::Command;

use crate::help::stdout;

#[test]
fn the_man_pages_name_verbs_and_flags() {
    let page = stdout(&["man"]);
    assert!([r"forebay\-bench", r"forebay\-doctor"].iter().all(|verb| page.contains(verb)));
    for (verb, flag) in [("bench", "repeats"), ("read", "offset"), ("doctor", "fixture")] {
        let page = stdout(&["man", verb]);
        assert!(page.contains(&format!(r"\fB\-\-{flag}\fR")), "{verb}");
        // Examples keep their lines.
        assert!(page.contains(".nf\nExamples:\n  forebay "), "{page}");
    }
}

#[test]
fn every_shell_gets_its_completions() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = stdout(&["completions", shell]);
        assert!(script.contains("block-size"), "{shell}");
    }
}

#[test]
fn values_are_completed_and_not_files() {
    let script = stdout(&["completions", "bash"]);
    let (_, bench) = script
        .split_once("forebay__subcmd__bench)\n")
        .unwrap_or_else(|| script.split_once("forebay__bench)\n").expect("the options of bench"));
    for (flag, value) in [
        ("route", "staged"),
        ("method", "cpu-async-gpu"),
        ("cache", "cold"),
        ("direction", "mixed:70"),
        ("pattern", "random"),
        ("gpu", "sim"),
        ("format", "html"),
        ("kv", "llama-8b"),
    ] {
        let (_, rest) = bench.split_once(&format!("--{flag})\n")).expect(flag);
        let line = rest.lines().next().unwrap_or_default();
        assert!(line.contains(" -W \"") && line.contains(value), "{flag}: {line}");
        assert!(!line.contains("compgen -f"), "{flag}: {line}");
    }
}

#[test]
fn the_last_value_of_a_list_is_completed() {
    let script = stdout(&["completions", "bash"]) + "\n_forebay forebay \"$1\" --method\n";
    let completed = |text: &str| {
        let ask = format!("COMP_WORDS=(forebay bench --method {text}); COMP_CWORD=3\n");
        let print = "printf '%s ' \"${COMPREPLY[@]}\"";
        let mut bash = Command::new("bash");
        let output = bash.args(["-c", &format!("{ask}{script}{print}"), "bash", text]).output();
        output.map(|output| String::from_utf8(output.stdout).unwrap())
    };
    match completed("mm") {
        Ok(found) => assert_eq!(found, "mmap "),
        Err(error) => return println!("skipped: completions: no bash: {error}"),
    }
    assert_eq!(completed("mmap,cpu-a").unwrap(), "mmap,cpu-async-gpu ");
    assert_eq!(completed("cpu-gpu,mmap,cpu-a").unwrap(), "cpu-gpu,mmap,cpu-async-gpu ");
    assert_eq!(completed("mmap,mm").unwrap().trim(), "", "it is given");
    assert_eq!(completed("mmap,cpu-g,cpu-g").unwrap(), "mmap,cpu-g,cpu-gpu ");
    for (shell, list) in [
        ("zsh", ":STATE,…:_sequence compadd - warm cold'"),
        ("fish", " -r -f -a \"(__fish_append , warm cold)\"\n"),
    ] {
        let script = stdout(&["completions", shell]);
        assert!(script.contains(list), "{shell}");
    }
}

#[test]
fn a_value_behind_an_equals_sign_is_completed() {
    // As bash calls it for `--cache=w`.
    let script = stdout(&["completions", "bash"]);
    let ask = "COMP_WORDS=(forebay bench --cache = w); COMP_CWORD=4\n";
    let call = "\n_forebay forebay w =; printf '%s ' \"${COMPREPLY[@]}\"";
    match Command::new("bash").args(["-c", &format!("{ask}{script}{call}")]).output() {
        Ok(output) => assert_eq!(String::from_utf8(output.stdout).unwrap(), "warm "),
        Err(error) => println!("skipped: completions: no bash: {error}"),
    }
}
