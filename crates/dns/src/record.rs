//! Records, as they are sent.

use beeline_model::Address;
use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record};
use std::net::IpAddr;

/// Short, as cluster DNS has it: facts change, and whoever asks is next door. Also of what does not exist.
pub const TTL: u32 = 5;
/// Of the schema that the names follow.
const SCHEMA: &str = "1.1.0";

pub(crate) fn address(name: &Name, address: Address) -> Record {
    host(name, address.ip())
}

pub(crate) fn host(name: &Name, ip: IpAddr) -> Record {
    let data = match ip {
        IpAddr::V4(v4) => RData::A(A(v4)),
        IpAddr::V6(v6) => RData::AAAA(AAAA(v6)),
    };
    Record::from_rdata(name.clone(), TTL, data)
}

pub(crate) fn alias(name: &Name, target: Name) -> Record {
    Record::from_rdata(name.clone(), TTL, RData::CNAME(CNAME(target)))
}

pub(crate) fn pointer(name: &Name, target: Name) -> Record {
    Record::from_rdata(name.clone(), TTL, RData::PTR(PTR(target)))
}

/// One of `count` of the same worth.
pub(crate) fn service(name: &Name, port: u16, target: Name, count: usize) -> Record {
    let weight = (100 / count.max(1)).max(1) as u16;
    Record::from_rdata(name.clone(), TTL, RData::SRV(SRV::new(0, weight, port, target)))
}

pub(crate) fn schema(name: &Name) -> Record {
    Record::from_rdata(name.clone(), TTL, RData::TXT(TXT::new(vec![SCHEMA.into()])))
}

/// Who is responsible for the domain, and how long "there is none" holds.
pub(crate) fn authority(domain: &Name, serial: u32) -> Record {
    let hostmaster = below(domain, &["hostmaster"]);
    let soa = SOA::new(server_name(domain), hostmaster, serial, 7200, 1800, 86_400, TTL);
    Record::from_rdata(domain.clone(), TTL, RData::SOA(soa))
}

/// Who answers for the domain: we.
pub(crate) fn server(domain: &Name) -> Record {
    Record::from_rdata(domain.clone(), TTL, RData::NS(NS(server_name(domain))))
}

fn server_name(domain: &Name) -> Name {
    below(domain, &["dns", "ns"])
}

fn below(domain: &Name, labels: &[&str]) -> Name {
    labels.iter().fold(domain.clone(), |name, label| name.prepend_label(*label).unwrap_or(name))
}
