//! `beeline grant` and `beeline revoke`: create and delete the account of a host outside the cluster.

use super::{NotFound, usage};
use crate::args::{GrantArgs, HostAccountArgs};
use crate::print;
use beeline_join::{AdminClient, GrantLifetimes, HostName, JoinCode};
use std::process::ExitCode;

pub fn run(grant: &GrantArgs) -> anyhow::Result<ExitCode> {
    let host = HostName::parse(&grant.account.host).map_err(usage)?;
    let lifetimes = GrantLifetimes { code: grant.code_lifetime.0, token: grant.token_lifetime.0 };
    let namespace = &grant.account.namespace;
    let code = super::block_on(async {
        let admin = admin_client(&grant.account, &grant.api_server).await?;
        if let Some(url) = admin.loopback_server() {
            print::err(format_args!(
                "beeline: warning: {url} is a loopback address; for other hosts give --api-server URL"
            ));
        }
        anyhow::Ok(beeline_join::grant(&admin, &host, namespace, lifetimes).await?)
    })?;
    print::err(instructions(&code));
    print::out(format_args!("beeline join {}", code.encode()));
    Ok(ExitCode::SUCCESS)
}

/// Printed on standard error, so that the command on standard output can be piped.
fn instructions(code: &JoinCode) -> String {
    let (cluster, token) = (&code.cluster, &code.token);
    let (host, namespace, revoke) = (&token.account, &token.namespace, beeline_join::admin_command("revoke", token));
    format!(
        "{host} may read services, endpoints, nodes and policies of {cluster}, and renew its own token ({namespace}/{host}).\n\
         On that host, as root and before {:.0}: run `beeline join -`, paste the line below and press Ctrl-D; or run the \
         line itself, if neither the log of sudo nor the list of processes is visible to others.\n\
         Anyone who has the code can join as {host} until then: treat it like a password. If it has leaked, run `{revoke}`, \
         which invalidates all tokens of that name, and grant again.",
        token.expires
    )
}

pub fn revoke(account: &HostAccountArgs) -> anyhow::Result<ExitCode> {
    let host = HostName::parse(&account.host).map_err(usage)?;
    let namespace = &account.namespace;
    let removed = super::block_on(async {
        let admin = admin_client(account, &[]).await?;
        anyhow::Ok(beeline_join::revoke(&admin, &host, namespace).await?)
    })?;
    if removed.is_empty() {
        return Err(NotFound(format!("no account of host {host} in namespace {namespace}")).into());
    }
    print::out(format_args!(
        "revoked {host}; the host keeps resolving from its last known state until it runs `beeline leave`"
    ));
    for path in removed {
        print::out(format_args!("  removed {path}"));
    }
    Ok(ExitCode::SUCCESS)
}

async fn admin_client(account: &HostAccountArgs, servers: &[String]) -> anyhow::Result<AdminClient> {
    Ok(AdminClient::load(account.kubeconfig.as_deref(), account.context.clone(), servers).await?)
}
