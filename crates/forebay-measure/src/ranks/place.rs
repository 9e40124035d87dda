//! The rank of this process, by the variables of the launcher. Pure.
//!
//! `torchrun` and Ray set `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR` and `MASTER_PORT`; Open
//! MPI, MPICH and Slurm have names of their own; an indexed job of Kubernetes sets
//! `JOB_COMPLETION_INDEX` alone.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};
use crate::scratch::NOTE;
use crate::variables::TOKEN;

/// Port of rank 0 if `MASTER_PORT` is not set: one above that of `torchrun`.
const PORT: u16 = 29_501;
/// Most ranks.
const RANKS_MAX: u32 = 100_000;

/// Names of the rank, the number of ranks, the rank within the host, and the ranks of the host.
const LAUNCHERS: [[&str; 4]; 5] = [
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
    [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ],
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
    [SLURM, "SLURM_STEP_NUM_TASKS", SLURM_LOCAL, "SLURM_STEP_TASKS_PER_NODE"],
    ["JOB_COMPLETION_INDEX", "WORLD_SIZE", "", ""],
];
/// A batch script of Slurm has this rank without a number of ranks: it runs alone.
const SLURM: &str = "SLURM_PROCID";
/// `srun --mpi=pmi2` sets `PMI_RANK`, but no rank within the host of that family.
const SLURM_LOCAL: &str = "SLURM_LOCALID";

/// Ranks of launchers that set no number of ranks, or no supported one.
const UNSUPPORTED: [&str; 3] = ["MV2_COMM_WORLD_RANK", "FLUX_TASK_RANK", "PMIX_RANK"];

/// Variables that differ from run to run: ranks of another run have another value.
const TOKENS: [&str; 5] =
    [TOKEN, "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PMIX_NAMESPACE", "PMI_JOBID"];
/// The value of `TORCHELASTIC_RUN_ID` if `torchrun` was given none.
const NO_TOKEN: &str = "none";

type Get<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The place of one process among several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its number, from 0.
    pub rank: u32,
    /// The number of ranks, two or more.
    pub size: u32,
    /// Its number on its host, if the launcher sets one.
    pub local: Option<u32>,
    /// The host of rank 0; or, if it has a `/`, a folder that all ranks see, where a note names it.
    pub address: String,
    /// The port at which it listens: one above `MASTER_PORT`, which belongs to the launcher.
    pub port: u16,
    /// A text that only ranks of this run have, if the launcher or the user sets one.
    pub token: Option<String>,
}

impl Place {
    /// The place of a process with these variables; `None` if it is alone.
    ///
    /// # Errors
    /// A variable cannot be used, lacks its counterpart, or contradicts another one.
    pub fn find(get: Get<'_>) -> Result<Option<Self>> {
        let (mut half, mut is_alone) = (None, false);
        for names in LAUNCHERS {
            let [rank, size, ..] = names;
            match (number(get, rank)?, number(get, size)?) {
                (_, Some(0)) => return Err(unusable(get, size, "0", &sizes())),
                (Some(0), Some(1)) => is_alone = true,
                (Some(own), Some(all)) => return Self::of(get, names, own, all).map(Some),
                (Some(_), None) if rank != SLURM => return Err(lacks(get, rank, size)),
                // Another launcher may use the same number of ranks.
                (None, Some(_)) => half = half.or(Some((size, rank))),
                _ => {}
            }
        }
        match half.filter(|_| !is_alone) {
            Some((size, rank)) => Err(lacks(get, size, rank)),
            None => Ok(None),
        }
    }

    fn of(get: Get<'_>, names: [&str; 4], rank: u32, size: u32) -> Result<Self> {
        if size > RANKS_MAX {
            return Err(unusable(get, names[1], &size.to_string(), &sizes()));
        }
        if rank >= size {
            return Err(Failure::usage(format!("`{}` is {rank}", names[0]))
                .because(format!("`{}` is {size}, and ranks count from 0", names[1]))
                .hint(alone(get)));
        }
        let is_of_slurm = number(get, SLURM)? == Some(rank);
        let local = match number(get, names[2])? {
            None if is_of_slurm => number(get, SLURM_LOCAL)?,
            local => local,
        };
        // Slurm's may be a list such as `2(x3)`.
        let is_one_host = get(names[3]).and_then(|ranks| ranks.parse().ok()) == Some(size);
        let nodes = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"].into_iter().find_map(get);
        let address = get("MASTER_ADDR")
            .or_else(|| is_one_host.then(|| "127.0.0.1".into()))
            .or_else(|| nodes.map(|nodes| first_host(&nodes)))
            .filter(|address| !address.is_empty());
        let address = address.ok_or_else(|| {
            Failure::usage("the host of rank 0 is unknown")
                .because(format!("`{}` is {size}, and `MASTER_ADDR` is not set", names[1]))
                .hint(format!("set `MASTER_ADDR`, or {}", alone(get)))
        })?;
        let port = match get("MASTER_PORT") {
            None => PORT,
            Some(text) => match text.parse::<u16>() {
                Ok(port @ 1..=65_534) => port + 1,
                _ => return Err(unusable(get, "MASTER_PORT", &text, "a number from 1 to 65534")),
            },
        };
        let tokens = TOKENS.into_iter().filter_map(|name| get(name).filter(|it| it != NO_TOKEN));
        let (address, token) = (host(&address)?, { tokens }.next());
        Ok(Self { rank, size, local, address, port, token })
    }

    /// The variable of a launcher whose ranks are not supported: each copy is alone.
    #[must_use]
    pub fn unsupported(get: Get<'_>) -> Option<&'static str> {
        UNSUPPORTED.into_iter().find(|name| get(name).is_some())
    }

    /// Whether `address` is a folder.
    pub(super) fn is_folder(&self) -> bool {
        self.address.contains('/')
    }

    /// The note of rank 0 in the folder of `address`, which names its host; else, without a token
    /// of the launcher, in `folder`.
    pub(super) fn note(&self, folder: Option<&Path>) -> Option<PathBuf> {
        let run = self.token.as_deref().unwrap_or_default().chars();
        let run: String = run.filter(char::is_ascii_alphanumeric).take(64).collect();
        if self.is_folder() {
            return Some(Path::new(&self.address).join(format!("{NOTE}{}-{run}", self.size)));
        }
        let folder = folder.filter(|_| self.token.is_none())?;
        Some(folder.join(format!("{NOTE}{}-{}", self.size, self.port)))
    }

    /// The place of this process.
    ///
    /// # Errors
    /// As for [`find`](Self::find).
    pub fn here() -> Result<Option<Self>> {
        Self::find(&environment)
    }
}

/// A variable of this process, unless it is empty.
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn number(get: Get<'_>, name: &str) -> Result<Option<u32>> {
    let text = get(name).filter(|_| !name.is_empty());
    let parsed = text.map(|text| text.parse().map_err(|_| unusable(get, name, &text, "a number")));
    parsed.transpose()
}

fn unusable(get: Get<'_>, name: &str, text: &str, takes: &str) -> Failure {
    let failure =
        Failure::usage(format!("`{name}` is `{text}`")).because(format!("it takes {takes}"));
    let is_of_rank = LAUNCHERS.iter().any(|names| names[..2].contains(&name));
    let unset = if is_of_rank { alone(get) } else { "unset it".into() };
    failure.hint(format!("correct `{name}`, or {unset}"))
}

/// The numbers of ranks that there can be.
fn sizes() -> String {
    format!("a number from 1 to {RANKS_MAX}")
}

fn lacks(get: Get<'_>, name: &str, other: &str) -> Failure {
    Failure::usage(format!("`{name}` is set, and `{other}` is unset or empty"))
        .because("a rank needs its number and the number of ranks")
        .hint(format!("set `{other}`, or {}", alone(get)))
}

/// A command of the shell after which a process has no rank.
fn alone(get: Get<'_>) -> String {
    let mut names: Vec<&str> = LAUNCHERS.iter().flat_map(|names| &names[..2]).copied().collect();
    names.sort_unstable();
    names.dedup();
    names.retain(|name| get(name).is_some());
    format!("`unset {}` to measure without other ranks", names.join(" "))
}

/// The host in `MASTER_ADDR`, without the brackets of an IPv6 address; or a folder.
fn host(address: &str) -> Result<String> {
    let inside = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let host = inside.unwrap_or(address);
    let is_v6 = host.split('%').next().is_some_and(|host| host.parse::<Ipv6Addr>().is_ok());
    if address.contains('/') || is_v6 || inside.is_none() && !host.contains(':') {
        return Ok(host.to_owned());
    }
    Err(Failure::usage(format!("`MASTER_ADDR` is `{address}`"))
        .because("it takes a host without a port")
        .hint("set `MASTER_ADDR` to the host, and `MASTER_PORT` to one below a free port"))
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.note(None) {
            Some(path) => write!(f, "`{}`", path.display()),
            None if self.address.contains(':') => write!(f, "[{}]:{}", self.address, self.port),
            None => write!(f, "{}:{}", self.address, self.port),
        }
    }
}

/// The first of a list of hosts as Slurm writes it: `node[01-04,07],other` begins with `node01`.
fn first_host(list: &str) -> String {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (name, rest) = list.split_at(end);
    let Some(inside) = rest.strip_prefix('[') else { return name.to_owned() };
    let end = inside.find([',', '-', ']']).unwrap_or(inside.len());
    let behind = inside.split_once(']').map_or("", |(_, behind)| behind);
    let behind = behind.split(',').next().unwrap_or("");
    format!("{name}{}{behind}", &inside[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Option<Place>> {
        Place::find(&|name| {
            let found = variables.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn each_launcher_has_its_variables() {
        let torch = [
            ("RANK", "3"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "head"),
            ("MASTER_PORT", "29400"),
            ("TORCHELASTIC_RUN_ID", "run"),
        ];
        let place = of(&torch).unwrap().unwrap();
        assert_eq!((place.rank, place.size, place.local, place.port), (3, 8, Some(1), 29_401));
        assert_eq!((place.address.as_str(), place.token.as_deref()), ("head", Some("run")));
        let mpi = [
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        let place = of(&mpi).unwrap().unwrap();
        assert_eq!((place.size, place.port, place.address.as_str()), (2, PORT, "127.0.0.1"));
        let slurm = [
            ("SLURM_PROCID", "7"),
            ("SLURM_STEP_NUM_TASKS", "16"),
            ("SLURM_STEP_TASKS_PER_NODE", "4(x4)"),
            ("SLURM_LOCALID", "3"),
            ("SLURM_JOB_NODELIST", "gpu[001-004],x"),
            ("SLURM_JOB_ID", "42"),
        ];
        let place = of(&slurm).unwrap().unwrap();
        assert_eq!((place.rank, place.local, place.address.as_str()), (7, Some(3), "gpu001"));
        // `srun --mpi=pmi2`.
        let pmi = [&slurm[..], &[("PMI_RANK", "7"), ("PMI_SIZE", "16")]].concat();
        assert_eq!(of(&pmi).unwrap().unwrap(), place);
        let job =
            [("JOB_COMPLETION_INDEX", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "job-0.svc")];
        assert_eq!(of(&job).unwrap().unwrap().rank, 1);
        // Scripts set it for programs that take the rank of Slurm.
        let script = [&slurm[..], &[("WORLD_SIZE", "16")]].concat();
        assert_eq!(of(&script).unwrap().unwrap(), place);
    }

    #[test]
    fn a_process_alone_has_no_rank() {
        assert_eq!(of(&[]).unwrap(), None);
        assert_eq!(of(&[("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap(), None);
        assert_eq!(of(&[("JOB_COMPLETION_INDEX", "0"), ("WORLD_SIZE", "1")]).unwrap(), None);
        // An allocation of Slurm without a step, and its batch script.
        assert_eq!(of(&[("SLURM_JOB_ID", "1"), ("SLURM_NTASKS", "8")]).unwrap(), None);
        assert_eq!(of(&[("SLURM_PROCID", "0"), ("SLURM_LOCALID", "0")]).unwrap(), None);
        let flux = |name: &str| (name == "FLUX_TASK_RANK").then(|| "1".to_owned());
        assert_eq!(Place::unsupported(&flux), Some("FLUX_TASK_RANK"));
        assert_eq!(Place::unsupported(&|_| None), None);
    }

    #[test]
    fn a_variable_that_cannot_be_used_is_named() {
        let two = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "head")];
        assert!(of(&two).is_ok());
        for (more, word) in [
            (("RANK", "2"), "count from 0"),
            (("RANK", "x"), "`RANK` is `x`"),
            (("RANK", "-1"), "`RANK` is `-1`"),
            (("WORLD_SIZE", "2.0"), "`WORLD_SIZE` is `2.0`"),
            (("WORLD_SIZE", "0"), "`WORLD_SIZE` is `0`: it takes a number from 1 to 100000"),
            (
                ("WORLD_SIZE", "100001"),
                "`WORLD_SIZE` is `100001`: it takes a number from 1 to 100000",
            ),
            (("LOCAL_RANK", "first"), "`LOCAL_RANK` is `first`"),
            (("MASTER_PORT", "65535"), "`MASTER_PORT` is `65535`"),
            (("MASTER_PORT", "tcp"), "`MASTER_PORT` is `tcp`"),
            (("MASTER_ADDR", "head:29500"), "`MASTER_ADDR` is `head:29500`"),
            (("MASTER_ADDR", "[::1]:29500"), "`MASTER_ADDR` is `[::1]:29500`"),
            (("MASTER_ADDR", "[head]"), "`MASTER_ADDR` is `[head]`"),
        ] {
            let others = two.into_iter().filter(|(name, _)| *name != more.0);
            let failure = of(&others.chain([more]).collect::<Vec<_>>()).unwrap_err();
            assert!(failure.usage && failure.in_one_line().contains(word), "{failure:?}");
            assert!(failure.hint.is_some(), "{failure:?}");
        }
        for (name, other) in [
            ("RANK", "WORLD_SIZE"),
            ("WORLD_SIZE", "RANK"),
            ("JOB_COMPLETION_INDEX", "WORLD_SIZE"),
            ("PMI_SIZE", "PMI_RANK"),
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ] {
            let failure = of(&[(name, "1")]).unwrap_err();
            let text = format!("`{name}` is set, and `{other}` is unset or empty");
            assert!(failure.usage && failure.message == text, "{failure:?}");
        }
        let failure = of(&two[..2]).unwrap_err();
        assert!(failure.hint.unwrap().contains("`MASTER_ADDR`"));
    }

    #[test]
    fn without_the_variables_of_the_hint_a_process_is_alone() {
        let torch = [("RANK", "5"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "head")];
        let pmi = [("PMI_RANK", "x"), ("PMI_SIZE", "4"), ("SLURM_PROCID", "0")];
        let step = [("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "2"), ("WORLD_SIZE", "2")];
        let job = [("JOB_COMPLETION_INDEX", "1"), ("LOCAL_RANK", "0")];
        for all in [&torch[..], &[&torch[..], &pmi].concat(), &pmi, &step, &job, &torch[1..]] {
            let hint = of(all).unwrap_err().hint.unwrap();
            let unset = hint.split('`').find_map(|part| part.strip_prefix("unset ")).unwrap();
            let rest = all.iter().filter(|(name, _)| !unset.split(' ').any(|one| one == *name));
            assert_eq!(of(&rest.copied().collect::<Vec<_>>()).unwrap(), None, "{hint}");
        }
    }

    #[test]
    fn addresses_and_tokens_have_several_forms() {
        let place = |address: &str, id: &str| {
            let all = [("RANK", "1"), ("WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", id)];
            of(&[&all[..], &[("MASTER_ADDR", address)]].concat()).unwrap().unwrap()
        };
        let address = |text: &str| place(text, "a").address;
        let all = ["[::1]", "::1", "fe80::1%eth0", "10.0.0.1", "node0", "/mnt/a:b", "./a"];
        let found = ["::1", "::1", "fe80::1%eth0", "10.0.0.1", "node0", "/mnt/a:b", "./a"];
        assert_eq!(all.map(address), found);
        assert_eq!(place("::1", "a").to_string(), "[::1]:29501");
        assert_eq!(place("a", "none").token, None);
        let folder = Some(Path::new("/data"));
        assert_eq!(place("a", "run").note(folder), None);
        let note = place("a", "none").note(folder).unwrap();
        assert_eq!(note, Path::new("/data/.forebay-ranks-2-29501"));
        assert_eq!(
            place("/mnt", "r/1").note(folder).unwrap(),
            Path::new("/mnt/.forebay-ranks-2-r1")
        );
    }

    #[test]
    fn the_first_host_of_a_list_is_found() {
        let all = ["a", "a,b", "n[3-5]", "n[01,04],m", "n[2-3].net,m", "[", "n[", ""];
        let first = ["a", "a", "n3", "n01", "n2.net", "", "n", ""];
        assert_eq!(all.map(first_host), first);
    }

    proptest::proptest! {
        #[test]
        fn no_variable_ends_the_command(value: String) {
            let _ = first_host(&value);
            let _ = Place::find(&|_| Some(value.clone()));
        }
    }
}
