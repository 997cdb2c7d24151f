//! The package on a host that dials in a loop: a restart, a crash and an upgrade fail no dial, and a purge leaves no
//! file.

use crate::{dials::dial_during, host::GuestHost};

impl GuestHost {
    /// The pid of the running agent.
    fn agent_pid(&self) -> String {
        self.guest.run("systemctl show --property MainPID --value beeline").unwrap()
    }

    /// Runs a script that replaces the agent while clients dial.
    fn assert_no_dial_fails(&self, what: &str, script: &str) {
        dial_during(&self.guest, &self.ips, what, || {
            let before = self.agent_pid();
            self.guest.run(script).unwrap();
            crate::fixture::wait_until("a new agent runs", || ![&before, "0\n"].contains(&self.agent_pid().as_str()));
            crate::fixture::wait_until("the new agent answers", || {
                self.guest.output("beeline status").unwrap().code == 0
            });
        });
    }

    /// Files and directories whose name contains beeline.
    fn remaining_files(&self) -> String {
        let ours =
            "find / /run /sys/fs/bpf /sys/fs/cgroup -xdev -path /seed -prune -o -iname '*beeline*' -print | sort -u";
        self.guest.run(ours).unwrap()
    }
}

fn assert_package_is_complete(host: &GuestHost) {
    assert_eq!(host.guest.run("dpkg --verify beeline").unwrap(), "", "every file is as packed");
    host.guest.run("zcat /usr/share/man/man1/beeline-join.1.gz | grep -q '^.TH beeline-join 1'").unwrap();
    let completion = ". /usr/share/bash-completion/completions/beeline && complete -p beeline";
    host.guest.run(&format!("bash -c '{completion}'")).unwrap();
    host.guest.run("test -s /usr/share/zsh/vendor-completions/_beeline").unwrap();
    host.guest.run("test -s /usr/share/fish/vendor_completions.d/beeline.fish").unwrap();
}

#[test]
fn an_upgrade_fails_no_dial_and_a_purge_leaves_no_file() {
    let host = GuestHost::install("package");
    assert_package_is_complete(&host);
    host.join();
    host.assert_no_dial_fails("restarted", "systemctl restart beeline");
    host.assert_no_dial_fails("killed", "systemctl kill --signal KILL beeline");
    host.assert_no_dial_fails("upgraded", "dpkg -i /seed/*.deb");
    host.assert_resolves("upgraded");
    host.enable_dns();

    host.guest.run("dpkg --purge beeline").unwrap();
    host.assert_not_resolved("purged");
    assert_eq!(host.remaining_files(), "");
    let routed = host.guest.run("resolvectl domain").unwrap();
    assert!(!routed.contains("~cluster.local"), "the agent's DNS server is still used: {routed}");
    host.guest.wait_for_services().unwrap();
}
