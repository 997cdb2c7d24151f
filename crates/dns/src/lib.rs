//! DNS for the clusters' names: an index that is fed with the clusters' objects, and a DNS server that answers from it. The
//! server keeps answering while a cluster's API server is unreachable.
#![forbid(unsafe_code)]

mod answer;
mod change;
mod cluster_records;
mod forwarder;
mod host_context;
mod index;
mod listener;
mod lookup;
mod name_store;
mod packet_check;
mod query_count;
mod query_handler;
mod record;
mod wire;
mod zone;

pub use answer::{Answer, AnswerCode};
pub use change::NameChange;
pub use forwarder::Forwarder;
pub use index::{NameIndex, ZoneStatus};
pub use listener::{DnsBindError, DnsServeError, DnsSocket, MAX_CONNECTIONS};
pub use name_store::NameStore;
#[doc(hidden)]
pub use packet_check::check_packet;
pub use query_count::{QueryCounts, QueryOutcome};
pub use query_handler::QueryHandler;
pub use record::TTL;
pub use zone::{DomainError, Zone};
