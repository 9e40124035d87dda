//! The change to another number of queues, between samples.

use forebay_measure::failure::Result;
use forebay_measure::results::Direction;
use forebay_measure::stdio::say;
use indicatif::ProgressBar;

use super::words;
use crate::bench::files::Place;
use crate::bench::plan::Planned;
use crate::bench::{Bench, maps, queues};

impl Bench<'_> {
    /// Sets the number of queues that a point requests, if it changed. A failure is reported, and
    /// is the error of each sample until another number is requested.
    pub(in crate::bench) fn turn(&mut self, planned: &Planned, repeat: u32, bar: &ProgressBar) {
        let (Some(number), Some(switch)) = (planned.point.queues, &self.switch) else { return };
        if switch.is_tried(number, repeat) {
            return;
        }
        let found = self.set(number);
        let text = match &found {
            Ok(Some(other)) if *other != number => {
                Some(format!("{} were requested, but {other} found", words(number)))
            }
            Ok(_) => None,
            Err(failure) => {
                // Without files nothing is measured in this state.
                self.places.clear();
                Some(failure.with_remedy())
            }
        };
        self.switch.as_mut().expect("it was there").last = Some((number, repeat, found));
        if let Some(text) = text {
            bar.suspend(|| say(&text));
        }
    }

    /// Sets a number and prepares the path; returns the number that the kernel then reports.
    fn set(&mut self, number: u32) -> Result<Option<u32>> {
        let path = &self.args.paths[0];
        // Closes and removes scratch.
        self.places.clear();
        self.switch.as_mut().expect("the caller checks").run(number, path)?;
        // The known facts may be of a controller that is gone.
        self.resolver.forget();
        let own: Vec<&Planned> = self.planned.iter().collect();
        let directions: Vec<u8> = own.iter().map(|planned| planned.point.read_percent).collect();
        let mut place = Place::find(&self.engine, path, self.args, &directions)?;
        place.fit(self.args, &own)?;
        place.check_room()?;
        place.make(Direction::Read)?;
        self.places.push(place);
        Ok(queues::found(&maps(&self.resolver, &self.args.paths)[0], number))
    }
}
