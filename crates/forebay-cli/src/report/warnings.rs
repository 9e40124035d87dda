//! The warnings.
