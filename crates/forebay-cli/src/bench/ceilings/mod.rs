//! What the machine can do at best: the link to the GPU, and the storage, by ourselves and by
//! `fio`.

pub mod fio;
pub mod link;
pub mod storage;
