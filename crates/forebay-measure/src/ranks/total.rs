//! What all ranks did in one sample: rates are added, latencies merged. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::power::result::{Part as Powered, Power, Source};
use crate::results::verdict::VerdictFacts;
use crate::results::{CpuCost, DriveBytes, KvFacts, Latency, Limit, Measured};
use crate::results::{PageCacheShare, Share};
use crate::stats::float;
use crate::workload::latency::Latencies;
use crate::workload::run::Ran;
use crate::workload::steady;

/// A sample of one rank.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct OfRank {
    measured: Measured,
    /// Each latency in nanoseconds, and how often it occurred.
    latencies: Vec<(u64, u64)>,
    /// When its span began, in seconds after the ranks began together.
    began_s: f64,
}

impl OfRank {
    /// The sample of this rank, whose span began so many seconds after the ranks began together.
    #[must_use]
    pub fn new(measured: Measured, ran: &Ran, began_s: f64) -> Self {
        // Counters of one rank prove nothing about the total, and are large.
        let measured = Measured { evidence: None, ..measured };
        Self { measured, latencies: ran.latencies.counts(), began_s }
    }
}

/// The total over the shortest span of a rank, so that a sample which is too short for one rank is
/// too short for all. `hosts` are those of the ranks.
#[must_use]
pub fn total(parts: &[OfRank], hosts: &[String]) -> Measured {
    let all = || parts.iter().map(|part| &part.measured);
    let seconds = all().filter_map(|one| one.seconds).fold(f64::INFINITY, f64::min);
    // The part of a value that is in the common span.
    let in_span = |one: &Measured, value: f64| value * seconds / one.seconds.unwrap_or(seconds);
    let sum = |of: &dyn Fn(&Measured) -> Option<f64>| all().map(of).sum::<Option<f64>>();
    let bytes_per_second = all().map(|one| one.bytes_per_second).sum();
    let requests_per_second = sum(&|one| one.requests_per_second);
    let bytes = count(bytes_per_second * seconds);
    let user = sum(&|one| Some(in_span(one, one.cpu?.user_s)));
    let system = sum(&|one| Some(in_span(one, one.cpu?.system_s)));
    let cpu = user.zip(system).map(|(user, system)| {
        let cost = CpuCost::new(user, system, seconds, bytes);
        CpuCost { cores: cost.cores / float(by_host(hosts).len() as u64), ..cost }
    });
    let verdicts = parts.iter().filter_map(|part| {
        Some((part.measured.verdict.as_ref()?, part.measured.bytes.unwrap_or(0)))
    });
    let first = parts.first().map(|part| part.measured.clone()).unwrap_or_default();
    let is_wrong = all().any(|one| one.verified == Some(false));
    let is_right = all().all(|one| one.verified == Some(true));
    Measured {
        bytes: Some(bytes),
        requests: requests_per_second.map(|rate| count(rate * seconds)),
        seconds: Some(seconds),
        bytes_per_second,
        requests_per_second,
        latency: latency(parts),
        cpu,
        page_cache: page_cache(parts),
        drive_bytes: drive_bytes(parts, hosts),
        route: joined(all().filter_map(|one| one.route.as_deref())),
        reason: joined(all().filter_map(|one| one.reason.as_deref())),
        verdict: VerdictFacts::together(&verdicts.collect::<Vec<_>>()),
        evidence: None,
        bound: None,
        steady: all()
            .try_fold(None, |sum: Option<Vec<f64>>, one| {
                let own = &one.steady.as_ref()?.rates;
                let sum = sum.unwrap_or_else(|| vec![0.0; own.len()]);
                let is_same = sum.len() == own.len();
                is_same.then(|| Some(sum.iter().zip(own).map(|(a, b)| a + b).collect()))
            })
            .flatten()
            .and_then(|rates: Vec<f64>| steady::judge(&rates, first.steady.as_ref()?.part_s)),
        power: power(parts, hosts),
        verified: (is_wrong || is_right).then_some(!is_wrong),
        verified_bytes: all().map(|one| one.verified_bytes).sum(),
        compared_with: first.compared_with,
        shares: shares(parts, hosts),
        kv: all().map(|one| one.kv).collect::<Option<Vec<_>>>().map(|all| kv(&all)),
        simulated: all().any(|one| one.simulated),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes of a span")]
fn count(number: f64) -> u64 {
    number.round() as u64
}

/// The numbers of the ranks of each host.
fn by_host(hosts: &[String]) -> BTreeMap<&str, Vec<usize>> {
    let mut ranks: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    hosts.iter().enumerate().for_each(|(rank, host)| ranks.entry(host).or_default().push(rank));
    ranks
}

fn latency(parts: &[OfRank]) -> Option<Latency> {
    let mut latencies = Latencies::default();
    parts.iter().for_each(|part| latencies.add_counts(&part.latencies));
    latencies.summary(parts.iter().any(|part| part.measured.latency.is_some_and(|l| l.since_due)))
}

/// The mean of the ranks.
fn page_cache(parts: &[OfRank]) -> Option<PageCacheShare> {
    let mean = |of: fn(PageCacheShare) -> Option<f64>| {
        let sum = parts.iter().map(|part| of(part.measured.page_cache?)).sum::<Option<f64>>();
        sum.map(|sum| sum / float(parts.len() as u64))
    };
    let (before, after) = (mean(|share| share.before), mean(|share| share.after));
    parts.first()?.measured.page_cache.map(|_| PageCacheShare { before, after })
}

/// The counters of a host count the bytes of all its ranks.
fn drive_bytes(parts: &[OfRank], hosts: &[String]) -> Option<DriveBytes> {
    let mut sum = DriveBytes::default();
    for ranks in by_host(hosts).values() {
        let own = || ranks.iter().filter_map(|rank| parts.get(*rank)?.measured.drive_bytes);
        sum.read += own().map(|bytes| bytes.read).max()?;
        sum.written += own().map(|bytes| bytes.written).max()?;
    }
    Some(sum)
}

/// The shares of the GPUs of ranks that have several, else those of ranks.
fn shares(parts: &[OfRank], hosts: &[String]) -> Vec<Share> {
    let all = parts.iter().zip(hosts).enumerate().flat_map(|(rank, (part, host))| {
        let name = format!("rank {rank} on {host}");
        let own = &part.measured;
        let last_done_s = part.began_s + own.seconds.unwrap_or(0.0);
        let of_rank = Share {
            target: name.clone(),
            bytes: own.bytes.unwrap_or(0),
            bytes_per_second: own.bytes_per_second,
            first_done_s: last_done_s,
            last_done_s,
        };
        let of_gpus = own.shares.iter().map(|share| Share {
            target: format!("{name}, {}", share.target),
            first_done_s: part.began_s + share.first_done_s,
            last_done_s: part.began_s + share.last_done_s,
            ..share.clone()
        });
        if own.shares.is_empty() { vec![of_rank] } else { of_gpus.collect() }
    });
    all.collect()
}

/// The sources of all hosts: GPUs of each rank, and the others of the first rank of a host.
fn power(parts: &[OfRank], hosts: &[String]) -> Option<Power> {
    let of = |rank: usize| parts.get(rank)?.measured.power.as_ref();
    let seconds = (0..parts.len()).filter_map(of).map(|power| power.seconds);
    let seconds = seconds.min_by(f64::total_cmp)?;
    let mut sum = Power { seconds, ..Power::default() };
    for (host, ranks) in by_host(hosts) {
        for (number, own) in ranks.into_iter().filter_map(of).enumerate() {
            let new = own.sources.iter().filter(|one| number == 0 || one.part == Powered::Gpu);
            let named = |one: &Source| Source {
                name: format!("{} on {host}", one.name),
                joules: one.watts * seconds,
                ..one.clone()
            };
            sum.sources.extend(new.map(named));
            sum.throttled.extend(own.throttled.iter().cloned());
            sum.warnings.extend(own.warnings.iter().cloned());
        }
    }
    Some(sum)
}

/// Times to the first block are not merged: their histograms are not kept.
fn kv(all: &[KvFacts]) -> KvFacts {
    let sum = |of: fn(&KvFacts) -> u64| all.iter().map(of).sum();
    KvFacts {
        turns: sum(|one| one.turns),
        wanted: sum(|one| one.wanted),
        hits: sum(|one| one.hits),
        dropped: sum(|one| one.dropped),
        loaded_bytes_per_second: all.iter().map(|one| one.loaded_bytes_per_second).sum(),
        first: None,
    }
}

/// Each text once.
fn joined<'a>(all: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut found: Vec<&str> = Vec::new();
    all.for_each(|one| {
        if !found.contains(&one) {
            found.push(one)
        }
    });
    (!found.is_empty()).then(|| found.join(" or "))
}

/// The limit of all ranks, which each measured at the same time.
#[must_use]
pub fn limit(all: &[Limit]) -> Option<Limit> {
    let first = all.first()?;
    Some(Limit {
        bytes_per_second: all.iter().map(|one| one.bytes_per_second).sum(),
        how: format!("{}, {} ranks at once", first.how, all.len()),
        simulated: all.iter().any(|one| one.simulated),
        predicted: all.iter().map(|one| one.predicted).sum(),
        ..first.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::verdict::tests::verdict;
    use crate::results::{Cache, Steady};

    fn of_rank(bytes: u64, seconds: f64, latency: u64) -> OfRank {
        let rate = float(bytes) / seconds;
        let measured = Measured {
            bytes: Some(bytes),
            requests: Some(bytes / 1000),
            seconds: Some(seconds),
            bytes_per_second: rate,
            requests_per_second: Some(rate / 1000.0),
            cpu: Some(CpuCost::new(seconds, 0.0, seconds, bytes)),
            drive_bytes: Some(DriveBytes { read: 10, written: 0 }),
            verdict: Some(verdict(Cache::Cold)),
            steady: Some(Steady { rates: vec![1.0, 2.0, 3.0, 4.0], ..Steady::default() }),
            verified: Some(true),
            verified_bytes: Some(5),
            power: Some(Power {
                seconds,
                sources: [("gpu 0", Powered::Gpu), ("package-0", Powered::Package)]
                    .map(|(name, part)| Source {
                        name: name.into(),
                        part,
                        watts: 100.0,
                        ..Source::default()
                    })
                    .to_vec(),
                ..Power::default()
            }),
            ..Measured::default()
        };
        OfRank { measured, latencies: vec![(latency, 100)], began_s: 0.5 }
    }

    #[test]
    fn rates_are_added_and_latencies_merged() {
        let parts = [of_rank(2_000_000, 1.0, 1000), of_rank(6_000_000, 2.0, 9000)];
        let hosts = ["a", "b"].map(String::from);
        let all = total(&parts, &hosts);
        assert_eq!(
            (all.bytes, all.seconds, all.requests),
            (Some(5_000_000), Some(1.0), Some(5000))
        );
        assert!((all.bytes_per_second - 5e6).abs() < 1e-6, "{all:?}");
        let latency = all.latency.unwrap();
        assert_eq!(latency.count, Some(200));
        assert!(latency.p50_ns.unwrap() <= 1001 && latency.p90_ns.unwrap() >= 8990, "{latency:?}");
        let cpu = all.cpu.unwrap();
        assert!((cpu.user_s - 2.0).abs() < 1e-9 && (cpu.cores - 1.0).abs() < 1e-9, "{cpu:?}");
        assert!((cpu.s_per_gb.unwrap() - 400.0).abs() < 1e-6, "{cpu:?}");
        assert_eq!(all.steady.unwrap().rates, [2.0, 4.0, 6.0, 8.0]);
        assert_eq!((all.verified, all.verified_bytes), (Some(true), Some(10)));
        let names: Vec<&str> = all.shares.iter().map(|share| share.target.as_str()).collect();
        assert_eq!(names, ["rank 0 on a", "rank 1 on b"]);
        assert!((all.shares[1].last_done_s - 2.5).abs() < 1e-9, "{:?}", all.shares);
        assert_eq!(all.drive_bytes.unwrap().read, 20);
        let power = all.power.unwrap();
        assert_eq!(power.joules_of(Powered::Package), Some(200.0), "{power:?}");
        // The counters of one host count for both ranks.
        let all = total(&parts, &["a", "a"].map(String::from));
        assert_eq!(all.drive_bytes.unwrap().read, 10);
        let power = all.power.unwrap();
        assert_eq!(power.joules_of(Powered::Package), Some(100.0), "{power:?}");
        assert_eq!(power.joules_of(Powered::Gpu), Some(200.0), "{power:?}");
    }

    #[test]
    fn a_sample_too_short_or_wrong_for_one_rank_is_so_for_all() {
        let hosts = ["a", "a"].map(String::from);
        let mut parts = [of_rank(1000, 1.0, 1), of_rank(1000, 0.02, 1)];
        assert!(!total(&parts, &hosts).is_long_enough());
        assert!(total(&parts[..1], &hosts[..1]).is_long_enough());
        parts[1].measured.verified = Some(false);
        assert_eq!(total(&parts, &hosts).verified, Some(false));
        parts[1].measured.verified = None;
        assert_eq!(total(&parts, &hosts).verified, None);
    }

    #[test]
    fn limits_are_added() {
        let one = |rate| Limit { bytes_per_second: rate, how: "copies".into(), ..Limit::default() };
        let all = limit(&[one(1.0), one(2.5)]).unwrap();
        assert!((all.bytes_per_second - 3.5).abs() < 1e-9);
        assert_eq!((all.how.as_str(), all.predicted), ("copies, 2 ranks at once", None));
    }
}
