//! fio's JSON (`--output-format=json` or `json+`).
//!
//! A job is one measurement: clones (`numjobs`) that are reported one by one are merged, since they
//! ran together, and so are both directions of a mixed job.

mod job;
mod times;

use forebay_measure::json_memory;
use serde::Deserialize;
use serde_json::Deserializer;

use self::job::{Entry, Job, Options};
use super::row::{Contents, short};

/// The member that fio's objects begin with.
const VERSION: &str = "\"fio version\"";
/// The name that fio's client gives the sum of all servers.
const ALL_CLIENTS: &str = "All clients";
/// Jobs of one object at most.
const JOBS_MAX: usize = 20_000;

/// An object of results.
#[derive(Deserialize)]
struct Output {
    #[serde(rename = "fio version")]
    version: String,
    /// In seconds since 1970.
    timestamp: Option<u64>,
    timestamp_ms: Option<u64>,
    #[serde(rename = "global options", default)]
    options: Options,
    jobs: Option<Vec<Entry>>,
    client_stats: Option<Vec<Entry>>,
}

/// The jobs of an object, and when it was written.
struct Object {
    jobs: Vec<Job>,
    line: u64,
    time: Option<u64>,
    /// In milliseconds, and by how much that may be rounded down.
    end_ms: Option<(u64, f64)>,
}

/// Reads fio's JSON after any other output before it; several objects may follow each other.
///
/// # Errors
/// It is no JSON, is truncated, is not a result of fio 3, or contradicts the user.
pub(super) fn parse(text: &str, contents: &mut Contents) -> Result<(), String> {
    json_memory::check(text.as_bytes(), 0)?;
    let text = &without_nan(text);
    let (mut rest, mut line) = (text.as_str(), 1);
    let mut objects: Vec<Object> = Vec::new();
    let mut interim = 0;
    while let Some(begin) = object_in(rest) {
        read_talk(&rest[..begin], &mut line, contents);
        rest = &rest[begin..];
        let mut stream = Deserializer::from_str(rest).into_iter::<Output>();
        let Some(output) = stream.next() else { break };
        let output = output.map_err(|error| broken(line, &error))?;
        let end = stream.byte_offset();
        let object = Object::of(output, line, contents)?;
        if objects.last().is_some_and(|earlier| object.continues(earlier)) {
            objects.pop();
            interim += 1;
        }
        objects.push(object);
        line += rest[..end].matches('\n').count() as u64;
        rest = &rest[end..];
    }
    if objects.is_empty() {
        return Err("no line begins a JSON object".into());
    }
    objects.iter().try_for_each(|object| object.add_to(contents))?;
    if interim > 0 {
        contents.note(&format!(
            "{interim} interim results of running jobs (`--status-interval`) are left out: the \
             last result of each job includes them"
        ));
    }
    read_talk(rest, &mut line, contents);
    Ok(())
}

/// Replaces numbers that are none (`nan`, `-nan`, `inf`) by null. fio writes a member a line.
fn without_nan(text: &str) -> String {
    let none = ["nan", "-nan", "inf", "-inf"];
    let replaced = |line: &str| {
        let (name, value) = line.rsplit_once(" : ")?;
        let value = value.trim_end();
        none.contains(&value.trim_end_matches(',')).then(|| {
            let comma = if value.ends_with(',') { "," } else { "" };
            format!("{name} : null{comma}\n")
        })
    };
    let lines = text.split_inclusive('\n');
    lines.map(|line| replaced(line).unwrap_or_else(|| line.to_owned())).collect()
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

/// The error of an object that begins in a line.
fn broken(first: u64, error: &serde_json::Error) -> String {
    let line = first - 1 + error.line() as u64;
    if error.is_eof() {
        return format!("line {line}: its JSON is truncated");
    }
    let what = error.to_string();
    format!("line {line}: {}", short(what.split(" at line ").next().unwrap_or_default()))
}

/// Keeps fio's complaints outside its JSON.
fn read_talk(text: &str, line: &mut u64, contents: &mut Contents) {
    for talk in text.split_inclusive('\n') {
        // fio's output for people has `err= 0` for each successful job.
        let lower = talk.to_lowercase().replace("err= 0:", "");
        if let Some((_, signal)) = lower.split_once("terminating on signal") {
            let text = format!("fio was stopped by signal {}", short(signal));
            contents.warn(*line, &format!("{text}: its jobs did not finish"));
        } else if ["error", "fail", "err="].iter().any(|word| lower.contains(word)) {
            contents.warn(*line, &format!("fio reported: {}", short(talk)));
        }
        *line += u64::from(talk.ends_with('\n'));
    }
}

impl Object {
    fn of(output: Output, line: u64, contents: &mut Contents) -> Result<Self, String> {
        let version = short(output.version.strip_prefix("fio-").unwrap_or(&output.version));
        if version.starts_with("1.") || version.starts_with("2.") {
            return Err(format!(
                "line {line}: it is of fio {version}, and only 3 or newer is read"
            ));
        }
        contents.version.get_or_insert(version);
        contents.unix_time = contents.unix_time.or(output.timestamp);
        let Some(entries) = output.jobs.or(output.client_stats) else {
            return Err(format!("line {line}: it has neither `jobs` nor `client_stats`"));
        };
        if entries.len() > JOBS_MAX {
            return Err(format!("it holds more than {JOBS_MAX} jobs"));
        }
        let mut jobs: Vec<Job> = Vec::new();
        for entry in entries {
            let job = Job::of(entry, &output.options);
            match jobs.pop() {
                last if job.name == ALL_CLIENTS => jobs.extend(last),
                Some(last) if job.is_clone_of(&last) => jobs.push(last.with(job)),
                last => jobs.extend(last.into_iter().chain([job])),
            }
        }
        let ran_together = |two: &[Job]| two[0].group == two[1].group && two[0].name != two[1].name;
        if jobs.windows(2).any(ran_together) {
            contents.note(
                "jobs of one group ran at the same time and slowed each other down, but each has \
                 its own numbers; `stonewall` runs one after the other",
            );
        }
        let exact = output.timestamp_ms.map(|ms| (ms, 0.0));
        let end_ms = exact.or(output.timestamp.map(|s| (s.saturating_mul(1000), 1e3)));
        Ok(Self { jobs, line, time: output.timestamp, end_ms })
    }

    /// Whether this is a later report of the jobs of an earlier object, which were still running
    /// then (`--status-interval`): it includes their counts since the start.
    #[expect(clippy::cast_precision_loss, reason = "milliseconds")]
    fn continues(&self, earlier: &Self) -> bool {
        let grew = |(now, before): (&Job, &Job)| now.is_later_report_of(before);
        let Some(((end, off), (earlier_end, _))) = self.end_ms.zip(earlier.end_ms) else {
            return false;
        };
        let longest = self.jobs.iter().map(Job::seconds).fold(0.0, f64::max);
        longest > 0.0
            && self.jobs.len() == earlier.jobs.len()
            && self.jobs.iter().zip(&earlier.jobs).all(grew)
            && (earlier_end..).contains(&end)
            && end as f64 - longest * 1e3 + off <= earlier_end as f64
    }

    #[expect(clippy::cast_precision_loss, reason = "seconds since 1970")]
    fn add_to(&self, contents: &mut Contents) -> Result<(), String> {
        for job in &self.jobs {
            let Some(mut row) = job.row() else {
                contents.warn(self.line, &format!("job `{}` moved nothing: left out", job.name));
                continue;
            };
            if job.is_several() {
                contents.warn(
                    self.line,
                    &format!(
                        "job `{}` does not match its options, perhaps because several jobs are \
                         reported as one (`group_reporting`): its size, depth, threads and order \
                         are unknown",
                        job.name
                    ),
                );
                row.axes.retain(|axis, _| *axis == "path");
                row.set("method", "fio (several jobs)");
                row.set("direction", &format!("mixed:{}", job.share_of_reads()));
            }
            row.unix_time = self.time.unwrap_or_default() as f64;
            contents.add(self.line, Ok(row))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
