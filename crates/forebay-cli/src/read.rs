//! `forebay read`.
use crate::args::ReadArgs;
use crate::failure::{Failure, Result};

pub(crate) fn command(_args: &ReadArgs) -> Result<()> {
    Err(Failure::new("not yet"))
}
