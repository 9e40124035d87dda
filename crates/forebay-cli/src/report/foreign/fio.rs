//! fio's JSON (`--output-format=json` or `json+`).
//!
//! A job is a single measurement: clones (`numjobs`) with separate reports are merged, since they
//! ran together, and so are both directions of a mixed job.

mod job;

use forebay_measure::json_memory;
use serde::Deserialize;
use serde_json::Deserializer;

use self::job::{Job, Options};
use super::row::{Contents, short};

/// The member that fio's objects begin with.
const VERSION: &str = "\"fio version\"";
/// The name that fio's client gives the sum of all servers.
const ALL_CLIENTS: &str = "All clients";
/// Most jobs of an object.
const JOBS_MAX: usize = 20_000;
/// Warnings on a job.
const WITHOUT_OPTIONS: &str = "has no `job options`: its method, size, depth, threads and order \
                               are unknown, and `--columns` can add them";
const WITHOUT_SIZE: &str = "has no single block size that is read (`bsrange`, `kb_base`, `KiB`): \
                            it is unknown";
const SEVERAL: &str = "does not match its options, perhaps because several jobs are reported as \
                       one (`group_reporting`): its size, depth, threads and order are unknown";

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
    jobs: Option<Vec<Job>>,
    client_stats: Option<Vec<Job>>,
}

/// The jobs of an object, and when it was written.
struct Object {
    jobs: Vec<Job>,
    line: u64,
    time: Option<u64>,
    time_ms: Option<u64>,
}

/// Reads fio's JSON within any output; several objects may follow in a row.
///
/// # Errors
/// It is no JSON, is truncated, is not a result of fio 3, or contradicts the user.
pub(super) fn parse(text: &str, contents: &mut Contents) -> Result<(), String> {
    json_memory::check(text.as_bytes(), 0)?;
    let text = with_nulls(text);
    let (mut end, mut line, mut interim) = (0, 1, 0);
    let mut objects: Vec<Object> = Vec::new();
    for (at, _) in text.match_indices(VERSION) {
        let own = text[..at].trim_end().strip_suffix('{').map(str::len);
        // A different program may have sorted the members.
        let begin = own.or_else(|| Some(end + text.get(end..at)?.find('{')?));
        let Some(begin) = begin.filter(|begin| *begin >= end) else { continue };
        read_talk(&text[end..begin], &mut line, contents);
        let mut stream = Deserializer::from_str(&text[begin..]).into_iter::<Output>();
        let Some(output) = stream.next() else { break };
        let output = output.map_err(|error| broken(line, &error))?;
        end = begin + stream.byte_offset();
        let object = Object::of(output, line, contents)?;
        if objects.last().is_some_and(|earlier| object.continues(earlier)) {
            objects.pop();
            interim += 1;
        }
        objects.push(object);
        line += text[begin..end].matches('\n').count() as u64;
    }
    if objects.is_empty() {
        return Err("it holds no JSON object with a `fio version`".into());
    }
    objects.iter().try_for_each(|object| object.add_to(contents))?;
    if interim > 0 {
        contents.note(&format!(
            "{interim} interim results of running jobs (`--status-interval`) are left out: the \
             last result of each job includes them"
        ));
    }
    read_talk(&text[end..], &mut line, contents);
    Ok(())
}

/// JSON with `null` for numbers that JSON cannot represent: `NaN`, `-inf`, `Infinity`.
fn with_nulls(text: &str) -> String {
    let (mut nulled, mut kept) = (String::with_capacity(text.len()), 0);
    for (at, _) in text.match_indices([':', ',', '[']) {
        let value = text[at + 1..].trim_start();
        let is_end = |letter: char| !letter.is_ascii_alphabetic() && !"+-".contains(letter);
        let word = &value[..value.find(is_end).unwrap_or(value.len())];
        let name = word.trim_start_matches(['+', '-']).to_ascii_lowercase();
        let ends = value[word.len()..].trim_start().starts_with([',', '}', ']']);
        if ends && ["nan", "inf", "infinity"].contains(&name.as_str()) {
            nulled.push_str(&text[kept..text.len() - value.len()]);
            nulled.push_str("null");
            kept = text.len() - value.len() + word.len();
        }
    }
    nulled + &text[kept..]
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
        // fio's text prints `err= 0` for every successful job.
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
            let job = entry.completed(&output.options);
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
        Ok(Self { jobs, line, time: output.timestamp, time_ms: output.timestamp_ms })
    }

    /// Whether this is a later report of the jobs of an earlier object, which were still running
    /// then (`--status-interval`): it includes their counts since the start.
    #[expect(clippy::cast_precision_loss, reason = "milliseconds")]
    fn continues(&self, earlier: &Self) -> bool {
        let Some((end, before)) = self.time_ms.zip(earlier.time_ms) else { return false };
        let grew = |(now, before): (&Job, &Job)| now.is_later_report_of(before);
        let longest = self.jobs.iter().map(Job::seconds).fold(0.0, f64::max);
        longest > 0.0
            && self.jobs.len() == earlier.jobs.len()
            && self.jobs.iter().zip(&earlier.jobs).all(grew)
            && before <= end
            && end as f64 - longest * 1e3 <= before as f64
    }

    #[expect(clippy::cast_precision_loss, reason = "seconds since 1970")]
    fn add_to(&self, contents: &mut Contents) -> Result<(), String> {
        for job in &self.jobs {
            let mut warn = |text: &str| {
                contents.warn(self.line, &format!("job `{}` {text}", job.name));
            };
            let mut row = match job.row() {
                Ok(row) => row,
                Err(why) => {
                    warn(&format!("is left out: {why}"));
                    continue;
                }
            };
            match job.block_size() {
                _ if !job.has_options() => warn(WITHOUT_OPTIONS),
                None => warn(WITHOUT_SIZE),
                Some(_) => {}
            }
            if job.is_several() {
                warn(SEVERAL);
                let path = std::mem::take(&mut row.axes).point.path;
                row.set("path", &path);
                row.set("method", "fio (several jobs)");
                row.set("direction", &format!("mixed:{}", job.share_of_reads()));
            }
            if job.lacks_percentiles() {
                contents.note(
                    "clones (`numjobs`) and both directions of a job are one measurement, without \
                     percentiles, which cannot be merged: `group_reporting` merges those of clones",
                );
            }
            row.unix_time = self.time.unwrap_or_default() as f64;
            contents.add(self.line, Ok(row))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
