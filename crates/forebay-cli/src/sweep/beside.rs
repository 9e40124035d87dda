//! `--vs PATH`: the same points on a second path, each right after the first path's, and a
//! comparison of both at the end.

use super::real;
use crate::args::SweepArgs;
use crate::failure::{Failure, Result};
use crate::report::compare::{By, compare};
use crate::report::model::{Axis, Metric, Model};
use crate::report::show::{self, Block};

/// Most rows of a comparison.
const ROWS_MAX: usize = 200;

/// The arguments with the second path added.
///
/// # Errors
/// There are more paths, or both are the same place.
pub(super) fn with_path(mut args: SweepArgs) -> Result<SweepArgs> {
    let Some(other) = args.vs.clone() else { return Ok(args) };
    if args.paths.len() > 1 {
        let text = format!("`--vs` compares with one path, but there are {}", args.paths.len());
        return Err(Failure::usage(text).hint(
            "give several paths without `--vs`, and compare them with `forebay report --by path`",
        ));
    }
    if args.paths.is_empty() {
        args.paths.push(".".into());
    }
    args.paths.push(other);
    let places = real(&args.paths);
    if places.first() == places.last() {
        return Err(Failure::usage("`--vs` names the same place as the path")
            .because(format!("both are `{}`", places[0]))
            .hint("name another file or folder"));
    }
    Ok(args)
}

/// The order in which the points of both paths are measured: each point on the first path, then on
/// the second. The plan has all points of the first path, then all of the second.
pub(super) fn in_turn(points: usize) -> Vec<usize> {
    let half = points / 2;
    (0..half).flat_map(|point| [point, half + point]).collect()
}

/// The comparison of both paths. Empty if no point was measured on both, which the sweep itself has
/// reported.
pub(super) fn blocks(args: &SweepArgs, model: &Model) -> Vec<Block> {
    let Some(first) = args.paths.first() else { return Vec::new() };
    let base = first.display().to_string();
    match compare(model, &[], By::Axis(Axis::Path), Some(&base)) {
        Ok(found) => {
            found.iter().flat_map(|one| show::comparison(one, Metric::Rate, ROWS_MAX)).collect()
        }
        Err(failure) => vec![Block::Line(failure.in_one_line())],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_of_two_paths_take_turns() {
        assert_eq!(in_turn(6), [0, 3, 1, 4, 2, 5]);
        assert_eq!(in_turn(0), Vec::<usize>::new());
    }

    #[test]
    fn a_place_is_not_compared_with_itself() {
        let with = |paths: &[&str], vs: &str| {
            let paths = paths.iter().map(Into::into).collect();
            with_path(SweepArgs { paths, vs: Some(vs.into()), ..SweepArgs::default() })
        };
        assert_eq!(with(&[], "/").unwrap().paths, [".", "/"].map(std::path::PathBuf::from));
        for failure in [with(&[], "."), with(&["/tmp"], "/tmp/../tmp/")] {
            assert!(failure.unwrap_err().causes[0].starts_with("both are `/"));
        }
        assert!(with(&["/a", "/b"], "/c").unwrap_err().hint.unwrap().contains("--by path"));
        let args = SweepArgs { paths: vec!["/a".into(), "/b".into()], ..SweepArgs::default() };
        assert_eq!(with_path(args).unwrap().paths.len(), 2);
    }
}
