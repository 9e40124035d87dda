//! Streams that wait for numbers in host memory. Work queued behind such a wait has no due time
//! yet, so it is held back until the number is reached.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::time::Duration;

use super::memory::HostAddress;
use super::memory::{Held, Number};
use super::timeline::{EventState, SimWork, Timeline, unknown};
use crate::DeviceResult;

impl Timeline {
    /// Queues a wait for a number.
    pub(super) fn wait_number(
        &mut self,
        stream: u64,
        number: NonNull<u32>,
        least: u32,
    ) -> DeviceResult<()> {
        let call = "wait_number";
        self.stream(call, stream)?;
        let number = Number(number);
        self.registered.lock().hold(call, number.host(), 4)?;
        self.stream(call, stream)?.held.push_back(Held::Number(number, least));
        Ok(())
    }

    /// Queues a write of a number.
    pub(super) fn write_number(
        &mut self,
        now: Duration,
        stream: u64,
        number: NonNull<u32>,
        value: u32,
    ) -> DeviceResult<()> {
        let call = "write_number";
        self.stream(call, stream)?;
        let number = Number(number);
        self.registered.lock().hold(call, number.host(), 4)?;
        self.stream(call, stream)?.held.push_back(Held::Write(number, value));
        self.release(now);
        Ok(())
    }

    /// Whether any work is queued or held back.
    pub(super) fn is_busy(&self) -> bool {
        !self.queue.is_empty() || self.streams.values().any(|stream| !stream.held.is_empty())
    }

    /// Whether any work of a stream is held back.
    pub(super) fn is_held(&self, stream: u64) -> bool {
        self.streams.get(&stream).is_some_and(|stream| !stream.held.is_empty())
    }

    /// Schedules held work whose waits are over.
    pub(super) fn release(&mut self, now: Duration) {
        let streams: Vec<u64> = self.streams.keys().copied().collect();
        // One stream may release another, so repeat until nothing changes.
        while streams.iter().any(|&stream| self.release_one(now, stream)) {}
        if self.streams.values().all(|stream| stream.held.is_empty()) {
            self.records.clear();
        }
    }

    fn release_one(&mut self, now: Duration, stream: u64) -> bool {
        let Some(state) = self.streams.get_mut(&stream) else { return false };
        let due = now.max(state.due);
        let Some(held) = state.held.pop_front() else { return false };
        match held {
            Held::Number(number, least) => {
                // Earlier work may still run then; later work is due after it in any case.
                if !number.reaches(least) {
                    self.hold_again(stream, held);
                    return false;
                }
                self.registered.lock().dispose(number.host());
            }
            Held::Event(record) => {
                let Some(&Some(event_due)) = self.records.get(&record) else {
                    self.hold_again(stream, held);
                    return false;
                };
                self.set_due(stream, due.max(event_due));
            }
            Held::Write(number, value) => {
                self.push(due, SimWork::Write { number, value });
                self.set_due(stream, due);
            }
            Held::Fill(device, byte, len) => {
                self.push(due, SimWork::Fill { device, byte, len });
                self.set_due(stream, due);
            }
            Held::Xor(device, key, len) => {
                self.push(due, SimWork::Xor { device, key, len });
                self.set_due(stream, due);
            }
            Held::Work(time) => self.set_due(stream, due + time),
            Held::Record(event, record) => {
                let number = self.queued;
                self.records.insert(record, Some(due));
                if let Some(state) = self.events.get_mut(&event)
                    && state.pending == Some(record)
                {
                    *state =
                        EventState { pending: Some(number), due, failure: None, is_held: false };
                }
                self.push(due, SimWork::Record { stream, event });
                self.set_due(stream, due);
            }
            Held::Copies(direction, copies, mut latency) => {
                for (copy, fails) in copies {
                    self.schedule(now, stream, direction, copy, latency, fails);
                    latency = Duration::ZERO;
                }
            }
        }
        true
    }

    fn hold_again(&mut self, stream: u64, held: Held) {
        if let Some(state) = self.streams.get_mut(&stream) {
            state.held.push_front(held);
        }
    }

    fn set_due(&mut self, stream: u64, due: Duration) {
        if let Some(state) = self.streams.get_mut(&stream) {
            state.due = due;
        }
    }

    /// Releases the memory of work that is dropped without running.
    pub(super) fn drop_held(&mut self, held: VecDeque<Held>) {
        for held in held {
            match held {
                Held::Copies(_, copies, _) => {
                    copies
                        .iter()
                        .for_each(|(copy, _)| self.dispose(HostAddress(copy.host), copy.device));
                }
                Held::Number(number, _) | Held::Write(number, _) => {
                    self.registered.lock().dispose(number.host());
                }
                Held::Fill(device, ..) | Held::Xor(device, ..) => self.memory.dispose(device),
                Held::Record(_, record) => {
                    self.records.insert(record, Some(Duration::ZERO));
                }
                Held::Event(_) | Held::Work(_) => {}
            }
        }
    }

    /// Marks a caller's stream as capturing or not.
    pub(super) fn set_capturing(&mut self, stream: u64, on: bool) -> DeviceResult<()> {
        self.stream("set_capturing", stream)?.capturing = on;
        Ok(())
    }

    pub(super) fn is_capturing(&self, stream: u64) -> DeviceResult<bool> {
        let state = self.streams.get(&stream).ok_or_else(|| unknown("is_capturing", "stream"))?;
        Ok(state.capturing)
    }
}
