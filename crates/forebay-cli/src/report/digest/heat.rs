//! Temperatures of GPUs and drives, of each point and over a whole run, and throttling. Pure.

use std::collections::HashMap;

use super::Digest;
use crate::power::result::{Power, RISE_MAX, Temperature, Throttled};
use crate::report::plain::{cut, plain};
use crate::results::Sample;
use crate::results::summary::Estimate;

/// Most sensors and reasons that are reported.
const SENSORS_MAX: usize = 64;
/// Most letters of a sensor's name or of a reason.
const NAME_MAX: usize = 200;
/// Most sensors named in one warning.
const NAMED_MAX: usize = 4;

/// The readings of one sensor in the samples of a point: medians, in degrees Celsius.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Heat {
    /// Its name: `gpu cuda:0`.
    pub name: String,
    /// The value at the beginning of the span.
    pub first: Option<f64>,
    /// The value at its end.
    pub last: Option<f64>,
    /// The maximum.
    pub max: Option<f64>,
}

/// A sensor's readings at both ends of a run during which it warmed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Warmed {
    /// The index of the run.
    pub run: usize,
    /// The sensor.
    pub name: String,
    /// Its first reading.
    pub first: f64,
    /// Its last reading.
    pub last: f64,
}

/// Whether it is a plausible temperature.
fn is_degrees(value: &f64) -> bool {
    (-274.0..=1e4).contains(value)
}

fn powers<'a>(samples: &'a [&Sample]) -> impl Iterator<Item = &'a Power> {
    samples.iter().filter_map(|sample| sample.measured.as_ref()?.power.as_ref())
}

/// Each sensor's readings of the samples of a point, in the order of their first appearance.
pub(super) fn of_point(samples: &[&Sample]) -> Vec<Heat> {
    let mut sensors: Vec<(&str, Vec<&Temperature>)> = Vec::new();
    for told in powers(samples).flat_map(|power| &power.temperatures) {
        match sensors.iter().position(|(name, _)| *name == told.name) {
            Some(place) => sensors[place].1.push(told),
            None if sensors.len() < SENSORS_MAX => sensors.push((&told.name, vec![told])),
            None => {}
        }
    }
    let heat = sensors.into_iter().map(|(name, told)| {
        let median = |of: fn(&Temperature) -> f64| {
            Estimate::of(told.iter().map(|told| of(told))).map(|found| found.median)
        };
        Heat {
            name: cut(name, NAME_MAX),
            first: median(|told| told.first),
            last: median(|told| told.last),
            max: median(|told| told.max),
        }
    });
    heat.collect()
}

/// Throttling in any of the samples of a point, each reason with its largest share.
pub(super) fn throttled(samples: &[&Sample]) -> Vec<Throttled> {
    let mut found: Vec<Throttled> = Vec::new();
    for told in powers(samples).flat_map(|power| &power.throttled) {
        let (name, reason) = (cut(&told.name, NAME_MAX), cut(&told.reason, NAME_MAX));
        match found.iter().position(|other| other.name == name && other.reason == reason) {
            Some(place) => found[place].share = found[place].share.max(told.share),
            None if found.len() < SENSORS_MAX => {
                found.push(Throttled { name, reason, share: told.share });
            }
            None => {}
        }
    }
    found
}

/// The sensors of each run that warmed by more than a limit from its beginning to its end.
pub(super) fn of_runs(samples: &[(usize, &Sample)]) -> Vec<Warmed> {
    let mut ordered: Vec<(usize, &Sample)> = samples.to_vec();
    ordered.sort_by(|(_, one), (_, other)| one.unix_time.total_cmp(&other.unix_time));
    let mut places: HashMap<(usize, &str), usize> = HashMap::new();
    let mut sensors: Vec<Warmed> = Vec::new();
    for (run, sample) in ordered {
        let power = sample.measured.as_ref().and_then(|measured| measured.power.as_ref());
        let told = power.into_iter().flat_map(|power| &power.temperatures);
        for told in told.filter(|told| [told.first, told.last].iter().all(is_degrees)) {
            let next = sensors.len();
            let place = *places.entry((run, &told.name)).or_insert(next);
            if place < next {
                sensors[place].last = told.last;
            } else if next < SENSORS_MAX {
                let name = cut(&told.name, NAME_MAX);
                sensors.push(Warmed { run, name, first: told.first, last: told.last });
            } else {
                // There is no room: the sensor is left out, in later samples too.
                places.remove(&(run, told.name.as_str()));
            }
        }
    }
    sensors.retain(|sensor| sensor.last - sensor.first > RISE_MAX);
    sensors
}

/// A sentence for each run in which a sensor has warmed.
pub(super) fn warnings(digest: &Digest) -> Vec<String> {
    let of_run = |(number, run): (usize, &super::RunFacts)| {
        let all: Vec<&Warmed> = digest.warmed.iter().filter(|one| one.run == number).collect();
        let told = all.iter().take(NAMED_MAX).map(|Warmed { name, first, last, .. }| {
            format!("`{}` from {first:.0} to {last:.0} °C", plain(name))
        });
        let mut told: Vec<String> = told.collect();
        if all.len() > NAMED_MAX {
            told.push(format!("{} more", all.len() - NAMED_MAX));
        }
        let several = digest.runs.len() > 1;
        let name = if several { format!(" {}", plain(&run.name)) } else { String::new() };
        (!all.is_empty()).then(|| {
            format!(
                "temperatures rose over the whole run{name}, {}, so its first and last points may \
                 differ; warm up for longer, or measure the first points again",
                told.join(", ")
            )
        })
    };
    digest.runs.iter().enumerate().filter_map(of_run).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::report::digest::Digest;
    use crate::report::digest::gather::tests::digest_of;
    use crate::report::made::{self, HARM, Sweep};

    /// The samples of a sweep over depths, each with the power that `of` gives it.
    fn records(of: impl Fn(usize) -> Value) -> Vec<Value> {
        let sweep = Sweep { request_sizes: vec![4096], ..Sweep::default() };
        let mut records = vec![made::run(&sweep)];
        records.extend(made::samples(&sweep));
        for (number, record) in records[1..].iter_mut().enumerate() {
            record["unix_time"] = (1.7e9 + number as f64).into();
            record["measured"]["power"] = of(number);
        }
        records
    }

    fn digest(of: impl Fn(usize) -> Value) -> Digest {
        digest_of(&[("a", &made::text(&records(of)))])
    }

    fn heat(name: &str, first: f64, last: f64) -> Value {
        json!({"name": name, "first": first, "last": last, "max": last})
    }

    /// A degree more in each sample, and a drive that stays as it is.
    fn slowly(number: usize, by: f64) -> Value {
        let at = 40.0 + by * number as f64;
        json!({"temperatures": [heat("gpu cuda:0", at, at + by), heat("drive a", 30.0, 31.0)]})
    }

    #[test]
    fn what_warms_over_the_whole_run_is_told_with_what_to_do() {
        let found = digest(|number| slowly(number, 2.0)).warnings;
        assert_eq!(found.len(), 1, "{found:?}");
        let begins = "temperatures rose over the whole run, `gpu cuda:0` from 40 to 58 °C, so its";
        assert!(found[0].starts_with(begins) && found[0].contains("; warm up"), "{found:?}");
        // Ten degrees are not more than ten.
        assert!(digest(|number| slowly(number, 10.0 / 9.0 - 1e-9)).warnings.is_empty());
        assert!(digest(|number| slowly(number, -5.0)).warnings.is_empty());
        // The time of a sample counts, not its place in the file.
        let mut turned = records(|number| slowly(number, 2.0));
        turned[1..].reverse();
        let texts = [made::text(&turned), made::text(&records(|number| slowly(number, 0.1)))];
        let both = digest_of(&[("a", &texts[0]), ("b", &texts[1])]).warnings;
        assert!(both.len() == 1 && both[0].contains("run a, `gpu cuda:0`"), "{both:?}");
    }

    #[test]
    fn sensors_are_bounded_and_harmless() {
        let all = |number: usize| {
            let last = if number.is_multiple_of(2) { 1e300 } else { 1e4 };
            let sensors: Vec<Value> =
                (0..500).map(|index| heat(&format!("{index}{HARM}"), 0.0, last)).collect();
            json!({"temperatures": sensors, "throttled": (0..500).map(|index|
                json!({"name": HARM, "reason": index.to_string(), "share": -1e300}))
                .collect::<Vec<_>>()})
        };
        let digest = digest(all);
        assert_eq!((digest.lines[0].heat.len(), digest.lines[0].throttled.len()), (64, 64));
        let [warning] = &digest.warnings[..] else { panic!("{:?}", digest.warnings) };
        assert!(warning.contains("60 more") && !warning.contains('\u{1b}'), "{warning}");
    }

    #[test]
    fn a_point_has_medians_and_the_largest_share() {
        let told = |number: usize| {
            let number = (number / 3) as f64;
            json!({"temperatures": [heat("gpu cuda:0", 40.0 + number, 50.0 - number)],
                "throttled": [{"name": "gpu cuda:0", "reason": "too hot", "share": number / 4.0}]})
        };
        let digest = digest(told);
        let [heat] = &digest.lines[0].heat[..] else { panic!("{:?}", digest.lines[0].heat) };
        assert_eq!((heat.first, heat.last, heat.max), (Some(41.0), Some(49.0), Some(49.0)));
        let [held] = &digest.lines[0].throttled[..] else { panic!() };
        assert_eq!((held.reason.as_str(), held.share), ("too hot", 0.5));
    }
}
