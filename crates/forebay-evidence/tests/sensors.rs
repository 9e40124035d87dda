//! A real GPU's sensors. What they cost and how often they move is printed, since it says how far
//! a short span's numbers can be believed.

use std::thread::sleep;
use std::time::{Duration, Instant};

use forebay::gpu::{GpuSelector, absence_reason, open};
use forebay_evidence::{Seen, Sensors};

/// How long they are watched.
const SPAN: Duration = Duration::from_secs(1);

#[test]
fn a_real_gpu_has_plausible_power() {
    let Some(device) = open(&GpuSelector::Auto).unwrap() else {
        let reason = absence_reason().unwrap_or_default();
        let required = std::env::var_os("FOREBAY_REQUIRE_GPU").is_some_and(|set| set == "1");
        assert!(!required, "FOREBAY_REQUIRE_GPU is 1, but no GPU: {reason}");
        return println!("skipped: no GPU: {reason}");
    };
    let sensors = match Sensors::find(device.info()) {
        Seen::Value(sensors) => sensors,
        none => return println!("skipped: a GPU's sensors: {:?}", none.absence()),
    };
    let (begun, mut readings) = (Instant::now(), Vec::new());
    let mut cost = Duration::ZERO;
    while begun.elapsed() < SPAN {
        let start = Instant::now();
        readings.push(sensors.read());
        cost += start.elapsed();
        sleep(Duration::from_millis(5));
    }
    let count = u32::try_from(readings.len()).unwrap();
    let moves = readings.windows(2).filter(|two| two[0].power_mw != two[1].power_mw).count();
    println!(
        "{}: {count} readings of {:?} each; power moved {moves} times; the last: {:?}",
        sensors.name(),
        cost / count,
        readings.last()
    );
    if let Err(why) = &readings[0].throttle {
        println!("skipped: why a GPU is throttled: {why}");
    }
    for now in &readings {
        assert_eq!(now.throttle.is_ok(), readings[0].throttle.is_ok(), "{now:?}");
        assert!(matches!(now.power_mw, Ok(1_000..5_000_000)), "{now:?}");
    }
}
