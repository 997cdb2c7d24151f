//! Answers questions about the zone, over UDP and TCP. A name outside the cluster does not exist: there is no internet.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, RwLock},
};

use anyhow::{Context, Result};
use hickory_proto::{
    op::{Message, MessageType, ResponseCode},
    rr::{
        Name, RData, Record, RecordType,
        rdata::{A, AAAA, CNAME, PTR, SRV, TXT},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    task::JoinSet,
};

use super::zone::{Fact, Zone};

const TTL: u32 = 5;
/// The largest answer over UDP to whoever does not say that it takes more.
const SMALL: usize = 512;

/// The zone that is served now.
#[derive(Clone, Default)]
pub struct Shared(Arc<RwLock<Arc<Zone>>>);

impl Shared {
    pub fn replace(&self, zone: Zone) {
        *self.0.write().expect("nobody panics with it") = Arc::new(zone);
    }

    fn zone(&self) -> Arc<Zone> {
        self.0.read().expect("nobody panics with it").clone()
    }
}

pub async fn serve(tasks: &mut JoinSet<Result<()>>, zone: Shared) -> Result<()> {
    let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 53));
    let udp = UdpSocket::bind(address).await.context("listen on UDP port 53")?;
    let tcp = TcpListener::bind(address).await.context("listen on TCP port 53")?;
    tasks.spawn(datagrams(udp, zone.clone()));
    tasks.spawn(connections(tcp, zone));
    Ok(())
}

async fn datagrams(socket: UdpSocket, zone: Shared) -> Result<()> {
    let mut buffer = [0; 4096];
    loop {
        // An error here is about an earlier answer, to somebody who is gone.
        let Ok((size, from)) = socket.recv_from(&mut buffer).await else { continue };
        if let Ok(answer) = answer(&buffer[..size], &zone.zone(), false) {
            let _ = socket.send_to(&answer, from).await;
        }
    }
}

async fn connections(listener: TcpListener, zone: Shared) -> Result<()> {
    let mut open = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.context("accept on TCP port 53")?;
        open.spawn(converse(stream, zone.clone()));
        while open.try_join_next().is_some() {}
    }
}

async fn converse(mut stream: TcpStream, zone: Shared) -> Result<()> {
    loop {
        let size = stream.read_u16().await?;
        let mut question = vec![0; size.into()];
        stream.read_exact(&mut question).await?;
        let answer = answer(&question, &zone.zone(), true)?;
        stream.write_u16(answer.len().try_into()?).await?;
        stream.write_all(&answer).await?;
    }
}

fn answer(question: &[u8], zone: &Zone, whole: bool) -> Result<Vec<u8>> {
    let question = Message::from_vec(question)?;
    let mut reply = Message::response(question.metadata.id, question.metadata.op_code);
    reply.metadata.message_type = MessageType::Response;
    reply.metadata.recursion_desired = question.metadata.recursion_desired;
    reply.metadata.recursion_available = true;
    reply.metadata.authoritative = true;
    for query in &question.queries {
        match records(zone, query.name(), query.query_type()) {
            Some(records) => drop(reply.add_answers(records)),
            None => reply.metadata.response_code = ResponseCode::NXDomain,
        }
        reply.add_query(query.clone());
    }
    let bytes = reply.to_vec()?;
    let room = question.edns.as_ref().map_or(SMALL, |edns| usize::from(edns.max_payload()));
    Ok(if whole || bytes.len() <= room { bytes } else { reply.truncate().to_vec()? })
}

/// None if there is no such name; empty if it has nothing of this type.
fn records(zone: &Zone, name: &Name, kind: RecordType) -> Option<Vec<Record>> {
    let text = name.to_ascii();
    let text = text.trim_end_matches('.');
    if text.ends_with(".in-addr.arpa") || text.ends_with(".ip6.arpa") {
        let target = zone.name_of(reverse_address(name)?)?;
        return Some(vec![record(name, RData::PTR(PTR(absolute(target)?)))]);
    }
    let mut records = Vec::new();
    for fact in zone.facts(text)? {
        if let Fact::Alias(target) = &fact {
            let target = absolute(target)?;
            records.push(record(name, RData::CNAME(CNAME(target.clone()))));
            records.extend(self::records(zone, &target, kind).into_iter().flatten());
        } else if let Some(value) = value(fact, kind) {
            records.push(record(name, value));
        }
    }
    Some(records)
}

fn value(fact: Fact, kind: RecordType) -> Option<RData> {
    match (fact, kind) {
        (Fact::Address(IpAddr::V4(address)), RecordType::A) => Some(RData::A(A(address))),
        (Fact::Address(IpAddr::V6(address)), RecordType::AAAA) => Some(RData::AAAA(AAAA(address))),
        (Fact::Port(port, target), RecordType::SRV) => Some(RData::SRV(SRV::new(0, 100, port, absolute(&target)?))),
        (Fact::Text(text), RecordType::TXT) => Some(RData::TXT(TXT::new(vec![text]))),
        _ => None,
    }
}

fn record(name: &Name, value: RData) -> Record {
    Record::from_rdata(name.clone(), TTL, value)
}

fn absolute(name: &str) -> Option<Name> {
    Name::from_ascii(format!("{name}.")).ok()
}

/// The address whose digits stand backwards in a name below in-addr.arpa or ip6.arpa.
fn reverse_address(name: &Name) -> Option<IpAddr> {
    let labels: Vec<String> = name.iter().map(|label| String::from_utf8_lossy(label).into_owned()).collect();
    let digits = labels.get(..labels.len().checked_sub(2)?)?;
    match digits.len() {
        4 => Some(digits.iter().rev().cloned().collect::<Vec<_>>().join(".").parse::<Ipv4Addr>().ok()?.into()),
        32 => Some(
            Ipv6Addr::from(u128::from_str_radix(&digits.iter().rev().cloned().collect::<String>(), 16).ok()?).into(),
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_backwards() {
        let read = |text: &str| reverse_address(&Name::from_ascii(text).unwrap());
        assert_eq!(read("7.0.97.10.in-addr.arpa."), Some("10.97.0.7".parse().unwrap()));
        let digits = "7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.7.9.0.0.0.1.0.0.0.0.d.f.ip6.arpa.";
        assert_eq!(read(digits), Some("fd00:10:97::7".parse().unwrap()));
        assert_eq!(read("97.10.in-addr.arpa."), None);
    }

    #[test]
    fn an_unknown_name_is_no_name_and_a_known_one_may_lack_a_type() {
        let zone = Zone::new(&[], &[]);
        let name = |text: &str| Name::from_ascii(text).unwrap();
        assert_eq!(records(&zone, &name("example.org."), RecordType::A), None);
        assert_eq!(records(&zone, &name("dns-version.cluster.local."), RecordType::A), Some(vec![]));
        assert_eq!(records(&zone, &name("dns-version.cluster.local."), RecordType::TXT).unwrap().len(), 1);
    }
}
