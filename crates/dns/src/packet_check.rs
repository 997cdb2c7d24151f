//! A check for tests and the fuzzer: any input to the query handler is handled without a panic, and a response is a valid
//! DNS message that fits the transport.

use crate::query_handler::{QueryAction, QueryHandler};
use crate::wire::DnsTransport;
use crate::{NameChange, NameStore, Zone};
use beeline_model::change::Change;
use beeline_model::object::{NamedService, Object, Published};
use beeline_model::{Address, ServiceName};
use hickory_proto::op::{Message, MessageType, Query};
use hickory_proto::rr::{Name, RecordType};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

static HANDLER: OnceLock<QueryHandler> = OnceLock::new();

#[doc(hidden)]
pub fn check_packet(input: &[u8]) {
    let handler = HANDLER.get_or_init(handler);
    for (transport, max) in
        [(DnsTransport::Udp(4096), 4096), (DnsTransport::Udp(1232), 1232), (DnsTransport::Tcp, 65_535)]
    {
        if let QueryAction::Respond(response) = handler.handle(input, transport) {
            assert!(response.len() <= max, "{} bytes", response.len());
            check_response(input, &response);
        }
        check_upstream(input, transport, max);
    }
}

/// The input as the response of an upstream name server: what is sent on to the client fits and can be parsed.
fn check_upstream(input: &[u8], transport: DnsTransport, max: usize) {
    let Ok(upstream) = Message::from_vec(input) else { return };
    let mut query = Message::query();
    query.add_query(Query::query(Name::root(), RecordType::A));
    if let Some(response) = HANDLER.get_or_init(handler).merged(&query, transport, upstream) {
        assert!(response.len() <= max, "{} bytes", response.len());
        Message::from_vec(&response).expect("a forwarded response can be parsed");
    }
}

fn check_response(input: &[u8], bytes: &[u8]) {
    let response = Message::from_vec(bytes).expect("a response can be parsed");
    assert_eq!(response.metadata.message_type, MessageType::Response);
    assert_eq!(bytes[..2], input[..2], "the id");
    assert_eq!(input[2] & 0x80, 0, "a response must not be answered");
    if let Some(query) = Message::from_vec(input).ok().filter(|_| !response.queries.is_empty()) {
        assert_eq!(response.queries, query.queries);
        assert_eq!(response.edns.is_some(), query.edns.is_some(), "EDNS exactly if the query has it");
    }
}

fn handler() -> QueryHandler {
    let names = NameStore::new(vec![Zone::new("local", "cluster.local").expect("a valid domain")], Vec::new());
    let addresses = [IpAddr::from([10, 96, 0, 1]), "fd00:96::1".parse().expect("a valid address")].map(Address::from);
    let service = |name: &str, published| {
        let service = NamedService { name: ServiceName::new("local", "x", name), published, ports: [].into() };
        NameChange::from_change(&Change::Upsert(Object::NamedService(service))).expect("a Service has a name")
    };
    let changes = vec![
        service("web", Published::Addresses(addresses.into())),
        service("out", Published::Alias("example.org".into())),
        service("none", Published::Headless { unready: false }),
    ];
    names.apply(changes, ["local"]);
    QueryHandler::new(Arc::new(names), 0, None)
}
