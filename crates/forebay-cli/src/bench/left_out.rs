//! Lists the lines that could not be measured, and why, for the warnings of a run.

use super::line::Line;
use crate::report::warnings::Warning;

/// The lines that could not be measured, of all sizes, grouped by reason.
#[derive(Default)]
pub(super) struct LeftOut(Vec<(String, Vec<String>)>);

impl LeftOut {
    pub(super) fn add(&mut self, lines: &[Line]) {
        for line in lines {
            if let Some(reason) = &line.left_out {
                self.add_one(reason, line.name());
            }
        }
    }

    pub(super) fn add_one(&mut self, reason: &str, name: String) {
        match self.0.iter_mut().find(|(other, _)| other == reason) {
            Some((_, rows)) if rows.contains(&name) => {}
            Some((_, rows)) => rows.push(name),
            None => self.0.push((reason.to_owned(), vec![name])),
        }
    }

    pub(super) fn warnings(self) -> impl Iterator<Item = Warning> {
        self.0.into_iter().map(|(reason, rows)| Warning::LeftOut { rows, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::line::{self, Others, Plan};
    use crate::report::json::{Cache, Direction};

    #[test]
    fn what_is_left_out_is_told_once() {
        let directions = &[Direction::Read];
        let plan = Plan {
            directions,
            caches: &[Cache::Cold],
            storage: true,
            fio: false,
            route: None,
            others: Others::None,
            cufile: false,
        };
        let mut lines = line::plan(&plan);
        for line in &mut lines {
            let why = if line.method.is_ceiling() { "no drive" } else { "it stays" };
            line.left_out = Some(why.into());
        }
        let mut left_out = LeftOut::default();
        left_out.add(&lines);
        left_out.add(&lines);
        let warnings: Vec<_> = left_out.warnings().collect();
        let texts: Vec<_> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "left out: `link` read; `storage` read: no drive",
                "left out: `standard` read, cold; `mmap` read, cold; `forebay` read, cold: it \
                 stays",
            ]
        );
    }
}
