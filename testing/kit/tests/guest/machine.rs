//! Checks of the kit itself: a guest boots, runs commands, reaches a pod, and boots again after a reboot and a power
//! cut.

use std::{path::PathBuf, time::Instant};

use kit::guest::{Guest, GuestConfig, GuestLink};

use crate::fixture::{ClusterFixture, host_port, server};

pub fn boot(link: GuestLink, files: Vec<PathBuf>) -> Guest {
    let start = Instant::now();
    let guest = Guest::boot(&GuestConfig { link, files }).unwrap();
    guest.wait_for_services().unwrap();
    println!("guest: {link:?} is up after {:.0} s", start.elapsed().as_secs_f32());
    guest
}

/// Name of the server that answers a dial from the guest, or `failed` and curl's exit code.
pub fn dial(guest: &Guest, address: &str) -> String {
    let script = format!("curl -s --max-time 10 http://{address}/hostname || printf 'failed %s' $?");
    guest.run(&script).unwrap().trim().to_owned()
}

/// Name of the server that answers a datagram, or an empty string.
pub fn send(guest: &Guest, address: &str, port: u64) -> String {
    let script = format!(
        "bash -c 'exec 3<>/dev/udp/{address}/{port}; echo hostname >&3; timeout 10 dd bs=512 count=1 status=none <&3' || true"
    );
    guest.run(&script).unwrap().trim().to_owned()
}

/// Addresses of a pod of both families.
pub fn addresses(fixture: &ClusterFixture, pod: &str) -> Vec<String> {
    let ips = fixture.get("pod", pod)["status"]["podIPs"].clone();
    ips.as_array().unwrap().iter().map(|ip| ip["ip"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_guest_reaches_a_pod_after_boot_reboot_and_power_cut() {
    let fixture = ClusterFixture::new("guest");
    fixture.apply(&[server("web-1", 1)]);
    fixture.wait_ready(&["web-1"]);
    let guest = boot(GuestLink::Bridge, vec![]);
    assert!(guest.run("uname -r").unwrap().starts_with("6.1."), "the oldest supported kernel");
    let assert_reaches_pod = || {
        for ip in addresses(&fixture, "web-1") {
            assert_eq!(dial(&guest, &host_port(&ip, 8080)), "web-1", "{ip}");
        }
    };
    assert_reaches_pod();
    guest.run("echo kept >/var/tmp/kept && sync").unwrap();
    println!("guest: reboot took {:.0} s", guest.reboot().unwrap().as_secs_f32());
    guest.wait_for_services().unwrap();
    assert_eq!(guest.run("cat /var/tmp/kept").unwrap(), "kept\n");
    assert_reaches_pod();
    guest.set_link(false).unwrap();
    assert!(
        dial(&guest, &host_port(&addresses(&fixture, "web-1")[0], 8080)).starts_with("failed"),
        "without a network cable"
    );
    guest.set_link(true).unwrap();
    crate::fixture::wait_until("the network cable is connected again", || {
        dial(&guest, &host_port(&addresses(&fixture, "web-1")[0], 8080)) == "web-1"
    });
    guest.reset().unwrap();
    guest.wait_for_services().unwrap();
    assert_reaches_pod();
}
