//! Dials from inside the guest in a loop while a test changes it.

use std::path::PathBuf;

use kit::guest::Guest;

use crate::fixture::wait_until;

/// Script to copy to a guest that dials.
pub fn script() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guest/dials.sh").into()
}

/// Dials both families before, during and after `work`, and asserts that no dial fails.
pub fn dial_during(guest: &Guest, [v4, v6]: &[String; 2], what: &str, work: impl FnOnce()) {
    guest.run("rm -rf /run/dials").unwrap();
    guest.run(&format!("systemd-run --quiet --collect --unit=dials bash /seed/dials.sh web-1 {v4} {v6}")).unwrap();
    wait_for_dials(guest);
    work();
    wait_for_dials(guest);
    guest.run("touch /run/dials/stop").unwrap();
    wait_until("the last dial has ended", || guest.output("test -e /run/dials/ended").unwrap().code == 0);
    let (count, failed) = total(guest);
    println!("guest: {what}: {count} dials, {failed} failed");
    assert_eq!(failed, 0, "{what}, of {count} dials: {}", guest.run("cat /run/dials/failed").unwrap());
}

fn wait_for_dials(guest: &Guest) {
    let before = total(guest).0;
    wait_until("20 more dials are made", || total(guest).0 >= before + 20);
}

fn total(guest: &Guest) -> (u64, u64) {
    let output = guest.run("cat /run/dials/total 2>/dev/null || echo 0 0").unwrap();
    let mut numbers = output.split_whitespace().map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}
