//! Constructors for DNS records.

use beeline_model::Address;
use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record};
use std::net::IpAddr;

/// TTL in seconds of all records and of negative answers. It is short, as in cluster DNS, because endpoints change and
/// queries are cheap.
pub const TTL: u32 = 5;
/// Version of the Kubernetes DNS specification that the names follow.
const SCHEMA_VERSION: &str = "1.1.0";

pub(crate) fn address(name: &Name, address: Address) -> Record {
    ip(name, address.ip())
}

pub(crate) fn ip(name: &Name, address: IpAddr) -> Record {
    let data = match address {
        IpAddr::V4(v4) => RData::A(A(v4)),
        IpAddr::V6(v6) => RData::AAAA(AAAA(v6)),
    };
    Record::from_rdata(name.clone(), TTL, data)
}

pub(crate) fn cname(name: &Name, target: Name) -> Record {
    Record::from_rdata(name.clone(), TTL, RData::CNAME(CNAME(target)))
}

pub(crate) fn ptr(name: &Name, target: Name) -> Record {
    Record::from_rdata(name.clone(), TTL, RData::PTR(PTR(target)))
}

/// An SRV record, one of `count` with equal weights.
pub(crate) fn srv(name: &Name, port: u16, target: Name, count: usize) -> Record {
    let weight = (100 / count.max(1)).max(1) as u16;
    Record::from_rdata(name.clone(), TTL, RData::SRV(SRV::new(0, weight, port, target)))
}

pub(crate) fn schema_version(name: &Name) -> Record {
    Record::from_rdata(name.clone(), TTL, RData::TXT(TXT::new(vec![SCHEMA_VERSION.into()])))
}

/// The SOA record of a domain. Its last field is the TTL of negative answers.
pub(crate) fn soa(domain: &Name, serial: u32) -> Record {
    let hostmaster = below(domain, &["hostmaster"]);
    let data = SOA::new(server_name(domain), hostmaster, serial, 7200, 1800, 86_400, TTL);
    Record::from_rdata(domain.clone(), TTL, RData::SOA(data))
}

/// The NS record of a domain, which names this server.
pub(crate) fn ns(domain: &Name) -> Record {
    Record::from_rdata(domain.clone(), TTL, RData::NS(NS(server_name(domain))))
}

fn server_name(domain: &Name) -> Name {
    below(domain, &["dns", "ns"])
}

fn below(domain: &Name, labels: &[&str]) -> Name {
    labels.iter().fold(domain.clone(), |name, label| name.prepend_label(*label).unwrap_or(name))
}
