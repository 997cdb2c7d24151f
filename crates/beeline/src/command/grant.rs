//! `beeline grant` and `beeline revoke`: an administrator makes a host known to the cluster, or forgets it.

use super::NotFound;
use crate::args::{Administer, Grant};
use crate::options::duration;
use beeline_join::{Administrator, Code, HostName, Terms};
use std::process::ExitCode;

pub fn run(grant: &Grant) -> anyhow::Result<ExitCode> {
    let host = HostName::parse(&grant.administer.host)?;
    let terms = Terms { code: duration("--valid", &grant.valid)?, token: duration("--lifetime", &grant.lifetime)? };
    let namespace = &grant.administer.namespace;
    let code = super::block_on(async {
        let admin = administrator(&grant.administer, &grant.api_server).await?;
        if let Some(url) = admin.loopback() {
            eprintln!("beeline: {url} is this machine itself: hosts elsewhere need another address (--api-server URL)");
        }
        anyhow::Ok(beeline_join::grant(&admin, &host, namespace, terms).await?)
    })?;
    eprintln!("{}", explain(&code));
    println!("beeline join {}", code.encode());
    Ok(ExitCode::SUCCESS)
}

/// Beside the line itself, so that the line alone can be piped.
fn explain(code: &Code) -> String {
    let (cluster, token) = (&code.cluster, &code.token);
    let (host, namespace, revoke) = (&token.account, &token.namespace, beeline_join::command("revoke", token));
    format!(
        "{host} may read services, endpoints, nodes and policies of {cluster}, and renew its own token ({namespace}/{host}).\n\
         On that host, as root and before {:.0}, run `beeline join -`, paste the next line and end with Ctrl-D; or run the \
         line itself, where neither a log of sudo nor the list of processes is read by others. Until then whoever has it can \
         become {host}: hand it over like a password.\n\
         If it got into other hands: `{revoke}`, which ends the tokens of that name, then grant again.",
        token.expires
    )
}

pub fn revoke(administer: &Administer) -> anyhow::Result<ExitCode> {
    let host = HostName::parse(&administer.host)?;
    let namespace = &administer.namespace;
    let removed = super::block_on(async {
        let admin = administrator(administer, &[]).await?;
        anyhow::Ok(beeline_join::revoke(&admin, &host, namespace).await?)
    })?;
    if removed.is_empty() {
        return Err(NotFound(format!("no host {host} was granted anything in the namespace {namespace}")).into());
    }
    println!("{host} is not known any more; what it was told serves there until it leaves (`beeline leave`)");
    for path in removed {
        println!("  removed {path}");
    }
    Ok(ExitCode::SUCCESS)
}

async fn administrator(administer: &Administer, servers: &[String]) -> anyhow::Result<Administrator> {
    Ok(Administrator::load(administer.kubeconfig.as_deref(), administer.context.clone(), servers).await?)
}
