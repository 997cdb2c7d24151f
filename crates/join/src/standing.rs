//! How it stands with a host's token, and what is to be done about it.

use crate::grant::NAMESPACE;
use crate::token::Token;
use jiff::Timestamp;
use serde::Serialize;

#[derive(Clone, Debug)]
pub struct Standing {
    /// Or why it cannot be read.
    pub(crate) token: Result<Token, String>,
    /// Of its life, when the next one is asked for.
    pub(crate) share: f64,
    /// Why the last try to renew it failed.
    pub(crate) error: Option<String>,
    /// The API server does not know the token (any more).
    pub(crate) rejected: bool,
}

/// What `status` says of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The host's account: namespace/name.
    pub account: String,
    pub expires: String,
    pub renews: String,
    pub error: Option<String>,
    /// Set if only a rejoin helps: what to run where.
    pub rejoin: Option<String>,
}

impl Standing {
    /// `source_error`: what reading the cluster fails with, if it does.
    pub fn report(&self, source_error: Option<&str>, now: Timestamp) -> Report {
        let token = match &self.token {
            Ok(token) => token,
            Err(why) => return unreadable(why),
        };
        let second = |time: Timestamp| format!("{time:.0}");
        Report {
            account: format!("{}/{}", token.namespace, token.account),
            expires: second(token.expires),
            renews: second(token.after(self.share)),
            error: self.error.clone(),
            rejoin: self.trouble(token, source_error, now).map(|why| rejoin(why, token)),
        }
    }

    /// What no renewal mends. By our own clock alone nothing has expired: it may be wrong, and the renewal worked.
    fn trouble(&self, token: &Token, source_error: Option<&str>, now: Timestamp) -> Option<&'static str> {
        let refused = self.rejected || source_error.is_some_and(|error| error.contains("(401)"));
        match self.error.is_some() || refused {
            true if token.is_expired(now) => Some("the token has expired"),
            true if refused => Some("the API server does not accept the token"),
            _ => None,
        }
    }

    /// When it ends, in seconds since 1970.
    pub fn expires(&self) -> Option<i64> {
        self.token.as_ref().ok().map(|token| token.expires.as_second())
    }
}

fn unreadable(why: &str) -> Report {
    let rejoin = "the credentials of this host cannot be read; what was known before, if anything, is served on. Mend the \
                  kubeconfig; or, if `beeline join` wrote it, run `beeline grant` with this host's name where the cluster is \
                  administered, then here the line that it prints";
    let (account, expires, renews) = Default::default();
    Report { account, expires, renews, error: Some(why.to_owned()), rejoin: Some(rejoin.into()) }
}

fn rejoin(why: &str, token: &Token) -> String {
    format!(
        "{why}; what was known before is served on. Run `{}` where the cluster is administered, then here the \
         `beeline join` line that it prints",
        command("grant", token)
    )
}

/// What an administrator runs for the account of this token: `grant` or `revoke`.
pub fn command(verb: &str, token: &Token) -> String {
    let namespace = if token.namespace == NAMESPACE { "" } else { &format!(" --namespace {}", token.namespace) };
    format!("beeline {verb} {}{namespace}", token.account)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::tests::token;

    fn standing(error: Option<&str>, rejected: bool) -> Standing {
        let token = Ok(token("beeline-hosts", "vm-1", 1_000, 4_600));
        Standing { token, share: 0.5, error: error.map(str::to_owned), rejected }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn says_when_it_ends_and_when_it_is_renewed() {
        let well = standing(None, false).report(None, at(2_000));
        assert_eq!((well.renews.as_str(), well.expires.as_str()), ("1970-01-01T00:46:40Z", "1970-01-01T01:16:40Z"));
        assert_eq!((well.account.as_str(), well.rejoin), ("beeline-hosts/vm-1", None));
    }

    #[test]
    fn says_what_to_do_only_when_something_is_to_be_done() {
        let rejoin = |error, rejected, source, now| standing(error, rejected).report(source, at(now)).rejoin;
        let down = Some("connection refused");
        assert_eq!(rejoin(down, false, down, 3_000), None, "it may still be renewed");
        assert_eq!(rejoin(None, false, None, 4_600), None, "our clock is wrong: the renewal works");
        let expired = rejoin(down, false, down, 4_600).unwrap();
        assert!(expired.contains("expired") && expired.contains("`beeline grant vm-1`"), "{expired}");
        for revoked in [rejoin(Some("x"), true, None, 2_000), rejoin(None, false, Some("no (401)"), 2_000)] {
            assert!(revoked.is_some_and(|text| text.contains("not accept")));
        }
    }

    #[test]
    fn the_command_is_whole() {
        let other = Standing { token: Ok(token("edge", "vm-1", 1_000, 4_600)), ..standing(None, true) };
        assert!(other.report(None, at(2_000)).rejoin.unwrap().contains("`beeline grant vm-1 --namespace edge`"));
        let lost = Standing { token: Err("/x: no such file".into()), ..standing(None, false) };
        let report = lost.report(None, at(2_000));
        assert!(report.error.unwrap().contains("/x") && report.rejoin.unwrap().contains("`beeline grant`"));
    }
}
