//! Routes that the engine took, and whether a route is available.

use std::path::Path;

use forebay::{Engine, Route};

use crate::failure::Result;
use crate::steps::Step;
use crate::target::Target;

/// Reads the first `len` bytes of the file at `path` by `route`, to find out if the route is
/// available.
///
/// # Errors
/// If it is not available.
pub fn try_route(
    engine: &Engine,
    target: &Target,
    path: &Path,
    len: u64,
    route: Route,
) -> Result<()> {
    let mut memory = target.allocate(engine, len)?;
    let _step = Step::of_engine("read", path, engine, Some(route));
    engine.open(path)?.read((&mut memory, 0..len)).route(route).exact().run()?;
    Ok(())
}

/// The engine's routes, joined by `+`, and the reasons. With several, each reason has its share and
/// route. The parts are bytes with their route, if it is the engine's, and the reason.
#[must_use]
pub fn describe(parts: &[(Option<Route>, String, u64)]) -> (Option<String>, Option<String>) {
    let mut names: Vec<&str> = Vec::new();
    for name in parts.iter().filter_map(|(route, ..)| Some(route.as_ref()?.name())) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let total: u64 = parts.iter().map(|(.., bytes)| bytes).sum();
    let reasons = parts.iter().map(|(route, reason, bytes)| match (parts.len(), route) {
        (1, _) => reason.clone(),
        (_, Some(route)) => format!("{} {route}: {reason}", percent(*bytes, total)),
        (_, None) => format!("{} {reason}", percent(*bytes, total)),
    });
    let reasons = reasons.collect::<Vec<_>>().join("; ");
    ((!names.is_empty()).then(|| names.join("+")), (!parts.is_empty()).then_some(reasons))
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
        let part = |route, reason: &str, bytes| (route, reason.to_owned(), bytes);
        assert_eq!(describe(&[]), (None, None));
        let (route, reason) = describe(&[part(Some(Route::Cached), "resident", 5)]);
        assert_eq!((route.as_deref(), reason.as_deref()), (Some("cached"), Some("resident")));
        let parts = [part(Some(Route::Staged), "not resident", 999), part(None, "mapped", 1)];
        let (route, reason) = describe(&parts);
        assert_eq!(route.as_deref(), Some("staged"));
        assert_eq!(reason.as_deref(), Some("99 % staged: not resident; <1 % mapped"));
    }
}
