//! Remembers what was learned about each drive.

mod format;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::SystemTime;

use rustix::io::Errno;

use super::sheet::{Sheet, variable};
use crate::queue::Direction;
use crate::tune::Learned;
use format::{Entry, Text};

/// The file's name in its folder.
const NAME: &str = "learned";

/// See the module's own text.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// None: nothing is read or written.
    sheet: Option<Sheet>,
    known: Vec<Entry>,
    /// What the file does not hold yet.
    new: Vec<Entry>,
}

impl Memory {
    /// What is remembered in the user's cache folder; with `on` false, nothing, ever.
    pub(crate) fn open(on: bool) -> Self {
        Self::found(on, variable)
    }

    fn found(on: bool, lookup: impl Fn(&str) -> Option<PathBuf>) -> Self {
        let sheet = on.then(|| Sheet::found(NAME, format::FILE_MAX, lookup)).flatten();
        sheet.map_or_else(Self::default, Self::of)
    }

    /// What is remembered in another folder.
    #[cfg(test)]
    pub(crate) fn at(folder: PathBuf) -> Self {
        Self::of(Sheet::at(folder, NAME, format::FILE_MAX))
    }

    fn of(sheet: Sheet) -> Self {
        let entries = match sheet.read().map(|bytes| format::parse(&bytes)) {
            Ok(Text::Entries(entries)) => entries,
            Ok(Text::Later) | Err(_) => Vec::new(),
        };
        Self { sheet: Some(sheet), known: entries, new: Vec::new() }
    }

    /// What is known of a drive.
    pub(crate) fn recall(&self, identity: &str, direction: Direction) -> Option<Learned> {
        let is_it = |entry: &&Entry| entry.identity == identity && entry.direction == direction;
        self.known.iter().find(is_it).map(|entry| entry.learned)
    }

    /// Notes what was learned, to be kept by [`Unsaved::write`].
    pub(crate) fn note(&mut self, identity: &str, direction: Direction, learned: Learned) {
        if self.sheet.is_none() || self.recall(identity, direction) == Some(learned) {
            return;
        }
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let written_s = since.map_or(0, |since| since.as_secs());
        if let Some(entry) = Entry::new(identity, direction, learned, written_s) {
            format::insert(&mut self.known, entry.clone());
            format::insert(&mut self.new, entry);
        }
    }

    /// Whether anything is kept at all.
    pub(crate) fn is_kept(&self) -> bool {
        self.sheet.is_some()
    }

    /// What was noted and not written yet, if anything.
    pub(crate) fn unsaved(&self) -> Option<Unsaved> {
        let sheet = self.sheet.clone().filter(|_| !self.new.is_empty())?;
        Some(Unsaved { sheet, new: self.new.clone() })
    }

    /// Takes note that this was written.
    pub(crate) fn saved(&mut self, saved: &Unsaved) {
        self.new.retain(|entry| !saved.new.contains(entry));
    }

    /// Writes what was noted. False: it could not be, and is tried again with the next call.
    #[cfg(test)]
    pub(crate) fn save(&mut self) -> bool {
        let Some(unsaved) = self.unsaved() else { return true };
        let is_written = unsaved.write().is_ok();
        if is_written {
            self.saved(&unsaved);
        }
        is_written
    }
}

/// A copy of what was noted: it is written without a lock on the memory.
#[derive(Debug)]
pub(crate) struct Unsaved {
    sheet: Sheet,
    new: Vec<Entry>,
}

impl Unsaved {
    /// # Errors
    /// It cannot be written now.
    pub(crate) fn write(&self) -> Result<(), Errno> {
        self.sheet.change(|old| match format::parse(old) {
            Text::Entries(mut entries) => {
                self.new.iter().for_each(|entry| format::insert(&mut entries, entry.clone()));
                Some(format::format(&entries))
            }
            Text::Later => None,
        })
    }
}
