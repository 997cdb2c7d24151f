//! The state of a host's token and, if renewal cannot repair it, what the administrator must do.

use crate::grant::DEFAULT_NAMESPACE;
use crate::token::Token;
use jiff::Timestamp;
use serde::Serialize;

#[derive(Clone, Debug)]
pub struct TokenState {
    /// The current token, or the reason why it cannot be read.
    pub(crate) token: Result<Token, String>,
    /// The fraction of a token's lifetime after which it is renewed.
    pub(crate) renew_fraction: f64,
    /// Why the last renewal failed.
    pub(crate) error: Option<String>,
    /// The API server rejected the token (401).
    pub(crate) rejected: bool,
}

/// The token's state as `beeline status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenReport {
    /// The host's ServiceAccount, as namespace/name.
    pub account: String,
    pub expires: String,
    pub renews: String,
    pub error: Option<String>,
    /// Set if the host must join again: which commands to run.
    pub rejoin: Option<String>,
}

impl TokenState {
    /// `source_error` is the error of the last request to the cluster's API server, if it failed.
    pub fn report(&self, source_error: Option<&str>, now: Timestamp) -> TokenReport {
        let token = match &self.token {
            Ok(token) => token,
            Err(why) => return unreadable_report(why),
        };
        let to_second = |time: Timestamp| format!("{time:.0}");
        TokenReport {
            account: format!("{}/{}", token.namespace, token.account),
            expires: to_second(token.expires),
            renews: to_second(token.time_at(self.renew_fraction)),
            error: self.error.clone(),
            rejoin: self.rejoin_reason(token, source_error, now).map(|why| rejoin_advice(why, token)),
        }
    }

    /// Why only joining again helps. The host's clock may be wrong, so an expired token alone is no reason while renewal
    /// works.
    fn rejoin_reason(&self, token: &Token, source_error: Option<&str>, now: Timestamp) -> Option<&'static str> {
        let rejected = self.rejected || source_error.is_some_and(|error| error.contains("(401)"));
        match self.error.is_some() || rejected {
            true if token.is_expired(now) => Some("the token has expired"),
            true if rejected => Some("the API server does not accept the token"),
            _ => None,
        }
    }

    /// Expiry of the token in seconds since the Unix epoch.
    pub fn expires(&self) -> Option<i64> {
        self.token.as_ref().ok().map(|token| token.expires.as_second())
    }
}

fn unreadable_report(why: &str) -> TokenReport {
    let rejoin = "the credentials of this host cannot be read; the last known state stays in effect. Repair the kubeconfig. \
                  If `beeline join` wrote it, run `beeline grant` with this host's name as administrator of the cluster, \
                  then run the command that it prints on this host";
    let (account, expires, renews) = Default::default();
    TokenReport { account, expires, renews, error: Some(why.to_owned()), rejoin: Some(rejoin.into()) }
}

fn rejoin_advice(why: &str, token: &Token) -> String {
    format!(
        "{why}; the last known state stays in effect. Run `{}` as administrator of the cluster, then run the \
         `beeline join` command that it prints on this host",
        admin_command("grant", token)
    )
}

/// The command line of `beeline grant` or `beeline revoke` for the account of this token.
pub fn admin_command(verb: &str, token: &Token) -> String {
    let namespace =
        if token.namespace == DEFAULT_NAMESPACE { "" } else { &format!(" --namespace {}", token.namespace) };
    format!("beeline {verb} {}{namespace}", token.account)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::tests::token;

    fn state(error: Option<&str>, rejected: bool) -> TokenState {
        let token = Ok(token("beeline-hosts", "vm-1", 1_000, 4_600));
        TokenState { token, renew_fraction: 0.5, error: error.map(str::to_owned), rejected }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn reports_expiry_and_renewal_time() {
        let report = state(None, false).report(None, at(2_000));
        assert_eq!((report.renews.as_str(), report.expires.as_str()), ("1970-01-01T00:46:40Z", "1970-01-01T01:16:40Z"));
        assert_eq!((report.account.as_str(), report.rejoin), ("beeline-hosts/vm-1", None));
    }

    #[test]
    fn advises_to_rejoin_only_when_renewal_cannot_help() {
        let rejoin = |error, rejected, source, now| state(error, rejected).report(source, at(now)).rejoin;
        let down = Some("connection refused");
        assert_eq!(rejoin(down, false, down, 3_000), None, "the token may still be renewed");
        assert_eq!(rejoin(None, false, None, 4_600), None, "the clock is wrong: renewal works");
        let expired = rejoin(down, false, down, 4_600).unwrap();
        assert!(expired.contains("expired") && expired.contains("`beeline grant vm-1`"), "{expired}");
        for revoked in [rejoin(Some("x"), true, None, 2_000), rejoin(None, false, Some("no (401)"), 2_000)] {
            assert!(revoked.is_some_and(|text| text.contains("not accept")));
        }
    }

    #[test]
    fn the_advice_names_the_whole_command() {
        let other = TokenState { token: Ok(token("edge", "vm-1", 1_000, 4_600)), ..state(None, true) };
        assert!(other.report(None, at(2_000)).rejoin.unwrap().contains("`beeline grant vm-1 --namespace edge`"));
        let lost = TokenState { token: Err("/x: no such file".into()), ..state(None, false) };
        let report = lost.report(None, at(2_000));
        assert!(report.error.unwrap().contains("/x") && report.rejoin.unwrap().contains("`beeline grant`"));
    }
}
