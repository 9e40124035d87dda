//! The direct ports of a file, which a provider opens and the rings of `queue` call.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use forebay_base::lock::{Condvar, Lock, woken};
use forebay_gpu::{DirectFile, NoPort};

use super::Handle;
use crate::events;
use crate::gpu::{Device, DeviceId, DirectProvider, Port};

/// A port, or why there is none.
pub(crate) type FoundPort = Result<Arc<dyn Port>, String>;

/// A file's ports by requested GPU, or why none exists.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    known: Lock<Vec<(DeviceId, Entry)>>,
    made: Condvar,
}

#[derive(Debug)]
enum Entry {
    /// A thread is querying the provider, without the lock.
    Making,
    Made(FoundPort),
}

/// How long a thread waits for a second thread's query, which is itself bounded.
const MADE_WITHIN: Duration = Duration::from_secs(10);

impl Ports {
    /// The port to a GPU, created on the first request. A permanent refusal is kept.
    ///
    /// # Errors
    /// The reason why there is no port.
    pub(crate) fn to(
        &self,
        gpu: DeviceId,
        make: impl FnOnce() -> Result<Arc<dyn Port>, NoPort>,
    ) -> FoundPort {
        let is_made = |known: &mut Vec<(DeviceId, Entry)>| {
            known.iter().any(|(id, entry)| *id == gpu && matches!(entry, Entry::Making))
        };
        let waited = self.made.wait_timeout_while(self.known.lock(), MADE_WITHIN, is_made);
        let mut known = woken(waited).0;
        match known.iter().find(|(id, _)| *id == gpu) {
            Some((_, Entry::Made(port))) => return port.clone(),
            Some((_, Entry::Making)) => {
                return Err("cuFile has not answered about the file yet".into());
            }
            None => known.push((gpu, Entry::Making)),
        }
        drop(known);
        // After a panic, no thread may keep waiting for this query.
        let made = catch_unwind(AssertUnwindSafe(make));
        let mut known = self.known.lock();
        if let Some((_, Entry::Made(closed))) = known.iter().find(|(id, _)| *id == gpu) {
            // It was closed during the query.
            return closed.clone();
        }
        known.retain(|(id, _)| *id != gpu);
        let made = made.map(|made| {
            let lasts = made.as_ref().map_or_else(|no| no.lasts, |_| true);
            let port = made.map_err(|no| no.why);
            lasts.then(|| known.push((gpu, Entry::Made(port.clone()))));
            port
        });
        drop(known);
        self.made.notify_all();
        made.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Closes the port to a GPU for good; does not wait.
    pub(crate) fn close(&self, gpu: DeviceId, reason: String) {
        let mut known = self.known.lock();
        let port = known.iter_mut().find(|(id, _)| *id == gpu);
        port.into_iter().for_each(|(_, entry)| *entry = Entry::Made(Err(reason.clone())));
        drop(known);
        self.made.notify_all();
    }
}

impl Handle {
    /// The port to a GPU, or why there is none. With `waits` the provider's driver is probed, and
    /// the call waits for the result or the timeout.
    pub(crate) fn port(
        &self,
        provider: &dyn DirectProvider,
        device: &Arc<dyn Device>,
        waits: bool,
    ) -> FoundPort {
        provider.start(&**device, waits)?;
        self.ports.to(device.id(), || {
            let port = self.direct_file().and_then(|file| provider.open(file, device));
            if let Err(no) = &port {
                let (path, gpu, why) = (self.path().display(), device.id(), &no.why);
                let by = provider.name();
                events::note(&format!("`{path}` has no direct path to {gpu} by {by}: {why}"));
            }
            port
        })
    }

    /// The file for a provider.
    pub(crate) fn direct_file(&self) -> Result<DirectFile<'_>, NoPort> {
        // Not recorded as lasting: if it lasts, `direct` fails again on the next call.
        let no = |why: &str| NoPort { why: why.to_owned(), lasts: false };
        let direct = self.o_direct().map_err(no)?;
        let alignment = direct.alignment();
        Ok(DirectFile { fd: direct.fd(), alignment: alignment.offset.max(alignment.memory).into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no(lasts: bool) -> Result<Arc<dyn Port>, NoPort> {
        Err(NoPort { why: "it is so".into(), lasts })
    }

    #[test]
    fn passing_refusals_are_tried_again_and_lasting_ones_are_not() {
        let (ports, gpu) =
            (Ports::default(), DeviceId { kind: crate::gpu::DeviceKind::Sim, index: 0 });
        let queries = std::cell::Cell::new(0);
        let query = |lasts| {
            queries.set(queries.get() + 1);
            no(lasts)
        };
        for (lasts, count) in [(false, 1), (false, 2), (true, 3), (true, 3)] {
            assert_eq!(ports.to(gpu, || query(lasts)).unwrap_err(), "it is so");
            assert_eq!(queries.get(), count);
        }
    }

    #[test]
    fn a_port_closed_during_its_query_stays_closed() {
        let (ports, gpu) =
            (Ports::default(), DeviceId { kind: crate::gpu::DeviceKind::Sim, index: 0 });
        let closing = || {
            ports.close(gpu, "closed".into());
            no(true)
        };
        for _ in 0..2 {
            assert_eq!(ports.to(gpu, closing).unwrap_err(), "closed");
        }
    }

    #[test]
    fn a_panic_in_a_query_lets_the_next_one_begin() {
        let (ports, gpu) =
            (Ports::default(), DeviceId { kind: crate::gpu::DeviceKind::Sim, index: 0 });
        let panics = || ports.to(gpu, || panic!("a provider's fault"));
        catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
        assert_eq!(ports.to(gpu, || no(true)).unwrap_err(), "it is so");
    }

    #[test]
    fn closing_a_port_does_not_wait_for_another_to_open() {
        let ports = Ports::default();
        let [one, other] =
            [0, 1].map(|index| DeviceId { kind: crate::gpu::DeviceKind::Sim, index });
        let (began, has_begun) = std::sync::mpsc::sync_channel(0);
        let (end, ends) = std::sync::mpsc::sync_channel(0);
        std::thread::scope(|scope| {
            let known = &ports;
            let making = move || {
                began.send(()).unwrap();
                ends.recv().unwrap();
                no(true)
            };
            scope.spawn(move || known.to(one, making));
            has_begun.recv().unwrap();
            ports.close(other, "closed".into());
            assert_eq!(ports.to(other, || no(true)).unwrap_err(), "it is so");
            end.send(()).unwrap();
        });
    }
}
