//! The life of a host outside the cluster: the package, one line of an administrator, dials, names, and two offline starts
//! from what was kept on disk.

use crate::{
    field::{at, eventually, server},
    host::{DNS, Host},
    machine::dial,
};

impl Host {
    /// systemd-resolved asks the agent for the cluster's domain, and for nothing else.
    fn finds_names(&self, when: &str) {
        let (guest, name) = (&self.guest, &self.name);
        let said = guest.run(&format!("resolvectl query --cache=no {name}")).unwrap();
        for ip in &self.ips {
            assert!(said.contains(ip), "{when}: {name}: {said}");
        }
        assert!(guest.run(&format!("getent ahosts {name}")).unwrap().contains(&self.ips[0]), "{when}");
        let routed = guest.run("resolvectl domain").unwrap();
        assert!(routed.contains("~cluster.local") && routed.contains("~beeline"), "{when}: route-only: {routed}");
        let other = guest.outcome("resolvectl query --cache=no example.org").unwrap();
        assert_eq!(other.code, 1, "{when}: others are not ours");
        let refused = guest.run(&format!("dig @{DNS} +norecurse example.org")).unwrap();
        assert!(refused.contains("status: REFUSED"), "{when}: {refused}");
    }

    fn is_well_offline(&self, when: &str) {
        eventually(when, || self.is_active());
        self.serves(when);
        let up = self.guest.run("cut -d' ' -f1 /proc/uptime").unwrap();
        println!("guest: {when}, offline: everything answers {} s after its start", up.trim());
        self.finds_names(when);
        let status = self.guest.run("beeline status").unwrap();
        assert!(status.contains("serves what was remembered at"), "{when}: {status}");
    }

    /// With the rights that the unit gives the agent, at the root of the guest's cgroups.
    fn runs_in_a_view(&self) {
        let view = "sed -i 's/^\\( *\\)- name: .*/&\\n\\1  view: first/' /etc/beeline/config.yaml";
        self.guest.run(view).unwrap();
        let command =
            format!("beeline run --view first -- curl -s --max-time 5 http://{}/hostname", at(&self.ips[0], 80));
        eventually("a command in a view", || self.guest.outcome(&command).unwrap().out == "web-1");
        let rooms = "find /sys/fs/cgroup/beeline-views -mindepth 1 -type d | wc -l";
        eventually("its cgroup goes with it", || self.guest.run(rooms).unwrap() == "0\n");
    }

    fn leave(&self) {
        println!("{}", self.guest.run("beeline leave").unwrap());
        self.is_not_served("left");
        assert!(!self.is_active());
        let kept = self
            .guest
            .run("find /sys/fs/bpf /var/lib/beeline /etc/systemd/resolved.conf.d -name '*beeline*' -o -type f");
        assert_eq!(kept.unwrap(), "/var/lib/beeline\n", "an empty folder");
        self.guest.run("test ! -e /sys/fs/cgroup/beeline-views").unwrap();
        // The line that was added by hand is not ours to remove.
        let file = self.guest.run("cat /etc/beeline/config.yaml").unwrap();
        assert!(file.contains("dns-address:") && !file.contains("clusters:"), "{file}");
    }
}

#[test]
fn a_guest_joins_serves_itself_and_comes_back_without_the_api_server() {
    let host = Host::install("join");
    host.join();
    host.route_names();
    host.finds_names("joined");
    let status = host.guest.run("beeline status").unwrap();
    println!("{status}");
    assert!(status.contains("self-test: passed") && status.contains("(ServiceCIDR)"), "{status}");

    host.runs_in_a_view();

    // A reboot: the pins are gone, and so is the API server.
    host.field.cluster.part("kube-apiserver").unwrap().stop().unwrap();
    host.guest.reboot().unwrap();
    host.is_well_offline("rebooted");
    host.guest.reset().unwrap();
    host.is_well_offline("after a power cut");

    host.field.cluster.start_part("kube-apiserver").unwrap();
    host.field.apply(&[server("web-2", 2)]);
    host.field.wait_ready(&["web-2"]);
    eventually("what changed since is followed", || dial(&host.guest, &at(&host.ips[0], 80)) == "web-2");
    host.leave();
}
