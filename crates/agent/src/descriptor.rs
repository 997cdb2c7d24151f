//! The agent's file descriptors. The limit is raised at the start, and divided: each listener has a fixed number of
//! connections, and healthCheckNodePorts get what is left after the agent's own work. Nobody who only connects can use the
//! descriptors that the agent needs for its tables, API servers and files.

use beeline_listener::ConnectionLimits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit that is asked for. systemd's unit sets the same one.
const WANTED: u64 = 65_536;
/// The smallest limit at which every listener gets its connections.
const SMALLEST: usize = 1024;
/// For BPF maps, programs and links, API servers, files, probes and forwarded DNS queries.
const OWN_WORK: usize = 384;

/// Load balancers probe `/healthz` of every node, with one connection for each of their services.
pub const HEALTH_LIMITS: ConnectionLimits = ConnectionLimits { total: 128, per_peer: 64 };
pub const METRICS_LIMITS: ConnectionLimits = ConnectionLimits { total: 64, per_peer: 32 };
/// Of all healthCheckNodePorts together. One load balancer probes many of them at the same time.
pub const HEALTH_CHECK_LIMITS: ConnectionLimits = ConnectionLimits { total: 256, per_peer: 128 };
/// Of the Unix socket, where a peer is a process.
pub const SOCKET_LIMITS: ConnectionLimits = ConnectionLimits { total: 64, per_peer: 16 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorBudget {
    pub limit: usize,
    /// The number of healthCheckNodePorts that can be listened on.
    pub health_check_ports: usize,
}

impl DescriptorBudget {
    /// Raises the limit of open files as far as it is allowed. `dns_addresses`: the number of addresses of the DNS server.
    pub fn raise(dns_addresses: usize) -> DescriptorBudget {
        let before = getrlimit(Resource::Nofile);
        let wanted = before.maximum.map_or(WANTED, |maximum| maximum.min(WANTED));
        if before.current.is_some_and(|current| current < wanted) {
            let raised = Rlimit { current: Some(wanted), maximum: before.maximum };
            if let Err(error) = setrlimit(Resource::Nofile, raised) {
                tracing::warn!(%error, wanted, "cannot raise the limit of open files; set LimitNOFILE (systemd)");
            }
        }
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(WANTED);
        let budget = DescriptorBudget::new(usize::try_from(limit).unwrap_or(usize::MAX), dns_addresses);
        if budget.limit < SMALLEST {
            tracing::warn!(
                limit,
                smallest = SMALLEST,
                "the limit of open files is too low for all connections: set LimitNOFILE (systemd) or ulimit -n"
            );
        }
        budget
    }

    fn new(limit: usize, dns_addresses: usize) -> DescriptorBudget {
        let limits = [HEALTH_LIMITS, METRICS_LIMITS, HEALTH_CHECK_LIMITS, SOCKET_LIMITS];
        let connections: usize = limits.iter().map(|limits| limits.total).sum();
        let used = OWN_WORK + connections + dns_addresses * crate::dns::MAX_CONNECTIONS;
        DescriptorBudget { limit, health_check_ports: limit.saturating_sub(used) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_and_own_work_fit_into_the_smallest_limit() {
        let ports = |limit, dns| DescriptorBudget::new(limit, dns).health_check_ports;
        assert!(ports(SMALLEST, 1) > 0, "{}", ports(SMALLEST, 1));
        assert_eq!(ports(SMALLEST, 0) - ports(SMALLEST, 1), beeline_dns::MAX_CONNECTIONS);
        assert_eq!(ports(256, 0), 0);
        assert!(ports(WANTED as usize, 4) > 60_000);
    }
}
