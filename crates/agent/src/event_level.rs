//! The event level in effect: the operator's (`--events`, `beeline events`), or that of the newest open monitor stream that
//! asked for one. A stream's level ends with the stream, also when the monitor is killed. Without a stream nothing reads
//! events, and the kernel reports none.

use beeline_datapath::control::EventLevel;

#[derive(Debug)]
pub struct EventLevels {
    base: EventLevel,
    /// By stream, the newest last. `None`: the stream did not ask for a level.
    streams: Vec<(StreamId, Option<EventLevel>)>,
    next: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamId(u64);

/// What is in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventLevelState {
    /// The level of events that monitors get.
    pub level: EventLevel,
    /// The number of open monitor streams.
    pub monitors: usize,
}

impl EventLevelState {
    pub fn new(level: EventLevel) -> EventLevelState {
        EventLevelState { level, monitors: 0 }
    }

    /// The level for the kernel.
    pub fn kernel_level(&self) -> EventLevel {
        if self.monitors == 0 { EventLevel::Off } else { self.level }
    }
}

impl EventLevels {
    pub fn new(base: EventLevel) -> EventLevels {
        EventLevels { base, streams: Vec::new(), next: 0 }
    }

    pub fn state(&self) -> EventLevelState {
        let level = self.streams.iter().rev().find_map(|(_, level)| *level).unwrap_or(self.base);
        EventLevelState { level, monitors: self.streams.len() }
    }

    /// Sets the operator's level. It takes precedence over the levels of streams that are already open.
    pub fn set_base(&mut self, level: EventLevel) {
        self.base = level;
        self.streams.iter_mut().for_each(|(_, level)| *level = None);
    }

    pub fn add_stream(&mut self, level: Option<EventLevel>) -> StreamId {
        let id = StreamId(self.next);
        self.next += 1;
        self.streams.push((id, level));
        id
    }

    pub fn remove_stream(&mut self, id: StreamId) {
        self.streams.retain(|(stream, _)| *stream != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_streams_level_ends_with_the_stream_in_any_order() {
        let mut levels = EventLevels::new(EventLevel::Failures);
        let all = levels.add_stream(Some(EventLevel::All));
        let sample = levels.add_stream(Some(EventLevel::Sample(10)));
        levels.add_stream(None);
        assert_eq!(levels.state().level, EventLevel::Sample(10));
        levels.remove_stream(all);
        assert_eq!(levels.state().level, EventLevel::Sample(10));
        levels.remove_stream(sample);
        assert_eq!(levels.state().level, EventLevel::Failures);
    }

    #[test]
    fn the_operators_level_holds_when_a_stream_ends() {
        let mut levels = EventLevels::new(EventLevel::Failures);
        let stream = levels.add_stream(Some(EventLevel::All));
        levels.set_base(EventLevel::Off);
        assert_eq!(levels.state(), EventLevelState { level: EventLevel::Off, monitors: 1 });
        levels.remove_stream(stream);
        assert_eq!(levels.state(), EventLevelState { level: EventLevel::Off, monitors: 0 });
    }

    #[test]
    fn the_kernel_reports_nothing_without_a_stream() {
        let mut levels = EventLevels::new(EventLevel::All);
        assert_eq!(levels.state().kernel_level(), EventLevel::Off);
        let stream = levels.add_stream(None);
        assert_eq!(levels.state().kernel_level(), EventLevel::All);
        levels.remove_stream(stream);
        assert_eq!(levels.state().kernel_level(), EventLevel::Off);
    }
}
