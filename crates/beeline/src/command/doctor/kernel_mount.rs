//! Whether mounts of this kernel (NFS, SMB, Ceph) at a service address find another pod after their pod was replaced.
//!
//! Before Linux 6.6 a program at a socket hook overwrote the address that kernel_connect() and sock_sendmsg() were given, so
//! that the kernel forgot the service address and dialled the same pod for ever. 6.5.7 and 6.1.57 have the fixes as well.

use super::{Check, Level, check, ok};
use std::fs;

/// A function that the last of the fixes added. Distributions backport fixes without a visible version.
const ADDED_FUNCTION: &str = "__sock_sendmsg";

type Version = (u32, u32, u32);

pub fn kernel_mounts() -> Check {
    const WHAT: &str = "mounts at a service";
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let texts = ["/proc/sys/kernel/osrelease", "/proc/version", "/proc/version_signature"].map(read);
    let has_function = || read("/proc/kallsyms").lines().any(|line| is_function(line, ADDED_FUNCTION));
    if has_fixes(version(&texts)) || has_function() {
        return ok(WHAT, "NFS, SMB and Ceph mounts dial the service again after a lost connection");
    }
    let found =
        "NFS, SMB and Ceph mounts stay at the pod that they reached first: this kernel overwrites their address";
    check(WHAT, Level::Note, found, "boot Linux 6.6, 6.5.7, 6.1.57 or newer, or mount again after the pod was replaced")
}

/// A line is `ffffffff81a0b2c0 t __sock_sendmsg`, and may end with the name of a module.
fn is_function(line: &str, name: &str) -> bool {
    line.split_whitespace().nth(2) == Some(name)
}

fn has_fixes(version: Version) -> bool {
    match version {
        (6, 1, patch) => patch >= 57,
        (6, 5, patch) => patch >= 7,
        (major, minor, _) => (major, minor) >= (6, 6),
    }
}

/// The highest version in these texts of the series that the first names. The release of a distribution's kernel has no patch
/// level: Debian's `6.1.0-18-amd64` is the version 6.1.76, which `/proc/version` names, as Ubuntu's `/proc/version_signature`.
fn version(texts: &[String]) -> Version {
    let words = texts.iter().flat_map(|text| text.split_whitespace());
    let mut versions = words.filter_map(parse);
    let Some(release) = versions.next() else { return (0, 0, 0) };
    versions.filter(|version| (version.0, version.1) == (release.0, release.1)).fold(release, Version::max)
}

fn parse(word: &str) -> Option<Version> {
    let mut numbers = word.split(['.', '-', '+']).map_while(|part| part.parse().ok());
    Some((numbers.next()?, numbers.next()?, numbers.next().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixes_are_found_by_the_version() {
        let fixed = |texts: [&str; 3]| has_fixes(version(&texts.map(str::to_owned)));
        assert!(fixed(["6.18.44-fc", "Linux version 6.18.44-fc (gcc 12.2.0)", ""]));
        assert!(fixed(["7.2.12+deb13-cloud-amd64", "", ""]));
        assert!(!fixed(["6.1.56", "", ""]) && fixed(["6.1.57", "", ""]));
        assert!(!fixed(["6.5.6-300.fc39.x86_64", "", ""]) && fixed(["6.5.7-300.fc39.x86_64", "", ""]));
        assert!(!fixed(["6.4.16", "", ""]), "6.4 has only one of the fixes");
        let debian = |version: &str| {
            format!("Linux version 6.1.0-9-amd64 (gcc-12 (Debian 12.2.0-14) 12.2.0) #1 Debian {version}")
        };
        assert!(!fixed(["6.1.0-9-amd64", &debian("6.1.27-1 (2023-05-08)"), ""]));
        assert!(fixed(["6.1.0-18-amd64", &debian("6.1.76-1 (2024-02-01)"), ""]));
        assert!(!fixed(["6.5.0-9-generic", "", "Ubuntu 6.5.0-9.9-generic 6.5.3"]));
        assert!(fixed(["6.5.0-41-generic", "", "Ubuntu 6.5.0-41.41-generic 6.5.13"]));
        assert!(!fixed(["", "", ""]));
    }

    #[test]
    fn a_function_is_found_by_its_whole_name() {
        assert!(is_function("0000000000000000 t __sock_sendmsg", ADDED_FUNCTION));
        assert!(!is_function("0000000000000000 t __sock_sendmsg_nosec", ADDED_FUNCTION));
        assert!(!is_function("0000000000000000 T sock_sendmsg", ADDED_FUNCTION));
    }
}
