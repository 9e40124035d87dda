//! Measures the limits that a point needs, before its sample, and raises them after it.

use std::collections::HashSet;
use std::path::Path;

use forebay::gpu::DeviceInfo;
use forebay::units::MIB;
use forebay_measure::failure::{Failure, Result};
use forebay_measure::make::Room;
use forebay_measure::results::{Cache, Direction, Limit, Measured, Record};
use forebay_measure::workload::backend::Method;
use forebay_measure::workload::measure::name;
use forebay_topology::{Leaf, PciDevice, Way, gpu_at, together};

use super::{limit, measure, rate};
use crate::bench::plan::Planned;
use crate::bench::targets::{self, Together};
use crate::bench::{Bench, FIRST_LEN};
use crate::report::numbers::rate_text;

/// From this share of the sum of single links on, a shared part does not limit them.
const ALONE: f64 = 0.85;
/// From this difference on, a prediction was wrong.
const WRONG: f64 = 0.1;

impl Bench<'_> {
    /// Raises the limits that a sample exceeds: the machine reached its rate. `is_cached` says
    /// that the page cache delivered bytes that storage should have delivered.
    ///
    /// # Errors
    /// The results file cannot be written.
    pub(in crate::bench) fn raise_limits(
        &mut self,
        planned: &Planned,
        measured: &Measured,
        is_cached: bool,
    ) -> Result<()> {
        let direction = match planned.point.read_percent {
            100 => Direction::Read,
            0 => Direction::Write,
            _ => return Ok(()),
        };
        let rate = measured.bytes_per_second;
        if !measured.is_long_enough() || measured.verified == Some(false) {
            return Ok(());
        }
        let all = planned.point.targets.join("+");
        let stays = matches!(planned.load.method, Method::Plain(plain) if plain.stays_in_host());
        let link = super::highest(&self.records, "link", &all, direction).filter(|_| !stays);
        let link = link.map(|limit| (limit.name.clone(), all.clone()));
        let is_cold = planned.point.cache == Some(Cache::Cold);
        let storage =
            (is_cold && !is_cached).then(|| ("storage".to_owned(), planned.point.path.clone()));
        for (name, of) in link.into_iter().chain(storage) {
            let known = super::highest(&self.records, &name, &of, direction);
            if let Some(known) = known.filter(|limit| limit.bytes_per_second < rate) {
                let (method, apart) = (&planned.point.method, rate_text(known.bytes_per_second));
                let how = format!("reached by `{method}`; measured apart it was {apart}");
                let simulated = measured.simulated;
                let raised = Limit { bytes_per_second: rate, how, simulated, ..known.clone() };
                self.keep(Ok(raised))?;
            }
        }
        Ok(())
    }

    /// Measures the storage below the limited paths in this direction. Makes missing scratch.
    pub(in crate::bench) fn storage(&mut self, direction: Direction) -> Result<()> {
        for index in 0..self.places.len() {
            if !self.axes.found.is_limited[index] {
                continue;
            }
            let name = self.path(index);
            let place = &mut self.places[index];
            if place.is_scratch() && place.len == 0 {
                let room = Room::of(&place.folder)?.usable() / 4;
                place.fill_first(FIRST_LEN.min(room).max(MIB))?;
            }
            let Some(file) = place.file_of(direction).map(Path::to_owned) else { continue };
            if direction == Direction::Write {
                place.prepare_writes(&[&file])?;
            }
            let files = [(file.as_path(), place.len)];
            let known = self.storage_depths.get(&(index, direction)).copied();
            let found = measure::storage(self.means(), &files, direction, known);
            let found = found.map(|(rate, depth, how)| {
                self.storage_depths.insert((index, direction), depth);
                limit("storage", name, direction, rate, how)
            });
            self.keep_own(found)?;
        }
        match self.together(direction).transpose() {
            Some(together) => self.keep_own(together),
            None => Ok(()),
        }
    }

    /// Measures the links of all targets, alone and together.
    pub(in crate::bench) fn links(
        &mut self,
        direction: Direction,
        say: &dyn Fn(&str),
    ) -> Result<()> {
        let host = self.targets.iter().flatten().any(Option::is_none).then_some(None);
        let gpus = targets::gpus(&self.targets).cloned().map(Some);
        let single = host.into_iter().chain(gpus).map(|device| vec![device]);
        let several = self.targets.iter().filter(|several| several.len() > 1).cloned();
        let groups: Vec<Together> = single.chain(several).collect();
        for (number, devices) in groups.iter().enumerate() {
            // With many GPUs this lasts minutes.
            say(&format!("measuring links, {} of {}", number + 1, groups.len()));
            self.keep_own(self.links_of(devices, direction))?;
        }
        Ok(())
    }

    /// The rate of the links of GPUs at the same time, or of a single GPU.
    fn links_of(&self, devices: &Together, direction: Direction) -> Result<Limit> {
        let names: Vec<String> = devices.iter().map(|device| name(device.as_ref())).collect();
        let files = self.places.iter().map(|place| place.len).max().filter(|len| *len > 0);
        let host_len = files.map_or(u64::MAX, |len| len.max(MIB));
        let (found, how) = measure::links(self.means(), devices, direction, host_len)?;
        let gpus = || devices.iter().flatten().map(|device| device.info());
        let places: Vec<PciDevice> = gpus().filter_map(|info| self.place(info)).collect();
        let single = |name: &String| rate(&self.records, "link", name, direction);
        let alone = || names.iter().map(single).sum::<Option<f64>>();
        let lacks = || Failure::new("the links of these GPUs were not all measured one by one");
        let together = "copies of pinned memory, all GPUs at once";
        let (name, how) = match shared_uplink(&places) {
            _ if devices.len() == 1 => ("link", how),
            _ if found >= ALONE * alone().ok_or_else(lacks)? => ("links", together.into()),
            Some(uplink) => ("uplink", format!("{together}; they share the uplink {uplink}")),
            None => ("shared", together.into()),
        };
        let simulated = gpus().any(|info| info.simulated);
        let predicted = self.predicted(devices, &names, direction);
        // Copies in host memory are the same in both directions.
        let direction = gpus().next().is_some().then_some(direction);
        let (name, of) = (name.into(), names.join("+"));
        Ok(Limit { name, of, direction, bytes_per_second: found, how, simulated, predicted })
    }

    /// What several GPUs should carry together, by their single links and the links above.
    fn predicted(&self, devices: &Together, names: &[String], direction: Direction) -> Option<f64> {
        let way = if direction == Direction::Read { Way::Read } else { Way::Write };
        let mut leaves = Vec::new();
        for (index, (device, name)) in devices.iter().zip(names).enumerate() {
            let mut leaf = Leaf::gpu(index, &self.place(device.as_ref()?.info())?);
            leaf.measured[way as usize] = Some(self.own_rate("link", name, direction)?);
            leaves.push(leaf);
        }
        if leaves.len() < 2 {
            return None;
        }
        Some(together(&leaves.iter().collect::<Vec<_>>(), way)?.expected)
    }

    /// Warns of predictions that were wrong by more than [`WRONG`].
    pub(in crate::bench) fn wrong_predictions(&self) -> Vec<String> {
        let mut known: Vec<(Limit, f64)> = Vec::new();
        for record in &self.records {
            let Record::Limit(limit) = record else { continue };
            let is_same = |(other, _): &&mut (Limit, f64)| {
                (&other.of, other.direction) == (&limit.of, limit.direction)
            };
            match (known.iter_mut().find(is_same), limit.predicted) {
                // Later records have higher rates.
                (Some((last, _)), _) => last.bytes_per_second = limit.bytes_per_second,
                (None, Some(predicted)) => known.push((limit.clone(), predicted)),
                (None, None) => {}
            }
        }
        known.retain(|(limit, predicted)| (limit.bytes_per_second / predicted - 1.0).abs() > WRONG);
        let text = |(limit, predicted): (Limit, f64)| {
            let why = match limit.bytes_per_second < predicted {
                true => "memory, a socket or a switch may bind them",
                false => "each alone was measured too low",
            };
            let (measured, predicted) = (rate_text(limit.bytes_per_second), rate_text(predicted));
            let direction = limit.direction.map_or("", Direction::name);
            let (parts, carry) = match limit.name.as_str() {
                "storage" => ("drives", "reach"),
                _ => ("links", "carry"),
            };
            format!(
                "the {parts} of {} {carry} {measured} together ({direction}), and {predicted} were \
                 predicted from each alone: {why}",
                limit.of
            )
        };
        known.into_iter().map(text).collect()
    }

    fn means(&self) -> measure::Means<'_> {
        (&self.engine, &self.pool, self.joined)
    }

    fn place(&self, info: &DeviceInfo) -> Option<PciDevice> {
        let found = || gpu_at(self.resolver.system(), &info.pci_address).map(|gpu| gpu.pci);
        forebay::gpu::sim::place(info).or_else(found)
    }

    /// Notes a limit that was measured, with those of the other ranks.
    fn keep_own(&mut self, found: Result<Limit>) -> Result<()> {
        let found = self.joined.limit(found)?;
        self.keep(found)
    }

    /// Notes a limit, unless it is known to be higher, or warns that it was not measured.
    fn keep(&mut self, found: Result<Limit>) -> Result<()> {
        match found {
            Ok(new) => {
                let old = rate(&self.records, &new.name, &new.of, new.direction);
                let is_higher = old.is_none_or(|old| new.bytes_per_second > old);
                if is_higher { self.note(Record::Limit(new)) } else { Ok(()) }
            }
            Err(failure) => {
                self.warn(format!("a limit was not measured: {}", failure.in_one_line()))
            }
        }
    }

    /// The storage limit of several paths together. The prediction is the sum over their drives, if
    /// no two paths share a drive.
    ///
    /// # Errors
    /// Those of measuring storage.
    fn together(&self, direction: Direction) -> Result<Option<Limit>> {
        let Some(planned) = self.planned.iter().find(|planned| planned.paths.len() > 1) else {
            return Ok(None);
        };
        let (mut drives, mut alone, mut files) = (HashSet::new(), 0.0, Vec::new());
        let (mut is_shared, mut depth) = (false, None);
        for &index in &planned.paths {
            let own = self.own_rate("storage", &self.path(index), direction);
            let file = self.places[index].file_of(direction);
            let Some((own, file)) = own.zip(file) else { return Ok(None) };
            let found = &self.maps[index].drives;
            is_shared |= !found.iter().all(|drive| drives.insert(drive.hardware.as_str()));
            alone += own;
            depth = depth.max(self.storage_depths.get(&(index, direction)).copied());
            files.push((file, self.places[index].len));
        }
        let (sum, _, how) = measure::storage(self.means(), &files, direction, depth)?;
        let of = planned.point.path.clone();
        let found = limit("storage", of, direction, sum, format!("{how}, all at once"));
        Ok(Some(Limit { predicted: (!is_shared).then_some(alone), ..found }))
    }
}

/// The first bridge that two of these devices are below.
fn shared_uplink(devices: &[PciDevice]) -> Option<&str> {
    let mut seen: Vec<&str> = Vec::new();
    for device in devices {
        let bridges = device.bridges.iter().map(|bridge| bridge.address.as_str());
        let own: Vec<&str> = bridges.collect();
        if let Some(shared) = own.iter().find(|bridge| seen.contains(bridge)) {
            return Some(shared);
        }
        seen.extend(own);
    }
    None
}
