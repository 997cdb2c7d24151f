//! The package on a host that dials without a pause: nobody notices a restart, a crash or an upgrade; and when it is purged
//! nothing is left.

use crate::{dials::dialling, host::Host};

impl Host {
    /// Which agent it is that runs.
    fn process(&self) -> String {
        self.guest.run("systemctl show --property MainPID --value beeline").unwrap()
    }

    /// Each ends the agent, and another one begins.
    fn goes_on(&self, what: &str, script: &str) {
        dialling(&self.guest, &self.ips, what, || {
            let before = self.process();
            self.guest.run(script).unwrap();
            crate::field::eventually("another agent", || ![&before, "0\n"].contains(&self.process().as_str()));
            crate::field::eventually("it answers", || self.guest.outcome("beeline status").unwrap().code == 0);
        });
    }

    /// Whatever has our name, and what lies in our folders.
    fn traces(&self) -> String {
        let ours =
            "find / /run /sys/fs/bpf /sys/fs/cgroup -xdev -path /seed -prune -o -iname '*beeline*' -print | sort -u";
        self.guest.run(ours).unwrap()
    }
}

fn is_whole(host: &Host) {
    assert_eq!(host.guest.run("dpkg --verify beeline").unwrap(), "", "every file as it was packed");
    host.guest.run("zcat /usr/share/man/man1/beeline-join.1.gz | grep -q '^.TH beeline-join 1'").unwrap();
    let completion = ". /usr/share/bash-completion/completions/beeline && complete -p beeline";
    host.guest.run(&format!("bash -c '{completion}'")).unwrap();
    host.guest.run("test -s /usr/share/zsh/vendor-completions/_beeline").unwrap();
    host.guest.run("test -s /usr/share/fish/vendor_completions.d/beeline.fish").unwrap();
}

#[test]
fn nobody_notices_an_upgrade_and_a_purge_leaves_nothing() {
    let host = Host::install("package");
    is_whole(&host);
    host.join();
    host.goes_on("restarted", "systemctl restart beeline");
    host.goes_on("killed", "systemctl kill --signal KILL beeline");
    host.goes_on("upgraded", "dpkg -i /seed/*.deb");
    host.serves("upgraded");
    host.route_names();

    host.guest.run("dpkg --purge beeline").unwrap();
    host.is_not_served("purged");
    assert_eq!(host.traces(), "");
    let routed = host.guest.run("resolvectl domain").unwrap();
    assert!(!routed.contains("~cluster.local"), "names are asked elsewhere again: {routed}");
    host.guest.settle().unwrap();
}
