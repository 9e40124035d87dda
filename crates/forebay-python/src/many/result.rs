//! The result of many reads or writes, for Python.

use std::sync::Arc;

use forebay::ManyOutcome;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::failure::{exception, raised};
use crate::transfer::report;

/// The results of many reads or writes, by their index in the call.
#[pyclass(frozen, module = "forebay", sequence)]
pub(crate) struct ManyResult {
    pub(super) outcome: Arc<ManyOutcome>,
}

#[pymethods]
impl ManyResult {
    /// Bytes of all requests that succeeded.
    #[getter]
    fn bytes(&self) -> u64 {
        self.outcome.results.iter().filter_map(|result| result.as_ref().ok()).sum()
    }

    /// Bytes of each request; `None` if it failed.
    #[getter]
    fn counts(&self) -> Vec<Option<u64>> {
        self.outcome.results.iter().map(|result| result.as_ref().ok().copied()).collect()
    }

    /// The errors, by the index of their request.
    #[getter]
    fn errors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for (index, result) in self.outcome.results.iter().enumerate() {
            if let Err(error) = result {
                all.set_item(index, exception(py, error).into_value(py))?;
            }
        }
        Ok(all)
    }

    fn __len__(&self) -> usize {
        self.outcome.results.len()
    }

    /// Bytes of one request; raises its error.
    fn __getitem__(&self, py: Python<'_>, index: isize) -> PyResult<u64> {
        let len = self.outcome.results.len();
        let at =
            if index < 0 { len.checked_add_signed(index) } else { usize::try_from(index).ok() };
        let result = at.and_then(|at| self.outcome.results.get(at));
        let result = result.ok_or_else(|| PyIndexError::new_err("request index out of range"))?;
        raised(py, result.clone().map_err(|error| *error))
    }

    /// The summary of all requests: bytes by route, with the reason, and time by stage.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        report(py, &self.outcome.whole)
    }

    fn __repr__(&self) -> String {
        let failed = self.outcome.results.iter().filter(|result| result.is_err()).count();
        let len = self.outcome.results.len();
        format!("<forebay.ManyResult of {len} requests, {} bytes, {failed} failed>", self.bytes())
    }
}
