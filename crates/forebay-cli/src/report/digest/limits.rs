//! The ceilings of a digest, and which of them binds a line.
//!
//! Who measured may have said what binds a sample; that counts. [`super::gather`] asks here for
//! the others by the same rule.

use super::{Bound, Digest, Limit};
use crate::report::json::{Cache, Direction};
use crate::results::{self, Point, Sample};
use crate::workload::issuer::Plain;

/// Ceilings that are kept at most: a machine has some dozens.
const KEPT_MAX: usize = 1000;

impl Digest {
    /// Adds a ceiling. Of one that was measured again, as where a file is continued, the larger
    /// counts: it was reached.
    pub(super) fn take_ceiling(&mut self, bound: Bound) {
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

    /// What binds a point: what its samples say, else the lowest of the ceilings on its way.
    pub(super) fn limit(&self, run: usize, samples: &[&Sample]) -> Option<Limit> {
        let point = &samples.first()?.point;
        let told = samples.iter().filter_map(|sample| sample.measured.as_ref()?.bound.as_ref());
        // As of ceilings that were measured again, the larger.
        let told = told
            .filter_map(|bound| Some((bound, bound.bytes_per_second.filter(is_rate)?)))
            .max_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((bound, rate)) = told {
            return Some(Limit { name: self.name_of(run, point, bound, rate), rate });
        }
        let drive = point.cache == Cache::Cold || past_the_page_cache(&point.way);
        let ceilings = self.on_the_way(run, point).into_iter();
        let binding = ceilings.filter(|limit| drive || limit.name == "link");
        binding.min_by(|a, b| a.rate.total_cmp(&b.rate))
    }

    /// The name of the ceiling of this rate, of which a sample may tell only that it is far.
    fn name_of(&self, run: usize, point: &Point, bound: &results::Bound, rate: f64) -> String {
        if matches!(bound.name.as_str(), "link" | "storage" | "network") {
            return bound.name.clone();
        }
        let near = |other: f64| (other - rate).abs() <= 1e-9 * rate;
        let own = self.on_the_way(run, point).into_iter().find(|limit| near(limit.rate));
        let any = || self.ceilings.iter().find(|other| other.run == run && near(other.rate));
        own.map(|limit| limit.name)
            .or_else(|| any().map(|other| other.name.clone()))
            .unwrap_or_else(|| "lowest".into())
    }

    /// The measured ceilings of a point: the links of its targets together, and what its path
    /// has; of another path none says anything of it.
    fn on_the_way(&self, run: usize, point: &Point) -> Vec<Limit> {
        let direction = match point.read_percent {
            100 => Some(Direction::Read),
            0 => Some(Direction::Write),
            _ => None,
        };
        let of = |name: &str, of: &str| {
            let fits = |bound: &&Bound| {
                let any = bound.direction.is_none() || direction.is_none();
                (bound.run, bound.theory) == (run, false)
                    && bound.name == name
                    && bound.of == of
                    && (any || bound.direction == direction)
                    && is_rate(&bound.rate)
            };
            self.ceilings.iter().filter(fits).map(|bound| bound.rate).min_by(f64::total_cmp)
        };
        let links: Option<Vec<f64>> =
            point.targets.iter().map(|target| of("link", target)).collect();
        let links = links.filter(|links| !links.is_empty()).map(|links| links.iter().sum());
        let found = [
            ("link", links),
            ("storage", of("storage", &point.path)),
            ("network", of("network", &point.path)),
        ];
        let known = found.into_iter().filter_map(|(name, rate)| Some((name, rate?)));
        known.map(|(name, rate)| Limit { name: name.into(), rate }).collect()
    }
}

fn is_rate(rate: &f64) -> bool {
    rate.is_finite() && *rate > 0.0
}

/// Whether a plain way asks drives also for what is resident.
fn past_the_page_cache(way: &str) -> bool {
    [Plain::Cpu, Plain::CpuGpu, Plain::CpuAsyncGpu].iter().any(|plain| plain.name() == way)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::digest::gather::tests::digest_of;
    use crate::report::made::{self, Sweep};

    /// The first line's limit and share where each sample says this of what binds it.
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
        // It names what binds it, which is no ceiling there.
        assert_eq!(limit(&[bound("in-flight", 25e9)]), Some(("link".into(), 25e9)));
        assert_eq!(limit(&[bound("in-flight", 3e9)]), Some(("lowest".into(), 3e9)));
        let several = [bound("storage", 6e9), bound("in-flight", 7e9), bound("link", -1.0)];
        assert_eq!(limit(&several), Some(("storage".into(), 7e9)));
        for none in [json!(null), bound("in-flight", 0.0)] {
            assert_eq!(limit(&[none]), Some(("storage".into(), 7e9)));
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
