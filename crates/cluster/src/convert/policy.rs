//! Converts LocalRedirectPolicies and BalancingPolicies. Everything that the schema and the CEL rules check is checked
//! again, because the agent does not trust its input and a folder has no API server in front. A policy is converted as
//! a whole or refused as a whole: a part of it could send dials to unintended backends.

mod port;
mod selector;

use super::name::{is_label, is_subdomain};
use super::{Converted, Converter, RefusalCollector, Unserved, address};
use crate::policy::{
    AddressEndpoint, BalancingBackend, BalancingPolicySpec, ConnectLimit, Frontend, LocalBackend,
    LocalRedirectPolicySpec, MAX_ADDRESSES, MAX_NAME, MAX_RATE, MAX_TARGETS, Mode, ServiceEndpoint,
};
use crate::source_key::policy_kind;
use beeline_model::policy::{Limit, Matcher, Policy, PolicyKind, PolicyName, RedirectMode, Target};
use beeline_model::refusal::RefusalReason;
use beeline_model::selector::Selector;
use beeline_model::{Address, metadata_address};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

struct InvalidPolicy {
    reason: RefusalReason,
    message: String,
}

type Checked<T> = Result<T, InvalidPolicy>;

fn invalid<T>(reason: RefusalReason, message: impl Into<String>) -> Checked<T> {
    Err(InvalidPolicy { reason, message: message.into() })
}

/// The fields that both kinds of policies have.
struct PolicyParts<'a> {
    kind: PolicyKind,
    meta: &'a ObjectMeta,
    frontend: &'a Frontend,
    target: Target,
    nodes: Option<Selector>,
    out_cluster: bool,
    limit: Option<Limit>,
}

impl Converter {
    pub fn local_redirect(&mut self, meta: &ObjectMeta, spec: &LocalRedirectPolicySpec) -> Converted<Policy> {
        self.policy(PolicyKind::LocalRedirect, meta, |converter, kind| {
            let config = &spec.config;
            let parts = PolicyParts {
                kind,
                meta,
                frontend: &spec.frontend,
                target: converter.local_pods(&spec.backend)?,
                nodes: converter
                    .optional_selector("spec.config.nodeLabelSelector", config.node_label_selector.as_ref())?,
                out_cluster: config.enable_out_cluster,
                limit: config.limit.as_ref().map(limit).transpose()?,
            };
            converter.assemble(parts)
        })
    }

    pub fn balancing(&mut self, meta: &ObjectMeta, spec: &BalancingPolicySpec) -> Converted<Policy> {
        self.policy(PolicyKind::Balancing, meta, |converter, kind| {
            let config = &spec.config;
            let parts = PolicyParts {
                kind,
                meta,
                frontend: &spec.frontend,
                target: converter.target(&spec.backend)?,
                nodes: converter
                    .optional_selector("spec.config.nodeLabelSelector", config.node_label_selector.as_ref())?,
                out_cluster: config.enable_out_cluster,
                limit: None,
            };
            converter.assemble(parts)
        })
    }

    pub(crate) fn policy_name(&mut self, kind: PolicyKind, meta: &ObjectMeta) -> Option<PolicyName> {
        let (namespace, name) = (meta.namespace.as_deref()?, meta.name.as_deref()?);
        let valid = is_label(namespace) && is_subdomain(name);
        let cluster = self.cluster.clone();
        valid.then(|| PolicyName { kind, cluster, namespace: self.names.intern(namespace), name: name.into() })
    }

    fn policy(
        &mut self,
        kind: PolicyKind,
        meta: &ObjectMeta,
        parse: impl FnOnce(&mut Converter, PolicyKind) -> Checked<Policy>,
    ) -> Converted<Policy> {
        let mut refusals = RefusalCollector::new(policy_kind(kind), meta);
        let parsed = parse(self, kind);
        let result = parsed.map_err(|InvalidPolicy { reason, message }| refusals.refuse_all(reason, message));
        refusals.finish(result)
    }

    fn assemble(&mut self, parts: PolicyParts) -> Checked<Policy> {
        let PolicyParts { kind, meta, frontend, mut target, nodes, out_cluster, limit } = parts;
        let Some(name) = self.policy_name(kind, meta).filter(|name| name.name.len() <= MAX_NAME) else {
            return invalid(
                RefusalReason::BadName,
                "metadata.name and metadata.namespace must be DNS-1123 names of 63 characters at most",
            );
        };
        let mut matcher = self.matcher(frontend)?;
        port::pair(&mut matcher, &mut target)?;
        Ok(Policy {
            name,
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            // As for a Service, a manifest without a creation time counts as created now.
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
                    return invalid(
                        RefusalReason::BadName,
                        format!("{at}.serviceName: {:?} is not the name of a Service", service.service_name),
                    );
                }
                let ports = service.to_ports.as_ref();
                let ports = ports.map(|ports| self.dialled_ports(&format!("{at}.toPorts"), ports)).transpose()?;
                Ok(Matcher::Service { name: self.names.intern(&service.service_name), ports })
            }
            (None, Some(matcher)) => {
                let at = "spec.frontend.addressMatcher";
                let address = canonical(&format!("{at}.ip"), &matcher.ip, address::parse_frontend)?;
                let ports = self.dialled_ports(&format!("{at}.toPorts"), &matcher.to_ports)?;
                Ok(Matcher::Address { address, ports })
            }
            _ => invalid(
                RefusalReason::BadFrontend,
                "spec.frontend: write exactly one of serviceMatcher and addressMatcher",
            ),
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
            _ => invalid(
                RefusalReason::BadBackend,
                "spec.backend: write exactly one of serviceEndpoint and addressEndpoint",
            ),
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
            return invalid(RefusalReason::BadBackend, format!("{at}.addresses: write 1 to {MAX_ADDRESSES} addresses"));
        }
        if endpoint.addresses.len() * endpoint.to_ports.len() > MAX_TARGETS {
            return invalid(
                RefusalReason::BadBackend,
                format!("{at}: addresses times toPorts may be at most {MAX_TARGETS}"),
            );
        }
        let mut addresses: Vec<Address> = Vec::with_capacity(endpoint.addresses.len());
        for (i, text) in endpoint.addresses.iter().enumerate() {
            let at = format!("{at}.addresses[{i}]");
            let address = canonical(&at, text, address::parse_plain)?;
            if addresses.contains(&address) {
                return invalid(RefusalReason::BadAddress, format!("{at}: {text} is listed twice: write it once"));
            }
            if metadata_address::range_of(address).is_some() {
                return invalid(
                    RefusalReason::BadAddress,
                    format!("{at}: {text} is a cloud's metadata address: write another address"),
                );
            }
            addresses.push(address);
        }
        let ports = self.address_ports(&format!("{at}.toPorts"), &endpoint.to_ports)?;
        Ok(Target::Addresses { addresses: addresses.into(), ports })
    }
}

/// An address must be written in its canonical form, so that equal targets of two policies look equal.
fn canonical(at: &str, text: &str, parse: fn(&str) -> Result<Address, String>) -> Checked<Address> {
    match parse(text) {
        Ok(address) if address.ip().is_ipv4() && address.ip() == std::net::Ipv4Addr::BROADCAST => {
            invalid(RefusalReason::BadAddress, format!("{at}: {text} is the broadcast address"))
        }
        Ok(address) if address.to_string() == text => Ok(address),
        Ok(address) => invalid(RefusalReason::BadAddress, format!("{at}: {text} must be written as {address}")),
        Err(why) => invalid(RefusalReason::BadAddress, format!("{at}: {why}")),
    }
}

fn mode(mode: Mode) -> RedirectMode {
    match mode {
        Mode::PodEndpoint => RedirectMode::PodEndpoint,
        Mode::HostPort => RedirectMode::HostPort,
        Mode::NodeProxy => RedirectMode::NodeProxy,
    }
}

/// The default of the burst is the limit of one second.
fn limit(limit: &ConnectLimit) -> Checked<Limit> {
    let checked = |field: &str, value: i32| match u32::try_from(value) {
        Ok(number) if (1..=MAX_RATE).contains(&value) => Ok(number),
        _ => invalid(
            RefusalReason::BadLimit,
            format!("spec.config.limit.{field}: {value} is not between 1 and {MAX_RATE}"),
        ),
    };
    let connects_per_second = checked("connectsPerSecond", limit.connects_per_second)?;
    let burst = limit.burst.map(|burst| checked("burst", burst)).transpose()?;
    Ok(Limit { connects_per_second, burst: burst.unwrap_or(connects_per_second) })
}

/// The refusal of a policy whose spec does not deserialize.
pub(crate) fn untyped_policy(kind: PolicyKind, meta: &ObjectMeta, why: &str) -> Converted<Policy> {
    let mut refusals = RefusalCollector::new(policy_kind(kind), meta);
    let result: Result<Policy, Unserved> = Err(refusals.refuse_all(RefusalReason::WrongType, why));
    refusals.finish(result)
}
