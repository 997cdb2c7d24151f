//! `beeline controller`: checks the options and runs the controller until it is stopped.

use super::serve::serve;
use super::usage;
use crate::options::{
    CONTROLLER_NAMESPACE, HumanDuration, ListenAddress, LogFormat, OrOff, REPORT_NAMESPACE, virtual_address_cidrs,
};
use anyhow::{Context, bail, ensure};
use beeline_cluster::Access;
use beeline_controller::{ControllerSettings, Overlap};
use beeline_model::virtual_address;
use clap::{Args, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// More threads than tasks that can wait for one lock, so that the Lease is renewed meanwhile.
const THREADS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PolicyOverlapArg {
    Refuse,
    Allow,
}

#[derive(Clone, Debug, Args)]
pub struct ControllerOptions {
    /// Kubeconfig of the API server [default: the service account of the pod]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current context]
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    context: Option<String>,
    /// URL of the API server, with the service account of the pod; may be repeated, the servers are tried in turn
    #[arg(long, value_name = "URL", conflicts_with = "kubeconfig")]
    api_server: Vec<String>,
    /// Namespace of the Lease, the Secret and the node slices of the controller
    #[arg(long, value_name = "NAME", default_value = CONTROLLER_NAMESPACE, env = "BEELINE_NAMESPACE")]
    namespace: String,
    /// Namespace of the Leases in which agents report
    #[arg(long, value_name = "NAME", default_value = REPORT_NAMESPACE)]
    report_namespace: String,
    /// Identity of this replica in the Lease [default: host name and process id]
    #[arg(long, value_name = "NAME", env = "BEELINE_POD_NAME")]
    identity: Option<String>,
    /// CIDRs for virtual addresses of policies, comma-separated [default: 169.254.0.0/16,fd00:bee::/48]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    virtual_address_cidrs: Vec<String>,
    /// Validation of policies of different kinds that share an address, port and protocol
    #[arg(long, value_name = "ACTION", value_enum, default_value = "refuse")]
    policy_overlap: PolicyOverlapArg,
    /// Listen address of the validating webhook
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:9443")]
    webhook_bind_address: SocketAddr,
    /// DNS name or address of the webhook as the API server calls it, for the certificate; may be repeated
    /// [default: beeline-controller.NAMESPACE.svc]
    #[arg(long, value_name = "NAME")]
    webhook_name: Vec<String>,
    /// ValidatingWebhookConfiguration whose CA bundle the controller writes
    #[arg(long, value_name = "NAME", default_value = "beeline-controller")]
    webhook_configuration: String,
    /// Secret that stores the certificate of the webhook
    #[arg(long, value_name = "NAME", default_value = "beeline-controller-tls")]
    certificate_secret: String,
    /// Lifetime of a certificate, such as 2160h; it is renewed after two thirds of it
    #[arg(long, value_name = "DURATION", default_value = "2160h")]
    certificate_lifetime: HumanDuration,
    /// Lease of the leader election
    #[arg(long, value_name = "NAME", default_value = "beeline-controller")]
    lease_name: String,
    /// Time, such as 15s, without a renewal of the Lease after which another replica becomes the leader
    #[arg(long, value_name = "DURATION", default_value = "15s")]
    lease_duration: HumanDuration,
    /// Listen address of /livez, /readyz and /metrics, or off
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:10358")]
    healthz_bind_address: OrOff<ListenAddress>,
    /// Time, such as 5s, for which the webhook keeps answering after SIGTERM
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    shutdown_delay: HumanDuration,
    /// Format of the log on standard error
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    log_format: LogFormat,
}

impl ControllerOptions {
    fn access(&self) -> anyhow::Result<Access> {
        if let Some(path) = self.kubeconfig.clone() {
            return Ok(Access::Kubeconfig { path, context: self.context.clone() });
        }
        if self.api_server.is_empty() && std::env::var_os("KUBERNETES_SERVICE_HOST").is_none() {
            bail!("no API server: give --kubeconfig FILE, or run in a pod");
        }
        Access::in_cluster(&self.api_server).context("--api-server")
    }

    fn settings(&self) -> anyhow::Result<ControllerSettings> {
        let cidrs = virtual_address_cidrs(&self.virtual_address_cidrs)?;
        let default_name = || vec![format!("beeline-controller.{}.svc", self.namespace)];
        at_least("--lease-duration", self.lease_duration, Duration::from_secs(1))?;
        at_least("--certificate-lifetime", self.certificate_lifetime, Duration::from_secs(10))?;
        Ok(ControllerSettings {
            access: self.access()?,
            namespace: self.namespace.clone(),
            report_namespace: self.report_namespace.clone(),
            identity: self.identity.clone().map_or_else(default_identity, Ok)?,
            virtual_address_cidrs: if cidrs.is_empty() { virtual_address::default_ranges() } else { cidrs },
            overlap: match self.policy_overlap {
                PolicyOverlapArg::Refuse => Overlap::Refuse,
                PolicyOverlapArg::Allow => Overlap::Allow,
            },
            webhook_address: self.webhook_bind_address,
            webhook_names: if self.webhook_name.is_empty() { default_name() } else { self.webhook_name.clone() },
            webhook_configuration: self.webhook_configuration.clone(),
            secret: self.certificate_secret.clone(),
            certificate_lifetime: self.certificate_lifetime.0,
            lease: self.lease_name.clone(),
            lease_duration: self.lease_duration.0,
            health_address: self.healthz_bind_address.enabled().map(|address| address.0),
            drain: self.shutdown_delay.0,
            commit: env!("BEELINE_COMMIT"),
        })
    }
}

fn at_least(option: &str, given: HumanDuration, minimum: Duration) -> anyhow::Result<()> {
    ensure!(given.0 >= minimum, "{option} {given}: must be at least {}", HumanDuration(minimum));
    Ok(())
}

fn default_identity() -> anyhow::Result<String> {
    let path = "/proc/sys/kernel/hostname";
    let host = std::fs::read_to_string(path)
        .with_context(|| format!("--identity is not set, and its default cannot be read from {path}"))?;
    Ok(format!("{}-{}", host.trim(), std::process::id()))
}

pub fn run(options: ControllerOptions) -> anyhow::Result<ExitCode> {
    let settings = options.settings().map_err(usage)?;
    serve(THREADS, options.log_format, beeline_controller::run(settings))
}
