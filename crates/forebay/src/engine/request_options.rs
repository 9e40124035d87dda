//! The settings of a request: a leaf, because every step of a transfer reads them.

use crate::plan::Route;
use crate::queue::Priority;
use crate::transfer::SyncMode;

/// The settings of a [`Request`](super::Request), for callers that make many alike.
///
/// ```
/// use forebay::{Engine, OpenOptions, Options, Priority, RequestOptions, Route, SyncMode};
///
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("weights.bin");
/// # std::fs::write(&path, vec![7; 100_000]).unwrap();
/// let engine = Engine::new(Options::default())?;
/// let file = engine.open_with(&path, &OpenOptions::writing())?;
/// let data = vec![7; 100_000];
/// let urgent = RequestOptions { priority: Priority::Urgent, ..RequestOptions::default() };
/// file.write(&data).options(urgent).preallocate().sync(SyncMode::Data).run()?;
/// let mut bytes = vec![0; 100_000];
/// let outcome = file.read(&mut bytes).route(Route::Host).priority(Priority::Normal).run()?;
/// assert!(bytes == data && outcome.routes.iter().all(|share| share.route == Route::Host));
/// for route in Route::ALL {
///     println!("{}", route.name());
/// }
/// # file.read(&mut bytes).past_cache().run()?;
/// # let gpu = engine.device(&"sim".parse()?)?.expect("a GPU").id();
/// # let mut targets = [engine.allocate(gpu, 4096)?];
/// # file.read_to_all(&mut targets).run()?;
/// # let pieces = [forebay::Piece::new(&file, 0, 4096, 0)];
/// # engine.read_many_to_all(&pieces, &mut targets).run()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestOptions {
    /// See [`Request::route`](super::Request::route).
    pub route: Option<Route>,
    /// See [`Request::exact`](super::Request::exact).
    pub exact: bool,
    /// See [`Request::sync`](super::Request::sync).
    pub sync: SyncMode,
    /// See [`Request::preallocate`](super::Request::preallocate).
    pub preallocate: bool,
    /// See [`Request::past_cache`](super::Request::past_cache).
    pub past_cache: bool,
    /// See [`Request::priority`](super::Request::priority).
    pub priority: Priority,
}
