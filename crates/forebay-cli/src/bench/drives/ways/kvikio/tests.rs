//! What no run waits for: a process that does not answer.

use std::time::Instant;

use super::*;

#[test]
fn a_process_that_does_not_answer_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("kvikio");
    std::fs::create_dir(&package).unwrap();
    std::fs::write(package.join("__init__.py"), "import time; time.sleep(3600)").unwrap();
    let path = folder.path().display().to_string();
    let Ok(mut process) = Process::start(&[("PYTHONPATH".into(), path)]) else {
        println!("skipped: KvikIO: there is no `python3`");
        return;
    };
    let memory = Shared::allocate(4096).unwrap();
    let order = Order::Start { memory: memory.path(), window: 4096, size: 4096, gpu: false };
    let start = Instant::now();
    let reason = process.ask(&order, Duration::from_secs(1)).unwrap_err();
    assert_eq!(reason, "no answer within 1 s");
    drop(process);
    // Only that it ends: nothing is measured.
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn an_order_that_no_pipe_takes_is_refused() {
    let Ok(mut process) = Process::start(&[]) else {
        println!("skipped: KvikIO: there is no `python3`");
        return;
    };
    let files = vec![("61".repeat(200), 0, 1); 1000];
    let reason = process.ask(&Order::Open { files }, Duration::from_secs(1)).unwrap_err();
    assert!(reason.contains("too many files"), "{reason}");
}

#[test]
fn settings_are_told_by_their_variables() {
    let values: BTreeMap<String, String> = variables(CANDIDATES[0]).into_iter().collect();
    assert_eq!(
        how("1.2", &values),
        "KvikIO 1.2: a pool for each drive of 16 threads, tasks of 4 MiB, O_DIRECT"
    );
    // Whole numbers: a unit would be lost.
    assert_eq!(values["KVIKIO_TASK_SIZE"], "4194304");
    assert_eq!(how("1.2", &BTreeMap::new()), "KvikIO 1.2: ? threads, tasks of ?, page cache");
}
