//! A guest as a host outside the cluster: it has the package, was granted, and dials one Service.

use std::path::PathBuf;

use kit::{
    guest::{Guest, Link},
    namespace::Place,
};
use serde_json::json;

use crate::{
    dials,
    field::{Field, at, eventually, server, service},
    machine::{addresses, boot, dial, send},
};

pub const DNS: &str = "127.0.0.55";

/// What `make test-vm` has packed.
fn package() -> PathBuf {
    let named = std::env::var_os("BEELINE_DEB").map(PathBuf::from);
    named.expect("BEELINE_DEB names the package to try: `make test-vm` sets it")
}

pub struct Host {
    pub field: Field,
    pub guest: Guest,
    /// What is dialled. Asked once: later the API server may be away.
    pub ips: [String; 2],
    pub name: String,
    /// A pod's own address, behind the Service.
    pod: String,
}

impl Host {
    /// It has the package, and nothing to follow yet.
    pub fn install(name: &str) -> Host {
        let field = Field::new(name);
        field.apply(&[server("web-1", 1), service("web", json!({}))]);
        field.wait_ready(&["web-1"]);
        let guest = boot(Link::Switch, vec![package(), dials::script()]);
        let name = format!("web.{}.svc.cluster.local", field.namespace());
        let (ips, pod) = (field.cluster_ips("web"), addresses(&field, "web-1").swap_remove(0));
        let host = Host { field, guest, ips, name, pod };
        host.is_not_served("nobody resolves yet");
        host.guest.run("dpkg -i /seed/*.deb").unwrap();
        assert!(!host.is_active(), "nothing to follow yet");
        host
    }

    /// The line that an administrator hands over.
    fn grant(&self, name: &str) -> String {
        let beeline = kit::agent::binary(None).unwrap();
        let mut command = self.field.cluster.command(Place::Control).unwrap();
        command.arg(beeline).args(["grant", name, "--kubeconfig"]).arg(self.field.cluster.kubeconfig("admin"));
        let output = command.output().unwrap();
        let [said, beside] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        assert!(output.status.success(), "{said}{beside}");
        println!("{beside}");
        let line = said.lines().find(|line| line.starts_with("beeline join ")).map(str::to_owned);
        line.unwrap_or_else(|| panic!("grant prints the line to run: {said}"))
    }

    pub fn join(&self) {
        println!("{}", self.guest.run(&self.grant("guest")).unwrap());
        assert!(self.is_active(), "{}", self.guest.run("journalctl -u beeline --no-pager | tail -50").unwrap());
        self.serves("joined");
    }

    /// Names are answered by the agent, and systemd-resolved asks it.
    pub fn route_names(&self) {
        let line = format!("dns-address: {DNS}:53");
        self.guest.run(&format!("echo '{line}' >>/etc/beeline/config.yaml && systemctl restart beeline")).unwrap();
        eventually("the agent's name server", || self.guest.outcome("beeline dns route").unwrap().code == 0);
        self.guest.run("systemctl restart systemd-resolved").unwrap();
    }

    pub fn serves(&self, when: &str) {
        for ip in &self.ips {
            eventually(&format!("{when}: TCP to {ip}"), || dial(&self.guest, &at(ip, 80)) == "web-1");
            assert_eq!(send(&self.guest, ip, 80), "web-1", "{when}: UDP to {ip}");
        }
    }

    /// What is no Service is as it was.
    pub fn is_not_served(&self, when: &str) {
        for ip in &self.ips {
            assert!(dial(&self.guest, &at(ip, 80)).starts_with("failed"), "{when}: {ip}");
        }
        assert_eq!(dial(&self.guest, &at(&self.pod, 8080)), "web-1", "{when}: the pod itself");
    }

    pub fn is_active(&self) -> bool {
        self.guest.outcome("systemctl is-active beeline").unwrap().out == "active\n"
    }
}
