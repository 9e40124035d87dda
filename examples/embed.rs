//! Embeds the engine: reads a file to the first GPU, or to host memory without a GPU.
//!
//! ```console
//! $ cargo run --release -p forebay --example embed -- FILE
//! ```
#![expect(clippy::print_stdout, reason = "it shows what it did")]

use std::path::Path;

use forebay::{Engine, Options, gpu::GpuSelector};

fn main() -> forebay::Result<()> {
    // An engine serves a whole process, from any thread.
    let engine = Engine::new(Options::from_env()?)?;
    for path in std::env::args_os().skip(1) {
        println!("{} bytes", read(&engine, path.as_ref())?);
    }
    Ok(())
}

/// Reads a file whole, and prints the route of its bytes.
fn read(engine: &Engine, path: &Path) -> forebay::Result<u64> {
    let gpu = engine.device(&GpuSelector::Auto)?;
    let file = engine.open(path)?;
    let (buffer, outcome) = file.read_to_end(gpu.map(|gpu| gpu.id())).run()?;
    for share in &outcome.routes {
        println!("{}: {} bytes {}: {}", path.display(), share.bytes, share.route, share.reason);
    }
    Ok(buffer.len())
}

#[test]
fn it_reads_its_own_program() {
    let engine = Engine::new(Options::default()).unwrap();
    let path = std::env::current_exe().unwrap();
    assert_eq!(read(&engine, &path).unwrap(), path.metadata().unwrap().len());
}
