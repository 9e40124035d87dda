//! What all ranks did in one sample: all bytes over the time from the first start to the last end.
//! Pure, but for the clock that ranks of a host share.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::power::result::{Part as Powered, Power, Source};
use crate::results::verdict::VerdictFacts;
use crate::results::{CpuCost, DriveBytes, KvFacts, Latency, Limit, Measured};
use crate::results::{PageCacheShare, Share};
use crate::stats::{float, rate};
use crate::workload::latency::Latencies;
use crate::workload::run::Ran;
use crate::workload::steady;

/// A sample of one rank.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct OfRank {
    measured: Measured,
    /// Each latency in nanoseconds, and how often it occurred; the same of a store's first blocks.
    latencies: Vec<(u64, u64)>,
    firsts: Vec<(u64, u64)>,
    /// Bytes that it read from storage.
    fetched: Option<u64>,
    /// Of each repetition when this rank could begin, when its span began, and when it ended, in
    /// nanoseconds of the host's monotonic clock.
    rounds: Vec<[u64; 3]>,
}

impl OfRank {
    /// The sample of this rank.
    #[must_use]
    pub fn new(measured: Measured, ran: &Ran) -> Self {
        // Counters of one rank prove nothing about the total, and are large.
        let measured = Measured { evidence: None, ..measured };
        let (clock, now) = (clock_gettime(ClockId::Monotonic), Instant::now());
        let seconds = Duration::from_secs(clock.tv_sec.unsigned_abs());
        let clock = seconds + Duration::from_nanos(clock.tv_nsec.unsigned_abs());
        let nanoseconds = |at: Instant| {
            let at = clock.saturating_sub(now.saturating_duration_since(at));
            u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)
        };
        let rounds = ran.rounds.iter().map(|round| round.map(nanoseconds)).collect();
        let (latencies, firsts) = (ran.latencies.counts(), ran.firsts.counts());
        Self { measured, latencies, firsts, fetched: ran.fetched, rounds }
    }
}

/// The span of each repetition, in nanoseconds since the ranks could begin, by rank. Ranks of a
/// host have one clock; the first rank of each host could begin at the same time.
fn spans(parts: &[OfRank], hosts: &[String]) -> Vec<Vec<[u64; 2]>> {
    let rounds = parts.iter().map(|part| part.rounds.len()).min().unwrap_or(0);
    let round = |round: usize| {
        let mut first: BTreeMap<&String, u64> = BTreeMap::new();
        for (part, host) in parts.iter().zip(hosts) {
            let ready = part.rounds[round][0];
            first.entry(host).and_modify(|known| *known = ready.min(*known)).or_insert(ready);
        }
        let all = parts.iter().zip(hosts).map(|(part, host)| (part.rounds[round], first[host]));
        all.map(|([_, from, to], first)| [from, to].map(|at| at.saturating_sub(first))).collect()
    };
    (0..rounds).map(round).collect()
}

/// The seconds from the first start to the last end, in all repetitions.
fn seconds(spans: &[Vec<[u64; 2]>]) -> f64 {
    let of = |ranks: &Vec<[u64; 2]>| {
        let from = ranks.iter().map(|span| span[0]).min().unwrap_or(0);
        ranks.iter().map(|span| span[1]).max().unwrap_or(0).saturating_sub(from)
    };
    rate(spans.iter().map(of).sum::<u64>().max(1), 1e9)
}

/// The total of all ranks, which are on `hosts`.
#[must_use]
pub fn total(parts: &[OfRank], hosts: &[String]) -> Measured {
    let all = || parts.iter().map(|part| &part.measured);
    let spans = spans(parts, hosts);
    let seconds = seconds(&spans);
    let sum = |of: &dyn Fn(&Measured) -> Option<f64>| all().map(of).sum::<Option<f64>>();
    let count = |of: fn(&Measured) -> Option<u64>| all().map(of).sum::<Option<u64>>();
    let bytes = count(|one| one.bytes).unwrap_or(0);
    let requests = count(|one| one.requests);
    let user = sum(&|one| Some(one.cpu?.user_s));
    let system = sum(&|one| Some(one.cpu?.system_s));
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
        requests,
        seconds: Some(seconds),
        bytes_per_second: rate(bytes, seconds),
        requests_per_second: requests.map(|requests| rate(requests, seconds)),
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
        power: power(parts, hosts, seconds),
        verified: (is_wrong || is_right).then_some(!is_wrong),
        verified_bytes: all().map(|one| one.verified_bytes).sum(),
        compared_with: first.compared_with,
        shares: shares(parts, hosts, &spans),
        kv: all().map(|one| one.kv).collect::<Option<Vec<_>>>().map(|all| kv(&all, parts, seconds)),
        simulated: all().any(|one| one.simulated),
    }
}

/// The share of the bytes of all ranks that they read from storage.
#[must_use]
pub fn fetched(parts: &[OfRank]) -> Option<f64> {
    let fetched = parts.iter().map(|part| part.fetched).sum::<Option<u64>>()?;
    let bytes = parts.iter().map(|part| part.measured.bytes).sum::<Option<u64>>()?;
    Some(rate(fetched, float(bytes.max(1))))
}

/// The share by which the span of a total is longer than the shortest of a rank.
#[must_use]
pub fn longer(measured: &Measured) -> Option<f64> {
    let spans = measured.shares.iter().map(|own| rate(own.bytes, own.bytes_per_second));
    let shortest = spans.min_by(f64::total_cmp).filter(|span| *span > 0.0)?;
    Some(measured.seconds? / shortest - 1.0)
}

/// The numbers of the ranks of each host.
fn by_host(hosts: &[String]) -> BTreeMap<&str, Vec<usize>> {
    let mut ranks: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    hosts.iter().enumerate().for_each(|(rank, host)| ranks.entry(host).or_default().push(rank));
    ranks
}

fn latency(parts: &[OfRank]) -> Option<Latency> {
    let since_due = parts.iter().any(|part| part.measured.latency.is_some_and(|l| l.since_due));
    merged(parts.iter().map(|part| &part.latencies)).summary(since_due)
}

fn merged<'a>(all: impl Iterator<Item = &'a Vec<(u64, u64)>>) -> Latencies {
    let mut latencies = Latencies::default();
    all.for_each(|counts| latencies.add_counts(counts));
    latencies
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
fn shares(parts: &[OfRank], hosts: &[String], spans: &[Vec<[u64; 2]>]) -> Vec<Share> {
    let all = parts.iter().zip(hosts).enumerate().flat_map(|(rank, (part, host))| {
        let name = format!("rank {rank} on {host}");
        let own = &part.measured;
        let began_s = spans.first().map_or(0.0, |ranks| rate(ranks[rank][0], 1e9));
        let last_done_s = began_s + own.seconds.unwrap_or(0.0);
        let of_rank = Share {
            target: name.clone(),
            bytes: own.bytes.unwrap_or(0),
            bytes_per_second: own.bytes_per_second,
            first_done_s: last_done_s,
            last_done_s,
        };
        let of_gpus = own.shares.iter().map(|share| Share {
            target: format!("{name}, {}", share.target),
            first_done_s: began_s + share.first_done_s,
            last_done_s: began_s + share.last_done_s,
            ..share.clone()
        });
        if own.shares.is_empty() { vec![of_rank] } else { of_gpus.collect() }
    });
    all.collect()
}

/// The sources of all hosts: GPUs of each rank, and the others of the first rank of a host.
fn power(parts: &[OfRank], hosts: &[String], seconds: f64) -> Option<Power> {
    let of = |rank: usize| parts.get(rank)?.measured.power.as_ref();
    of(0)?;
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

fn kv(all: &[KvFacts], parts: &[OfRank], seconds: f64) -> KvFacts {
    let sum = |of: fn(&KvFacts) -> u64| all.iter().map(of).sum();
    let loaded = all
        .iter()
        .zip(parts)
        .map(|(one, part)| one.loaded_bytes_per_second * part.measured.seconds.unwrap_or(seconds));
    KvFacts {
        turns: sum(|one| one.turns),
        wanted: sum(|one| one.wanted),
        hits: sum(|one| one.hits),
        dropped: sum(|one| one.dropped),
        loaded_bytes_per_second: loaded.sum::<f64>() / seconds,
        first: merged(parts.iter().map(|part| &part.firsts)).summary(false),
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

/// The limit of all ranks, which measured its rate together.
#[must_use]
pub fn limit(all: &[Limit]) -> Option<Limit> {
    let first = all.first()?;
    Some(Limit {
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
            kv: Some(KvFacts { loaded_bytes_per_second: 50.0 / 3.0, ..KvFacts::default() }),
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
        // Each rank begins half a second after it could.
        let at = |seconds| u64::try_from(Duration::from_secs_f64(seconds).as_nanos()).unwrap();
        let rounds = vec![[0.0, 0.5, 0.5 + seconds].map(|seconds| READY + at(seconds))];
        OfRank {
            measured,
            latencies: vec![(latency, 100)],
            firsts: vec![(latency, 10)],
            fetched: None,
            rounds,
        }
    }

    const READY: u64 = 1 << 40;

    #[test]
    fn bytes_count_from_the_first_start_to_the_last_end_and_latencies_are_merged() {
        let mut parts = [of_rank(2_000_000, 1.0, 1000), of_rank(6_000_000, 2.0, 9000)];
        let hosts = ["a", "b"].map(String::from);
        let all = total(&parts, &hosts);
        assert_eq!(
            (all.bytes, all.seconds, all.requests),
            (Some(8_000_000), Some(2.0), Some(8000))
        );
        assert!((all.bytes_per_second - 4e6).abs() < 1e-6, "{all:?}");
        assert!((all.requests_per_second.unwrap() - 4e3).abs() < 1e-6, "{all:?}");
        let latency = all.latency.unwrap();
        assert_eq!(latency.count, Some(200));
        assert!(latency.p50_ns.unwrap() <= 1001 && latency.p90_ns.unwrap() >= 8990, "{latency:?}");
        let cpu = all.cpu.unwrap();
        assert!((cpu.user_s - 3.0).abs() < 1e-9 && (cpu.cores - 0.75).abs() < 1e-9, "{cpu:?}");
        assert!((cpu.s_per_gb.unwrap() - 375.0).abs() < 1e-6, "{cpu:?}");
        assert_eq!(all.steady.unwrap().rates, [2.0, 4.0, 6.0, 8.0]);
        assert_eq!((all.verified, all.verified_bytes), (Some(true), Some(10)));
        let names: Vec<&str> = all.shares.iter().map(|share| share.target.as_str()).collect();
        assert_eq!(names, ["rank 0 on a", "rank 1 on b"]);
        assert!((all.shares[1].last_done_s - 2.5).abs() < 1e-9, "{:?}", all.shares);
        assert_eq!(all.drive_bytes.unwrap().read, 20);
        let power = all.power.unwrap();
        assert_eq!(power.joules_of(Powered::Package), Some(400.0), "{power:?}");
        let kv = all.kv.unwrap();
        assert!((kv.loaded_bytes_per_second - 25.0).abs() < 1e-9, "{kv:?}");
        let first = kv.first.unwrap();
        assert_eq!(first.count, Some(20));
        assert!(first.p50_ns.unwrap() <= 1001 && first.p90_ns.unwrap() >= 8990, "{first:?}");
        // The counters of one host count for both ranks.
        let hosts = ["a", "a"].map(String::from);
        let all = total(&parts, &hosts);
        assert_eq!(all.drive_bytes.unwrap().read, 10);
        let power = all.power.unwrap();
        assert_eq!(power.joules_of(Powered::Package), Some(200.0), "{power:?}");
        assert_eq!(power.joules_of(Powered::Gpu), Some(400.0), "{power:?}");
        // Ranks of one host have one clock: the second begins three seconds after the first.
        let later =
            |part: &mut OfRank| part.rounds[0].iter_mut().for_each(|at| *at += 3_000_000_000);
        later(&mut parts[1]);
        assert_eq!(total(&parts, &hosts).seconds, Some(5.0));
        assert_eq!(total(&parts, &["a", "b"].map(String::from)).seconds, Some(2.0));
        // Pauses between repetitions do not count.
        parts.iter_mut().for_each(|part| part.rounds.push(part.rounds[0].map(|at| at + READY)));
        assert_eq!(total(&parts, &hosts).seconds, Some(10.0));
    }

    #[test]
    fn a_sample_too_short_for_all_or_wrong_for_one_rank_is_so() {
        let hosts = ["a", "a"].map(String::from);
        let mut parts = [of_rank(1000, 0.02, 1), of_rank(1000, 0.02, 1)];
        assert!(!total(&parts, &hosts).is_long_enough());
        parts[0] = of_rank(1000, 1.0, 1);
        assert!(total(&parts, &hosts).is_long_enough());
        parts[1].measured.verified = Some(false);
        assert_eq!(total(&parts, &hosts).verified, Some(false));
        parts[1].measured.verified = None;
        assert_eq!(total(&parts, &hosts).verified, None);
    }

    #[test]
    fn unlike_spans_and_reads_from_memory_are_found() {
        let mut parts = [of_rank(2_000_000, 1.0, 1), of_rank(6_000_000, 1.5, 1)];
        let measured = total(&parts, &["a", "a"].map(String::from));
        assert!((longer(&measured).unwrap() - 0.5).abs() < 1e-9);
        assert_eq!(longer(&Measured::default()), None);
        assert_eq!(fetched(&parts), None);
        parts.iter_mut().for_each(|part| part.fetched = Some(3_000_000));
        assert!((fetched(&parts).unwrap() - 0.75).abs() < 1e-9);
    }

    #[test]
    fn a_limit_has_the_common_rate_and_all_predictions() {
        let one = |predicted| Limit { bytes_per_second: 3.0, predicted, ..Limit::default() };
        let all = limit(&[one(Some(1.0)), one(Some(2.5))]).unwrap();
        assert!((all.bytes_per_second - 3.0).abs() < 1e-9, "{all:?}");
        assert_eq!((all.how.as_str(), all.predicted), (", 2 ranks at once", Some(3.5)));
    }
}
