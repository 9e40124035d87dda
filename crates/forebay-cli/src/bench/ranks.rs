//! A run by several copies of the command, which a launcher starts. All begin a sample at the same
//! time, and write the totals as the records of the run.
//!
//! Records, and choices that depend on time, memory or the machine, are the result of an exchange
//! between all ranks. So all ranks make the same choices after it.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use forebay::Engine;
use forebay::gpu::DeviceInfo;
use forebay_measure::failure::{Failure, Result};
use forebay_measure::ranks::total::{self, OfRank};
use forebay_measure::ranks::{Place, Ranks, environment};
use forebay_measure::results::file::read_from;
use forebay_measure::results::machine::Gpu;
use forebay_measure::results::{Bound, Limit, Measured};
use forebay_measure::stdio::{leave_out_warnings, say};
use forebay_measure::subject;
use forebay_measure::workload::backend::Method;
use forebay_measure::workload::measure::{Next, Peers};
use forebay_measure::workload::run::Ran;
use forebay_topology::{Distance, Resolver, Way};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::plan::{Axes, Found};
use super::state::Opened;
use crate::bench::args::{BenchArgs, GpuRows, OneFile};
use crate::bench::files::{Place as Files, Shared};
use crate::map::{self, json::MapReport};
use crate::report::show::json;

/// The other ranks of a run, if there are some.
#[derive(Debug, Default)]
pub(crate) struct Joined {
    ranks: Option<Ranks>,
    /// The most that all hosts read, and write, through their network ports: the bytes per second,
    /// and what binds. `None` if a path is on a drive of its host.
    network: [Option<(f64, String)>; 2],
    /// Whether ranks of a host read the same file.
    pub(super) shares_file: bool,
    /// Why the run cannot continue, once a step of a measurement failed.
    broken: OnceCell<Failure>,
}

/// What a rank can measure, and what must be the same on all ranks.
#[derive(Debug, Serialize, Deserialize)]
struct Own {
    /// The paths that are folders.
    folders: Vec<bool>,
    /// The targets of the rows.
    targets: Vec<Vec<String>>,
    found: Found,
}

impl Own {
    /// How the plan of rank `other` differs.
    fn differs(&self, other: &Self, paths: &[PathBuf]) -> Option<String> {
        let kind = |is_folder: bool| if is_folder { "a folder" } else { "a file" };
        let folders = self.folders.iter().zip(&other.folders).zip(paths);
        let folder =
            folders.filter(|((own, other), _)| own != other).map(|((own, other), path)| {
                let (path, own, other) = (path.display(), kind(*own), kind(*other));
                format!("`{path}` is {other} there, and {own} on rank 0")
            });
        // The numbers of GPUs may differ.
        let kinds = |own: &Self| -> Vec<Vec<String>> {
            let kind = |name: &String| name.split(':').next().unwrap_or_default().to_owned();
            own.targets.iter().map(|all| all.iter().map(kind).collect()).collect()
        };
        let shown = |own: &Self| {
            let all: Vec<String> = own.targets.iter().map(|all| all.join("+")).collect();
            all.join(", ")
        };
        let targets = (kinds(self) != kinds(other)).then(|| {
            let (own, other) = (shown(self), shown(other));
            format!("`--gpu` is {other} there, and {own} on rank 0: name the same kind for all")
        });
        folder.chain(targets).next()
    }
}

/// The numbers of GPUs, the nearest to a drive first.
fn nearest(gpus: &[DeviceInfo], map: &MapReport) -> Vec<u32> {
    let distance = |gpu: &&DeviceInfo| {
        let known = map.gpus.iter().find(|known| known.pci.address == gpu.pci_address);
        let own = map.distances.iter().filter(|pair| known.is_some_and(|it| it.index == pair.gpu));
        let own = own.filter(|pair| !matches!(pair.distance, Distance::Unknown(_)));
        let nearest = own.map(|pair| pair.distance.clone()).min();
        nearest.unwrap_or_else(|| Distance::Unknown(String::new()))
    };
    let mut gpus: Vec<_> = gpus.iter().collect();
    gpus.sort_by_cached_key(distance);
    gpus.into_iter().map(|gpu| gpu.id.index).collect()
}

impl Joined {
    /// Meets the other ranks, if there are some, and sets what depends on the rank.
    ///
    /// # Errors
    /// Ranks are missing or differ; arguments that ranks cannot share.
    pub(super) fn meet(args: &mut BenchArgs) -> Result<Self> {
        let Some(place) = Place::here()? else {
            if let Some(name) = Place::unsupported(&environment) {
                say(&format!(
                    "`{name}` is set, but this launcher is not supported: each copy measures \
                     alone; set `RANK`, `WORLD_SIZE` and `MASTER_ADDR` for one run of all"
                ));
            }
            return match args.one_file {
                Some(_) => Err(Failure::usage("`--one-file` is for several ranks")
                    .hint("start several copies with `torchrun --no-python`, `mpirun` or `srun`")),
                None => Ok(Self::default()),
            };
        };
        check_one_file(args)?;
        let folder = args.paths.first().filter(|path| subject::is_folder(path)).cloned();
        let ranks = Ranks::meet(place, &format!("{args:#?}"), folder.as_deref())?;
        if !ranks.is_first() {
            leave_out_warnings();
        }
        let rank = ranks.place.rank;
        args.output.take_if(|_| rank != 0);
        let share_hosts = ranks.agree("hosts", (), |_| {
            Ok(ranks.hosts.iter().collect::<BTreeSet<_>>().len() < ranks.hosts.len())
        })?;
        let is_file = |path: &PathBuf| !subject::is_folder(path);
        if share_hosts && args.one_file.is_none() && args.paths.iter().any(is_file) {
            args.one_file = Some(OneFile::All);
            let own = "that is how ranks of a host use a named file";
            check_one_file(args).map_err(|failure| failure.because(own))?;
        }
        args.quiet |= rank != 0;
        if args.one_file == Some(OneFile::Stripes) {
            args.stripe = Some((rank, ranks.place.size));
        }
        if args.one_file.is_some() && args.method.is_empty() {
            // Methods that use the page cache would find what other ranks of the host have read.
            args.method = vec![Method::Forebay(None)];
        }
        if args.one_file == Some(OneFile::All) {
            args.direction = vec![100];
            // Otherwise all would read the same place at the same time.
            args.seed = Some(args.seed.unwrap_or(1).wrapping_add(rank.into()));
        }
        let network = [Way::Read, Way::Write].map(|way| network(&args.paths, way));
        let network = ranks.agree("network", network, |all| {
            Ok([0, 1].map(|way| of_hosts(all.iter().map(|own| own[way].as_ref()), &ranks.hosts)))
        })?;
        let (shares_file, broken) = (share_hosts && args.one_file.is_some(), OnceCell::new());
        Ok(Self { ranks: Some(ranks), network, shares_file, broken })
    }

    /// Sets the GPU of this rank: that of its number on its host, or with spare GPUs, of those
    /// nearest to the drives of the paths.
    pub(super) fn set_gpu(&self, args: &mut BenchArgs, engine: &Engine) {
        let Some(ranks) = &self.ranks else { return };
        if !args.gpu.is_empty() || args.together.is_some() {
            return;
        }
        let visible = forebay::gpu::visible().unwrap_or_default();
        let (local, ranks) = ranks.local;
        let is_choice = (ranks as usize) < visible.len();
        let nearest =
            || nearest(&visible, &map::gather(&Resolver::default(), &args.paths, None, false));
        let own = is_choice.then(nearest).and_then(|all| all.get(local as usize).copied());
        let own = own.unwrap_or(local).to_string().parse().ok();
        // If a variable hides the GPUs of all other ranks, the visible GPU is number 0.
        let own = own.filter(|own| matches!(engine.device(own), Ok(Some(_))));
        args.gpu.extend(own.map(|own| GpuRows(vec![own])));
    }

    /// Whether this process measures alone.
    pub(super) fn is_alone(&self) -> bool {
        self.ranks.is_none()
    }

    /// Whether this is rank 0, or the only process.
    pub(super) fn is_first(&self) -> bool {
        self.ranks.as_ref().is_none_or(Ranks::is_first)
    }

    /// Whether this is the first rank of its host.
    pub(super) fn is_first_of_host(&self) -> bool {
        self.ranks.as_ref().is_none_or(|ranks| ranks.is_first_of_host)
    }

    /// The number of ranks, if there are several.
    pub(super) fn size(&self) -> Option<u32> {
        self.ranks.as_ref().map(|ranks| ranks.place.size)
    }

    /// The number of ranks on this host.
    pub(super) fn local_size(&self) -> u32 {
        self.ranks.as_ref().map_or(1, |ranks| ranks.local.1)
    }

    /// The ranks with which every step of a measurement begins together.
    pub(super) fn peers(&self) -> Option<&dyn Peers> {
        self.ranks.as_ref().map(|_| self as &dyn Peers)
    }

    fn hosts(&self) -> &[String] {
        self.ranks.as_ref().map_or(&[], |ranks| &ranks.hosts)
    }

    /// What rank 0 makes of the values of all.
    fn agree<T, U>(&self, step: &str, own: T, make: impl FnOnce(Vec<T>) -> Result<U>) -> Result<U>
    where
        T: Serialize + DeserializeOwned,
        U: Serialize + DeserializeOwned,
    {
        match &self.ranks {
            Some(ranks) => ranks.agree(step, own, make),
            None => make(vec![own]),
        }
    }

    /// Ends the run on all ranks.
    pub(super) fn fail(&self, failure: &Failure) {
        self.ranks.iter().for_each(|ranks| ranks.fail(failure));
    }

    /// The results file of rank 0, whose records all ranks need to continue its run.
    pub(super) fn opened(&self, own: Option<Opened>) -> Result<Option<Opened>> {
        let kept = own.as_ref().filter(|own| !self.is_alone() && !own.records.is_empty());
        let text = kept.map(|own| json(&own.records)).transpose()?;
        match (own, self.decided("results file", text)?) {
            (None, Some(text)) => {
                let records = read_from(text.as_bytes(), Path::new("the file of rank 0"))?;
                Ok(Some(Opened::with(None, records)))
            }
            (own, _) => Ok(own),
        }
    }

    /// What all ranks can measure.
    ///
    /// # Errors
    /// The plan of a rank differs.
    pub(super) fn common(&self, axes: &mut Axes, paths: &[PathBuf]) -> Result<()> {
        let own = Own {
            folders: paths.iter().map(|path| subject::is_folder(path)).collect(),
            targets: axes.targets.clone(),
            found: axes.found.clone(),
        };
        let common = self.agree("plan", own, |all| {
            let differs = |own: &Own| all[0].differs(own, paths);
            let different =
                (0..).zip(&all).find_map(|(rank, own): (usize, _)| Some((rank, differs(own)?)));
            if let Some((rank, why)) = different {
                let host = self.hosts().get(rank).map_or("", String::as_str);
                return Err(Failure::new("the ranks do not fit together")
                    .because(format!("rank {rank} on {host}: {why}")));
            }
            Ok(all
                .into_iter()
                .reduce(|all, own| Own { found: all.found.common(&own.found), ..all }))
        })?;
        if let Some(common) = common {
            (axes.targets, axes.found) = (common.targets, common.found);
        }
        Ok(())
    }

    /// The least of the numbers of all ranks.
    pub(super) fn least<const N: usize>(&self, own: [u64; N]) -> Result<[u64; N]> {
        let all = self.agree("sizes", own.to_vec(), |all| {
            Ok((0..N).map(|at| all.iter().map(|own| own[at]).min()).collect::<Option<Vec<_>>>())
        })?;
        all.and_then(|all| all.try_into().ok()).ok_or_else(|| Failure::new("a rank has no sizes"))
    }

    /// The hosts of all ranks, and their GPUs.
    pub(super) fn machines(&self, gpus: Vec<Gpu>) -> Result<(Vec<String>, Vec<Gpu>)> {
        self.agree("machines", gpus, |all| Ok((self.hosts().to_vec(), all.concat())))
    }

    /// What rank 0 decides.
    pub(super) fn decided<T: Serialize + DeserializeOwned>(&self, step: &str, own: T) -> Result<T> {
        self.agree(step, own, |mut all| Ok(all.swap_remove(0)))
    }

    /// Waits until all ranks have made their files, or rank 0 the shared file.
    pub(super) fn share_files(&self, places: &mut [Files]) -> Result<()> {
        let own: Vec<Shared> = places.iter().map(Files::shared).collect();
        let shared = self.decided("files", own)?;
        if !self.is_first() {
            places.iter_mut().zip(shared).for_each(|(place, shared)| place.use_shared(shared));
        }
        Ok(())
    }

    /// The rate of all ranks, of the runs that began together.
    ///
    /// # Errors
    /// The run of a rank failed.
    pub(super) fn rate(&self, own: Result<Ran>) -> Result<f64> {
        let own = own.map(|ran| (Measured { bytes: Some(ran.bytes), ..Measured::default() }, ran));
        Ok(self.total(own, |_| 0)??.0.bytes_per_second)
    }

    /// The limit of all ranks together.
    pub(super) fn limit(&self, own: Result<Limit>) -> Result<Result<Limit>> {
        if self.is_alone() {
            return Ok(own);
        }
        self.of_all("limit", own, |all| total::limit(&all).unwrap_or_default())
    }

    /// The total of the samples of all ranks, the share of reads, and the share of the bytes that
    /// storage delivered.
    pub(super) fn total(
        &self,
        own: Result<(Measured, Ran)>,
        read_percent: impl Fn(&Ran) -> u8,
    ) -> Result<Result<(Measured, u8, Option<f64>)>> {
        if let Some(failure) = self.broken.get() {
            return Err(failure.clone());
        }
        if self.is_alone() {
            let alone =
                |(measured, ran): (_, Ran)| (measured, read_percent(&ran), ran.fetched_share());
            return Ok(own.map(alone));
        }
        let own = own.map(|(measured, ran)| (OfRank::new(measured, &ran), read_percent(&ran)));
        self.of_all("sample", own, |all| {
            let (parts, mix): (Vec<OfRank>, Vec<u8>) = all.into_iter().unzip();
            (total::total(&parts, self.hosts()), mix[0], total::fetched(&parts))
        })
    }

    /// What rank 0 makes of the results of all, or the first failure.
    fn of_all<T, U>(
        &self,
        step: &str,
        own: Result<T>,
        make: impl FnOnce(Vec<T>) -> U,
    ) -> Result<Result<U>>
    where
        T: Serialize + DeserializeOwned,
        U: Serialize + DeserializeOwned,
    {
        let own = own.map_err(|failure| failure.with_remedy());
        let made = self.agree(step, own, |all| {
            // A rank that failed because of a failed rank says nothing.
            let why = |(rank, one): (usize, &std::result::Result<T, String>)| {
                let why = one.as_ref().err().filter(|why| !why.is_empty())?;
                let host = self.hosts().get(rank).map_or("", String::as_str);
                Some(format!("rank {rank} on {host}: {why}"))
            };
            let why = all.iter().enumerate().find_map(why);
            Ok(all
                .into_iter()
                .collect::<Result<Vec<T>, String>>()
                .map(make)
                .map_err(|own| why.unwrap_or(own)))
        })?;
        Ok(made.map_err(Failure::new))
    }

    /// Names what binds if it is storage behind a network: the ports of the hosts if they are
    /// nearly full, else the server.
    pub(super) fn name_bound(&self, bound: &mut Bound, rate: f64, read_percent: u8) {
        let network = self.network[usize::from(read_percent == 0)].as_ref();
        if let Some((most, port)) = network.filter(|_| bound.name == "storage") {
            bound.name = if rate >= Bound::NEAR * most { port.clone() } else { "server".into() };
        }
    }

    /// Parts from the other ranks; returns the warnings of all.
    pub(super) fn part(&self, own: Vec<String>) -> Result<Vec<String>> {
        let Some(ranks) = &self.ranks else { return Ok(own) };
        let hosts = &ranks.hosts;
        ranks.part(own, |mut all| {
            let mut texts = std::mem::take(&mut all[0]);
            for (rank, own) in all.into_iter().enumerate() {
                let new = own.into_iter().filter(|text| !texts.contains(text));
                let new: Vec<String> =
                    new.map(|text| format!("rank {rank} on {}: {text}", hosts[rank])).collect();
                texts.extend(new);
            }
            Ok(texts)
        })
    }
}

impl Peers for Joined {
    fn meet(&self, step: &str, own: Result<Next>) -> Result<Next> {
        let next = self.agree(step, own.as_ref().ok().copied(), |all| {
            let all: Option<Vec<Next>> = all.into_iter().collect();
            Ok(all.and_then(|all| all.into_iter().max()))
        });
        let next = next.map_err(|failure| {
            let _ = self.broken.set(failure);
            Failure::new("")
        });
        own.and(next?.ok_or_else(|| Failure::new("")))
    }
}

/// Refuses what ranks cannot do with a shared file.
fn check_one_file(args: &BenchArgs) -> Result<()> {
    let Some(how) = args.one_file else { return Ok(()) };
    if args.direction.iter().any(|percent| !matches!(percent, 0 | 100)) {
        return Err(Failure::usage("`--one-file` takes no mixture of reads and writes"));
    }
    if how == OneFile::All && args.direction.contains(&0) {
        return Err(Failure::usage("`--one-file all` only reads")
            .because("all ranks would write the same bytes")
            .hint("`--one-file stripes` lets each write a part"));
    }
    Ok(())
}

/// The most that this host moves through its network ports to what is behind the paths.
fn network(paths: &[PathBuf], way: Way) -> Option<(f64, String)> {
    let (ceiling, is_network) = map::of_host(&Resolver::default(), paths, way)?;
    is_network.then(|| (ceiling.expected, ceiling.binds.to_string()))
}

/// The sum over distinct hosts, if all are known.
fn of_hosts<'a>(
    ranks: impl Iterator<Item = Option<&'a (f64, String)>>,
    hosts: &[String],
) -> Option<(f64, String)> {
    let mut known: Vec<&String> = Vec::new();
    let mut sum: Option<(f64, String)> = None;
    for (own, host) in ranks.zip(hosts) {
        let (rate, binds) = own?;
        if !known.contains(&host) {
            known.push(host);
            sum.get_or_insert_with(|| (0.0, binds.clone())).0 += rate;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use forebay::gpu::{DeviceId, DeviceKind};
    use forebay_measure::workload::measure::run_together;
    use forebay_measure::workload::pattern::Region;
    use forebay_measure::workload::run::Ready;
    use forebay_measure::workload::{End, Lane, Load};
    use forebay_topology::{DriveId, PciDevice};

    use super::*;
    use crate::map::json::{Gpu, Pair};

    #[test]
    fn ranks_take_the_gpus_nearest_to_a_drive() {
        let bus = |bus: &str| format!("0000:{bus}:00.0");
        let gpu = |(index, address): (u32, &str)| DeviceInfo {
            id: DeviceId { kind: DeviceKind::Cuda, index },
            name: String::new(),
            uuid: String::new(),
            pci_address: bus(address),
            driver: String::new(),
            memory: 0,
            simulated: false,
        };
        // CUDA numbers them in another order than the kernel, and does not show one.
        let visible = [(0, "41"), (1, "c1"), (2, "d1"), (3, "11"), (4, "21")].map(gpu);
        let mut map = MapReport::default();
        let far = Distance::AcrossSockets;
        for (index, (address, distances)) in [
            ("11", [far.clone(), far.clone()]),
            ("31", [Distance::SameSwitch, Distance::SameSwitch]),
            ("41", [far.clone(), far]),
            ("c1", [Distance::SameSocket, Distance::SameSocket]),
            ("d1", [Distance::SameSocket, Distance::SameSwitch]),
        ]
        .into_iter()
        .enumerate()
        {
            let pci = PciDevice { address: bus(address), ..PciDevice::default() };
            map.gpus.push(Gpu { index, pci, ..Gpu::default() });
            for (drive, distance) in ["nvme0n1", "nvme1n1"].into_iter().zip(distances) {
                map.distances.push(Pair { gpu: index, drive: DriveId(drive.into()), distance });
            }
        }
        assert_eq!(nearest(&visible, &map), [2, 1, 0, 3, 4]);
        assert_eq!(nearest(&visible, &MapReport::default()), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_rate_of_ranks_is_that_of_their_common_span() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let begun = Instant::now().checked_sub(Duration::from_secs(9)).unwrap();
        let rate = move |rank: u32| {
            let (address, token) = ("127.0.0.1".to_owned(), Some("t".to_owned()));
            let place = Place { rank, size: 2, local: None, address, port, token };
            let ranks = Ranks::meet(place, "", None).unwrap();
            let joined = Joined { ranks: Some(ranks), ..Joined::default() };
            let engine = Engine::new(forebay::Options::default()).unwrap();
            let load = Load::reads(Method::Link, 4096, End::Bytes(4096));
            let lanes = [Lane { region: Region { start: 0, len: 4096 }, ..Lane::default() }];
            let mut ready = Ready::new(&engine, &load, &lanes).unwrap();
            let mut ran = run_together(Ok(&mut ready), &[String::new()], Some(&joined)).unwrap();
            // The second begins when the first ends.
            ran.rounds = vec![[0, rank, rank + 1].map(|s| begun + Duration::from_secs(s.into()))];
            let found = (joined.rate(Ok(ran)), joined.rate(Err(Failure::new("it broke"))));
            joined.part(Vec::new()).unwrap();
            (found.0.unwrap(), found.1.unwrap_err().message)
        };
        let other = std::thread::spawn(move || rate(1));
        let (own, failure) = rate(0);
        assert!((own - 4096.0).abs() < 1e-3, "{own}");
        assert!(failure.starts_with("rank 0 on ") && failure.ends_with(": it broke"), "{failure}");
        assert_eq!(other.join().unwrap(), (own, failure));
    }

    #[test]
    fn ports_of_hosts_are_added_once() {
        let port = (4e9, "line of eth0".to_owned());
        let hosts = ["a", "a", "b"].map(String::from);
        let all = of_hosts([Some(&port); 3].into_iter(), &hosts).unwrap();
        assert!((all.0 - 8e9).abs() < 1.0 && all.1 == "line of eth0", "{all:?}");
        assert_eq!(of_hosts([Some(&port), None, Some(&port)].into_iter(), &hosts), None);
    }

    #[test]
    fn another_plan_is_named() {
        let own = |is_folder, target: &str| Own {
            folders: vec![is_folder],
            targets: vec![vec![target.into()]],
            found: Found::default(),
        };
        let paths = [PathBuf::from("/data")];
        let first = own(true, "cuda:0");
        let differs = |other: &Own| first.differs(other, &paths);
        assert_eq!(differs(&own(true, "cuda:1")), None);
        let why = differs(&own(false, "cuda:1")).unwrap();
        assert_eq!(why, "`/data` is a file there, and a folder on rank 0");
        let why = differs(&own(true, "host")).unwrap();
        assert!(why.starts_with("`--gpu` is host there, and cuda:0 on rank 0"), "{why}");
    }
}
