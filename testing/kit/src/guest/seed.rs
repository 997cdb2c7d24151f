//! The disk that tells a guest where it is: its network, and files for it.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};

use super::{Link, Wish};
use crate::{
    call,
    plan::{CONTROL, GUEST},
};

pub const DISK: &str = "seed.img";
const LABEL: &str = "seed";
/// Room for the file system itself.
const ROOM: u64 = 32 << 20;

pub fn make(dir: &Path, wish: &Wish) -> Result<()> {
    let stage = tempfile::tempdir_in(dir)?;
    fs::write(stage.path().join("guest.network"), network(wish.link))?;
    let mut size = ROOM;
    for file in &wish.files {
        let name = file.file_name().with_context(|| format!("{} has no name", file.display()))?;
        size += fs::copy(file, stage.path().join(name)).with_context(|| format!("copy {}", file.display()))? * 11 / 10;
    }
    let mut make = Command::new("mke2fs");
    make.args(["-q", "-t", "ext4", "-O", "^has_journal", "-L", LABEL, "-d"]).arg(stage.path());
    call::run(make.arg(dir.join(DISK)).arg(format!("{}k", size >> 10)))?;
    Ok(())
}

/// passt tells the rest by DHCP and router advertisements.
fn network(link: Link) -> String {
    let how = match link {
        Link::Switch => format!(
            "Address={}/24\nAddress={}/64\nGateway={}\nGateway={}\nIPv6AcceptRA=no\n",
            GUEST[0], GUEST[1], CONTROL[0], CONTROL[1]
        ),
        Link::Passt(_) => "DHCP=yes\nIPv6AcceptRA=yes\n".into(),
    };
    format!("[Match]\nName=e*\n\n[Network]\n{how}")
}
