//! Routes that the engine took, and whether a route is available.

use std::path::Path;

use forebay::{Engine, Reason, RequestOptions, Route, RouteShare, Target};

use crate::bench::memory::{Memory, whole};
use crate::bench::target::Target as Place;
use crate::failure::Result;
use crate::steps::Step;

/// The bytes moved, as the method itself reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// Number of bytes.
    pub bytes: u64,
    /// The engine's route.
    pub route: Option<String>,
    /// Why this route, or the route that the bytes took.
    pub reason: Option<String>,
    /// Bytes by route, as the method itself reports them; empty if it does not.
    pub said: Vec<(Route, u64)>,
}

/// Reads the first `len` bytes of the file at `path` by `route`, to find out if the route is
/// available.
///
/// # Errors
/// If it is not available.
pub fn try_route(
    engine: &Engine,
    target: &Place,
    path: &Path,
    len: u64,
    route: Route,
) -> Result<()> {
    let mut memory = target.allocate(engine, len)?;
    let _step = Step::of_engine("read", path, engine, Some(route));
    let mut request = RequestOptions::default();
    (request.route, request.exact) = (Some(route), true);
    let target = match &mut memory {
        Memory::Host(host) => Target::Host(&mut host.bytes_mut()[..whole(len)]),
        Memory::Gpu(gpu) => Target::Buffer(&mut gpu.buffer, 0..len),
    };
    engine.open(path)?.read_with(0, target, &request)?;
    Ok(())
}

/// The engine's report on its bytes, for a verdict.
#[must_use]
pub fn said(shares: &[RouteShare]) -> Vec<(Route, u64)> {
    shares.iter().map(|share| (share.route, share.bytes)).collect()
}

/// The routes taken, joined by `+`, and the reasons. With several, each reason has its share and
/// route.
#[must_use]
pub fn routes(shares: &[RouteShare]) -> (Option<String>, Option<String>) {
    let moved = shares.iter().filter(|share| share.bytes > 0);
    let parts: Vec<_> = moved.map(|share| (share.route, share.reason, share.bytes)).collect();
    describe(&parts)
}

fn describe(parts: &[(Route, Reason, u64)]) -> (Option<String>, Option<String>) {
    let mut names: Vec<&str> = Vec::new();
    for (route, ..) in parts {
        if !names.contains(&route.name()) {
            names.push(route.name());
        }
    }
    let total: u64 = parts.iter().map(|(.., bytes)| bytes).sum();
    let reasons = parts.iter().map(|(route, reason, bytes)| match parts.len() {
        1 => reason.to_string(),
        _ => format!("{} {route}: {reason}", percent(*bytes, total)),
    });
    let reasons = reasons.collect::<Vec<_>>().join("; ");
    (!names.is_empty()).then(|| (names.join("+"), reasons)).unzip()
}

fn percent(part: u64, total: u64) -> String {
    let percent = u128::from(part) * 100 / u128::from(total.max(1));
    if percent == 0 { "<1 %".into() } else { format!("{percent} %") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_name_every_part() {
        assert_eq!(routes(&[]), (None, None));
        assert_eq!(
            describe(&[(Route::Cached, Reason::Resident, 5)]),
            (Some("cached".into()), Some("resident in the page cache".into()))
        );
        let (route, reason) = describe(&[
            (Route::Staged, Reason::NotResident, 999),
            (Route::Cached, Reason::Resident, 1),
        ]);
        assert_eq!(route.as_deref(), Some("staged+cached"));
        assert_eq!(
            reason.as_deref(),
            Some(
                "99 % staged: not resident, read from the drive with O_DIRECT; \
                 <1 % cached: resident in the page cache"
            )
        );
    }
}
