//! The limits of the machine: the link to the GPU, and the storage, measured by this program and by
//! `fio`.

pub mod fio;
pub mod link;
pub mod storage;
