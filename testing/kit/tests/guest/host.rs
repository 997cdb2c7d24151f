//! A guest as a host outside the cluster: it has the package, joins the cluster and dials one Service.

use std::path::PathBuf;

use kit::{
    guest::{Guest, GuestLink},
    namespace::Location,
};
use serde_json::json;

use crate::{
    dials,
    fixture::{ClusterFixture, host_port, server, service, wait_until},
    machine::{addresses, boot, dial, send},
};

pub const DNS: &str = "127.0.0.55";

/// Path of the package that `make test-vm` built.
fn package() -> PathBuf {
    let named = std::env::var_os("BEELINE_DEB").map(PathBuf::from);
    named.expect("BEELINE_DEB is not set: it is the path of the package, and `make test-vm` sets it")
}

pub struct GuestHost {
    pub fixture: ClusterFixture,
    pub guest: Guest,
    /// ClusterIPs of the Service, saved because the API server is stopped later.
    pub ips: [String; 2],
    pub name: String,
    /// Address of a pod of the Service.
    pod: String,
}

impl GuestHost {
    /// Boots a guest and installs the package. The agent is not configured yet.
    pub fn install(name: &str) -> GuestHost {
        let fixture = ClusterFixture::new(name);
        fixture.apply(&[server("web-1", 1), service("web", json!({}))]);
        fixture.wait_ready(&["web-1"]);
        let guest = boot(GuestLink::Bridge, vec![package(), dials::script()]);
        let name = format!("web.{}.svc.cluster.local", fixture.namespace());
        let (ips, pod) = (fixture.cluster_ips("web"), addresses(&fixture, "web-1").swap_remove(0));
        let host = GuestHost { fixture, guest, ips, name, pod };
        host.assert_not_resolved("before the installation");
        host.guest.run("dpkg -i /seed/*.deb").unwrap();
        assert!(!host.is_active(), "the agent is not configured yet");
        host
    }

    /// The command that `beeline grant` prints for the host.
    fn grant(&self, name: &str) -> String {
        let beeline = kit::agent::binary(None).unwrap();
        let mut command = self.fixture.cluster.command(Location::ControlPlane).unwrap();
        command.arg(beeline).args(["grant", name, "--kubeconfig"]).arg(self.fixture.cluster.kubeconfig("admin"));
        let output = command.output().unwrap();
        let [stdout, stderr] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        assert!(output.status.success(), "{stdout}{stderr}");
        println!("{stderr}");
        let line = stdout.lines().find(|line| line.starts_with("beeline join ")).map(str::to_owned);
        line.unwrap_or_else(|| panic!("grant printed no join command: {stdout}"))
    }

    pub fn join(&self) {
        println!("{}", self.guest.run(&self.grant("guest")).unwrap());
        assert!(self.is_active(), "{}", self.guest.run("journalctl -u beeline --no-pager | tail -50").unwrap());
        self.assert_resolves("joined");
    }

    /// Enables the agent's DNS server and lets systemd-resolved use it.
    pub fn enable_dns(&self) {
        let line = format!("dns-address: {DNS}:53");
        self.guest.run(&format!("echo '{line}' >>/etc/beeline/config.yaml && systemctl restart beeline")).unwrap();
        wait_until("the agent's DNS server is routed", || self.guest.output("beeline dns route").unwrap().code == 0);
        self.guest.run("systemctl restart systemd-resolved").unwrap();
    }

    pub fn assert_resolves(&self, when: &str) {
        for ip in &self.ips {
            wait_until(&format!("{when}: TCP to {ip}"), || dial(&self.guest, &host_port(ip, 80)) == "web-1");
            assert_eq!(send(&self.guest, ip, 80), "web-1", "{when}: UDP to {ip}");
        }
    }

    /// Asserts that the Service is not resolved and that the pod is still reachable.
    pub fn assert_not_resolved(&self, when: &str) {
        for ip in &self.ips {
            assert!(dial(&self.guest, &host_port(ip, 80)).starts_with("failed"), "{when}: {ip}");
        }
        assert_eq!(dial(&self.guest, &host_port(&self.pod, 8080)), "web-1", "{when}: the pod itself");
    }

    pub fn is_active(&self) -> bool {
        self.guest.output("systemctl is-active beeline").unwrap().out == "active\n"
    }
}
