//! The ground itself: a guest boots, does what it is told, reaches a pod, and comes back from a reboot and a power cut.

use std::{path::PathBuf, time::Instant};

use kit::guest::{Guest, Link, Wish};

use crate::field::{Field, at, server};

pub fn boot(link: Link, files: Vec<PathBuf>) -> Guest {
    let start = Instant::now();
    let guest = Guest::boot(&Wish { link, files }).unwrap();
    guest.settle().unwrap();
    println!("guest: {link:?} is up after {:.0} s", start.elapsed().as_secs_f32());
    guest
}

/// Who answers a dial from the guest; a failure is curl's exit code, as in [`Field::dial`].
pub fn dial(guest: &Guest, address: &str) -> String {
    let script = format!("curl -s --max-time 10 http://{address}/hostname || printf 'failed %s' $?");
    guest.run(&script).unwrap().trim().to_owned()
}

/// Who answers a datagram; nobody: an empty name.
pub fn send(guest: &Guest, address: &str, port: u64) -> String {
    let script = format!(
        "bash -c 'exec 3<>/dev/udp/{address}/{port}; echo hostname >&3; timeout 10 dd bs=512 count=1 status=none <&3' || true"
    );
    guest.run(&script).unwrap().trim().to_owned()
}

/// The addresses of a pod, of both families.
pub fn addresses(field: &Field, pod: &str) -> Vec<String> {
    let ips = field.get("pod", pod)["status"]["podIPs"].clone();
    ips.as_array().unwrap().iter().map(|ip| ip["ip"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_guest_reaches_a_pod_and_survives_a_reboot_and_a_power_cut() {
    let field = Field::new("guest");
    field.apply(&[server("web-1", 1)]);
    field.wait_ready(&["web-1"]);
    let guest = boot(Link::Switch, vec![]);
    assert!(guest.run("uname -r").unwrap().starts_with("6.1."), "the kernel that we promise to run on");
    let reaches = || {
        for ip in addresses(&field, "web-1") {
            assert_eq!(dial(&guest, &at(&ip, 8080)), "web-1", "{ip}");
        }
    };
    reaches();
    guest.run("echo kept >/var/tmp/kept && sync").unwrap();
    println!("guest: reboot took {:.0} s", guest.reboot().unwrap().as_secs_f32());
    guest.settle().unwrap();
    assert_eq!(guest.run("cat /var/tmp/kept").unwrap(), "kept\n");
    reaches();
    guest.plug(false).unwrap();
    assert!(dial(&guest, &at(&addresses(&field, "web-1")[0], 8080)).starts_with("failed"), "without a cable");
    guest.plug(true).unwrap();
    crate::field::eventually("the cable is in again", || {
        dial(&guest, &at(&addresses(&field, "web-1")[0], 8080)) == "web-1"
    });
    guest.reset().unwrap();
    guest.settle().unwrap();
    reaches();
}
