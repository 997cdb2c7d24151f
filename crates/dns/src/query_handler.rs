//! Decides what to do with a received DNS message: answer it from the index, forward it, refuse it, or ignore it. The
//! handler does no IO; `listener` sends what the handler returns.

use crate::NameStore;
use crate::answer::{Answer, AnswerCode};
use crate::forwarder::{ForwardPermit, Forwarder};
use crate::query_count::QueryOutcome;
use crate::wire::{self, DnsTransport, ParsedPacket};
use hickory_proto::op::{Message, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Record, RecordType};
use std::sync::Arc;

#[derive(Clone)]
pub struct QueryHandler {
    names: Arc<NameStore>,
    /// Number of the view: 0 is the order of the configuration, then the index's views.
    view: usize,
    /// `None` means that queries for other domains are refused.
    forwarder: Option<Arc<Forwarder>>,
}

/// What to do about a received message.
pub(crate) enum QueryAction {
    Ignore,
    Respond(Vec<u8>),
    Forward(Box<ForwardedQuery>),
}

/// The contents of a response.
#[derive(Default)]
struct Response {
    code: ResponseCode,
    authoritative: bool,
    answers: Vec<Record>,
    authority: Vec<Record>,
    additional: Vec<Record>,
    /// Extended DNS error (RFC 8914): its code and its text.
    extended_error: Option<(u16, String)>,
}

impl Response {
    fn new(code: ResponseCode) -> Response {
        Response { code, ..Response::default() }
    }

    fn with_error(self, code: u16, text: impl Into<String>) -> Response {
        Response { extended_error: Some((code, text.into())), ..self }
    }
}

/// A query to be forwarded, and the part of the response that the index has already given.
pub(crate) struct ForwardedQuery {
    handler: QueryHandler,
    request: Box<Message>,
    transport: DnsTransport,
    query: Query,
    partial: Response,
    permit: ForwardPermit,
}

impl QueryHandler {
    pub fn new(names: Arc<NameStore>, view: usize, forwarder: Option<Arc<Forwarder>>) -> QueryHandler {
        QueryHandler { names, view, forwarder }
    }

    pub(crate) fn handle(&self, bytes: &[u8], transport: DnsTransport) -> QueryAction {
        match wire::parse(bytes) {
            ParsedPacket::Ignore => QueryAction::Ignore,
            ParsedPacket::Invalid(response) => {
                self.names.counts.add(None, QueryOutcome::Malformed);
                QueryAction::Respond(response)
            }
            ParsedPacket::Query(request) => self.handle_query(request, transport),
        }
    }

    fn handle_query(&self, request: Box<Message>, transport: DnsTransport) -> QueryAction {
        let query = request.queries[0].clone();
        let record_type = query.query_type();
        if let Some(refusal) = refusal(&request, &query) {
            return self.respond(&request, transport, QueryOutcome::Refused, refusal);
        }
        let answer = self.names.answer(self.view, query.name(), record_type);
        let outcome = outcome(&answer);
        match answer.code {
            AnswerCode::OutOfZone if self.forwarder.is_none() => {
                let refusal = Response::new(ResponseCode::Refused);
                let refusal = refusal.with_error(wire::NOT_AUTHORITATIVE, "not a domain of the configured clusters");
                self.respond(&request, transport, QueryOutcome::Refused, refusal)
            }
            AnswerCode::OutOfZone => self.forward(request, transport, query, Response::default()),
            // Clients would cache NXDOMAIN. SERVFAIL makes them retry.
            AnswerCode::NotReady => {
                let failure = Response::new(ResponseCode::ServFail);
                let failure = failure.with_error(wire::NOT_READY, answer.reason.unwrap_or_default());
                self.respond(&request, transport, outcome, failure)
            }
            AnswerCode::NotFound | AnswerCode::Exists => match (&self.forwarder, answer.external_alias.clone()) {
                // The alias leads out of the clusters' domains: its target is resolved upstream for the client.
                (Some(_), Some(target)) => {
                    self.forward(request, transport, Query::query(target, record_type), own_response(answer))
                }
                _ => self.respond(&request, transport, outcome, own_response(answer)),
            },
        }
    }

    fn forward(&self, request: Box<Message>, transport: DnsTransport, query: Query, partial: Response) -> QueryAction {
        match self.forwarder.as_ref().and_then(Forwarder::try_acquire) {
            Some(permit) => {
                let handler = self.clone();
                QueryAction::Forward(Box::new(ForwardedQuery { handler, request, transport, query, partial, permit }))
            }
            None => {
                let failure = Response::new(ResponseCode::ServFail);
                let failure = failure.with_error(wire::OTHER, "too many forwarded queries in flight");
                self.respond(&request, transport, QueryOutcome::Failed, failure)
            }
        }
    }

    /// The response to a forwarded query without records of its own.
    pub(crate) fn merged(&self, request: &Message, transport: DnsTransport, upstream: Message) -> Option<Vec<u8>> {
        self.encode(request, transport, merge(Response::default(), upstream))
    }

    fn respond(
        &self,
        request: &Message,
        transport: DnsTransport,
        outcome: QueryOutcome,
        response: Response,
    ) -> QueryAction {
        let query = &request.queries[0];
        self.names.counts.add(Some(query.query_type()), outcome);
        tracing::debug!(name = %query.name(), kind = %query.query_type(), result = outcome.label(), "DNS query");
        self.encode(request, transport, response).map_or(QueryAction::Ignore, QueryAction::Respond)
    }

    fn encode(&self, request: &Message, transport: DnsTransport, response: Response) -> Option<Vec<u8>> {
        let mut message = Message::response(request.metadata.id, request.metadata.op_code);
        message.metadata = Metadata::response_from_request(&request.metadata);
        // The high bits of the response code are in the EDNS record.
        message.metadata.response_code = ResponseCode::from_low(response.code.low());
        message.metadata.authoritative = response.authoritative;
        message.metadata.recursion_available = self.forwarder.is_some();
        message.queries.clone_from(&request.queries);
        message.answers = response.answers;
        message.authorities = response.authority;
        message.additionals = response.additional;
        let error = response.extended_error.as_ref().map(|(code, text)| (*code, text.as_str()));
        message.edns = request.edns.as_ref().map(|edns| wire::response_edns(edns, response.code, error));
        let bytes = wire::encode(&mut message, request.edns.as_ref(), transport);
        bytes.inspect_err(|error| tracing::warn!(%error, "cannot encode a DNS response")).ok()
    }
}

impl ForwardedQuery {
    /// The response to send; `None` if there is none.
    pub(crate) async fn run(self) -> Option<Vec<u8>> {
        let ForwardedQuery { handler, request, transport, query, partial, permit } = self;
        let upstream = permit.forward(&query, &request).await;
        let outcome = if upstream.is_some() { QueryOutcome::Forwarded } else { QueryOutcome::Failed };
        let response = upstream.map_or_else(no_upstream_response, |upstream| merge(partial, upstream));
        match handler.respond(&request, transport, outcome, response) {
            QueryAction::Respond(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// The refusal of a query that is never answered, whatever its name is.
fn refusal(request: &Message, query: &Query) -> Option<Response> {
    let version = request.edns.as_ref().map_or(0, |edns| edns.version());
    let transfer = matches!(query.query_type(), RecordType::AXFR | RecordType::IXFR);
    match () {
        () if version > 0 => Some(Response::new(ResponseCode::BADVERS)),
        () if query.query_class() != DNSClass::IN || transfer => Some(Response::new(ResponseCode::Refused)),
        () => None,
    }
}

fn outcome(answer: &Answer) -> QueryOutcome {
    match answer.code {
        AnswerCode::OutOfZone => QueryOutcome::Refused,
        AnswerCode::NotReady => QueryOutcome::Failed,
        AnswerCode::NotFound => QueryOutcome::Missing,
        AnswerCode::Exists if answer.records.is_empty() => QueryOutcome::Empty,
        AnswerCode::Exists => QueryOutcome::Answered,
    }
}

fn own_response(answer: Answer) -> Response {
    let Answer { code, mut records, additional, authority, reason, .. } = answer;
    // Clients that use only the first record are spread by the random order. A CNAME must stay before its target.
    if !records.iter().any(|record| record.record_type() == RecordType::CNAME) {
        fastrand::shuffle(&mut records);
    }
    Response {
        code: if code == AnswerCode::NotFound { ResponseCode::NXDomain } else { ResponseCode::NoError },
        authoritative: true,
        answers: records,
        authority: authority.into_iter().collect(),
        additional,
        extended_error: reason.map(|text| (wire::OTHER, text)),
    }
}

fn no_upstream_response() -> Response {
    Response::new(ResponseCode::ServFail).with_error(wire::NO_REACHABLE_AUTHORITY, "no upstream name server answers")
}

/// Appends the upstream records to those of the index. A message that is no response to a query (an update) may have records
/// without data, which the client could not parse.
fn merge(partial: Response, upstream: Message) -> Response {
    let mut response = partial;
    if upstream.metadata.op_code != OpCode::Query {
        response.code = ResponseCode::ServFail;
        return response;
    }
    response.code = upstream.metadata.response_code;
    response.answers.extend(upstream.answers);
    response.authority = upstream.authorities;
    response.additional = upstream.additionals;
    response
}
