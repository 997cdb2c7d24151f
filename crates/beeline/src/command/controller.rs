//! `beeline controller`.

use super::serve::serve;
use crate::options::{CONTROLLER_NAMESPACE, REPORT_NAMESPACE, address, choice, duration};
use anyhow::{Context, anyhow, bail};
use beeline_cluster::Access;
use beeline_controller::{Overlap, Settings};
use beeline_model::virtual_address;
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Clone, Debug, Args)]
pub struct ControllerOptions {
    /// The API server of this kubeconfig [default: the pod's own account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context [default: its current one]
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    context: Option<String>,
    /// This API server, with the pod's own account (may be repeated: tried in turn)
    #[arg(long, value_name = "URL", conflicts_with = "kubeconfig")]
    api_server: Vec<String>,
    /// Where Lease, Secret and node slices are
    #[arg(long, value_name = "NAME", default_value = CONTROLLER_NAMESPACE, env = "BEELINE_NAMESPACE")]
    namespace: String,
    /// Where the nodes' reports are
    #[arg(long, value_name = "NAME", default_value = REPORT_NAMESPACE)]
    report_namespace: String,
    /// Who this replica is, in the Lease [default: the host's name and the process]
    #[arg(long, value_name = "NAME", env = "BEELINE_POD_NAME")]
    identity: Option<String>,
    /// Where policies may put virtual addresses [default: 169.254.0.0/16,fd00:bee::/48]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    virtual_ranges: Vec<String>,
    /// May policies of different kinds share an address, port and protocol: refuse, or allow
    #[arg(long, value_name = "refuse|allow", default_value = "refuse")]
    policy_overlap: String,
    /// The webhook listens here
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:9443")]
    webhook_address: SocketAddr,
    /// What the API server calls the webhook by: names and addresses for its certificate (may be repeated)
    /// [default: beeline-controller.NAMESPACE.svc]
    #[arg(long, value_name = "NAME")]
    webhook_name: Vec<String>,
    /// The ValidatingWebhookConfiguration into which the certificate's authority is written
    #[arg(long, value_name = "NAME", default_value = "beeline-controller")]
    webhook_configuration: String,
    /// The Secret in which the certificate is kept
    #[arg(long, value_name = "NAME", default_value = "beeline-controller-tls")]
    certificate_secret: String,
    /// How long a certificate holds; after two thirds of it the next one is made
    #[arg(long, value_name = "TIME", default_value = "2160h")]
    certificate_life: String,
    /// The Lease by which one replica writes
    #[arg(long, value_name = "NAME", default_value = "beeline-controller")]
    lease: String,
    /// After so long without a word from the leader another takes over
    #[arg(long, value_name = "TIME", default_value = "15s")]
    lease_duration: String,
    /// /livez, /readyz and /metrics listen here, or off
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:10358")]
    health_address: String,
    /// After the signal to end, the webhook answers for so long
    #[arg(long, value_name = "TIME", default_value = "5s")]
    drain: String,
}

impl ControllerOptions {
    fn access(&self) -> anyhow::Result<Access> {
        if let Some(path) = self.kubeconfig.clone() {
            return Ok(Access::Kubeconfig { path, context: self.context.clone() });
        }
        if self.api_server.is_empty() && std::env::var_os("KUBERNETES_SERVICE_HOST").is_none() {
            bail!("where is the API server? Give --kubeconfig FILE, or run in a pod");
        }
        Access::in_cluster(&self.api_server).context("--api-server")
    }

    fn settings(&self) -> anyhow::Result<Settings> {
        let parse =
            |text: &String| text.parse().map_err(|_| anyhow!("--virtual-ranges {text}: CIDRs such as 169.254.0.0/16"));
        let ranges = self.virtual_ranges.iter().map(parse).collect::<anyhow::Result<Vec<_>>>()?;
        let name = || vec![format!("beeline-controller.{}.svc", self.namespace)];
        let lease_duration = duration("--lease-duration", &self.lease_duration)?;
        if lease_duration < Duration::from_secs(1) {
            bail!("--lease-duration {}: at least 1s", self.lease_duration);
        }
        let certificate_life = duration("--certificate-life", &self.certificate_life)?;
        if certificate_life < Duration::from_secs(10) {
            bail!("--certificate-life {}: at least 10s", self.certificate_life);
        }
        Ok(Settings {
            access: self.access()?,
            namespace: self.namespace.clone(),
            report_namespace: self.report_namespace.clone(),
            identity: self.identity.clone().map_or_else(own_name, Ok)?,
            virtual_ranges: if ranges.is_empty() { virtual_address::default_ranges() } else { ranges },
            overlap: choice(
                "--policy-overlap",
                Some(&self.policy_overlap),
                &[("refuse", Overlap::Refuse), ("allow", Overlap::Allow)],
            )?,
            webhook: self.webhook_address,
            webhook_names: if self.webhook_name.is_empty() { name() } else { self.webhook_name.clone() },
            configuration: self.webhook_configuration.clone(),
            secret: self.certificate_secret.clone(),
            certificate_life,
            lease: self.lease.clone(),
            lease_duration,
            health: address("--health-address", &self.health_address)?,
            drain: duration("--drain", &self.drain)?,
        })
    }
}

fn own_name() -> anyhow::Result<String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").context("--identity was not given")?;
    Ok(format!("{}-{}", host.trim(), std::process::id()))
}

pub fn run(options: ControllerOptions) -> anyhow::Result<ExitCode> {
    // More threads than there are tasks that wait for one lock: the Lease is renewed meanwhile.
    serve(8, beeline_controller::run(options.settings()?))
}
