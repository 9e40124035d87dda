//! Simulated drives.
mod drive;
mod world;
use drive::{Drive, Kind, Change};
use world::*;
use super::*;
use crate::units::*;

pub(super) const LIMITS: DepthLimits = DepthLimits { depth_start: 4, depth_max: 128, size_min: 128*KIB, size_start: MIB, size_max: 16*MIB };


fn kinds() -> Vec<(&'static str, Kind, usize)> {
    let ms = 1_000_000;
    vec![
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
    ]
}
#[test]
fn many() {
    let n: u64 = std::env::var("N").map_or(50, |s| s.parse().unwrap());
    let only = std::env::var("ONLY").unwrap_or_default();
    for (name, kind, members) in kinds() {
        if !name.contains(&only) { continue; }
        let (mut shares, mut bytes, mut times) = (vec![], vec![], vec![]);
        let (mut best, mut knee) = (0, 0u64);
        for seed in 0..n {
            let jit = [0, 5, 20][seed as usize % 3];
            if seed < 3 || true {
              let mut curve = vec![]; best=0;
              for depth in [1,2,3,4,6,8,12,16,24,32,48,64,96,128] {
                let mut w = World::new(Drive::new(kind.clone(), members, jit, seed), Policy::Fixed{depth, size: MIB});
                w.run(Asks::all(GIB/2));
                let r = w.rate(0, w.now_ns);
                curve.push((depth, r)); best = best.max(r);
              }
              for (d, r) in &curve { if *r*1000 >= best*970 { knee = *d as u64; break; } }
            }
            let lim = if name.contains("disk") {DepthLimits{depth_start: 1, size_min: MIB, ..LIMITS}} else {LIMITS};
            let mut w = World::new(Drive::new(kind.clone(), members, jit, seed), Policy::Tuned(Box::new(DepthTuner::new(lim, None))));
            w.run(Asks::all(4*GIB));
            let r = w.rate(0, w.now_ns);
            shares.push((r*1000/best, seed));
            bytes.push((w.median(0, w.now_ns, |m| m.depth as u64*m.size)*100/(knee*MIB), seed));
            let l = w.policy.tuner().learned();
            let _ = l;
            let mut first = 0; 
            for m in &w.moments { if m.depth as u64*m.size <= 2*knee*MIB { first = m.at_ns; break; } }
            times.push(first/1000000);
        }
        shares.sort(); bytes.sort(); times.sort();
        let q = |v: &Vec<(u64,u64)>| format!("{:?} {:?} {:?}", v[0], v[v.len()/2], v[v.len()-1]);
        println!("{name:20} knee {knee:3} share/1000 {:36} p50 bytes %knee {:36} max-time-to-2knee ms {}", q(&shares), q(&bytes), times[times.len()-1]);
    }
}
#[test]
fn explore() {
    let seed = std::env::var("SEED").map_or(1, |s| s.parse().unwrap());
    let jit = std::env::var("JIT").map_or(20, |s| s.parse().unwrap());
    let verbose = std::env::var("V").is_ok();
    let only = std::env::var("ONLY").unwrap_or_default();
    let drives = kinds();
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

#[test]
fn scen() {
    let n: u64 = std::env::var("N").map_or(30, |s| s.parse().unwrap());
    let only = std::env::var("ONLY").unwrap_or_default();
    let s = 1_000_000_000u64;
    for (name, kind, members) in kinds() {
        if !name.contains(&only) || name.contains("slow") { continue; }
        for (what, changes) in [("rate/4", vec![Change{at_ns:5*s, rate:250, latency:1000}]), ("rate/4 and back", vec![Change{at_ns:5*s, rate:250, latency:1000}, Change{at_ns:10*s, rate:1000, latency:1000}]),
            ("lat x5", vec![Change{at_ns:5*s, rate:1000, latency:5000}]), ("lat x5, back", vec![Change{at_ns:5*s, rate:1000, latency:5000}, Change{at_ns:10*s, rate:1000, latency:1000}]),
            ("x4", vec![Change{at_ns:5*s, rate:4000, latency:1000}]), ("half, back", vec![Change{at_ns:5*s, rate:500, latency:1000}, Change{at_ns:10*s, rate:1000, latency:1000}])] {
            let mut shares = vec![]; let mut bytes = vec![];
            for seed in 0..n {
                let jit = [0, 5, 20][seed as usize % 3];
                let last = changes.last().unwrap();
                let mut best = 0; let mut knee = 1;
                for depth in [1,2,3,4,6,8,12,16,24,32,48,64,96,128] {
                    let mut d = Drive::new(kind.clone(), members, jit, seed); d.changes = vec![Change{at_ns:0, ..*last}];
                    let mut w = World::new(d, Policy::Fixed{depth, size: MIB});
                    w.run(Asks{until_ns: s, ..Asks::all(8*GIB)});
                    let r = w.rate(0, w.now_ns);
                    if r*970 > best*1000 { knee = depth as u64; }
                    best = best.max(r);
                }
                let lim = if name.contains("disk") {DepthLimits{depth_start: 1, size_min: MIB, ..LIMITS}} else {LIMITS};
                let mut d = Drive::new(kind.clone(), members, jit, seed); d.changes = changes.clone();
                let mut w = World::new(d, Policy::Tuned(Box::new(DepthTuner::new(lim, None))));
                w.run(Asks { until_ns: last.at_ns + 5*s, ..Asks::all(1<<50) });
                let (a, b) = (last.at_ns + 2*s, last.at_ns+4*s);
                shares.push((w.rate(a, b)*1000/best, seed));
                bytes.push((w.median(a, b, |m| m.depth as u64*m.size)*100/(knee*MIB), seed));
            }
            shares.sort(); bytes.sort();
            let q = |v: &Vec<(u64,u64)>| format!("{:?} {:?} {:?}", v[0], v[v.len()/2], v[v.len()-1]);
            println!("{name:20} {what:20} share/1000 {:36} knee %{:30}", q(&shares), q(&bytes));
        }
    }
}
#[test]
fn trace() {
    let seed: u64 = std::env::var("SEED").map_or(1, |s| s.parse().unwrap());
    let only = std::env::var("ONLY").unwrap_or_default();
    let s = 1_000_000_000u64;
    let ch: Vec<u64> = std::env::var("CH").unwrap_or("4000,1000".into()).split(',').map(|x| x.parse().unwrap()).collect();
    for (name, kind, members) in kinds() {
        if !name.contains(&only) { continue; }
        let jit = [0, 5, 20][seed as usize % 3];
        let mut d = Drive::new(kind.clone(), members, jit, seed);
        d.changes = ch.chunks(2).enumerate().map(|(i, c)| Change{at_ns: 5*s*(i as u64+1), rate:c[0], latency:c[1]}).collect();
        let until = 5*s + d.changes.len() as u64*5*s;
        let mut w = World::new(d, Policy::Tuned(Box::new(DepthTuner::new(LIMITS, None))));
        w.run(Asks { until_ns: until, ..Asks::all(1<<50) });
        let mut last=(0,0,0,0); for m in &w.moments { if (m.depth,m.size)!=(last.0,last.1) { println!("best   {:9.3} s {:6} MB/s | depth {} size {} done {} MiB", m.at_ns as f64/1e9, (m.done-last.2)*1000/(m.at_ns-last.3).max(1), m.depth, m.size/1024, m.done>>20); last=(m.depth,m.size,m.done, m.at_ns);} }
    }
}
