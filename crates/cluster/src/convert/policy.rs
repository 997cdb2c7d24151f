//! Policies to facts. Everything that schema and CEL ask for is asked again here: an agent never trusts what it reads, and
//! a folder has no API server in front. A policy is taken whole or not at all, since half of one would send dials where
//! nobody meant them to go.

mod port;
mod selector;

use super::name::{is_label, is_subdomain};
use super::{Convert, Converted, Report, Unserved, address};
use crate::policy::{
    AddressEndpoint, BalancingBackend, BalancingPolicySpec, ConnectLimit, Frontend, LocalBackend,
    LocalRedirectPolicySpec, MAX_ADDRESSES, MAX_NAME, MAX_RATE, MAX_TARGETS, Mode, ServiceEndpoint,
};
use beeline_model::Address;
use beeline_model::policy::{Limit, Matcher, Policy, PolicyKind, PolicyName, RedirectMode, Target};
use beeline_model::selector::Selector;
use beeline_model::virtual_address::is_metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// A reason for metrics, and words for people.
struct Wrong(&'static str, String);

type Checked<T> = Result<T, Wrong>;

fn wrong<T>(reason: &'static str, message: impl Into<String>) -> Checked<T> {
    Err(Wrong(reason, message.into()))
}

/// What both kinds say, each in its own way.
struct Parts<'a> {
    kind: PolicyKind,
    meta: &'a ObjectMeta,
    frontend: &'a Frontend,
    target: Target,
    nodes: Option<Selector>,
    out_cluster: bool,
    limit: Option<Limit>,
}

impl Convert {
    pub fn local_redirect(&mut self, meta: &ObjectMeta, spec: &LocalRedirectPolicySpec) -> Converted<Policy> {
        self.policy(PolicyKind::LocalRedirect, meta, |convert, kind| {
            let config = &spec.config;
            let parts = Parts {
                kind,
                meta,
                frontend: &spec.frontend,
                target: convert.local_pods(&spec.backend)?,
                nodes: convert
                    .optional_selector("spec.config.nodeLabelSelector", config.node_label_selector.as_ref())?,
                out_cluster: config.enable_out_cluster,
                limit: config.limit.as_ref().map(limit).transpose()?,
            };
            convert.assemble(parts)
        })
    }

    pub fn balancing(&mut self, meta: &ObjectMeta, spec: &BalancingPolicySpec) -> Converted<Policy> {
        self.policy(PolicyKind::Balancing, meta, |convert, kind| {
            let config = &spec.config;
            let parts = Parts {
                kind,
                meta,
                frontend: &spec.frontend,
                target: convert.target(&spec.backend)?,
                nodes: convert
                    .optional_selector("spec.config.nodeLabelSelector", config.node_label_selector.as_ref())?,
                out_cluster: config.enable_out_cluster,
                limit: None,
            };
            convert.assemble(parts)
        })
    }

    pub(crate) fn policy_name(&mut self, kind: PolicyKind, meta: &ObjectMeta) -> Option<PolicyName> {
        let (namespace, name) = (meta.namespace.as_deref()?, meta.name.as_deref()?);
        let valid = is_label(namespace) && is_subdomain(name);
        let cluster = self.cluster.clone();
        valid.then(|| PolicyName { kind, cluster, namespace: self.names.word(namespace), name: name.into() })
    }

    fn policy(
        &mut self,
        kind: PolicyKind,
        meta: &ObjectMeta,
        convert: impl FnOnce(&mut Convert, PolicyKind) -> Checked<Policy>,
    ) -> Converted<Policy> {
        let mut report = Report::new(kind_text(kind), meta);
        let fact = convert(self, kind).map_err(|Wrong(reason, message)| report.stop(reason, message));
        report.close(fact)
    }

    fn assemble(&mut self, parts: Parts) -> Checked<Policy> {
        let Parts { kind, meta, frontend, mut target, nodes, out_cluster, limit } = parts;
        let Some(name) = self.policy_name(kind, meta).filter(|name| name.name.len() <= MAX_NAME) else {
            return wrong(
                "badName",
                "metadata.name and metadata.namespace must be DNS-1123 names of 63 characters at most",
            );
        };
        let mut matcher = self.matcher(frontend)?;
        port::pair(&mut matcher, &mut target)?;
        Ok(Policy {
            name,
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            // As for a Service: a manifest without a creation time would be created now.
            created: meta.creation_timestamp.as_ref().map_or(i64::MAX, |time| time.0.as_second()),
            generation: meta.generation.unwrap_or(0),
            matcher,
            target,
            nodes,
            out_cluster,
            limit,
        })
    }

    fn matcher(&mut self, frontend: &Frontend) -> Checked<Matcher> {
        match (&frontend.service_matcher, &frontend.address_matcher) {
            (Some(service), None) => {
                let at = "spec.frontend.serviceMatcher";
                if !is_label(&service.service_name) {
                    return wrong(
                        "badName",
                        format!("{at}.serviceName: {:?} is no Service's name", service.service_name),
                    );
                }
                let ports = service.to_ports.as_ref();
                let ports = ports.map(|ports| self.dialled_ports(&format!("{at}.toPorts"), ports)).transpose()?;
                Ok(Matcher::Service { name: self.names.word(&service.service_name), ports })
            }
            (None, Some(matcher)) => {
                let at = "spec.frontend.addressMatcher";
                let address = canonical(&format!("{at}.ip"), &matcher.ip, address::parse_frontend)?;
                let ports = self.dialled_ports(&format!("{at}.toPorts"), &matcher.to_ports)?;
                Ok(Matcher::Address { address, ports })
            }
            _ => wrong("badFrontend", "spec.frontend: write exactly one of serviceMatcher and addressMatcher"),
        }
    }

    fn local_pods(&mut self, backend: &LocalBackend) -> Checked<Target> {
        Ok(Target::LocalPods {
            selector: self.selector("spec.backend.endpointSelector", &backend.endpoint_selector)?,
            ports: self.endpoint_ports("spec.backend.toPorts", &backend.to_ports)?,
        })
    }

    fn target(&mut self, backend: &BalancingBackend) -> Checked<Target> {
        match (&backend.service_endpoint, &backend.address_endpoint) {
            (Some(service), None) => self.pods("spec.backend.serviceEndpoint", service),
            (None, Some(address)) => self.addresses("spec.backend.addressEndpoint", address),
            _ => wrong("badBackend", "spec.backend: write exactly one of serviceEndpoint and addressEndpoint"),
        }
    }

    fn pods(&mut self, at: &str, endpoint: &ServiceEndpoint) -> Checked<Target> {
        let namespaces = endpoint.namespace_selector.as_ref();
        Ok(Target::Pods {
            selector: self.selector(&format!("{at}.endpointSelector"), &endpoint.endpoint_selector)?,
            namespaces: self.optional_selector(&format!("{at}.namespaceSelector"), namespaces)?,
            mode: mode(endpoint.redirect_mode),
            ports: self.endpoint_ports(&format!("{at}.toPorts"), &endpoint.to_ports)?,
        })
    }

    fn addresses(&mut self, at: &str, endpoint: &AddressEndpoint) -> Checked<Target> {
        if endpoint.addresses.is_empty() || endpoint.addresses.len() > MAX_ADDRESSES {
            return wrong("badBackend", format!("{at}.addresses: write 1 to {MAX_ADDRESSES} addresses"));
        }
        if endpoint.addresses.len() * endpoint.to_ports.len() > MAX_TARGETS {
            return wrong("badBackend", format!("{at}: addresses times toPorts may be {MAX_TARGETS} at most"));
        }
        let mut addresses: Vec<Address> = Vec::with_capacity(endpoint.addresses.len());
        for (i, text) in endpoint.addresses.iter().enumerate() {
            let at = format!("{at}.addresses[{i}]");
            let address = canonical(&at, text, address::parse_plain)?;
            if addresses.contains(&address) {
                return wrong("badAddress", format!("{at}: {text} stands there twice: write it once"));
            }
            if is_metadata(address) {
                return wrong("badAddress", format!("{at}: {text} is a cloud's metadata address"));
            }
            addresses.push(address);
        }
        let ports = self.address_ports(&format!("{at}.toPorts"), &endpoint.to_ports)?;
        Ok(Target::Addresses { addresses: addresses.into(), ports })
    }
}

pub(crate) fn kind_text(kind: PolicyKind) -> &'static str {
    match kind {
        PolicyKind::LocalRedirect => "LocalRedirectPolicy",
        PolicyKind::Balancing => "BalancingPolicy",
    }
}

/// One spelling for one address, so that two policies with one target look the same to everybody.
fn canonical(at: &str, text: &str, parse: fn(&str) -> Result<Address, String>) -> Checked<Address> {
    match parse(text) {
        Ok(address) if address.ip().is_ipv4() && address.ip() == std::net::Ipv4Addr::BROADCAST => {
            wrong("badAddress", format!("{at}: {text} is the broadcast address"))
        }
        Ok(address) if address.to_string() == text => Ok(address),
        Ok(address) => wrong("badAddress", format!("{at}: {text} is {address}: write it so")),
        Err(why) => wrong("badAddress", format!("{at}: {why}")),
    }
}

fn mode(mode: Mode) -> RedirectMode {
    match mode {
        Mode::PodEndpoint => RedirectMode::PodEndpoint,
        Mode::HostPort => RedirectMode::HostPort,
        Mode::NodeProxy => RedirectMode::NodeProxy,
    }
}

/// Without a burst: one second's.
fn limit(limit: &ConnectLimit) -> Checked<Limit> {
    let checked = |field: &str, value: i32| match u32::try_from(value) {
        Ok(number) if (1..=MAX_RATE).contains(&value) => Ok(number),
        _ => wrong("badLimit", format!("spec.config.limit.{field}: {value} is not between 1 and {MAX_RATE}")),
    };
    let connects_per_second = checked("connectsPerSecond", limit.connects_per_second)?;
    let burst = limit.burst.map(|burst| checked("burst", burst)).transpose()?;
    Ok(Limit { connects_per_second, burst: burst.unwrap_or(connects_per_second) })
}

/// Where a policy cannot even be typed.
pub(crate) fn untyped(kind: PolicyKind, meta: &ObjectMeta, why: &str) -> Converted<Policy> {
    let mut report = Report::new(kind_text(kind), meta);
    let fact: Result<Policy, Unserved> = Err(report.stop("wrongType", why));
    report.close(fact)
}
