//! CPU time of this process and its ended children, without threads that only read counters.

#![expect(unsafe_code, reason = "getrusage fills a struct through a pointer")]

use std::mem::MaybeUninit;
use std::time::Duration;

use forebay_evidence::observers;

/// User and system time of this process so far, and of its children that ended.
pub fn used() -> Duration {
    let (user, system) = used_apart();
    user + system
}

/// User and system time separately.
pub(crate) fn used_apart() -> (Duration, Duration) {
    let observing = observers::total();
    let (user, system) = used_with_observers();
    // Observers mostly use system time: they wait in calls of drivers and of the kernel.
    let in_kernel = observing.min(system);
    (user.saturating_sub(observing - in_kernel), system - in_kernel)
}

fn used_with_observers() -> (Duration, Duration) {
    let (own, others) = (usage(libc::RUSAGE_SELF), usage(libc::RUSAGE_CHILDREN));
    (own.0 + others.0, own.1 + others.1)
}

fn usage(who: libc::c_int) -> (Duration, Duration) {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a whole `rusage`, which the call only fills.
    unsafe { libc::getrusage(who, usage.as_mut_ptr()) };
    // SAFETY: zeroed above, and zeroes are a valid value; the call fails only for a bad `who`.
    let usage = unsafe { usage.assume_init() };
    let time = |value: libc::timeval| {
        Duration::from_secs(u64::try_from(value.tv_sec).unwrap_or(0))
            + Duration::from_micros(u64::try_from(value.tv_usec).unwrap_or(0))
    };
    (time(usage.ru_utime), time(usage.ru_stime))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_of_threads_and_of_children_counts() {
        let spin = || {
            let end = used() + Duration::from_millis(20);
            while used() < end {}
        };
        let before = used();
        std::thread::scope(|scope| drop(scope.spawn(spin)));
        assert!(used() - before >= Duration::from_millis(20));

        let time = Duration::from_millis(5);
        let observe = || while observers::add() < time {};
        std::thread::scope(|scope| drop(scope.spawn(observe)));
        let (without, (user, system)) = (used(), used_with_observers());
        let observing = (user + system).saturating_sub(without);
        assert!(observing >= time, "{observing:?}");

        let count = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done";
        let mut command = std::process::Command::new("sh");
        command.args(["-c", count]);
        let before = used();
        assert!(command.status().unwrap().success());
        assert!(used() > before);
    }
}
