//! A real GPU's sensors, held against each other. What they cost and how often they move is
//! printed, since it says how far a short span's numbers can be believed.

use std::thread::sleep;
use std::time::{Duration, Instant};

use forebay::gpu::{GpuSelector, absence_reason, open};
use forebay_evidence::{Sensed, Sensors};

/// How long they are watched.
const SPAN: Duration = Duration::from_secs(1);

#[test]
fn energy_over_a_span_is_power_over_it() {
    let Some(device) = open(&GpuSelector::Auto).unwrap() else {
        let reason = absence_reason().unwrap_or_default();
        let required = std::env::var_os("FOREBAY_REQUIRE_GPU").is_some_and(|set| set == "1");
        assert!(!required, "FOREBAY_REQUIRE_GPU is 1, but no GPU: {reason}");
        return println!("skipped: no GPU: {reason}");
    };
    let sensors = match Sensors::find(device.info()) {
        Ok(sensors) => sensors,
        Err(none) => {
            println!("skipped: a GPU's sensors: {none}");
            return;
        }
    };
    sensors.missing().iter().for_each(|why| println!("skipped: a GPU's sensor: {why}"));
    let (begun, mut told) = (Instant::now(), Vec::new());
    let mut cost = Duration::ZERO;
    let mut quick = Duration::ZERO;
    while begun.elapsed() < SPAN {
        let asked = Instant::now();
        told.push((asked, sensors.read()));
        cost += asked.elapsed();
        let asked = Instant::now();
        assert_eq!(sensors.read_without_energy().failed, None);
        quick += asked.elapsed();
        sleep(Duration::from_millis(5));
    }
    let count = u32::try_from(told.len()).unwrap();
    let moves = |of: fn(&Sensed) -> Option<u64>| {
        told.windows(2).filter(|pair| of(&pair[0].1) != of(&pair[1].1)).count()
    };
    let (energy_moves, power_moves) = (moves(|now| now.energy_mj), moves(|now| now.power_mw));
    println!(
        "{}: {count} readings of {:?} each, {:?} without energy; energy moved {energy_moves} \
         times, power {power_moves}",
        sensors.name(),
        cost / count,
        quick / count
    );
    for (_, now) in &told {
        assert_eq!(now.failed, None);
        assert!(now.temperature_c.is_none_or(|c| (0..120).contains(&c)), "{now:?}");
        assert!(now.power_mw.is_none_or(|mw| (1_000..5_000_000).contains(&mw)), "{now:?}");
    }
    let ((first_at, first), (last_at, last)) = (&told[0], &told[told.len() - 1]);
    println!("at first {first:?}, at last {last:?}");
    if let (Some(first), Some(last)) = (first.energy_mj, last.energy_mj) {
        let joules = last.checked_sub(first).expect("energy that grows") as f64 / 1e3;
        let watts = joules / (*last_at - *first_at).as_secs_f64();
        let powers: Vec<f64> =
            told.iter().filter_map(|(_, now)| Some(now.power_mw? as f64 / 1e3)).collect();
        let power = powers.iter().sum::<f64>() / powers.len() as f64;
        println!("{watts:.1} W by its counter, {power:.1} W by its power");
        // Units apart they would differ a thousandfold; the counter lags by what it moves at once.
        assert!(powers.is_empty() || (power / 4.0..power * 4.0).contains(&watts));
    }
}
