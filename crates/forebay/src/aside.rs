//! Work that may never end: a server is gone, a program behind FUSE or a library hangs.
//!
//! No signal ends such a call for sure and none has a bound of its own, so a thread makes it, which
//! is left behind where it does not come back in time.

use std::io;
use std::sync::mpsc::sync_channel;
use std::thread::Builder;
use std::time::Duration;

/// What `work` comes to on a thread of this name; `None`: not within `limit`.
///
/// # Errors
/// No thread can be had.
pub(crate) fn within<T: Send + 'static>(
    limit: Duration,
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Option<T>> {
    let (tell, told) = sync_channel(1);
    // Nobody may wait any more.
    let works = move || tell.send(work()).unwrap_or(());
    Builder::new().name(name.into()).spawn(works)?;
    Ok(told.recv_timeout(limit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_ends_is_left_behind() {
        let never = || -> u8 {
            loop {
                std::thread::park();
            }
        };
        assert_eq!(within(Duration::from_millis(20), "never", never).unwrap(), None);
        assert_eq!(within(Duration::from_secs(60), "soon", || 7).unwrap(), Some(7));
    }
}
