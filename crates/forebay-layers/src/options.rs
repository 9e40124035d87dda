//! Options of a layer stream.

use super::order::Order;

/// Options of a layer stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamOptions {
    /// The order in which layers are taken.
    pub order: Order,
    /// Number of passes; `None`: until it is closed.
    pub passes: Option<u64>,
    /// Bytes of GPU memory for layers, at least for two of them. If even that exceeds the budget,
    /// layers are taken in slices. `None`: enough for three, or for all layers if there are fewer,
    /// and for two if the GPU has no memory for more.
    pub gpu_budget: Option<u64>,
    /// Bytes of pinned host memory for layers, in addition to the slots through which the remaining
    /// layers pass. As many layers as fit are read into it on first use, and later copied from
    /// there. They are spread evenly over the order; with [`Order::Appended`] they are the first
    /// that fit. Layers that are taken in slices are placed slice by slice.
    pub host_budget: u64,
    /// Bytes of layers in the page cache whose pages may be pinned, so that the GPU copies directly
    /// from them afterwards. With a value, pages are pinned when a layer is first loaded. `None`:
    /// when it is loaded again, up to half of the machine's available memory, and only if there are
    /// enough passes to pay off. The pages are unpinned when the machine runs short of memory.
    pub mapped_budget: Option<u64>,
    /// Fills released buffers with NaN for the usual floating point types (64, 32 and 16 bits,
    /// bfloat16, and the 8-bit types `e4m3fn` and `e5m2`). This exposes code that uses a layer
    /// after its release. All layers are then read again, even if it would stay on the GPU.
    pub check: bool,
}

impl StreamOptions {
    /// Default options with this order.
    pub fn ordered(order: Order) -> Self {
        Self { order, ..Self::default() }
    }
}
