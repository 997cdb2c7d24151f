//! Renews the token of a joined host: after half of a token's lifetime the host requests the next one. A failed renewal is
//! retried. If the token expires, the host keeps serving the last known state.

use crate::clock::TimeReading;
use crate::credential::{Credential, CredentialError};
use crate::grant::{TokenRequestError, request_token};
use crate::token::Token;
use crate::token_state::{TokenState, admin_command};
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;

/// The fraction of a token's lifetime after which it is renewed.
pub const DEFAULT_RENEW_FRACTION: f64 = 0.5;
/// Interval at which the credential files are read again, because a rejoin replaces them.
const READ_INTERVAL: Duration = Duration::from_secs(15);
const FIRST_BACKOFF: Duration = Duration::from_secs(2);
const MAX_BACKOFF: Duration = Duration::from_secs(120);

pub struct TokenRenewer {
    kubeconfig: PathBuf,
    renew_fraction: f64,
    /// Number of failed attempts, which selects the API server.
    attempt: usize,
    backoff: Duration,
    /// Uptime at which the current token was first seen. With a wall clock that is slow, only the uptime tells that the
    /// token must be renewed.
    seen_at: Duration,
    /// Uptime before which no renewal is attempted: after a failure, and also after a success, because the wall clock may
    /// be fast by more than a token's lifetime. It is not a wall-clock time, which would be hours ahead once the clock is
    /// corrected.
    not_before: Duration,
    state: watch::Sender<TokenState>,
}

impl TokenRenewer {
    /// Fails for a kubeconfig that `beeline join` did not write: its owner renews its credentials. See
    /// [`DEFAULT_RENEW_FRACTION`] for `renew_fraction`.
    pub fn new(
        kubeconfig: PathBuf,
        renew_fraction: f64,
    ) -> Result<(TokenRenewer, watch::Receiver<TokenState>), CredentialError> {
        let token = match Credential::open(&kubeconfig) {
            Err(error @ CredentialError::Foreign { .. }) => return Err(error),
            other => other.and_then(|credential| credential.token()).map_err(|error| error.to_string()),
        };
        let (state, receiver) = watch::channel(TokenState { token, renew_fraction, error: None, rejected: false });
        let (seen_at, not_before) = (TimeReading::now().uptime, Duration::ZERO);
        let backoff = FIRST_BACKOFF;
        Ok((TokenRenewer { kubeconfig, renew_fraction, attempt: 0, backoff, seen_at, not_before, state }, receiver))
    }

    /// Runs until it is dropped, or until the kubeconfig turns out not to be written by `beeline join`. That can happen
    /// when the file did not exist at the start.
    pub async fn run(mut self) {
        while let Some(wait) = self.round(TimeReading::now()).await {
            tokio::time::sleep(wait).await;
        }
    }

    /// Reads the token and renews it if it is due. Returns the time until the next round, or `None` if `beeline join` did
    /// not write the kubeconfig.
    async fn round(&mut self, now: TimeReading) -> Option<Duration> {
        let read = Credential::open(&self.kubeconfig).and_then(|all| Ok((all.token()?, all)));
        let (token, credential) = match read {
            Ok(read) => read,
            Err(CredentialError::Foreign { .. }) => return None,
            Err(error) => {
                self.state.send_modify(|state| state.token = Err(error.to_string()));
                return Some(READ_INTERVAL);
            }
        };
        self.set_token(&token, now);
        let remaining = self.time_to_renewal(&token, now);
        if !remaining.is_zero() {
            return Some(remaining.min(READ_INTERVAL));
        }
        Some(match renew(&credential, &token, self.attempt).await {
            Ok(new) => self.on_success(&new, now),
            Err(error) => self.on_failure(&error, &token, now),
        })
    }

    /// Time until the next renewal, by the wall clock or by the uptime, whichever is earlier.
    fn time_to_renewal(&self, token: &Token, now: TimeReading) -> Duration {
        let by_wall_clock = token.time_at(self.renew_fraction).duration_since(now.wall);
        let by_wall_clock = Duration::try_from(by_wall_clock).unwrap_or_default();
        let until = |uptime: Duration| uptime.saturating_sub(now.uptime);
        let by_uptime = until(self.seen_at.saturating_add(self.renew_after(token)));
        by_wall_clock.min(by_uptime).max(until(self.not_before))
    }

    /// Age at which a token is renewed.
    fn renew_after(&self, token: &Token) -> Duration {
        Duration::try_from(token.time_at(self.renew_fraction).duration_since(token.issued)).unwrap_or_default()
    }

    fn on_success(&mut self, new: &Token, now: TimeReading) -> Duration {
        tracing::info!(expires = %new.expires, "renewed the token of this host");
        self.set_token(new, now);
        self.not_before = now.uptime.saturating_add(self.renew_after(new));
        FIRST_BACKOFF
    }

    /// A new token resets the error and the back-off, which belong to the old token.
    fn set_token(&mut self, token: &Token, now: TimeReading) {
        if self.state.borrow().token.as_ref().ok() == Some(token) {
            return;
        }
        (self.backoff, self.seen_at, self.not_before) = (FIRST_BACKOFF, now.uptime, Duration::ZERO);
        let (renew_fraction, token) = (self.renew_fraction, Ok(token.clone()));
        self.state.send_replace(TokenState { token, renew_fraction, error: None, rejected: false });
    }

    fn on_failure(&mut self, error: &RenewError, token: &Token, now: TimeReading) -> Duration {
        let (why, rejected) = (error.advice(token), error.code() == Some(401));
        if self.state.borrow().error.is_none() {
            tracing::warn!(error = why, "cannot renew the token of this host, retrying");
        }
        self.state.send_modify(|state| (state.error, state.rejected) = (Some(why), rejected));
        self.attempt += 1;
        let backoff = self.backoff;
        self.backoff = (backoff * 2).min(MAX_BACKOFF);
        self.not_before = now.uptime + backoff;
        backoff.min(READ_INTERVAL)
    }
}

async fn renew(credential: &Credential, token: &Token, attempt: usize) -> Result<Token, RenewError> {
    let client = credential.client(attempt).await?;
    let lifetime = Duration::try_from(token.lifetime()).unwrap_or_default();
    let new = request_token(&client, &token.namespace, &token.account, lifetime).await?;
    // A rejoin may have replaced the token meanwhile; its token stays.
    if credential.token()? == *token {
        credential.replace(&new)?;
    }
    Ok(new)
}

#[derive(Debug, thiserror::Error)]
enum RenewError {
    #[error(transparent)]
    Credential(#[from] CredentialError),
    #[error(transparent)]
    Request(#[from] TokenRequestError),
}

impl RenewError {
    fn code(&self) -> Option<u16> {
        if let RenewError::Request(TokenRequestError::Request(error)) = self { error.code() } else { None }
    }

    fn advice(&self, token: &Token) -> String {
        if self.code() != Some(403) {
            return self.to_string();
        }
        format!(
            "{self}: run `{}` to restore the role; this host does not need the code that it prints",
            admin_command("grant", token)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JoinCode;
    use crate::token::tests::{text, token};

    /// Wall clock and uptime at the same value.
    fn at(second: u64) -> TimeReading {
        time(second, second)
    }

    fn time(wall: u64, uptime: u64) -> TimeReading {
        let wall = jiff::Timestamp::from_second(wall.try_into().unwrap()).unwrap();
        TimeReading { wall, uptime: Duration::from_secs(uptime) }
    }

    /// The credential of a host whose API server does not answer.
    fn credential(dir: &tempfile::TempDir, token: &Token) -> Credential {
        let code = JoinCode {
            cluster: "shop".into(),
            uid: "u".into(),
            servers: vec!["https://127.0.0.1:1".into()],
            server_name: None,
            authorities: vec![],
            token: token.clone(),
            lifetime: Duration::from_secs(3_600),
        };
        Credential::write(&dir.path().join("kubeconfig"), "shop", &code, token).unwrap()
    }

    fn renewer(dir: &tempfile::TempDir) -> (TokenRenewer, watch::Receiver<TokenState>) {
        let (renewer, state) = TokenRenewer::new(dir.path().join("kubeconfig"), DEFAULT_RENEW_FRACTION).unwrap();
        (TokenRenewer { seen_at: at(2_000).uptime, ..renewer }, state)
    }

    #[tokio::test]
    async fn a_new_token_resets_the_error_and_the_back_off() {
        let dir = tempfile::tempdir().unwrap();
        let credential = credential(&dir, &token("beeline-hosts", "vm-1", 1_000, 4_600));
        let (mut renewer, state) = renewer(&dir);
        assert_eq!(renewer.round(at(2_000)).await, Some(READ_INTERVAL), "not due yet");
        assert_eq!(
            renewer.round(at(2_795)).await,
            Some(Duration::from_secs(5)),
            "five seconds before half the lifetime"
        );
        let first = renewer.round(at(2_801)).await;
        assert!(state.borrow().error.is_some() && first == Some(FIRST_BACKOFF), "the API server does not answer");
        assert_eq!(renewer.round(at(2_802)).await, Some(FIRST_BACKOFF / 2), "still in back-off");
        assert_eq!(renewer.round(at(2_803)).await, Some(FIRST_BACKOFF * 2));
        credential.replace(&token("beeline-hosts", "vm-1", 2_800, 6_400)).unwrap();
        assert_eq!(renewer.round(at(2_804)).await, Some(READ_INTERVAL));
        assert!(state.borrow().error.is_none(), "rejoined");
    }

    #[tokio::test]
    async fn a_slow_clock_does_not_prevent_renewal() {
        let dir = tempfile::tempdir().unwrap();
        let credential = credential(&dir, &token("beeline-hosts", "vm-1", 1_000, 4_600));
        let (mut renewer, state) = renewer(&dir);
        credential.replace(&token("beeline-hosts", "vm-1", 50_000, 53_600)).unwrap();
        assert_eq!(renewer.round(at(2_000)).await, Some(READ_INTERVAL));
        assert_eq!(
            renewer.round(at(3_795)).await,
            Some(Duration::from_secs(5)),
            "half a lifetime after it was first seen"
        );
        renewer.round(at(3_800)).await;
        assert!(state.borrow().error.is_some(), "a renewal was attempted");
    }

    #[tokio::test]
    async fn a_fast_clock_does_not_renew_endlessly() {
        let dir = tempfile::tempdir().unwrap();
        credential(&dir, &token("beeline-hosts", "vm-1", 1_000, 4_600));
        let (mut renewer, _state) = renewer(&dir);
        renewer.on_success(&token("beeline-hosts", "vm-1", 1_000, 4_600), at(90_000));
        assert_eq!(renewer.round(at(90_001)).await, Some(READ_INTERVAL), "not before half a lifetime has passed");
    }

    /// The host boots with the clock ten hours ahead and without a network; then the clock is corrected.
    #[tokio::test]
    async fn a_corrected_clock_does_not_stop_renewal() {
        let dir = tempfile::tempdir().unwrap();
        let own = token("beeline-hosts", "vm-1", 1_000, 4_600);
        credential(&dir, &own);
        let (mut renewer, state) = renewer(&dir);
        renewer.seen_at = Duration::from_secs(10);
        assert_eq!(
            renewer.round(time(39_000, 10)).await,
            Some(FIRST_BACKOFF),
            "past half the lifetime: attempted, and no answer"
        );
        assert_eq!(renewer.round(time(3_001, 12)).await, Some(FIRST_BACKOFF * 2), "retried now, not in ten hours");
        assert_eq!(renewer.round(time(3_003, 14)).await, Some(FIRST_BACKOFF), "not before the back-off ends");
        assert_eq!(renewer.attempt, 2);
        let new = token("beeline-hosts", "vm-1", 3_000, 6_600);
        renewer.on_success(&new, time(39_000, 100));
        assert!(state.borrow().error.is_none());
        assert_eq!(
            renewer.time_to_renewal(&new, time(3_100, 200)),
            Duration::from_secs(1_700),
            "half the lifetime by either clock"
        );
        assert_eq!(renewer.time_to_renewal(&new, time(90_000, 200)), Duration::from_secs(1_700));
    }

    #[tokio::test]
    async fn unreadable_files_are_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let own = token("beeline-hosts", "vm-1", 1_000, 4_600);
        credential(&dir, &own);
        let (mut renewer, state) = renewer(&dir);
        std::fs::remove_file(dir.path().join("token")).unwrap();
        assert_eq!(renewer.round(at(2_000)).await, Some(READ_INTERVAL));
        assert!(state.borrow().token.is_err());
        credential(&dir, &own);
        renewer.round(at(2_000)).await;
        assert!(state.borrow().token.is_ok());
        std::fs::write(dir.path().join("other"), "{\"apiVersion\":\"v1\",\"kind\":\"Config\"}").unwrap();
        assert!(TokenRenewer::new(dir.path().join("other"), DEFAULT_RENEW_FRACTION).is_err(), "not written by join");
    }

    #[tokio::test]
    async fn a_foreign_kubeconfig_that_appears_later_ends_the_renewal() {
        let dir = tempfile::tempdir().unwrap();
        let (mut renewer, state) = renewer(&dir);
        assert_eq!(renewer.round(at(2_000)).await, Some(READ_INTERVAL), "the host may still join");
        std::fs::write(dir.path().join("kubeconfig"), "{\"apiVersion\":\"v1\",\"kind\":\"Config\"}").unwrap();
        assert_eq!(renewer.round(at(2_015)).await, None);
        renewer.run().await;
        assert!(state.has_changed().is_err(), "the sender is gone");
    }

    #[tokio::test]
    async fn an_absurd_token_does_not_stop_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        credential(&dir, &token("beeline-hosts", "vm-1", 1_000, 4_600));
        let (mut renewer, state) = renewer(&dir);
        let absurd = text("beeline-hosts", "vm-1", -377_705_023_201, 253_402_207_200);
        std::fs::write(dir.path().join("token"), absurd).unwrap();
        assert_eq!(renewer.round(at(2_000)).await, Some(READ_INTERVAL));
        assert!(
            state.borrow().token.as_ref().is_err_and(|why| why.contains("is valid from")),
            "{:?}",
            state.borrow().token
        );
    }
}
