//! The life cycle of a host outside the cluster: package, join, dials, DNS names, and two offline boots from snapshots.

use crate::{
    fixture::{host_port, server, wait_until},
    host::{DNS, GuestHost},
    machine::dial,
};

impl GuestHost {
    /// systemd-resolved queries the agent for the cluster's domains only.
    fn assert_names_resolve(&self, when: &str) {
        let (guest, name) = (&self.guest, &self.name);
        let output = guest.run(&format!("resolvectl query --cache=no {name}")).unwrap();
        for ip in &self.ips {
            assert!(output.contains(ip), "{when}: {name}: {output}");
        }
        assert!(guest.run(&format!("getent ahosts {name}")).unwrap().contains(&self.ips[0]), "{when}");
        let routed = guest.run("resolvectl domain").unwrap();
        assert!(routed.contains("~cluster.local") && routed.contains("~beeline"), "{when}: route-only: {routed}");
        let other = guest.output("resolvectl query --cache=no example.org").unwrap();
        assert_eq!(other.code, 1, "{when}: other names are not resolved");
        let refused = guest.run(&format!("dig @{DNS} +norecurse example.org")).unwrap();
        assert!(refused.contains("status: REFUSED"), "{when}: {refused}");
    }

    fn assert_serves_offline(&self, when: &str) {
        wait_until(when, || self.is_active());
        self.assert_resolves(when);
        let up = self.guest.run("cut -d' ' -f1 /proc/uptime").unwrap();
        println!("guest: {when}, offline: all dials are resolved {} s after its start", up.trim());
        self.assert_names_resolve(when);
        let status = self.guest.run("beeline status").unwrap();
        assert!(status.contains("serving a snapshot of"), "{when}: {status}");
    }

    /// `beeline run --view` works with the capabilities of the agent's unit.
    fn assert_command_runs_in_view(&self) {
        let view = "sed -i 's/^\\( *\\)- name: .*/&\\n\\1  view: first/' /etc/beeline/config.yaml";
        self.guest.run(view).unwrap();
        let command =
            format!("beeline run --view first -- curl -s --max-time 5 http://{}/hostname", host_port(&self.ips[0], 80));
        wait_until("a command runs in a view", || self.guest.output(&command).unwrap().out == "web-1");
        let view_cgroups = "find /sys/fs/cgroup/beeline-views -mindepth 1 -type d | wc -l";
        wait_until("the cgroup of the command is removed", || self.guest.run(view_cgroups).unwrap() == "0\n");
    }

    fn leave(&self) {
        println!("{}", self.guest.run("beeline leave").unwrap());
        self.assert_not_resolved("left");
        assert!(!self.is_active());
        let left = self
            .guest
            .run("find /sys/fs/bpf /var/lib/beeline /etc/systemd/resolved.conf.d -name '*beeline*' -o -type f");
        assert_eq!(left.unwrap(), "/var/lib/beeline\n", "only an empty directory is left");
        self.guest.run("test ! -e /sys/fs/cgroup/beeline-views").unwrap();
        // The line that the administrator added stays.
        let file = self.guest.run("cat /etc/beeline/config.yaml").unwrap();
        assert!(file.contains("dns-address:") && !file.contains("clusters:"), "{file}");
    }
}

#[test]
fn a_guest_joins_and_boots_without_the_api_server() {
    let host = GuestHost::install("join");
    host.join();
    host.enable_dns();
    host.assert_names_resolve("joined");
    let status = host.guest.run("beeline status").unwrap();
    println!("{status}");
    assert!(status.contains("self-test: passed") && status.contains("(ServiceCIDR)"), "{status}");

    host.assert_command_runs_in_view();

    // After a reboot there are no pins, and the API server is down.
    host.fixture.cluster.component("kube-apiserver").unwrap().stop().unwrap();
    host.guest.reboot().unwrap();
    host.assert_serves_offline("rebooted");
    host.guest.reset().unwrap();
    host.assert_serves_offline("after a power cut");

    host.fixture.cluster.start_component("kube-apiserver").unwrap();
    host.fixture.apply(&[server("web-2", 2)]);
    host.fixture.wait_ready(&["web-2"]);
    wait_until("later changes take effect", || dial(&host.guest, &host_port(&host.ips[0], 80)) == "web-2");
    host.leave();
}
