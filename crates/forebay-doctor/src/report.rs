//! The result of a diagnosis: checks, the direct paths that remain open, and a summary sentence.
//!
//! Plain data and its order; nothing is read here.

use std::fmt;

use forebay_topology::clean;
use serde::Serialize;

/// A direct path between a drive and a GPU, without a copy in host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DirectPath {
    /// The kernel's peer-to-peer DMA between PCI devices.
    P2pdma,
    /// NVIDIA's kernel module.
    NvidiaFs,
}

/// Both direct paths.
pub(super) const BOTH: &[DirectPath] = &[DirectPath::P2pdma, DirectPath::NvidiaFs];
pub(super) const P2PDMA: &[DirectPath] = &[DirectPath::P2pdma];
pub(super) const NVIDIA_FS: &[DirectPath] = &[DirectPath::NvidiaFs];

/// The check that fails without a GPU.
const GPU_CLASS: &str = "gpu_class";

impl DirectPath {
    /// Its name, as in verdicts.
    pub fn name(self) -> &'static str {
        match self {
            Self::P2pdma => "p2pdma",
            Self::NvidiaFs => "nvidia-fs",
        }
    }
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum State {
    /// It blocks a direct path.
    Problem,
    /// It costs speed, or may block a direct path.
    Warning,
    /// It could not be determined.
    Unknown,
    /// It is as it should be.
    Ok,
}

impl State {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Problem => "problem",
            Self::Warning => "warning",
            Self::Unknown => "unknown",
            Self::Ok => "ok",
        }
    }
}

/// The subject of a check, and why it matters.
#[derive(Debug, Clone, Copy)]
pub(super) struct Topic {
    pub(super) name: &'static str,
    pub(super) why: &'static str,
}

impl Topic {
    fn check(self, state: State, seen: impl Into<String>) -> Check {
        Check {
            name: self.name,
            state,
            seen: clean(&seen.into()),
            why: self.why,
            step: None,
            blocks: Vec::new(),
            needs: None,
            is_final: false,
            is_broken: false,
        }
    }

    pub(super) fn ok(self, seen: impl Into<String>) -> Check {
        self.check(State::Ok, seen)
    }

    pub(super) fn warning(self, seen: impl Into<String>) -> Check {
        self.check(State::Warning, seen)
    }

    pub(super) fn unknown(self, seen: impl Into<String>) -> Check {
        self.check(State::Unknown, seen)
    }

    /// A problem that blocks `ways`.
    pub(super) fn problem(self, seen: impl Into<String>, ways: &[DirectPath]) -> Check {
        Check { blocks: ways.to_vec(), ..self.check(State::Problem, seen) }
    }
}

/// A check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its name, in lower case with underscores.
    pub name: &'static str,
    /// Its result.
    pub state: State,
    /// The finding.
    pub seen: String,
    /// Why it matters.
    pub why: &'static str,
    /// The next step; `None` if nothing needs to be done, or nothing is known to help.
    pub step: Option<String>,
    /// The direct paths that it blocks.
    pub blocks: Vec<DirectPath>,
    /// The requirement that would open these paths, as the end of a sentence.
    #[serde(skip)]
    pub needs: Option<String>,
    /// Whether no setting of this machine can change it.
    #[serde(skip)]
    pub is_final: bool,
    /// Whether something was set up but does not work, or contradicts itself.
    #[serde(rename = "broken")]
    pub is_broken: bool,
}

impl Check {
    pub(super) fn step(self, step: impl Into<String>) -> Self {
        Self { step: Some(clean(&step.into())), ..self }
    }

    pub(super) fn needs(self, needs: impl Into<String>) -> Self {
        Self { needs: Some(needs.into()), ..self }
    }

    /// Marks paths as blocked although the result is fine.
    pub(super) fn closing(self, ways: &[DirectPath]) -> Self {
        Self { blocks: ways.to_vec(), ..self }
    }

    pub(super) fn last(self) -> Self {
        Self { is_final: true, ..self }
    }

    pub(super) fn broken_if(self, is_broken: bool) -> Self {
        Self { is_broken, ..self }
    }

    /// Downgrades a problem that blocks only the other path, because `open` is open.
    fn pass_over(&mut self, open: DirectPath) {
        if self.state == State::Problem && !self.is_broken && !self.blocks.is_empty() {
            self.state = State::Ok;
            self.step = None;
            self.seen += &format!(" (not needed: {} is open)", open.name());
        }
    }
}

/// The GPU that was examined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// Its PCI address.
    pub address: String,
    /// The driver's name for it.
    pub name: Option<String>,
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} at {}", self.address),
            None => write!(f, "the GPU at {}", self.address),
        }
    }
}

/// The state of a direct path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outlook {
    /// The direct path.
    pub way: DirectPath,
    /// Whether no check blocks it.
    #[serde(rename = "open")]
    pub is_open: bool,
    /// Whether no setting of this machine can open it.
    #[serde(rename = "never")]
    pub is_final: bool,
    /// The requirements that would open it.
    pub needs: Vec<String>,
}

/// A diagnosis of the path from a file to a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The path.
    pub path: String,
    /// The GPU; `None` if the machine shows none on PCI.
    pub gpu: Option<Gpu>,
    /// The checks, sorted by how much they hold the path back.
    pub checks: Vec<Check>,
    /// The direct paths, the closest to working first.
    pub ways: Vec<Outlook>,
}

impl Report {
    pub(super) fn new(path: String, gpu: Option<Gpu>, mut checks: Vec<Check>) -> Self {
        let mut ways: Vec<Outlook> = BOTH.iter().map(|way| outlook(*way, &checks)).collect();
        ways.sort_by_key(|way| (!way.is_open, way.is_final, way.needs.len()));
        let nearest = ways[0].way;
        if ways[0].is_open {
            checks.iter_mut().for_each(|check| check.pass_over(nearest));
        }
        // Nothing else opens a path without a GPU.
        if gpu.is_none() {
            let blocking = |check: &&mut Check| !check.blocks.is_empty() && !check.is_broken;
            let others = checks.iter_mut().filter(|check| check.name != GPU_CLASS);
            others.filter(blocking).for_each(|check| check.step = None);
        }
        // Checks are created in the order of their cost, so the sort must be stable.
        checks.sort_by_key(|check| {
            let is_first = gpu.is_none() && check.name == GPU_CLASS;
            let closes = match check.blocks.len() {
                0 => 3,
                1 if check.blocks[0] != nearest => 2,
                1 => 1,
                _ => 0,
            };
            (check.state, !check.is_broken, !is_first, closes)
        });
        Self { path, gpu, checks, ways }
    }

    /// Whether something was set up but does not work.
    pub fn is_broken(&self) -> bool {
        self.checks.iter().any(|check| check.is_broken)
    }

    /// The check with this name.
    pub fn check(&self, name: &str) -> Option<&Check> {
        self.checks.iter().find(|check| check.name == name)
    }

    /// The requirements of the direct path, as text; `None` if nothing blocks it.
    pub fn change(&self) -> Option<String> {
        let way = self.ways.first().filter(|way| !way.is_open)?;
        if way.needs.is_empty() {
            return Some("the direct path is closed".into());
        }
        let needs = joined(&way.needs);
        Some(format!("the direct path ({}) would take {needs}", way.way.name()))
    }

    /// A sentence on the best path that the checks allow, and on the requirements for a better
    /// path.
    pub fn sentence(&self) -> String {
        let to = match &self.gpu {
            Some(gpu) => format!("to {gpu}"),
            None => "to a GPU".to_owned(),
        };
        let path = &self.path;
        match self.change() {
            None => {
                let name = self.ways.first().map_or("", |way| way.way.name());
                format!("nothing seen keeps bytes of `{path}` from going {to} directly ({name})")
            }
            Some(change) => {
                format!(
                    "bytes of `{path}` have to go {to} through pinned host memory, since {change}"
                )
            }
        }
    }
}

fn outlook(way: DirectPath, checks: &[Check]) -> Outlook {
    let closing: Vec<&Check> = checks.iter().filter(|check| check.blocks.contains(&way)).collect();
    let mut needs: Vec<String> = Vec::new();
    for need in closing.iter().filter_map(|check| check.needs.as_ref()) {
        if !needs.contains(need) {
            needs.push(need.clone());
        }
    }
    let is_final = closing.iter().any(|check| check.is_final);
    Outlook { way, is_open: closing.is_empty(), is_final, needs }
}

/// Formats a list as `a`, `a and b`, `a, b and c`.
fn joined(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOPIC: Topic = Topic { name: "topic", why: "it matters" };

    fn named(name: &'static str) -> Topic {
        Topic { name, ..TOPIC }
    }

    #[test]
    fn the_greatest_obstacle_is_first() {
        let checks = vec![
            named("fine").ok("yes"),
            named("unseen").unknown("?"),
            named("slow").warning("slow"),
            named("far").problem("x", NVIDIA_FS).needs("a module"),
            named("far_too").problem("x", NVIDIA_FS).needs("a build"),
            named("near").problem("x", P2PDMA).needs("a kernel"),
            named("both").problem("x", BOTH).needs("a drive"),
            named("broken").problem("x", &[]).broken_if(true),
        ];
        let report = Report::new("/p".into(), None, checks);
        let names: Vec<&str> = report.checks.iter().map(|check| check.name).collect();
        let order = ["broken", "both", "near", "far", "far_too", "slow", "unseen", "fine"];
        assert_eq!(names, order);
        assert_eq!(report.ways[0].way, DirectPath::P2pdma);
        assert!(report.is_broken());
        let change = "the direct path (p2pdma) would take a kernel and a drive";
        assert_eq!(report.change().as_deref(), Some(change));
    }

    #[test]
    fn without_a_gpu_that_comes_first_and_nothing_else_has_a_step() {
        let checks = vec![
            named("drive").problem("x", BOTH).step("another drive"),
            named(GPU_CLASS).problem("none", BOTH).step("add one"),
            named("kernel").problem("x", P2PDMA).step("another kernel"),
            named("broken").problem("x", NVIDIA_FS).step("mend it").broken_if(true),
            named("slow").warning("x").step("unlimit it"),
        ];
        let gpu = Gpu { address: "0000:01:00.0".into(), name: None };
        let steps = |gpu| {
            let report = Report::new("/p".into(), gpu, checks.clone());
            let checks = report.checks.iter().filter(|check| check.step.is_some());
            checks.map(|check| check.name).collect::<Vec<_>>()
        };
        assert_eq!(steps(None), ["broken", GPU_CLASS, "slow"]);
        assert_eq!(steps(Some(gpu)), ["broken", "drive", GPU_CLASS, "kernel", "slow"]);
    }

    #[test]
    fn a_way_that_nothing_closes_is_open() {
        let checks = vec![named("a").problem("x", NVIDIA_FS), named("b").warning("y")];
        let report = Report::new("/p".into(), None, checks);
        assert!(report.ways[0].is_open && !report.ways[1].is_open && !report.is_broken());
        assert_eq!(report.change(), None);
        let other = report.check("a").unwrap();
        assert_eq!(
            (other.state, other.seen.as_str()),
            (State::Ok, "x (not needed: p2pdma is open)")
        );
        assert!(report.sentence().contains("directly (p2pdma)"));
    }

    #[test]
    fn a_path_that_needs_hardware_is_the_farther_one() {
        let checks = vec![
            named("a").problem("x", P2PDMA).needs("another GPU").last(),
            named("b").problem("x", NVIDIA_FS).needs("a module"),
            named("c").problem("x", NVIDIA_FS).needs("a setting"),
        ];
        let report = Report::new("/p".into(), None, checks);
        assert_eq!(report.ways[0].way, DirectPath::NvidiaFs);
        assert_eq!(joined(&["a".into(), "b".into(), "c".into()]), "a, b and c");
    }
}
