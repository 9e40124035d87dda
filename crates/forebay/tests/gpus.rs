//! Several GPUs in one process and engine: each has its own link, and none waits for another.

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;
    use std::time::Duration;

    use forebay::gpu::Device;
    use forebay::gpu::sim::SimDevice;
    use forebay::internal::clock::{ManualClock, SystemClock};
    use forebay::{Buffer, Direction, Engine, Error, File, Options};

    const LEN: usize = 3 << 20;

    fn written(
        engine: &Engine,
        folder: &tempfile::TempDir,
        name: &str,
        step: u8,
    ) -> (File, Vec<u8>) {
        let path = folder.path().join(name);
        let bytes: Vec<u8> = (0..=250_u8).cycle().map(|byte| byte ^ step).take(LEN).collect();
        fs::write(&path, &bytes).unwrap();
        (engine.open(&path).unwrap(), bytes)
    }

    #[test]
    fn memory_of_an_engine_with_several_gpus_is_pinned_once_for_all() {
        let engine = Engine::new(Options::default()).unwrap();
        let clock = Arc::new(ManualClock::new());
        let first = SimDevice::new(0, "sim".parse().unwrap(), clock.clone());
        let others =
            [first.sibling(1, "sim".parse().unwrap()), first.sibling(2, "sim".parse().unwrap())];
        let elsewhere = SimDevice::new(3, "sim".parse().unwrap(), clock);
        for device in std::iter::once(first).chain(others).chain([elsewhere]) {
            let device: Arc<dyn Device> = Arc::new(device);
            engine.add_device(&device).unwrap();
        }
        // Those of one host share a registry, and would refuse the same memory twice.
        let buffer = engine.allocate_pinned(1 << 20).unwrap();
        assert_eq!(buffer.len(), 1 << 20);
    }

    #[test]
    #[expect(unsafe_code, reason = "shares pieces with an exchange")]
    fn pieces_on_several_gpus_and_the_host_are_filled_and_collected() {
        let engine = Engine::new(Options::default()).unwrap();
        let sim =
            |index| SimDevice::new(index, "sim".parse().unwrap(), Arc::new(SystemClock::new()));
        let first = sim(0);
        let second = first.sibling(1, "sim".parse().unwrap());
        let gpus: [Arc<dyn Device>; 3] = [Arc::new(first), Arc::new(second), Arc::new(sim(2))];
        gpus[..2].iter().for_each(|gpu| engine.add_device(gpu).unwrap());
        let bytes: Vec<u8> = (0..=250_u8).cycle().take(700_001).collect();
        let mut own = engine.allocate_pinned(bytes.len() as u64).unwrap();
        // Not pinned for this one, which is later.
        engine.add_device(&gpus[2]).unwrap();
        own.upload(0, &bytes).unwrap();
        let on = |gpu: usize, len| engine.allocate(gpus[gpu].id(), len).unwrap();
        let host = engine.allocate_pinned(300_000).unwrap();
        let pieces = [on(0, 100_000), on(0, 0), on(0, 1), host, on(1, 200_000), on(2, 100_000)];
        let shares = || {
            let mut at = 0;
            let share = |piece: &Buffer| {
                at += piece.len();
                // SAFETY: no slice is made of a piece, and each exchange is waited for.
                (at - piece.len(), unsafe { piece.share(0, piece.len()) })
            };
            pieces.iter().map(share).collect()
        };
        let (copied, mut own) = own.start_exchange(shares(), Direction::Read).wait();
        copied.unwrap();
        let mut at = 0;
        for piece in &pieces {
            let mut found = vec![0; usize::try_from(piece.len()).unwrap()];
            piece.download(0, &mut found).unwrap();
            assert!(found == bytes[at..at + found.len()], "{piece:?} at {at}");
            at += found.len();
        }
        own.fill(0).unwrap();
        let (copied, own) = own.start_exchange(shares(), Direction::Write).wait();
        copied.unwrap();
        assert!(own.as_slice().unwrap() == bytes);
        for other in [engine.allocate_pinned(700_000).unwrap(), on(0, 700_001)] {
            let (copied, _) = other.start_exchange(shares(), Direction::Read).wait();
            let error = copied.unwrap_err();
            assert!(matches!(error, Error::BadOption { .. }), "{error}");
        }
    }

    #[test]
    fn two_gpus_read_different_files_at_once() {
        let engine = Engine::new(Options::default()).unwrap();
        let clock = Arc::new(ManualClock::new());
        // The first GPU's copies are done when an hour has gone by on a clock that stands still.
        let slow = SimDevice::new(0, "sim:latency=3600s".parse().unwrap(), clock.clone());
        let fast = slow.sibling(1, "sim".parse().unwrap());
        let gpus: [Arc<dyn Device>; 2] = [Arc::new(slow), Arc::new(fast)];
        gpus.iter().for_each(|gpu| engine.add_device(gpu).unwrap());
        let folder = tempfile::tempdir().unwrap();
        let files = [written(&engine, &folder, "a", 1), written(&engine, &folder, "b", 2)];
        let start = |index: usize| {
            let buffer = engine.allocate(gpus[index].id(), LEN as u64).unwrap();
            files[index].0.read(buffer).exact().start().unwrap()
        };
        let (first, second) = (start(0), start(1));
        let (result, quick) = second.wait();
        assert_eq!(result.unwrap().bytes, LEN as u64);
        assert!(!first.is_done(), "its link has not carried a byte yet");
        // Each wait for the slow GPU is an hour of its clock.
        let mut slow = first.wait_for(Duration::ZERO);
        while slow.is_none() {
            clock.advance(Duration::from_secs(3600));
            slow = first.wait_for(Duration::from_millis(1));
        }
        let (result, late) = first.wait();
        assert_eq!(result.unwrap().bytes, LEN as u64);
        for (buffer, (index, gpu)) in [late, quick].into_iter().zip(gpus.iter().enumerate()) {
            let buffer = buffer.unwrap();
            assert_eq!(buffer.device(), Some(gpu.id()));
            let mut got = vec![0; LEN];
            buffer.download(0, &mut got).unwrap();
            assert!(got == files[index].1, "{}", gpu.id());
        }
    }
}
