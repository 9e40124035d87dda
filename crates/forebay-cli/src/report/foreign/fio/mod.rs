//! fio's JSON (`--output-format=json` or `json+`): [`job`] reads an entry, [`latency`] its times,
//! [`interim`] recognizes reports of jobs that were still running.
//!
//! A job is one measurement: clones (`numjobs`) that are reported one by one are merged, since they
//! ran together, and so are both directions of a mixed job.

mod interim;
mod job;
mod json;
mod latency;

use std::rc::Rc;

use serde_json::{Deserializer, Value};

use self::interim::Object;
use self::job::{Job, Options};
use self::json::{Ordered, without_nan};
use super::found::{self, Contents, Found, short};
use crate::json_memory;
use crate::results::Point;

/// The member that fio's objects begin with.
const VERSION: &str = "\"fio version\"";
/// The name that fio's client gives the sum of all servers.
const ALL_CLIENTS: &str = "All clients";
/// The method name of merged jobs.
const SEVERAL: &str = "fio (several jobs)";
/// Jobs of one object at most.
const JOBS_MAX: usize = 20_000;

/// Reads fio's JSON after any other output before it; several objects may follow each other.
///
/// # Errors
/// It is no JSON, is truncated, or is not a result of fio.
pub(super) fn parse(text: &str) -> Result<Contents, String> {
    json_memory::check(text.as_bytes(), 0)?;
    let mut contents = Contents::default();
    let text = &without_nan(text);
    let mut rest = Rest { text, line: 1 };
    let mut pending: Option<Object> = None;
    let (mut objects, mut interim) = (0, 0);
    while let Some(begin) = object_in(rest.text) {
        rest.skip(begin, |line, text| talk(&mut contents, line, text));
        let mut stream = Deserializer::from_str(rest.text).into_iter::<Ordered>();
        let value = match stream.next() {
            Some(Ok(Ordered(value))) => value,
            Some(Err(error)) => return Err(broken(rest.line, &error)),
            None => break,
        };
        let end = stream.byte_offset();
        let object = take(&mut contents, &value, &Lines::of(rest.line, &rest.text[..end]))?;
        match pending.take() {
            Some(earlier) if object.goes_on_from(&earlier) => interim += 1,
            earlier => earlier.map_or(Ok(()), |earlier| add(&mut contents, &earlier))?,
        }
        pending = Some(object);
        rest.skip(end, |_, _| {});
        objects += 1;
    }
    pending.map_or(Ok(()), |last| add(&mut contents, &last))?;
    if interim > 0 {
        contents.note(&format!(
            "{interim} interim results of running jobs (`--status-interval`) are left out: the \
             last result of each job includes them"
        ));
    }
    rest.skip(rest.text.len(), |line, text| talk(&mut contents, line, text));
    if objects == 0 {
        return Err("no line begins a JSON object".into());
    }
    Ok(contents)
}

/// The start of the first object: at a line's beginning, or after other text with fio's version as
/// its first member.
fn object_in(text: &str) -> Option<usize> {
    let mut begins_line = true;
    for (at, letter) in text.char_indices() {
        match letter {
            '{' if begins_line || text[at + 1..].trim_start().starts_with(VERSION) => {
                return Some(at);
            }
            '\n' => begins_line = true,
            letter => begins_line &= letter.is_whitespace(),
        }
    }
    None
}

/// The unread rest, and the line in which it begins.
struct Rest<'a> {
    text: &'a str,
    line: u64,
}

impl Rest<'_> {
    /// Skips some bytes; each line is passed on with its number.
    fn skip(&mut self, len: usize, mut show: impl FnMut(u64, &str)) {
        let (passed, rest) = self.text.split_at(len);
        for line in passed.split_inclusive('\n') {
            show(self.line, line);
            self.line += u64::from(line.ends_with('\n'));
        }
        self.text = rest;
    }
}

/// The error of an object that begins in a line.
fn broken(first: u64, error: &serde_json::Error) -> String {
    let line = first - 1 + error.line() as u64;
    if error.is_eof() {
        return format!("line {line}: its JSON is truncated");
    }
    let what = error.to_string();
    let what = what.split(" at line ").next().unwrap_or_default();
    format!("line {line}: {}", short(what))
}

/// Keeps fio's complaints outside its JSON.
fn talk(contents: &mut Contents, number: u64, line: &str) {
    let lower = line.to_lowercase();
    if let Some((_, signal)) = lower.split_once("terminating on signal") {
        let text = "fio was stopped by signal";
        contents.warn(number, &format!("{text} {}: its jobs did not finish", short(signal)));
        return;
    }
    // fio's output for people has `err= 0` for each successful job.
    let lower = lower.replace("err= 0:", "");
    if ["error", "fail", "err="].iter().any(|word| lower.contains(word)) {
        contents.warn(number, &format!("fio reported: {}", short(line)));
    }
}

/// The start of entries: fio writes their names on separate lines.
struct Lines {
    first: u64,
    names: Vec<u64>,
}

impl Lines {
    fn of(first: u64, text: &str) -> Self {
        let lines = (first..).zip(text.lines());
        let names = lines.filter(|(_, line)| line.trim_start().starts_with("\"jobname\""));
        Self { first, names: names.map(|(number, _)| number).collect() }
    }

    fn of_entry(&self, number: usize, count: usize) -> u64 {
        let known = Some(&self.names).filter(|names| names.len() == count);
        known.and_then(|names| names.get(number)).copied().unwrap_or(self.first)
    }
}

/// Adds the contents of one object of results.
fn take(contents: &mut Contents, value: &Value, lines: &Lines) -> Result<Object, String> {
    let Some(version) = value.get("fio version").and_then(Value::as_str) else {
        return Err(format!("line {}: it has no `fio version`", lines.first));
    };
    let version = short(version.strip_prefix("fio-").unwrap_or(version));
    if let Some(other) = contents.version.as_ref().filter(|other| **other != version) {
        contents.warn(lines.first, &format!("version {version}, after {other}"));
    }
    contents.version.get_or_insert(version);
    let time = value.get("timestamp").and_then(Value::as_u64);
    contents.unix_time = contents.unix_time.or(time);
    let entries = ["jobs", "client_stats"].iter().find_map(|key| value.get(key)?.as_array());
    let Some(entries) = entries else {
        return Err(format!("line {}: it has neither `jobs` nor `client_stats`", lines.first));
    };
    if entries.len() > JOBS_MAX {
        return Err(format!("it holds more than {JOBS_MAX} jobs"));
    }
    let global = Rc::new(job::options(value, "global options").unwrap_or_default());
    let old = contents.version.as_deref().is_some_and(|text| text.starts_with(['1', '2']));
    let jobs = jobs(entries, &global, lines, old);
    for both in jobs.windows(2) {
        let together = both[0].group == both[1].group && both[0].name != both[1].name;
        if together && both[0].host == both[1].host {
            contents.note(
                "jobs of one group ran at the same time and slowed each other down, but each has \
                 its own numbers; `stonewall` runs one after the other",
            );
        }
    }
    Ok(Object::of(value, jobs))
}

/// The jobs of an object, with clones merged.
fn jobs(entries: &[Value], global: &Rc<Options>, lines: &Lines, old: bool) -> Vec<Job> {
    let mut jobs: Vec<Job> = Vec::new();
    for (number, entry) in entries.iter().enumerate() {
        let job = Job::of(entry, global, lines.of_entry(number, entries.len()), old);
        if job.name == ALL_CLIENTS {
            continue;
        }
        match jobs.pop() {
            Some(last) if job.is_clone_of(&last) => jobs.push(last.with(job)),
            last => {
                jobs.extend(last);
                jobs.push(job);
            }
        }
    }
    jobs
}

fn add(contents: &mut Contents, object: &Object) -> Result<(), String> {
    let (jobs, time) = (&object.jobs, object.time);
    let several = jobs.iter().any(|job| job.host != jobs[0].host);
    let begin = contents.found.len();
    let mut names: Vec<&str> = Vec::new();
    let shared = Rc::new(jobs.first().map(Job::beside_of_all).unwrap_or_default());
    for job in jobs {
        if job.trims {
            contents.warn(job.line, &format!("the trims of job `{}` are left out", job.name));
        }
        let Some(measured) = job.measured() else {
            contents.warn(job.line, &format!("job `{}` moved nothing: left out", job.name));
            continue;
        };
        #[expect(clippy::cast_precision_loss, reason = "seconds since 1970")]
        let unix_time = time.map_or(0.0, |time| time as f64);
        let mut point = job.point(several);
        if job.is_several() {
            contents.warn(
                job.line,
                &format!(
                    "job `{}` does not match its options, perhaps because several jobs are \
                     reported as one (`group_reporting`): its size, depth, threads and order are \
                     unknown",
                    job.name
                ),
            );
            point = Point { path: point.path, ..found::point(SEVERAL, job.share_of_reads()) };
        }
        let beside = job.beside(&shared);
        contents.add(Found { line: job.line, point, unix_time, measured, beside })?;
        names.push(&job.name);
    }
    // Jobs that differ in options without an axis are not repeats of each other.
    let points: Vec<_> = contents.found[begin..].iter().map(|found| found.point.clone()).collect();
    let mut of: std::collections::HashMap<_, Vec<usize>> = std::collections::HashMap::new();
    for (index, point) in points.iter().enumerate() {
        of.entry(point).or_default().push(index);
    }
    for same in of.values().filter(|same| same.iter().any(|at| names[*at] != names[same[0]])) {
        for index in same {
            let way = &mut contents.found[begin + index].point.way;
            way.push_str(&format!(" ({})", names[*index]));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
