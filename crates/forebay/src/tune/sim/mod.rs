//! Simulated drives.
mod drive;
mod world;
use drive::{Drive, Kind, Change};
use world::*;
use super::*;
use crate::units::*;

pub(super) const LIMITS: DepthLimits = DepthLimits { depth_start: 4, depth_max: 128, size_min: 128*KIB, size_start: MIB, size_max: 16*MIB };

#[test]
fn explore() {
    let seed = std::env::var("SEED").map_or(1, |s| s.parse().unwrap());
    let jit = std::env::var("JIT").map_or(20, |s| s.parse().unwrap());
    let verbose = std::env::var("V").is_ok();
    let only = std::env::var("ONLY").unwrap_or_default();
    let ms = 1_000_000;
    let drives: Vec<(&str, Kind, usize)> = vec![
        ("1ms 200MB/s", Kind::Pipe{rate:200_000_000, op_ns:0, latency_ns: ms}, 1),
        ("cap 200MB/s", Kind::Pipe{rate:200_000_000, op_ns:0, latency_ns: 20_000}, 1),
        ("1ms 1GB/s", Kind::Pipe{rate:1_000_000_000, op_ns:0, latency_ns: ms}, 1),
        ("14GB/s 2.3ms", Kind::Pipe{rate:14_000_000_000, op_ns:0, latency_ns: 2_300_000}, 1),
        ("14GB/s 0.1ms", Kind::Pipe{rate:14_000_000_000, op_ns:0, latency_ns: 100_000}, 1),
        ("flash 7GB/s 16ch", Kind::Flash{channels:16, rate:7_000_000_000, latency_ns: 100_000}, 1),
        ("disk 200MB/s", Kind::Disk{rate:200_000_000, seek_ns: 8*ms}, 1),
        ("8 disks", Kind::Disk{rate:200_000_000, seek_ns: 8*ms}, 8),
        ("4x 1ms 200", Kind::Pipe{rate:200_000_000, op_ns:0, latency_ns: ms}, 4),
        ("op 1ms 2GB/s", Kind::Pipe{rate:2_000_000_000, op_ns:1_000_000, latency_ns: ms}, 1),
        ("remote 20ms 1GB/s", Kind::Pipe{rate:1_000_000_000, op_ns:0, latency_ns: 20*ms}, 1),
        ("slow 10MB/s 5ms", Kind::Pipe{rate:10_000_000, op_ns:0, latency_ns: 5*ms}, 1),
    ];
    for (name, kind, members) in drives {
        if !name.contains(&only) { continue; }
        let len = 4*GIB;
        let mut best = (0u64, 0, 0);
        let mut knee = 0;
        let mut curve = vec![];
        for size in [MIB] {
            for depth in [1,2,3,4,6,8,12,16,24,32,48,64,96,128] {
                let mut w = World::new(Drive::new(kind.clone(), members, jit, seed), Policy::Fixed{depth, size});
                w.run(Asks::all(GIB));
                let r = w.rate(0, w.now_ns);
                curve.push((depth, r));
                if r > best.0 { best = (r, depth, size); }
            }
        }
        for (d, r) in &curve { if *r*1000 >= best.0*970 { knee = *d; break; } }
        let mut w = World::new(Drive::new(kind.clone(), members, jit, seed), Policy::Tuned(Box::new(DepthTuner::new(if name.contains("disk") {DepthLimits{depth_start: 1, size_min: MIB, ..LIMITS}} else {LIMITS}, None))));
        w.run(Asks::all(len));
        let r = w.rate(0, w.now_ns);
        let l = w.policy.tuner().learned();
        println!("{name:20} best {:7.1} at {} knee {knee} | tuned {:7.1} share {:.3} p50 depth {} size {} KiB; bytes {} KiB; learned {:?}; {:.2} s",
            best.0 as f64/1e6, best.1, r as f64/1e6, r as f64/best.0 as f64, w.median(0, w.now_ns, |m| m.depth as u64), w.median(0, w.now_ns, |m| m.size)/1024, w.median(0, w.now_ns, |m| m.depth as u64*m.size)/1024, l.map(|l| (l.depth, l.size/1024, l.rate.0/1000000)), w.now_ns as f64/1e9);
        if verbose { let mut last=(0,0); for m in &w.moments { if (m.depth,m.size)!=last { println!("   {:9.3} s depth {} size {} done {} MiB", m.at_ns as f64/1e9, m.depth, m.size/1024, m.done>>20); last=(m.depth,m.size);} } }
    }
}
