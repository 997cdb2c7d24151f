//! v1 Endpoints as slices, shown only while the Service of their name exists and has no selector. Kept as facts, not as
//! fingerprints, because a Service in another file can bring them out at any time.

use beeline_model::OwnerName;
use beeline_model::fact::{Fact, Slice};
use std::collections::HashMap;

#[derive(Default)]
struct Mirror {
    /// What the Endpoints say now.
    said: Vec<Slice>,
    /// What was last given out.
    shown: Vec<Slice>,
}

#[derive(Default)]
pub(crate) struct Mirrors(HashMap<OwnerName, Mirror>);

impl Mirrors {
    pub(crate) fn say(&mut self, service: &OwnerName, slices: Vec<Slice>) {
        self.0.entry(service.clone()).or_default().said = slices;
    }

    /// `open`: the Service exists and has no selector.
    pub(crate) fn show(&mut self, service: &OwnerName, open: bool, facts: &mut Vec<Fact>, gone: &mut Vec<Fact>) {
        let Some(mirror) = self.0.get_mut(service) else { return };
        let now = if open { mirror.said.clone() } else { Vec::new() };
        let then = std::mem::replace(&mut mirror.shown, now);
        let named = |slices: &[Slice], slice: &Slice| slices.iter().any(|other| other.name == slice.name);
        facts.extend(mirror.shown.iter().filter(|slice| !then.contains(slice)).cloned().map(Fact::Slice));
        let lost = then.into_iter().filter(|slice| !named(&mirror.shown, slice));
        gone.extend(lost.map(|slice| Fact::SliceGone(slice.name)));
        if mirror.said.is_empty() {
            self.0.remove(service);
        }
    }
}
