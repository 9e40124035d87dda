//! What cuFile said before, as long as it holds.
//!
//! Asking costs a process and the opening of a driver, so that an answer is kept for the processes
//! to come, in the user's cache folder and under all that it depends on (`identity`; `text` is the
//! file). That the driver opens holds until the machine is started anew, or until it does not open
//! for somebody who trusts in it. Anything else holds for a day, since it may be put right where
//! nobody looks.

mod identity;
#[cfg(test)]
mod tests;
mod text;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::OPENS_WITHIN;
use super::answer::{Answer, answer_from_lines, answer_to_lines, usable};
use super::child::{End, Program};
use super::cufile::{Seen, is_named, places};
use crate::aside::within;
use crate::remember::{Sheet, Turn};
#[cfg(test)]
pub(super) use tests::Rig;

use identity::{Machine, Search, Subject};
use text::Entry;

/// The file's name in its folder.
const NAME: &str = "cufile";

/// How long it holds that something does not work, in seconds.
const A_DAY_S: u64 = 24 * 60 * 60;

/// How long somebody waits for another who asks the same.
const OTHERS_WITHIN: Duration = OPENS_WITHIN.saturating_add(Duration::from_secs(1));

/// How long somebody who asks for himself waits for the files that this is about.
const FILES_WITHIN: Duration = Duration::from_secs(3);

/// Signals that a process gets for what it does itself. Any other may have come from anybody.
const CRASHES: [i32; 7] = [
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGSYS,
];

/// What is remembered of all answers.
#[derive(Debug, Clone)]
pub(super) struct Answers {
    /// None: nothing is read or written.
    sheet: Option<Sheet>,
    machine: Machine,
}

/// An answer that somebody wants.
#[derive(Debug)]
pub(super) struct Inquiry {
    answers: Answers,
    search: Search,
    /// None: it depends on something that cannot be read.
    subject: Option<Subject>,
}

/// What is known without asking.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) answer: Answer,
    /// Seconds since 1970 when it was given.
    written_s: u64,
}

impl Answers {
    /// What is remembered in the user's cache folder; with `on` false, nothing, ever.
    pub(super) fn of_user(on: bool) -> Self {
        let sheet = on.then(|| Sheet::of_user(NAME, text::FILE_MAX)).flatten();
        Self { sheet, machine: Machine::live() }
    }

    /// What `program` would say.
    pub(super) fn inquire(&self, program: &Program) -> Inquiry {
        self.search(Search::of(program))
    }

    fn search(&self, search: Search) -> Inquiry {
        let subject = self.sheet.as_ref().and_then(|_| self.machine.subject(&search).ok());
        Inquiry { answers: self.clone(), search, subject }
    }

    fn entries(&self) -> Option<Vec<Entry>> {
        text::parse(&self.sheet.as_ref()?.read().ok()?)
    }

    /// Has the file hold what `change` makes of it. What cannot be kept is asked for again.
    fn change(&self, change: impl FnOnce(&mut Vec<Entry>)) {
        let Some(sheet) = &self.sheet else { return };
        let _ = sheet.change(|old| {
            let before = text::parse(old)?;
            let mut entries = before.clone();
            change(&mut entries);
            (entries != before).then(|| text::format(&entries))
        });
    }

    /// Forgets what was said since the machine was started.
    fn forget(&self) {
        let Ok(boot) = self.machine.boot() else { return };
        let is_of_now = |entry: &Entry| entry.subject.boot == boot;
        if self.entries().is_some_and(|entries| entries.iter().any(is_of_now)) {
            self.change(|entries| entries.retain(|entry| !is_of_now(entry)));
        }
    }
}

impl Inquiry {
    /// The answer that is remembered.
    pub(super) fn known(&self) -> Option<Known> {
        let subject = self.subject?;
        let mut entries = self.answers.entries()?.into_iter();
        let entry = entries.find(|one| one.subject == subject)?;
        let Entry { file, written_s, opening_s, lines, .. } = entry;
        let answer = answer_from_lines(&lines);
        let is_same = match library(&answer.0) {
            Some(path) => file.is_some() && self.answers.machine.file(&path) == Ok(file),
            None => file.is_none(),
        };
        let is_younger =
            |time: u64, bound: u64| now_s().checked_sub(time).is_some_and(|age| age < bound);
        let holds = match usable(&answer) {
            // Whoever began to open it and came to no end has crashed, or hangs.
            Ok(()) => opening_s.is_none_or(|since| is_younger(since, OPENS_WITHIN.as_secs())),
            Err(_) => is_younger(written_s, A_DAY_S),
        };
        let is_ours = self.is_found(&answer.0);
        (is_same && is_ours && holds).then_some(Known { answer, written_s })
    }

    /// Whether the library is one that is looked for: no file is to say what is loaded here.
    fn is_found(&self, seen: &Seen) -> bool {
        let Some(library) = &seen.library else { return true };
        let Search { named, packages } = &self.search;
        places(named.as_deref(), packages).contains(library)
    }

    /// Opens the driver in this process, since it opened in others. Should that not come to an end,
    /// those who come later ask again.
    pub(super) fn trusting<T>(&self, open: impl FnOnce() -> T) -> T {
        let is_marked = self.mark(Some(now_s()));
        let opened = open();
        if is_marked {
            self.mark(None);
        }
        opened
    }

    /// Notes since when the driver is being opened, or that it is not. False: nothing was changed.
    fn mark(&self, since: Option<u64>) -> bool {
        let mut is_changed = false;
        self.answers.change(|entries| {
            let entry = entries.iter_mut().find(|entry| Some(entry.subject) == self.subject);
            // The first of several who open it at once is the one that counts.
            let entry = entry.filter(|entry| entry.opening_s.is_some() != since.is_some());
            if let Some(entry) = entry {
                (entry.opening_s, is_changed) = (since, true);
            }
        });
        is_changed
    }

    /// Waits until nobody else asks; whoever did will have answered then. Who cannot wait for the
    /// others asks beside them.
    pub(super) fn turn(&self) -> Option<Turn> {
        self.subject?;
        self.answers.sheet.as_ref()?.turn(OTHERS_WITHIN).ok()
    }

    /// Remembers an answer, if it says anything of cuFile, and all is as it was before.
    pub(super) fn keep(&self, answer: &Answer) {
        let is_ours = tells(answer) && self.is_found(&answer.0);
        let Some(subject) = self.subject.filter(|_| is_ours) else { return };
        let machine = &self.answers.machine;
        let file = match library(&answer.0).map(|path| machine.file(&path)) {
            Some(Ok(Some(file))) => Some(file),
            None if answer.0.library.is_none() => None,
            _ => return,
        };
        if machine.subject(&self.search) != Ok(subject) {
            return;
        }
        let (written_s, lines) = (now_s(), answer_to_lines(answer));
        let entry = Entry { subject, file, written_s, opening_s: None, lines };
        if entry.fits() {
            self.answers.change(|entries| {
                entries.retain(|other| other.subject != subject);
                entries.push(entry);
            });
        }
    }
}

impl Known {
    /// Why cuFile is of no use, as was found before.
    pub(super) fn said_before(&self, why: &str) -> String {
        let found = utc(self.written_s);
        format!("{why} (as was found on {found}; `forebay probe` asks anew)")
    }
}

/// An answer of cuFile that takes the place of all that is remembered.
///
/// Engines have cuFile's driver opened in another process before they open it, and remember what
/// came of it. Somebody who asks for himself makes one of these before, so that what was said since
/// the machine was started is forgotten, and hands it the answer. Nothing of this is an error: at
/// worst engines ask again.
#[derive(Debug)]
pub struct Renewal(Option<Inquiry>);

impl Renewal {
    /// Forgets what is remembered, before cuFile is asked: the library that is `named`, or that is
    /// found, also in these `packages` of Python.
    #[must_use]
    pub fn begin(named: Option<&Path>, packages: &[PathBuf]) -> Self {
        Self::of(Answers::of_user(true), named, packages)
    }

    fn of(answers: Answers, named: Option<&Path>, packages: &[PathBuf]) -> Self {
        let search = Search { named: named.map(Path::to_owned), packages: packages.into() };
        Self(aside(move || {
            answers.forget();
            answers.search(search)
        }))
    }

    /// Remembers what cuFile said.
    pub fn end(self, answer: &Answer) {
        let (inquiry, answer) = (self.0, answer.clone());
        let _ = aside(move || inquiry.map(|inquiry| inquiry.keep(&answer)));
    }
}

/// Does something with files that may not answer, and waits for it for a limited time.
fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    within(FILES_WITHIN, "forebay-remember", work).ok().flatten()
}

/// The file of the library that a helper loaded, where it could tell.
fn library(seen: &Seen) -> Option<PathBuf> {
    seen.loaded.clone().or_else(|| seen.library.clone().filter(|path| is_named(path)))
}

/// Whether an answer says something of cuFile, and not of whoever was to ask.
fn tells((seen, end): &Answer) -> bool {
    match end {
        End::Exited(_) => seen.opened || seen.failed.is_some(),
        End::Killed(signal) => CRASHES.contains(signal),
        // Others give it less time.
        End::TimedOut(limit) => *limit >= OPENS_WITHIN,
        End::NotRun(_) => false,
    }
}

fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// `2026-11-21 17:42 UTC`, of seconds since 1970.
fn utc(seconds: u64) -> String {
    let (mut day, minute) = (seconds / 86_400, seconds / 60 % 1440);
    let mut year = 1970;
    let is_leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    // Four centuries have as many days as any other four.
    (year, day) = (year + day / 146_097 * 400, day % 146_097);
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < days {
            break;
        }
        (day, month) = (day - days, month + 1);
    }
    let (hour, minute) = (minute / 60, minute % 60);
    format!("{year}-{month:02}-{:02} {hour:02}:{minute:02} UTC", day + 1)
}
