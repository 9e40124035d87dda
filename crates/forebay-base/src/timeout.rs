//! Runs work that may never return: a server is gone, or a program behind FUSE or a library hangs.
//!
//! No signal reliably ends such a call, and the call has no timeout. So a separate thread makes it,
//! and is abandoned if it does not return in time.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::Builder;
use std::time::Duration;

use crate::lock::Lock;

/// Runs `work` on a thread with this name; `None` if it takes longer than `limit`.
///
/// # Errors
/// No thread can be spawned.
pub fn within<T: Send + 'static>(
    limit: Duration,
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Option<T>> {
    let answer = Arc::new(Lock::new(None));
    let kept = Arc::clone(&answer);
    let answers = move || {
        let found = work(); // before the lock: it may hang
        *kept.lock() = Some(found);
    };
    if !ends_within(limit, name, Box::new(answers))? {
        return Ok(None);
    }
    let found = answer.lock().take();
    Ok(found)
}

/// Apart from `within`, so that threads and channels are compiled once, not for each type.
fn ends_within(limit: Duration, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<bool> {
    let (report, reported) = sync_channel(1);
    let works = move || {
        work();
        // The receiver may have timed out.
        report.send(()).unwrap_or(());
    };
    Builder::new().name(name.into()).spawn(works)?;
    Ok(reported.recv_timeout(limit).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_never_ends_is_left_behind() {
        let never = || -> u8 {
            loop {
                std::thread::park();
            }
        };
        assert_eq!(within(Duration::from_millis(20), "never", never).unwrap(), None);
        assert_eq!(within(Duration::from_secs(60), "soon", || 7).unwrap(), Some(7));
    }
}
