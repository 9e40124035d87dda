//! Pages that a test brings into the page cache: the kernel may take clean ones back at any time,
//! and one that reclaims before it must does so every second.

/// Attempts before a test fails because pages do not stay.
const LOOKS: usize = 50;

/// What `look` saw, which brings pages in and says nothing where it finds some of them gone: it is
/// queried again then.
///
/// # Panics
/// It never sees anything.
#[track_caller]
pub(crate) fn held<T>(look: impl FnMut() -> Option<T>) -> T {
    let seen = std::iter::repeat_with(look).take(LOOKS).flatten().next();
    seen.expect("pages that were brought in are in the page cache, as the kernel reports")
}
