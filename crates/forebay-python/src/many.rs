//! Many reads or writes in one call, given as tuples or as arrays.
