//! DNS server for the cluster zone, over UDP and TCP. Names outside the cluster do not exist.

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

use super::zone::{ClusterZone, DnsRecord};

const TTL: u32 = 5;
/// Largest UDP response to a client without EDNS.
const MAX_UDP_RESPONSE: usize = 512;

/// The zone that the server answers from.
#[derive(Clone, Default)]
pub struct SharedZone(Arc<RwLock<Arc<ClusterZone>>>);

impl SharedZone {
    pub fn replace(&self, zone: ClusterZone) {
        *self.0.write().expect("no thread panics while it holds the lock") = Arc::new(zone);
    }

    fn zone(&self) -> Arc<ClusterZone> {
        self.0.read().expect("no thread panics while it holds the lock").clone()
    }
}

pub async fn serve(tasks: &mut JoinSet<Result<()>>, zone: SharedZone) -> Result<()> {
    let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 53));
    let udp = UdpSocket::bind(address).await.context("cannot listen on UDP port 53")?;
    let tcp = TcpListener::bind(address).await.context("cannot listen on TCP port 53")?;
    tasks.spawn(serve_udp(udp, zone.clone()));
    tasks.spawn(serve_tcp(tcp, zone));
    Ok(())
}

async fn serve_udp(socket: UdpSocket, zone: SharedZone) -> Result<()> {
    let mut buffer = [0; 4096];
    loop {
        // An error here reports that an earlier response did not reach its client.
        let Ok((size, from)) = socket.recv_from(&mut buffer).await else { continue };
        if let Ok(response) = respond(&buffer[..size], &zone.zone(), false) {
            let _ = socket.send_to(&response, from).await;
        }
    }
}

async fn serve_tcp(listener: TcpListener, zone: SharedZone) -> Result<()> {
    let mut open = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.context("cannot accept on TCP port 53")?;
        open.spawn(serve_connection(stream, zone.clone()));
        while open.try_join_next().is_some() {}
    }
}

async fn serve_connection(mut stream: TcpStream, zone: SharedZone) -> Result<()> {
    loop {
        let size = stream.read_u16().await?;
        let mut query = vec![0; size.into()];
        stream.read_exact(&mut query).await?;
        let response = respond(&query, &zone.zone(), true)?;
        stream.write_u16(response.len().try_into()?).await?;
        stream.write_all(&response).await?;
    }
}

fn respond(query: &[u8], zone: &ClusterZone, over_tcp: bool) -> Result<Vec<u8>> {
    let request = Message::from_vec(query)?;
    let mut reply = Message::response(request.metadata.id, request.metadata.op_code);
    reply.metadata.message_type = MessageType::Response;
    reply.metadata.recursion_desired = request.metadata.recursion_desired;
    reply.metadata.recursion_available = true;
    reply.metadata.authoritative = true;
    for query in &request.queries {
        match records(zone, query.name(), query.query_type()) {
            Some(records) => drop(reply.add_answers(records)),
            None => reply.metadata.response_code = ResponseCode::NXDomain,
        }
        reply.add_query(query.clone());
    }
    let bytes = reply.to_vec()?;
    let limit = request.edns.as_ref().map_or(MAX_UDP_RESPONSE, |edns| usize::from(edns.max_payload()));
    Ok(if over_tcp || bytes.len() <= limit { bytes } else { reply.truncate().to_vec()? })
}

/// Records of a name: None if the name does not exist, empty if it has no record of this type.
fn records(zone: &ClusterZone, name: &Name, kind: RecordType) -> Option<Vec<Record>> {
    let text = name.to_ascii();
    let text = text.trim_end_matches('.');
    if text.ends_with(".in-addr.arpa") || text.ends_with(".ip6.arpa") {
        let target = zone.name_of(reverse_address(name)?)?;
        return Some(vec![dns_record(name, RData::PTR(PTR(absolute(target)?)))]);
    }
    let mut records = Vec::new();
    for record in zone.records(text)? {
        if let DnsRecord::Alias(target) = &record {
            let target = absolute(target)?;
            records.push(dns_record(name, RData::CNAME(CNAME(target.clone()))));
            records.extend(self::records(zone, &target, kind).into_iter().flatten());
        } else if let Some(value) = value(record, kind) {
            records.push(dns_record(name, value));
        }
    }
    Some(records)
}

fn value(record: DnsRecord, kind: RecordType) -> Option<RData> {
    match (record, kind) {
        (DnsRecord::Address(IpAddr::V4(address)), RecordType::A) => Some(RData::A(A(address))),
        (DnsRecord::Address(IpAddr::V6(address)), RecordType::AAAA) => Some(RData::AAAA(AAAA(address))),
        (DnsRecord::Port(port, target), RecordType::SRV) => {
            Some(RData::SRV(SRV::new(0, 100, port, absolute(&target)?)))
        }
        (DnsRecord::Text(text), RecordType::TXT) => Some(RData::TXT(TXT::new(vec![text]))),
        _ => None,
    }
}

fn dns_record(name: &Name, value: RData) -> Record {
    Record::from_rdata(name.clone(), TTL, value)
}

fn absolute(name: &str) -> Option<Name> {
    Name::from_ascii(format!("{name}.")).ok()
}

/// Parses the reversed address of a name below in-addr.arpa or ip6.arpa.
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
    fn reverse_names_are_parsed() {
        let read = |text: &str| reverse_address(&Name::from_ascii(text).unwrap());
        assert_eq!(read("7.0.97.10.in-addr.arpa."), Some("10.97.0.7".parse().unwrap()));
        let digits = "7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.7.9.0.0.0.1.0.0.0.0.d.f.ip6.arpa.";
        assert_eq!(read(digits), Some("fd00:10:97::7".parse().unwrap()));
        assert_eq!(read("97.10.in-addr.arpa."), None);
    }

    #[test]
    fn unknown_names_and_missing_types_are_distinguished() {
        let zone = ClusterZone::new(&[], &[]);
        let name = |text: &str| Name::from_ascii(text).unwrap();
        assert_eq!(records(&zone, &name("example.org."), RecordType::A), None);
        assert_eq!(records(&zone, &name("dns-version.cluster.local."), RecordType::A), Some(vec![]));
        assert_eq!(records(&zone, &name("dns-version.cluster.local."), RecordType::TXT).unwrap().len(), 1);
    }
}
