//! Memory that requests give by address.

#![expect(unsafe_code, reason = "borrows memory by the addresses that a caller gives")]

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::{Requests, Wanted, place};
use crate::engine::Engine;
use crate::memory::{self, Lent};

impl Requests {
    /// Borrows the memory of pieces given by address as one range, from the first to the last.
    /// `ranges` are the addresses and lengths of all non-empty pieces.
    pub(super) fn add_ranges(
        &mut self,
        engine: &Bound<'_, Engine>,
        ranges: Vec<(u64, u64)>,
        device: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let py = engine.py();
        let device = device.ok_or_else(|| {
            PyTypeError::new_err("`device=` is missing: addresses need a GPU, or `cpu`")
        })?;
        let device = memory::device_named(device)?;
        let inner = &engine.get().engine;
        let buffer = if ranges.is_empty() {
            // SAFETY: the range is empty.
            unsafe { inner.borrow_host_memory(0, 0) }
        } else if device.is_some() {
            // SAFETY: the caller keeps the memory alive, and no byte outside the ranges is used.
            unsafe { memory::borrow(py, inner, &ranges) }?
        } else {
            let (least, most) = extent(&ranges)?;
            // SAFETY: as above.
            unsafe { inner.borrow_host_memory(least, most - least) }
        };
        if buffer.device() != device && !ranges.is_empty() {
            let is = buffer.device().map_or("cpu".to_owned(), |device| device.to_string());
            let text = format!("the addresses are on {is}, not on the given `device=`");
            return Err(PyValueError::new_err(text));
        }
        let (least, number) = (buffer.address(), place(self.lent.len())?);
        let by_address = |wanted: &&mut Wanted| wanted.memory == Wanted::BY_ADDRESS;
        for wanted in self.wanted.iter_mut().filter(by_address) {
            wanted.memory = number;
            wanted.at = if wanted.len == 0 { 0 } else { wanted.at - least };
        }
        self.lent.push(Lent::unordered(buffer));
        Ok(())
    }
}

/// First address of the ranges, and the end of the last.
fn extent(ranges: &[(u64, u64)]) -> PyResult<(u64, u64)> {
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
