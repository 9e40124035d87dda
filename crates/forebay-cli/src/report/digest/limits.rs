//! The limits of a digest, and which of them binds a line.
//!
//! The limit that the measuring program reported for a sample counts. For other samples
//! [`super::gather`] finds it here by the same rule.

use super::{Bound, Digest, Limit, ratio};
use crate::report::json::{Cache, Direction};
use crate::results::{self, Point, Sample};
use crate::workload::issuer::Plain;

/// Most limits that are kept: a machine has some dozens.
const KEPT_MAX: usize = 1000;

/// Names of limits that bind.
const BINDING: [&str; 6] = ["link", "uplink", "shared", "storage", "network", "memory"];

impl Bound {
    /// The measurement as a share of the theoretical rate.
    #[must_use]
    pub fn of_theory(&self) -> Option<f64> {
        let theory = self.in_theory.filter(|theory| theory.is_finite() && *theory > 0.0);
        theory.filter(|_| !self.theory).and_then(|theory| ratio(self.rate, theory))
    }
}

impl Digest {
    /// Starts the next attempt; limits that follow belong to it.
    pub(super) fn begin_attempt(&mut self) {
        if self.attempts.len() < KEPT_MAX {
            self.attempts.push(Vec::new());
        }
    }

    /// Adds a limit. If it was measured again, as in a continued file, the larger value counts: it
    /// was reached.
    pub(super) fn take_ceiling(&mut self, bound: Bound) {
        let kept: usize = self.attempts.iter().map(Vec::len).sum();
        if let Some(last) = self.attempts.last_mut().filter(|_| kept < KEPT_MAX) {
            last.push(bound.clone());
        }
        let same = |other: &&mut Bound| {
            (other.run, other.direction, other.theory) == (bound.run, bound.direction, bound.theory)
                && (&other.name, &other.of) == (&bound.name, &bound.of)
        };
        let has_room = self.ceilings.len() < KEPT_MAX;
        match self.ceilings.iter_mut().find(same) {
            Some(other) if bound.rate > other.rate => *other = bound,
            Some(_) => {}
            None if has_room => self.ceilings.push(bound),
            None => {}
        }
    }

    /// The limit of a point: as its samples report, else the lowest limit on its path.
    pub(super) fn limit(&self, run: usize, samples: &[&Sample]) -> Option<Limit> {
        let point = &samples.first()?.point;
        let told = samples.iter().filter_map(|sample| sample.measured.as_ref()?.bound.as_ref());
        // The larger value, as for limits that were measured again.
        let told = told
            .filter_map(|bound| Some((bound, bound.bytes_per_second.filter(is_rate)?)))
            .max_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((bound, rate)) = told {
            return Some(Limit { name: self.name_of(run, point, bound, rate), rate });
        }
        let drive = point.cache == Some(Cache::Cold) || past_the_page_cache(&point.way);
        let is_of_drives = |limit: &Limit| matches!(limit.name.as_str(), "storage" | "network");
        let mut ceilings = on_the_way(&self.ceilings, run, point);
        // The drive may be at its limit, which is unknown; the limit of mixed reads and writes is
        // always unknown.
        let is_mixed = !matches!(point.read_percent, 0 | 100);
        if drive && (is_mixed || !ceilings.iter().any(is_of_drives)) {
            return None;
        }
        ceilings.retain(|limit| match limit.name.as_str() {
            "memory" => !drive,
            _ => drive || !is_of_drives(limit),
        });
        ceilings.into_iter().min_by(|a, b| a.rate.total_cmp(&b.rate))
    }

    /// The name of the limit with this rate. A sample may name none: `in-flight` says that no limit
    /// was near.
    fn name_of(&self, run: usize, point: &Point, bound: &results::Bound, rate: f64) -> String {
        if BINDING.contains(&bound.name.as_str()) {
            return bound.name.clone();
        }
        let near = |other: f64| (other - rate).abs() <= 1e-9 * rate;
        // The limit may have been exceeded when it was measured again.
        let found = || std::iter::once(&self.ceilings).chain(&self.attempts);
        let mut own = found().flat_map(|all| on_the_way(all, run, point));
        let own = own.find(|limit| near(limit.rate));
        let any = || found().flatten().find(|other| other.run == run && near(other.rate));
        own.map(|limit| limit.name)
            .or_else(|| any().map(|other| other.name.clone()))
            .unwrap_or_else(|| "lowest".into())
    }
}

/// The measured limits that apply to a point: the links of its targets together, and those of its
/// path.
fn on_the_way(ceilings: &[Bound], run: usize, point: &Point) -> Vec<Limit> {
    let of_both = [Direction::Read, Direction::Write].map(|direction| {
        // A direction has a part of the bytes, so its limit is scaled up to all bytes.
        let part = point.part(direction);
        let limits = on_the_way_of(ceilings, run, point, direction).into_iter();
        limits
            .filter(move |_| part > 0.0)
            .map(move |limit| Limit { rate: limit.rate / part, ..limit })
    });
    of_both.into_iter().flatten().collect()
}

/// The limits of one direction.
fn on_the_way_of(
    ceilings: &[Bound],
    run: usize,
    point: &Point,
    direction: Direction,
) -> Vec<Limit> {
    let of = |name: &str, of: &str| {
        let fits = |bound: &&Bound| {
            (bound.run, bound.theory) == (run, false)
                && bound.name == name
                && bound.of == of
                && bound.direction.is_none_or(|other| other == direction)
                && is_rate(&bound.rate)
        };
        ceilings.iter().filter(fits).map(|bound| bound.rate).min_by(f64::total_cmp)
    };
    let links: Option<Vec<f64>> = point.targets.iter().map(|target| of("link", target)).collect();
    let links = links.filter(|links| !links.is_empty()).map(|links| links.iter().sum());
    let is_gpus = point.targets.iter().any(|target| target != "host");
    // Several targets together may reach less than the sum of their links.
    let all = point.targets.join("+");
    let found = [
        ("link", of("links", &all)),
        ("uplink", of("uplink", &all)),
        ("shared", of("shared", &all)),
        ("link", links),
        ("storage", of("storage", &point.path)),
        ("network", of("network", &point.path)),
        ("memory", of("memory", "host").filter(|_| is_gpus && direction == Direction::Read)),
    ];
    let known = found.into_iter().filter_map(|(name, rate)| Some((name, rate?)));
    known.map(|(name, rate)| Limit { name: name.into(), rate }).collect()
}

fn is_rate(rate: &f64) -> bool {
    rate.is_finite() && *rate > 0.0
}

/// Whether a plain method reads from drives even if the file is warm.
fn past_the_page_cache(way: &str) -> bool {
    Plain::ALL.iter().any(|plain| plain.is_direct() && plain.name() == way)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::digest::gather::tests::digest_of;
    use crate::report::made::{self, Sweep};

    /// The first line's limit and share if each sample reports this bound.
    fn told(bounds: &[serde_json::Value]) -> (Option<Limit>, Option<f64>) {
        let sweep = Sweep { request_sizes: vec![4096], depths: vec![1], ..Sweep::default() };
        let mut records = vec![
            made::run(&sweep),
            made::ceiling("link", "cuda:0", false, 25e9),
            made::ceiling("storage", &sweep.path, false, 7e9),
        ];
        records.extend(made::samples(&sweep).into_iter().zip(bounds).map(|(mut sample, bound)| {
            sample["measured"]["bound"] = bound.clone();
            sample
        }));
        let digest = digest_of(&[("a", &made::text(&records))]);
        let line = &digest.lines[0];
        (line.limit.clone(), line.share().map(|share| share * line.limit.as_ref().unwrap().rate))
    }

    #[test]
    fn what_a_sample_says_of_its_ceiling_counts() {
        let bound = |name: &str, rate: f64| json!({"name": name, "bytes_per_second": rate});
        let limit = |bounds: &[serde_json::Value]| told(bounds).0.map(|l| (l.name, l.rate));
        assert_eq!(limit(&[bound("storage", 6e9)]), Some(("storage".into(), 6e9)));
        // The reported bound is not one of the limits there.
        assert_eq!(limit(&[bound("in-flight", 25e9)]), Some(("link".into(), 25e9)));
        assert_eq!(limit(&[bound("in-flight", 3e9)]), Some(("lowest".into(), 3e9)));
        let several = [bound("storage", 6e9), bound("in-flight", 7e9), bound("link", -1.0)];
        assert_eq!(limit(&several), Some(("storage".into(), 7e9)));
        for none in [json!(null), bound("in-flight", 0.0)] {
            assert_eq!(limit(&[none]), Some(("storage".into(), 7e9)));
        }
    }

    #[test]
    fn a_ceiling_that_was_exceeded_later_keeps_its_name_for_what_it_bound() {
        let targets = vec!["cuda:0", "cuda:1"];
        let sweep =
            Sweep { request_sizes: vec![4096], depths: vec![1], targets, ..Sweep::default() };
        // An attempt: its limits, and its samples with their reported lowest limit.
        let attempt = |link: [f64; 2], storage: f64, lowest: Option<f64>| {
            let mut records = vec![made::run(&sweep)];
            let links = link.iter().zip(&sweep.targets);
            records.extend(links.map(|(rate, of)| made::ceiling("link", of, false, *rate)));
            records.push(made::ceiling("storage", &sweep.path, false, storage));
            let samples = lowest.into_iter().flat_map(|lowest| {
                let bound = json!({"name": "in-flight", "bytes_per_second": lowest});
                made::samples(&sweep).into_iter().map(move |mut sample| {
                    sample["measured"]["bound"] = bound.clone();
                    sample
                })
            });
            records.extend(samples);
            records
        };
        let limit = |attempts: [&[serde_json::Value]; 2]| {
            let digest = digest_of(&[("a", &made::text(&attempts.concat()))]);
            assert_eq!((digest.lines.len(), digest.ceilings.len()), (1, 3));
            digest.lines[0].limit.clone().map(|limit| (limit.name, limit.rate))
        };
        let other = attempt([2.5e9, 30e9], 8e9, None);
        for (links, storage, lowest, name) in [
            ([25e9, 25e9], 7e9, 7e9, "storage"),
            ([25e9, 25e9], 9e9, 9e9, "storage"),
            ([3e9, 2e9], 9e9, 5e9, "link"),
            ([3e9, 2e9], 9e9, 4e9, "lowest"),
        ] {
            let own = attempt(links, storage, Some(lowest));
            for attempts in [[&own[..], &other], [&other, &own]] {
                assert_eq!(limit(attempts), Some((name.to_owned(), lowest)));
            }
        }
    }

    #[test]
    fn a_ceiling_that_is_far_binds_nothing() {
        let sweep = Sweep { request_sizes: vec![4096], depths: vec![1], ..Sweep::default() };
        let bound_by = |rate: f64, bound: Option<&str>| {
            let mut records =
                vec![made::run(&sweep), made::ceiling("storage", &sweep.path, false, 7e9)];
            records.extend(made::samples(&sweep).into_iter().map(|mut sample| {
                sample["measured"]["bytes_per_second"] = rate.into();
                let told = bound.map(|name| json!({"name": name, "bytes_per_second": 7e9}));
                sample["measured"]["bound"] = told.into();
                sample
            }));
            let digest = digest_of(&[("a", &made::text(&records))]);
            digest.lines[0].bound_by().map(ToOwned::to_owned)
        };
        assert_eq!(bound_by(6.9e9, None).as_deref(), Some("storage"));
        assert_eq!(bound_by(5e9, None), None, "no sample names one either");
        assert_eq!(bound_by(5e9, Some("in-flight")).as_deref(), Some("in-flight"));
    }

    #[test]
    fn what_several_gpus_share_may_bind_them() {
        let targets = vec!["cuda:0", "cuda:1"];
        let sweep = Sweep { targets: targets.clone(), ..Sweep::default() };
        let mut records = vec![made::run(&sweep)];
        records.extend(targets.iter().map(|of| made::ceiling("link", of, false, 25e9)));
        let limit = |more: &[serde_json::Value]| {
            let all = [&records, more, &made::samples(&sweep)].concat();
            let text = made::text(&all);
            let of = |text: &str| {
                let limit = digest_of(&[("a", text)]).lines[0].limit.clone();
                limit.map(|limit| (limit.name, limit.rate))
            };
            assert_eq!(of(&text), None, "the limit of the drive is unknown");
            of(&text.replace("\"cold\"", "\"resident\""))
        };
        assert_eq!(limit(&[]), Some(("link".into(), 50e9)));
        let memory = limit(&[made::ceiling("memory", "host", false, 40e9)]);
        assert_eq!(memory, Some(("memory".into(), 40e9)));
        let of = "cuda:0+cuda:1";
        let both = limit(&[made::ceiling("uplink", of, false, 28e9)]);
        assert_eq!(both, Some(("uplink".into(), 28e9)));
        let theory = limit(&[made::ceiling("uplink", "0000:80:01.0", true, 28e9)]);
        assert_eq!(theory, Some(("link".into(), 50e9)), "a theoretical limit binds nothing");
    }

    #[test]
    fn a_mixed_load_has_a_part_of_each_directions_ceiling() {
        let sweep = Sweep { ways: vec!["forebay"], ..Sweep::default() };
        let link = |direction: &str, rate: f64| {
            let mut link = made::ceiling("link", "cuda:0", false, rate);
            link["direction"] = direction.into();
            link
        };
        let mut records = vec![made::run(&sweep), link("read", 10e9), link("write", 8e9)];
        records.extend(made::samples(&sweep));
        let text = made::text(&records).replace("\"cold\"", "\"resident\"");
        for (read_percent, most) in [(100, 10e9), (50, 16e9), (0, 8e9)] {
            let read_percent = format!("\"read_percent\":{read_percent}");
            assert!(text.contains("\"read_percent\":100"));
            let text = text.replace("\"read_percent\":100", &read_percent);
            let limit = digest_of(&[("a", &text)]).lines[0].limit.clone();
            assert_eq!(limit, Some(Limit { name: "link".into(), rate: most }), "{read_percent}");
        }
    }

    #[test]
    fn a_ceiling_of_another_path_says_nothing() {
        let sweep = Sweep { request_sizes: vec![4096], depths: vec![1], ..Sweep::default() };
        let mut records = vec![made::run(&sweep)];
        records.push(made::ceiling("storage", "/elsewhere", false, 7e9));
        records.extend(made::samples(&sweep));
        assert_eq!(digest_of(&[("a", &made::text(&records))]).lines[0].limit, None);
    }

    #[test]
    fn what_is_resident_is_bound_by_a_drive_only_past_the_page_cache() {
        for (way, name) in [("forebay", "link"), ("cpu-cached-gpu", "link"), ("cpu-gpu", "storage")]
        {
            let sweep = Sweep { ways: vec![way], ..Sweep::default() };
            let text = made::file(&sweep).replace("\"cold\"", "\"resident\"");
            assert_eq!(digest_of(&[("a", &text)]).lines[0].limit.as_ref().unwrap().name, name);
        }
    }

    #[test]
    fn of_a_ceiling_that_was_measured_again_the_larger_counts() {
        let sweep = Sweep::default();
        let mut records = vec![made::run(&sweep)];
        for (of, rate) in [("/a", 2e9), ("/a", 3e9), ("/a", 1e9), ("/b", 1e9)] {
            records.push(made::ceiling("storage", of, false, rate));
        }
        records.push(made::ceiling("storage", "/a", true, 9e9));
        let digest = digest_of(&[("a", &made::text(&records))]);
        let rates: Vec<f64> = digest.ceilings.iter().map(|bound| bound.rate).collect();
        assert_eq!(rates, [3e9, 1e9, 9e9]);
    }
}
