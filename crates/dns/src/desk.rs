//! The desk where questions come in: what the index knows, what is asked of others, what is refused. It only says what to
//! send; `serve` does.

use crate::Names;
use crate::count::Outcome;
use crate::forward::{Forward, Turn};
use crate::question::{Answer, Code};
use crate::wire::{self, By, Heard};
use hickory_proto::op::{Message, Metadata, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, Record, RecordType};
use std::sync::Arc;

#[derive(Clone)]
pub struct Desk {
    names: Arc<Names>,
    /// Which cluster stands first, as the index counts.
    view: usize,
    /// `None`: what is not ours is refused.
    forward: Option<Arc<Forward>>,
}

/// What to do about something that came in.
pub(crate) enum Step {
    Nothing,
    Say(Vec<u8>),
    /// Others must be asked first.
    Errand(Box<Errand>),
}

/// What is sent back.
#[derive(Default)]
struct Reply {
    code: ResponseCode,
    ours: bool,
    records: Vec<Record>,
    authority: Vec<Record>,
    along: Vec<Record>,
    /// For people.
    why: Option<(u16, String)>,
}

impl Reply {
    fn of(code: ResponseCode) -> Reply {
        Reply { code, ..Reply::default() }
    }

    fn because(self, word: u16, text: impl Into<String>) -> Reply {
        Reply { why: Some((word, text.into())), ..self }
    }
}

/// A question that others are asked, and what of the answer is there already.
pub(crate) struct Errand {
    desk: Desk,
    request: Box<Message>,
    by: By,
    question: Query,
    so_far: Reply,
    turn: Turn,
}

impl Desk {
    pub fn new(names: Arc<Names>, view: usize, forward: Option<Arc<Forward>>) -> Desk {
        Desk { names, view, forward }
    }

    pub(crate) fn take(&self, bytes: &[u8], by: By) -> Step {
        match wire::read(bytes) {
            Heard::Nothing => Step::Nothing,
            Heard::Odd(said) => {
                self.names.counts.add(None, Outcome::Malformed);
                Step::Say(said)
            }
            Heard::Question(request) => self.hear(request, by),
        }
    }

    fn hear(&self, request: Box<Message>, by: By) -> Step {
        let query = request.queries[0].clone();
        let kind = query.query_type();
        if let Some(refusal) = refusal(&request, &query) {
            return self.say(&request, by, Outcome::Refused, refusal);
        }
        let answer = self.names.answer(self.view, query.name(), kind);
        let outcome = outcome(&answer);
        match answer.code {
            Code::Elsewhere if self.forward.is_none() => {
                let refusal = Reply::of(ResponseCode::Refused);
                let refusal = refusal.because(wire::NOT_AUTHORITATIVE, "none of the clusters' domains");
                self.say(&request, by, Outcome::Refused, refusal)
            }
            Code::Elsewhere => self.send_out(request, by, query, Reply::default()),
            // "There is none" would be believed; this makes the asker try again.
            Code::Unheard => {
                let failure = Reply::of(ResponseCode::ServFail);
                self.say(&request, by, outcome, failure.because(wire::NOT_READY, answer.why.unwrap_or_default()))
            }
            Code::Missing | Code::Exists => match (&self.forward, answer.onward.clone()) {
                // An alias that leads out of our domains: the asker gets the whole way, if others may be asked.
                (Some(_), Some(target)) => self.send_out(request, by, onward(target, kind), own(answer)),
                _ => self.say(&request, by, outcome, own(answer)),
            },
        }
    }

    fn send_out(&self, request: Box<Message>, by: By, question: Query, so_far: Reply) -> Step {
        match self.forward.as_ref().and_then(Forward::turn) {
            Some(turn) => Step::Errand(Box::new(Errand { desk: self.clone(), request, by, question, so_far, turn })),
            None => {
                let failure = Reply::of(ResponseCode::ServFail);
                self.say(
                    &request,
                    by,
                    Outcome::Failed,
                    failure.because(wire::OTHER, "too many questions are under way"),
                )
            }
        }
    }

    fn say(&self, request: &Message, by: By, outcome: Outcome, reply: Reply) -> Step {
        let query = &request.queries[0];
        self.names.counts.add(Some(query.query_type()), outcome);
        tracing::debug!(name = %query.name(), kind = %query.query_type(), result = outcome.word(), "asked");
        self.write(request, by, reply).map_or(Step::Nothing, Step::Say)
    }

    fn write(&self, request: &Message, by: By, reply: Reply) -> Option<Vec<u8>> {
        let mut said = Message::response(request.metadata.id, request.metadata.op_code);
        said.metadata = Metadata::response_from_request(&request.metadata);
        // The rest of it goes with EDNS.
        said.metadata.response_code = ResponseCode::from_low(reply.code.low());
        said.metadata.authoritative = reply.ours;
        said.metadata.recursion_available = self.forward.is_some();
        said.queries.clone_from(&request.queries);
        (said.answers, said.authorities, said.additionals) = (reply.records, reply.authority, reply.along);
        let why = reply.why.as_ref().map(|(word, text)| (*word, text.as_str()));
        said.edns = request.edns.as_ref().map(|asked| wire::edns(asked, reply.code, why));
        let bytes = wire::write(&mut said, request.edns.as_ref(), by);
        bytes.inspect_err(|error| tracing::warn!("an answer could not be written: {error}")).ok()
    }
}

impl Errand {
    /// `None`: nothing is to be said.
    pub(crate) async fn run(self) -> Option<Vec<u8>> {
        let Errand { desk, request, by, question, so_far, turn } = self;
        let said = turn.ask(&question, &request).await;
        let outcome = if said.is_some() { Outcome::Forwarded } else { Outcome::Failed };
        let reply = said.map_or_else(nobody, |said| join(so_far, said));
        match desk.say(&request, by, outcome, reply) {
            Step::Say(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// Not a question that we answer, whatever it is about.
fn refusal(request: &Message, query: &Query) -> Option<Reply> {
    let version = request.edns.as_ref().map_or(0, |edns| edns.version());
    let transfer = matches!(query.query_type(), RecordType::AXFR | RecordType::IXFR);
    match () {
        () if version > 0 => Some(Reply::of(ResponseCode::BADVERS)),
        () if query.query_class() != DNSClass::IN || transfer => Some(Reply::of(ResponseCode::Refused)),
        () => None,
    }
}

fn outcome(answer: &Answer) -> Outcome {
    match answer.code {
        Code::Elsewhere => Outcome::Refused,
        Code::Unheard => Outcome::Failed,
        Code::Missing => Outcome::Missing,
        Code::Exists if answer.records.is_empty() => Outcome::Empty,
        Code::Exists => Outcome::Answered,
    }
}

fn own(answer: Answer) -> Reply {
    let Answer { code, mut records, along, authority, why, .. } = answer;
    // Whoever takes the first gets another one each time; an alias stands before what it leads to.
    if !records.iter().any(|record| record.record_type() == RecordType::CNAME) {
        fastrand::shuffle(&mut records);
    }
    let code = if code == Code::Missing { ResponseCode::NXDomain } else { ResponseCode::NoError };
    let why = why.map(|text| (wire::OTHER, text));
    Reply { code, ours: true, records, authority: authority.into_iter().collect(), along, why }
}

fn onward(target: Name, kind: RecordType) -> Query {
    Query::query(target, kind)
}

fn nobody() -> Reply {
    Reply::of(ResponseCode::ServFail).because(wire::NO_REACHABLE_AUTHORITY, "none of the other name servers answers")
}

/// What others said, after what we said.
fn join(so_far: Reply, said: Message) -> Reply {
    let mut reply = so_far;
    reply.code = said.metadata.response_code;
    reply.records.extend(said.answers);
    reply.authority = said.authorities;
    reply.along = said.additionals;
    reply
}
