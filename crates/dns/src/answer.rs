//! Answers one query from the index: looks up the name, follows aliases, and selects the records of the wanted type.
//! `lookup` decides what a single name holds.

use crate::index::NameIndex;
use crate::lookup::{LookupResult, NameLookup, reverse_names};
use crate::record;
use crate::zone::{Zone, ZoneTable};
use beeline_model::Name;
use hickory_proto::rr::{Name as DnsName, Record, RecordType};
use std::net::IpAddr;

/// Limit of aliases that are followed. A longer chain is treated as a loop.
const MAX_ALIASES: usize = 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnswerCode {
    /// The name exists. Without records it has no record of the wanted type.
    #[default]
    Exists,
    NotFound,
    /// The name is in none of the clusters' domains.
    OutOfZone,
    /// The answer depends on a cluster that has not synced yet, so NXDOMAIN could be wrong.
    NotReady,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub code: AnswerCode,
    pub records: Vec<Record>,
    /// Records for the additional section, such as the addresses of SRV targets.
    pub additional: Vec<Record>,
    /// The SOA record of a negative answer.
    pub authority: Option<Record>,
    /// Set if the records end in an alias whose target is outside the clusters' domains.
    pub external_alias: Option<DnsName>,
    /// Why the answer has fewer records than the cluster's own DNS would give.
    pub reason: Option<String>,
}

impl Answer {
    fn new(code: AnswerCode) -> Answer {
        Answer { code, ..Answer::default() }
    }
}

/// The zones in the order of a view, and the cluster that the view puts first (`None` for the configured order).
pub(crate) type ViewOrder<'a> = (&'a ZoneTable, Option<&'a Name>);

impl NameIndex {
    /// `view` 0 is the order of the configuration; 1 and up are the views that the index was created with.
    pub fn answer(&self, view: usize, name: &DnsName, record_type: RecordType) -> Answer {
        let first = view.checked_sub(1).and_then(|position| self.views.get(position));
        let order = (self.zone_tables.get(view).unwrap_or(&self.zone_tables[0]), first);
        let mut answer = self.answer_name(order, name, record_type);
        for _ in 0..MAX_ALIASES {
            let Some(target) = answer.external_alias.take() else { return answer };
            let next = self.answer_name(order, &target, record_type);
            if next.code == AnswerCode::OutOfZone {
                answer.external_alias = Some(target);
                return answer;
            }
            answer.records.extend(next.records);
            answer = Answer { records: answer.records, ..next };
        }
        // The aliases form a loop: the answer ends with the last of them.
        answer.external_alias = None;
        answer
    }

    /// Does not follow aliases: the target of any alias is returned as `external_alias`.
    fn answer_name(&self, (zones, first): ViewOrder<'_>, name: &DnsName, record_type: RecordType) -> Answer {
        if let Ok(net) = name.parse_arpa_name() {
            return if net.prefix_len() == net.max_prefix_len() {
                self.answer_reverse((zones, first), name, record_type, net.addr())
            } else {
                Answer::new(AnswerCode::OutOfZone)
            };
        }
        let Some(location) = zones.locate(name) else { return Answer::new(AnswerCode::OutOfZone) };
        let soa = record::soa(location.domain, self.serial);
        let Some(zone) = location.zone else {
            // The domain `beeline` exists itself; names of unknown clusters below it do not.
            let top = vec![soa.clone(), record::ns(location.domain)];
            let found = if location.labels.is_empty() { LookupResult::Records(top) } else { LookupResult::NotFound };
            return to_answer(found, name, record_type, soa);
        };
        let Some(cluster) = self.clusters.get(&zone.cluster).filter(|cluster| cluster.synced) else {
            return not_ready(&zone.cluster);
        };
        let found = NameLookup { index: self, first, zone, cluster, name, location: &location }.run();
        to_answer(found, name, record_type, soa)
    }

    fn answer_reverse(&self, order: ViewOrder<'_>, name: &DnsName, record_type: RecordType, ip: IpAddr) -> Answer {
        let clusters = order.0.iter().filter_map(|zone| Some((zone, self.clusters.get(&zone.cluster)?)));
        let synced = clusters.filter(|(_, cluster)| cluster.synced);
        let mut found = synced.map(|(zone, cluster)| reverse_names(self, order, zone, cluster, ip.into()));
        let Some(targets) = found.find(|targets| !targets.is_empty()) else {
            return self.answer_unnamed_address(order.0, name, record_type, ip);
        };
        let records = targets.into_iter().map(|target| record::ptr(name, target)).collect();
        to_answer(LookupResult::Records(records), name, record_type, record::soa(name, self.serial))
    }

    /// An address in a cluster's service ranges is never looked up upstream.
    fn answer_unnamed_address(&self, zones: &ZoneTable, name: &DnsName, record_type: RecordType, ip: IpAddr) -> Answer {
        let owns = |zone: &&Zone| self.host.owns(&zone.cluster, ip.into());
        match zones.iter().find(owns) {
            None => Answer::new(AnswerCode::OutOfZone),
            Some(zone) if !self.is_synced(&zone.cluster) => not_ready(&zone.cluster),
            Some(_) => to_answer(LookupResult::NotFound, name, record_type, record::soa(name, self.serial)),
        }
    }
}

fn not_ready(cluster: &str) -> Answer {
    let reason = format!("cluster {cluster} has not synced yet");
    Answer { reason: Some(reason), ..Answer::new(AnswerCode::NotReady) }
}

/// Selects the records of the wanted type.
fn to_answer(found: LookupResult, name: &DnsName, record_type: RecordType, soa: Record) -> Answer {
    let matches_type = |record: &Record| record_type == RecordType::ANY || record.record_type() == record_type;
    let (all, additional) = match found {
        LookupResult::NotFound => return Answer { authority: Some(soa), ..Answer::new(AnswerCode::NotFound) },
        LookupResult::NotReady(cluster) => return not_ready(&cluster),
        LookupResult::Withheld(reason) => {
            return Answer { authority: Some(soa), reason: Some(reason), ..Answer::default() };
        }
        // An alias answers a query of any type.
        LookupResult::Alias(target) => {
            let follow = record_type != RecordType::CNAME && record_type != RecordType::ANY;
            let external_alias = follow.then(|| target.clone());
            return Answer { records: vec![record::cname(name, target)], external_alias, ..Answer::default() };
        }
        LookupResult::Records(all) => (all, Vec::new()),
        LookupResult::Srv(all, additional) => (all, additional),
    };
    let records: Vec<Record> = all.into_iter().filter(matches_type).collect();
    if records.is_empty() {
        return Answer { authority: Some(soa), ..Answer::default() };
    }
    Answer { records, additional, ..Answer::default() }
}
