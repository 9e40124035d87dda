//! The rank of this process, by the variables of the launcher. Pure.
//!
//! `torchrun` and Ray set `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR` and `MASTER_PORT`; Open
//! MPI, MPICH and Slurm have names of their own; an indexed job of Kubernetes sets
//! `JOB_COMPLETION_INDEX` alone.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};
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
    ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"],
    ["JOB_COMPLETION_INDEX", "WORLD_SIZE", "", ""],
];

/// Variables that differ from run to run: ranks of another run have another value.
const TOKENS: [&str; 5] =
    [TOKEN, "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PMIX_NAMESPACE", "PMI_JOBID"];

/// The place of one process among several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its number, from 0.
    pub rank: u32,
    /// How many there are, two or more.
    pub size: u32,
    /// Its number on its host.
    pub local: u32,
    /// How many ranks its host has, if the launcher says so.
    pub local_size: Option<u32>,
    /// The host of rank 0; or, if it has a `/`, a folder that all ranks see, where a note names it.
    pub address: String,
    /// The port at which it listens: one above `MASTER_PORT`, which belongs to the launcher.
    pub port: u16,
    /// What all ranks of a run have in common.
    pub token: String,
}

impl Place {
    /// The place of a process with these variables; `None` if it is alone.
    ///
    /// # Errors
    /// The variables contradict each other, or do not name the host of rank 0.
    pub fn find(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let number = |name: &str| get(name)?.parse::<u32>().ok();
        let found = LAUNCHERS.into_iter().find_map(|names| {
            Some((names, number(names[0])?, number(names[1]).filter(|size| *size > 1)?))
        });
        let Some((names, rank, size)) = found else { return Ok(None) };
        if rank >= size || size > RANKS_MAX {
            return Err(Failure::usage(format!("`{}` is {rank}", names[0]))
                .because(format!("`{}` is {size}, and ranks count from 0", names[1]))
                .hint(format!("unset `{}` to measure without other ranks", names[0])));
        }
        let is_one_host = number(names[3]) == Some(size);
        let nodes = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"].into_iter().find_map(get);
        let address = get("MASTER_ADDR")
            .or_else(|| is_one_host.then(|| "127.0.0.1".into()))
            .or_else(|| nodes.map(|nodes| first_host(&nodes)))
            .filter(|address| !address.is_empty());
        let address = address.ok_or_else(|| {
            Failure::usage("the host of rank 0 is unknown")
                .because(format!("`{}` is {size}, and `MASTER_ADDR` is not set", names[1]))
                .hint(format!(
                    "set `MASTER_ADDR`, or unset `{}` to measure without other ranks",
                    names[0]
                ))
        })?;
        let port = get("MASTER_PORT").and_then(|port| port.parse::<u16>().ok()?.checked_add(1));
        Ok(Some(Self {
            rank,
            size,
            local: number(names[2]).unwrap_or(0),
            local_size: number(names[3]),
            address,
            port: port.unwrap_or(PORT),
            token: TOKENS.into_iter().find_map(get).unwrap_or_default(),
        }))
    }

    /// The note by which ranks find rank 0 in a folder.
    pub(super) fn note(&self) -> Option<PathBuf> {
        let folder = self.address.contains('/').then(|| Path::new(&self.address))?;
        let run: String = self.token.chars().filter(char::is_ascii_alphanumeric).take(64).collect();
        Some(folder.join(format!(".forebay-ranks-{}-{run}", self.size)))
    }

    /// The place of this process.
    ///
    /// # Errors
    /// As for [`find`](Self::find).
    pub fn here() -> Result<Option<Self>> {
        Self::find(&|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.note() {
            Some(path) => write!(f, "`{}`", path.display()),
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
        assert_eq!((place.rank, place.size, place.local, place.port), (3, 8, 1, 29_401));
        assert_eq!((place.address.as_str(), place.token.as_str()), ("head", "run"));
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
            ("SLURM_LOCALID", "3"),
            ("SLURM_JOB_NODELIST", "gpu[001-004],x"),
            ("SLURM_JOB_ID", "42"),
        ];
        let place = of(&slurm).unwrap().unwrap();
        assert_eq!((place.rank, place.local, place.address.as_str()), (7, 3, "gpu001"));
        let job =
            [("JOB_COMPLETION_INDEX", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "job-0.svc")];
        assert_eq!(of(&job).unwrap().unwrap().rank, 1);
    }

    #[test]
    fn a_process_alone_has_no_rank_and_contradictions_are_named() {
        assert_eq!(of(&[]).unwrap(), None);
        assert_eq!(of(&[("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap(), None);
        // An allocation of Slurm without a step.
        assert_eq!(of(&[("SLURM_JOB_ID", "1"), ("SLURM_NTASKS", "8")]).unwrap(), None);
        let failure = of(&[("RANK", "2"), ("WORLD_SIZE", "2")]).unwrap_err();
        assert!(failure.usage && failure.causes[0].contains("count from 0"), "{failure:?}");
        let failure = of(&[("RANK", "1"), ("WORLD_SIZE", "2")]).unwrap_err();
        assert!(failure.hint.unwrap().contains("`MASTER_ADDR`"));
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
