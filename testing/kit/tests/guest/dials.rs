//! Dials from inside the guest without a pause, while something is done to it.

use std::path::PathBuf;

use kit::guest::Guest;

use crate::field::eventually;

/// To be given to a guest that is to dial.
pub fn script() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guest/dials.sh").into()
}

/// Both families, dialled before, during and after. None may fail.
pub fn dialling(guest: &Guest, [v4, v6]: &[String; 2], what: &str, work: impl FnOnce()) {
    guest.run("rm -rf /run/dials").unwrap();
    guest.run(&format!("systemd-run --quiet --collect --unit=dials bash /seed/dials.sh web-1 {v4} {v6}")).unwrap();
    go_on(guest);
    work();
    go_on(guest);
    guest.run("touch /run/dials/stop").unwrap();
    eventually("the last dial", || guest.outcome("test -e /run/dials/ended").unwrap().code == 0);
    let (count, failed) = total(guest);
    println!("guest: {what}: {count} dials, {failed} failed");
    assert_eq!(failed, 0, "{what}, of {count} dials: {}", guest.run("cat /run/dials/failed").unwrap());
}

fn go_on(guest: &Guest) {
    let before = total(guest).0;
    eventually("more dials", || total(guest).0 >= before + 20);
}

fn total(guest: &Guest) -> (u64, u64) {
    let said = guest.run("cat /run/dials/total 2>/dev/null || echo 0 0").unwrap();
    let mut numbers = said.split_whitespace().map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}
