//! Errors for callers that take layers: which layer failed, and which stream. `taking` finds them.

use forebay::gpu::{CallerStream, DeviceError};
use forebay::{Error, Operation};

use super::shared::{Shared, State, refused};

impl Shared {
    /// Turns a GPU error about a caller's stream into ours. Usually the handle is unknown to the
    /// GPU.
    pub(super) fn compute_failed(&self, compute: CallerStream, source: DeviceError) -> Error {
        if !source.is_unknown_handle() {
            return self.failed(0, source);
        }
        let device = self.device.id();
        let expected = format!(
            "a stream of {device} that is alive until its layers are released, and this one is of \
             another GPU, or was destroyed ({source})"
        );
        refused(&compute.0.to_string(), &expected)
    }

    /// The error that ended the stream. If a copy failed, it names the layer the caller requests,
    /// because the layer of the failed copy is not always known.
    pub(super) fn asked(&self, state: &State, mut error: Error) -> Error {
        if let Error::Device { operation: Operation::Copy, source, .. } = &mut error
            && let Some(unit) = state.next_unit()
        {
            let name = &self.units()[unit].name;
            let colon = if source.detail.is_empty() { "" } else { "; " };
            source.detail = format!("{}{colon}`{name}` was to be taken next", source.detail);
        }
        error
    }
}

/// The error for an operation on a layer that was released.
pub(super) fn released(operation: Operation, layer: &str) -> Error {
    let expected = match operation {
        Operation::Release => "one that is held: it is released once, or by taking the next one",
        _ => "one that is held: use it before the next one is taken, or keep it",
    };
    Error::bad_option("layer", "one that was released", expected).of_layer(operation, layer)
}
