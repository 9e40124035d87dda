//! `cargo xtask lab`: a virtual machine with many kinds of storage, in which the storage map and
//! reads are compared with how the machine was built.
//!
//! [`packages`] fetches an emulator and a Debian system, [`image`] makes what the machine starts
//! from, [`machine`] says which drives it has, [`boot`] runs it. Its scripts are in
//! `xtask/lab/guest`; docs/internals/lab.md tells more.

mod archive;
mod boot;
mod folders;
mod image;
mod machine;
mod packages;

use std::path::Path;
use std::time::Duration;

use image::Image;
use machine::{Kind, Start};
use packages::Tree;

use crate::process::{Result, find, say};
use crate::test;

/// Builds the machine, runs it and judges what it found.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<bool> {
    let cache = test::target(root)?.join("lab");
    folders::make(&cache)?;
    let scripts = root.join("xtask/lab/guest");
    let tools = match find("qemu-system-x86_64") {
        Some(_) => None,
        None => Some(Tree::fetch(&cache, "emulator", &machine::PACKAGES)?),
    };
    let image = Image::build(&cache, &scripts.join("first.sh"))?;
    let share = cache.join("share");
    let drives = cache.join("drives");
    folders::remove(&share)?;
    folders::remove(&drives)?;
    folders::make(&drives)?;
    folders::make(&share.join("guest"))?;
    folders::make(&share.join("out"))?;
    for script in folders::entries(&scripts)? {
        folders::copy(&script, &share.join("guest").join(script.file_name().unwrap_or_default()))?;
    }
    folders::copy(&test::target(root)?.join("release/forebay"), &share.join("forebay"))?;
    let start = Start {
        kind: Kind::Every,
        image: &image,
        share: &share,
        drives: &drives,
        script: arguments.first().unwrap_or(&"first"),
        seconds: 600,
        kvm: false,
    };
    boot::run(start.command(tools.as_ref())?, &cache.join("console.txt"), Duration::from_secs(600))?;
    say!("{}", folders::text(&share.join("out/script.txt"))?);
    Ok(true)
}
