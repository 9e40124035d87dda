//! NVIDIA GPUs through our own table of driver functions.
