//! The second disk of a guest, with its network configuration and files.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};

use super::{GuestConfig, GuestLink};
use crate::{
    address_plan::{CONTROL, GUEST},
    subprocess,
};

pub const DISK: &str = "seed.img";
const LABEL: &str = "seed";
/// Size reserved for the file system's metadata.
const OVERHEAD: u64 = 32 << 20;

pub fn make(dir: &Path, config: &GuestConfig) -> Result<()> {
    let files = tempfile::tempdir_in(dir)?;
    fs::write(files.path().join("guest.network"), network(config.link))?;
    let mut size = OVERHEAD;
    for file in &config.files {
        let name = file.file_name().with_context(|| format!("{} has no file name", file.display()))?;
        size += fs::copy(file, files.path().join(name)).with_context(|| format!("cannot copy {}", file.display()))?
            * 11
            / 10;
    }
    let mut make = Command::new("mke2fs");
    make.args(["-q", "-t", "ext4", "-O", "^has_journal", "-L", LABEL, "-d"]).arg(files.path());
    subprocess::run(make.arg(dir.join(DISK)).arg(format!("{}k", size >> 10)))?;
    Ok(())
}

/// systemd-networkd configuration. passt provides addresses by DHCP and router advertisements.
fn network(link: GuestLink) -> String {
    let settings = match link {
        GuestLink::Bridge => format!(
            "Address={}/24\nAddress={}/64\nGateway={}\nGateway={}\nIPv6AcceptRA=no\n",
            GUEST[0], GUEST[1], CONTROL[0], CONTROL[1]
        ),
        GuestLink::Passt(_) => "DHCP=yes\nIPv6AcceptRA=yes\n".into(),
    };
    format!("[Match]\nName=e*\n\n[Network]\n{settings}")
}
