//! The event level in effect: the operator's (`--events`, `beeline events`), or that of the newest open monitor stream that
//! asked for one. A stream's level ends with the stream, also when the monitor is killed.

use beeline_datapath::control::EventLevel;

#[derive(Debug)]
pub struct EventLevels {
    base: EventLevel,
    /// By stream, the newest last.
    streams: Vec<(StreamId, EventLevel)>,
    next: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamId(u64);

impl EventLevels {
    pub fn new(base: EventLevel) -> EventLevels {
        EventLevels { base, streams: Vec::new(), next: 0 }
    }

    pub fn effective(&self) -> EventLevel {
        self.streams.last().map_or(self.base, |(_, level)| *level)
    }

    /// Sets the operator's level. It takes precedence over the levels of streams that are already open.
    pub fn set_base(&mut self, level: EventLevel) {
        self.base = level;
        self.streams.clear();
    }

    pub fn add_stream(&mut self, level: EventLevel) -> StreamId {
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
        let (all, sample) = (levels.add_stream(EventLevel::All), levels.add_stream(EventLevel::Sample(10)));
        assert_eq!(levels.effective(), EventLevel::Sample(10));
        levels.remove_stream(all);
        assert_eq!(levels.effective(), EventLevel::Sample(10));
        levels.remove_stream(sample);
        assert_eq!(levels.effective(), EventLevel::Failures);
    }

    #[test]
    fn the_operators_level_holds_when_a_stream_ends() {
        let mut levels = EventLevels::new(EventLevel::Failures);
        let stream = levels.add_stream(EventLevel::All);
        levels.set_base(EventLevel::Off);
        assert_eq!(levels.effective(), EventLevel::Off);
        levels.remove_stream(stream);
        assert_eq!(levels.effective(), EventLevel::Off);
    }
}
