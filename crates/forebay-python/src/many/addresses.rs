//! Memory that requests give by address.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::{Requests, Wanted, place};
use crate::memory::{self, Found, Order};

impl Requests {
    /// Adds the memory of pieces given by address as one range, from the first to the last.
    /// `ranges` are the addresses and lengths of all non-empty pieces.
    pub(super) fn add_ranges(
        &mut self,
        py: Python<'_>,
        ranges: Vec<(u64, u64)>,
        device: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let device = device.ok_or_else(|| {
            PyTypeError::new_err("`device=` is missing: addresses need a GPU, or `cpu`")
        })?;
        let device = memory::device_named(device)?.filter(|_| !ranges.is_empty());
        let (least, most) = extent(&ranges)?;
        let number = place(self.found.len())?;
        let by_address = |wanted: &&mut Wanted| wanted.memory == Wanted::BY_ADDRESS;
        for wanted in self.wanted.iter_mut().filter(by_address) {
            wanted.memory = number;
            wanted.at = if wanted.len == 0 { 0 } else { wanted.at - least };
        }
        self.found.push(Found {
            range: (least, most - least),
            parts: Some(ranges),
            on_gpu: device.is_some(),
            device,
            order: Order::None,
            keep: py.None(),
        });
        Ok(())
    }
}

/// First address of the ranges, and the end of the last.
fn extent(ranges: &[(u64, u64)]) -> PyResult<(u64, u64)> {
    if ranges.is_empty() {
        return Ok((0, 0));
    }
    let (mut least, mut most) = (u64::MAX, 0);
    for &(address, len) in ranges {
        let end = address.checked_add(len).filter(|_| address > 0);
        let end = end.ok_or_else(|| {
            PyValueError::new_err(format!("invalid address range: {len} bytes at {address:#x}"))
        })?;
        (least, most) = (least.min(address), most.max(end));
    }
    Ok((least, most))
}
