//! A question and what the index has to say to it, one name at a time and along aliases. `schema` knows what stands at a
//! name; here is what becomes of it.

use crate::index::Index;
use crate::record;
use crate::schema::{Asked, Stand, pointers};
use crate::zone::{Zone, Zones};
use beeline_model::Name as Word;
use hickory_proto::rr::{Name, Record, RecordType};
use std::net::IpAddr;

/// An alias of an alias of an alias ... ends somewhere, or is a circle.
const ALIASES: usize = 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Code {
    /// The name exists; without records it has none of the type that was asked for.
    #[default]
    Exists,
    Missing,
    /// In none of our domains.
    Elsewhere,
    /// What was asked for depends on a cluster that has not been heard yet: "there is none" would be a guess.
    Unheard,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub code: Code,
    pub records: Vec<Record>,
    /// What the asker will want to know next.
    pub along: Vec<Record>,
    /// Who says that there is none.
    pub authority: Option<Record>,
    /// The records end in an alias that leads out of our domains.
    pub onward: Option<Name>,
    /// Why there is less than the cluster itself would say.
    pub why: Option<String>,
}

impl Answer {
    fn of(code: Code) -> Answer {
        Answer { code, ..Answer::default() }
    }
}

/// Who has which domain, and who stands first where that is not as configured.
type Order<'a> = (&'a Zones, Option<&'a Word>);

impl Index {
    /// `view` 0 is the order of the configuration, then those that the index was made with.
    pub fn answer(&self, view: usize, name: &Name, kind: RecordType) -> Answer {
        let first = view.checked_sub(1).and_then(|at| self.views.get(at));
        let order = (self.orders.get(view).unwrap_or(&self.orders[0]), first);
        let mut answer = self.ask(order, name, kind);
        for _ in 0..ALIASES {
            let Some(target) = answer.onward.take() else { return answer };
            let next = self.ask(order, &target, kind);
            if next.code == Code::Elsewhere {
                answer.onward = Some(target);
                return answer;
            }
            answer.records.extend(next.records);
            answer = Answer { records: answer.records, ..next };
        }
        // A circle: what has been said so far is all there is to say.
        answer.onward = None;
        answer
    }

    /// Without following aliases.
    fn ask(&self, (order, first): Order<'_>, name: &Name, kind: RecordType) -> Answer {
        if let Ok(net) = name.parse_arpa_name() {
            let whole = net.prefix_len() == net.max_prefix_len();
            return if whole {
                self.ask_address((order, first), name, kind, net.addr())
            } else {
                Answer::of(Code::Elsewhere)
            };
        }
        let Some(place) = order.place(name) else { return Answer::of(Code::Elsewhere) };
        let authority = record::authority(place.domain, self.serial);
        let Some(zone) = place.zone else {
            // `beeline` itself exists, clusters that nobody knows do not.
            let top = vec![authority.clone(), record::server(place.domain)];
            let stand = if place.labels.is_empty() { Stand::Records(top) } else { Stand::Missing };
            return settle(stand, name, kind, authority);
        };
        let Some(cluster) = self.clusters.get(&zone.cluster).filter(|cluster| cluster.known) else {
            return unheard(&zone.cluster);
        };
        let stand = Asked { index: self, first, zone, cluster, name, place: &place }.stand();
        settle(stand, name, kind, authority)
    }

    fn ask_address(&self, order: Order<'_>, name: &Name, kind: RecordType, ip: IpAddr) -> Answer {
        let known = order.0.iter().filter_map(|zone| Some((zone, self.clusters.get(&zone.cluster)?)));
        let known = known.filter(|(_, cluster)| cluster.known);
        let mut found = known.map(|(zone, cluster)| pointers(self, order, zone, cluster, ip.into()));
        let Some(targets) = found.find(|targets| !targets.is_empty()) else {
            return self.without_name(order.0, name, kind, ip);
        };
        let records = targets.into_iter().map(|target| record::pointer(name, target)).collect();
        settle(Stand::Records(records), name, kind, record::authority(name, self.serial))
    }

    /// In a cluster's service ranges we know that there is nobody, or will; what others might say of these is not asked.
    fn without_name(&self, order: &Zones, name: &Name, kind: RecordType, ip: IpAddr) -> Answer {
        let owns = |zone: &&Zone| self.outlook.owns(&zone.cluster, ip.into());
        match order.iter().find(owns) {
            None => Answer::of(Code::Elsewhere),
            Some(zone) if !self.is_known(&zone.cluster) => unheard(&zone.cluster),
            Some(_) => settle(Stand::Missing, name, kind, record::authority(name, self.serial)),
        }
    }
}

fn unheard(cluster: &str) -> Answer {
    let why = format!("cluster {cluster} has not been heard yet");
    Answer { why: Some(why), ..Answer::of(Code::Unheard) }
}

/// Of what stands there, what was asked for.
fn settle(stand: Stand, name: &Name, kind: RecordType, authority: Record) -> Answer {
    let wanted = |record: &Record| kind == RecordType::ANY || record.record_type() == kind;
    let (all, along) = match stand {
        Stand::Missing => return Answer { authority: Some(authority), ..Answer::of(Code::Missing) },
        Stand::Unheard(cluster) => return unheard(&cluster),
        Stand::Hidden(why) => {
            return Answer { authority: Some(authority), why: Some(why), ..Answer::default() };
        }
        // Whatever is asked for, an alias answers it.
        Stand::Alias(target) => {
            let onward = (kind != RecordType::CNAME && kind != RecordType::ANY).then(|| target.clone());
            return Answer { records: vec![record::alias(name, target)], onward, ..Answer::default() };
        }
        Stand::Records(all) => (all, Vec::new()),
        Stand::Services(all, along) => (all, along),
    };
    let records: Vec<Record> = all.into_iter().filter(wanted).collect();
    if records.is_empty() {
        return Answer { authority: Some(authority), ..Answer::default() };
    }
    Answer { records, along, ..Answer::default() }
}
