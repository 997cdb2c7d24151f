//! `beeline dns route`: a file of settings that sends the cluster's domains from systemd-resolved to the agent. It is
//! written when asked for and by nobody else; resolv.conf is never touched.

use crate::args::Route;
use anyhow::{Context, bail};
use beeline_agent::status::Request;
use beeline_dns::{BadDomain, Zone};
use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// systemd-resolved's settings, below a root.
pub const FOLDER: &str = "etc/systemd/resolved.conf.d";
const FILE: &str = "beeline.conf";
/// By its first line we know our own.
const MARK: &str = "# Written by `beeline dns route`; `beeline dns route --remove` takes it back.\n";
const NEXT: &str = "`systemctl reload-or-restart systemd-resolved` makes it so";

pub fn route(route: &Route) -> anyhow::Result<ExitCode> {
    let path = route.folder.join(FILE);
    let have = read(&path)?;
    let said = if route.remove { remove(route, &path, have)? } else { write(route, &path, have)? };
    println!("{said}");
    Ok(ExitCode::SUCCESS)
}

/// Removes the file if it is ours; where it was.
pub fn take_back(folder: &Path) -> anyhow::Result<Option<PathBuf>> {
    let path = folder.join(FILE);
    if !read(&path).is_ok_and(|ours| ours.is_some()) {
        return Ok(None);
    }
    std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    Ok(Some(path))
}

/// What stands there, if it is ours.
fn read(path: &Path) -> anyhow::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) if text.starts_with(MARK) => Ok(Some(text)),
        Ok(_) => bail!("{} was not written by us: move it away first", path.display()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

fn remove(route: &Route, path: &Path, have: Option<String>) -> anyhow::Result<String> {
    let shown = path.display();
    match have {
        None => Ok(format!("there is no {shown}: nothing to remove")),
        Some(_) if route.dry_run => Ok(format!("would remove {shown}")),
        Some(_) => {
            std::fs::remove_file(path).with_context(|| format!("cannot remove {shown}"))?;
            Ok(format!("removed {shown}; {NEXT}"))
        }
    }
}

fn write(route: &Route, path: &Path, have: Option<String>) -> anyhow::Result<String> {
    let (address, domains) = wanted(route)?;
    let (text, shown) = (settings(address, &domains)?, path.display());
    if route.dry_run {
        return Ok(format!("would write {shown}:\n{}", text.trim_end()));
    }
    if have.as_ref() == Some(&text) {
        return Ok(format!("{shown} says so already"));
    }
    if let Some(other) = other_servers(&route.folder) {
        bail!(
            "{} names servers for all names (DNS=), and systemd-resolved asks all of those alike: the clusters' names \
             would be asked there, too. Move them to a link, or remove them there and start the agent with --dns-forward",
            other.display()
        );
    }
    put(&route.folder, path, &text)?;
    Ok(format!("wrote {shown}; {NEXT}"))
}

/// Beside it and renamed: systemd-resolved never reads half of it. It must be able to, whatever our umask is.
fn put(folder: &Path, path: &Path, text: &str) -> anyhow::Result<()> {
    let (aside, shown) = (path.with_extension("new"), path.display());
    let new = !folder.exists();
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    if new {
        std::fs::set_permissions(folder, Permissions::from_mode(0o755)).context("its rights")?;
    }
    std::fs::write(&aside, text).with_context(|| format!("cannot write {}", aside.display()))?;
    std::fs::set_permissions(&aside, Permissions::from_mode(0o644)).with_context(|| aside.display().to_string())?;
    std::fs::rename(&aside, path).with_context(|| format!("cannot write {shown}"))
}

/// A file that gives systemd-resolved servers of its own for everything: its main one, or one in its folders of settings.
fn other_servers(folder: &Path) -> Option<PathBuf> {
    let folders = folders(folder);
    let main = folders.iter().filter_map(|folder| folder.parent()).map(|above| above.join("resolved.conf"));
    let inside = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    let is_ours = |path: &PathBuf| path.file_name().is_some_and(|name| name == FILE);
    let is_read = |path: &PathBuf| path.extension().is_some_and(|ext| ext == "conf") && !is_ours(path);
    let mut all = main.chain(inside.map(|entry| entry.path()).filter(is_read));
    all.find(|path| std::fs::read_to_string(path).is_ok_and(|text| names_servers(&text)))
}

/// All that systemd-resolved reads, where ours is the usual one.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let usual = folder.strip_prefix("/").is_ok_and(|folder| folder == Path::new(FOLDER));
    let others =
        ["/run/systemd/resolved.conf.d", "/usr/local/lib/systemd/resolved.conf.d", "/usr/lib/systemd/resolved.conf.d"];
    let others = others.into_iter().filter(|_| usual).map(PathBuf::from);
    std::iter::once(folder.to_owned()).chain(others).collect()
}

/// As systemd reads it, with blanks around the sign.
fn names_servers(text: &str) -> bool {
    let assigned = text.lines().filter_map(|line| line.split_once('='));
    assigned.into_iter().any(|(key, servers)| key.trim() == "DNS" && !servers.trim().is_empty())
}

/// As given, or as the agent says.
fn wanted(route: &Route) -> anyhow::Result<(SocketAddr, Vec<String>)> {
    if let (Some(address), Some(domains)) = (route.address, route.domains.clone()) {
        return Ok((address, domains));
    }
    let socket = route.socket.display();
    let Some(status) = beeline_agent::ask(&route.socket, &Request::Status) else {
        bail!("no agent answers at {socket}: give --address and --domains");
    };
    let status = status?;
    let Some(address) = status["dns"]["address"].as_str() else {
        bail!("the agent at {socket} answers no names: start it with --dns-address, or give --address and --domains");
    };
    let told = status["dns"]["domains"].as_array().into_iter().flatten();
    let told = told.filter_map(|domain| domain.as_str().map(str::to_owned)).collect();
    let address = route.address.map_or_else(|| address.parse().context("the agent's word"), Ok)?;
    Ok((address, route.domains.clone().unwrap_or(told)))
}

fn settings(address: SocketAddr, domains: &[String]) -> anyhow::Result<String> {
    if domains.is_empty() {
        bail!("--domains: at least one; without a domain every name of the host would be asked of the agent");
    }
    for domain in domains {
        check(domain).context("--domains")?;
    }
    // With ~ it only says where a name is asked, and is not appended to short ones.
    let domains: Vec<String> = domains.iter().map(|domain| format!("~{}", domain.trim_end_matches('.'))).collect();
    let address = if address.port() == 53 { address.ip().to_string() } else { address.to_string() };
    Ok(format!("{MARK}[Resolve]\nDNS={address}\nDomains={}\n", domains.join(" ")))
}

/// The clusters' own, or `beeline`.
fn check(domain: &str) -> Result<(), BadDomain> {
    if Zone::is_second(domain) { Ok(()) } else { Zone::new("", domain).map(drop) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_clusters_domains_are_routed() {
        let domains = ["cluster.local".to_owned(), "beeline.".to_owned()];
        let text = settings("127.0.0.55:53".parse().unwrap(), &domains).unwrap();
        assert_eq!(text, format!("{MARK}[Resolve]\nDNS=127.0.0.55\nDomains=~cluster.local ~beeline\n"));
        let other = settings("[::1]:5353".parse().unwrap(), &domains).unwrap();
        assert!(other.contains("DNS=[::1]:5353\n"), "{other}");
    }

    #[test]
    fn servers_for_everything_are_seen() {
        for some in ["[Resolve]\n DNS=192.0.2.1\n", "DNS = 192.0.2.1", "DNS\t= 192.0.2.1"] {
            assert!(names_servers(some), "{some}");
        }
        let usual = folders(Path::new("/etc/systemd/resolved.conf.d"));
        assert!(usual.contains(&"/run/systemd/resolved.conf.d".into()) && usual.len() == 4);
        assert_eq!(folders(Path::new("/x")), [PathBuf::from("/x")], "another's folder is looked at alone");
        for none in ["", "#DNS=192.0.2.1", "[Resolve]\nDNS=\n", "DNS = ", "FallbackDNS=192.0.2.1", "DNSSEC=no"] {
            assert!(!names_servers(none), "{none}");
        }
    }

    #[test]
    fn the_whole_world_is_not_routed() {
        for bad in [&[][..], &[".".to_owned()], &["a b".to_owned()], &["~.".to_owned()]] {
            assert!(settings("127.0.0.55:53".parse().unwrap(), bad).is_err(), "{bad:?}");
        }
    }
}
