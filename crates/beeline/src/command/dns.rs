//! `beeline dns route`: writes a drop-in file that routes the domains of the clusters from systemd-resolved to the
//! agent. The file is written only by this command; resolv.conf is not changed.

use super::usage;
use crate::args::DnsRouteArgs;
use crate::print;
use anyhow::{Context, anyhow, bail};
use beeline_api::AgentClient;
use beeline_dns::{DomainError, Zone};
use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The directory of drop-in files of systemd-resolved, below a root.
pub const RESOLVED_DIR: &str = "etc/systemd/resolved.conf.d";
const FILE: &str = "beeline.conf";
/// The first line of the file, which identifies it as written by this command.
const MARKER: &str = "# Written by `beeline dns route`; `beeline dns route --remove` removes it.\n";
const NEXT: &str = "run `systemctl reload-or-restart systemd-resolved` to apply it";

pub fn route(route: &DnsRouteArgs) -> anyhow::Result<ExitCode> {
    let path = route.resolved_dir.join(FILE);
    let current = read(&path)?;
    let message = if route.remove { remove(route, &path, current)? } else { write(route, &path, current)? };
    print::out(message);
    Ok(ExitCode::SUCCESS)
}

/// Removes the file if this command wrote it, and returns its path.
pub fn remove_route(resolved_dir: &Path) -> anyhow::Result<Option<PathBuf>> {
    let path = resolved_dir.join(FILE);
    if !read(&path).is_ok_and(|current| current.is_some()) {
        return Ok(None);
    }
    std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    Ok(Some(path))
}

/// The text of the file, `None` if there is no file, and an error if it is someone else's.
fn read(path: &Path) -> anyhow::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) if text.starts_with(MARKER) => Ok(Some(text)),
        Ok(_) => bail!("{} was not written by `beeline dns route`: move it away first", path.display()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn remove(route: &DnsRouteArgs, path: &Path, current: Option<String>) -> anyhow::Result<String> {
    let shown = path.display();
    match current {
        None => Ok(format!("{shown} does not exist: nothing to remove")),
        Some(_) if route.dry_run => Ok(format!("would remove {shown}")),
        Some(_) => {
            std::fs::remove_file(path).with_context(|| format!("cannot remove {shown}"))?;
            Ok(format!("removed {shown}; {NEXT}"))
        }
    }
}

fn write(route: &DnsRouteArgs, path: &Path, current: Option<String>) -> anyhow::Result<String> {
    let (address, domains) = address_and_domains(route)?;
    let (text, shown) = (drop_in(address, &domains).map_err(usage)?, path.display());
    if route.dry_run {
        return Ok(format!("would write {shown}:\n{}", text.trim_end()));
    }
    if current.as_ref() == Some(&text) {
        return Ok(format!("{shown} is up to date"));
    }
    if let Some(other) = other_servers(&route.resolved_dir) {
        bail!(
            "{} sets DNS servers for all names (DNS=): systemd-resolved would send the names of the clusters there too. \
             Set those servers on a network link, or remove them and start the agent with --dns-forward",
            other.display()
        );
    }
    write_file(&route.resolved_dir, path, &text)?;
    Ok(format!("wrote {shown}; {NEXT}"))
}

/// Writes a temporary file and renames it, so that systemd-resolved never reads half of it. systemd-resolved must be
/// able to read it whatever the umask is.
fn write_file(dir: &Path, path: &Path, text: &str) -> anyhow::Result<()> {
    let temporary = path.with_extension("new");
    let is_new = !dir.exists();
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let set_mode = |path: &Path, mode| {
        let context = || format!("cannot set the mode of {}", path.display());
        std::fs::set_permissions(path, Permissions::from_mode(mode)).with_context(context)
    };
    if is_new {
        set_mode(dir, 0o755)?;
    }
    std::fs::write(&temporary, text).with_context(|| format!("cannot write {}", temporary.display()))?;
    set_mode(&temporary, 0o644)?;
    std::fs::rename(&temporary, path).with_context(|| format!("cannot write {}", path.display()))
}

/// A file that sets DNS servers of systemd-resolved for all names: its main file, or a drop-in.
fn other_servers(dir: &Path) -> Option<PathBuf> {
    let dirs = resolved_dirs(dir);
    let main = dirs.iter().filter_map(|dir| dir.parent()).map(|parent| parent.join("resolved.conf"));
    let drop_ins = dirs.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten().flatten();
    let is_own = |path: &PathBuf| path.file_name().is_some_and(|name| name == FILE);
    let is_read = |path: &PathBuf| path.extension().is_some_and(|ext| ext == "conf") && !is_own(path);
    let mut all = main.chain(drop_ins.map(|entry| entry.path()).filter(is_read));
    all.find(|path| std::fs::read_to_string(path).is_ok_and(|text| sets_servers(&text)))
}

/// All directories that systemd-resolved reads, if this is its usual one.
fn resolved_dirs(dir: &Path) -> Vec<PathBuf> {
    let is_usual = dir.strip_prefix("/").is_ok_and(|dir| dir == Path::new(RESOLVED_DIR));
    let others =
        ["/run/systemd/resolved.conf.d", "/usr/local/lib/systemd/resolved.conf.d", "/usr/lib/systemd/resolved.conf.d"];
    let others = others.into_iter().filter(|_| is_usual).map(PathBuf::from);
    std::iter::once(dir.to_owned()).chain(others).collect()
}

/// systemd allows blanks around the equals sign.
fn sets_servers(text: &str) -> bool {
    let mut assignments = text.lines().filter_map(|line| line.split_once('='));
    assignments.any(|(key, servers)| key.trim() == "DNS" && !servers.trim().is_empty())
}

/// From the options, else from the running agent.
fn address_and_domains(route: &DnsRouteArgs) -> anyhow::Result<(SocketAddr, Vec<String>)> {
    if let (Some(address), Some(domains)) = (route.address, route.domains.clone()) {
        return Ok((address, domains));
    }
    let status = AgentClient::new(&route.socket)
        .status()
        .context("cannot ask the agent for its DNS address; give --address and --domains")?;
    let Some(dns) = status.dns else {
        return Err(anyhow!(
            "the agent at {} serves no DNS: start it with --dns-address, or give --address and --domains",
            route.socket.display()
        ));
    };
    let address = route
        .address
        .map_or_else(|| dns.address.parse().context("cannot parse the address of the agent's DNS server"), Ok)?;
    Ok((address, route.domains.clone().unwrap_or(dns.domains)))
}

fn drop_in(address: SocketAddr, domains: &[String]) -> anyhow::Result<String> {
    if domains.is_empty() {
        bail!("--domains: give at least one domain; without one, every name would be sent to the agent");
    }
    for domain in domains {
        check_domain(domain).context("--domains")?;
    }
    // With ~ a domain is only for routing, and is not appended to short names.
    let domains: Vec<String> = domains.iter().map(|domain| format!("~{}", domain.trim_end_matches('.'))).collect();
    let address = if address.port() == 53 { address.ip().to_string() } else { address.to_string() };
    Ok(format!("{MARKER}[Resolve]\nDNS={address}\nDomains={}\n", domains.join(" ")))
}

/// A domain of a cluster, or `beeline`.
fn check_domain(domain: &str) -> Result<(), DomainError> {
    if Zone::is_reserved(domain) { Ok(()) } else { Zone::new("", domain).map(drop) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_domains_of_the_clusters_are_routed() {
        let domains = ["cluster.local".to_owned(), "beeline.".to_owned()];
        let text = drop_in("127.0.0.55:53".parse().unwrap(), &domains).unwrap();
        assert_eq!(text, format!("{MARKER}[Resolve]\nDNS=127.0.0.55\nDomains=~cluster.local ~beeline\n"));
        let other = drop_in("[::1]:5353".parse().unwrap(), &domains).unwrap();
        assert!(other.contains("DNS=[::1]:5353\n"), "{other}");
    }

    #[test]
    fn servers_for_all_names_are_found() {
        for some in ["[Resolve]\n DNS=192.0.2.1\n", "DNS = 192.0.2.1", "DNS\t= 192.0.2.1"] {
            assert!(sets_servers(some), "{some}");
        }
        let usual = resolved_dirs(Path::new("/etc/systemd/resolved.conf.d"));
        assert!(usual.contains(&"/run/systemd/resolved.conf.d".into()) && usual.len() == 4);
        assert_eq!(resolved_dirs(Path::new("/x")), [PathBuf::from("/x")], "another directory is read alone");
        for none in ["", "#DNS=192.0.2.1", "[Resolve]\nDNS=\n", "DNS = ", "FallbackDNS=192.0.2.1", "DNSSEC=no"] {
            assert!(!sets_servers(none), "{none}");
        }
    }

    #[test]
    fn the_root_domain_cannot_be_routed() {
        for bad in [&[][..], &[".".to_owned()], &["a b".to_owned()], &["~.".to_owned()]] {
            assert!(drop_in("127.0.0.55:53".parse().unwrap(), bad).is_err(), "{bad:?}");
        }
    }
}
