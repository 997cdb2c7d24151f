//! Keeps a token alive: at half its life the account asks for its next one. What fails is tried again; until the old one
//! expires nobody notices, and afterwards the host goes on serving what it knows.

use crate::clock::Moment;
use crate::credential::{Credential, CredentialError};
use crate::grant::{TokenRequestError, request_token};
use crate::standing::{Standing, command};
use crate::token::Token;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;

/// Of its life, when the next one is asked for.
pub const HALF: f64 = 0.5;
/// The files are looked at this often: a rejoin replaces them.
const LOOK: Duration = Duration::from_secs(15);
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(120);

pub struct Renewal {
    kubeconfig: PathBuf,
    share: f64,
    /// Which of the servers is asked.
    turn: usize,
    pause: Duration,
    /// Since when there is this token, by the host's uptime: a calendar that is slow would let it expire.
    since: Duration,
    /// The next try is not made before this uptime: after a failure, and after a success, since the calendar may be fast by
    /// more than a token's life. Never by the calendar: once it is put right, that would be hours ahead.
    not_before: Duration,
    standing: watch::Sender<Standing>,
}

impl Renewal {
    /// `share`: of a token's life, when the next one is asked for ([`HALF`]). A kubeconfig that `beeline join` did not make
    /// has somebody else who looks after it, and is refused.
    pub fn of(kubeconfig: PathBuf, share: f64) -> Result<(Renewal, watch::Receiver<Standing>), CredentialError> {
        let token = match Credential::open(&kubeconfig) {
            Err(error @ CredentialError::Foreign { .. }) => return Err(error),
            other => other.and_then(|credential| credential.token()).map_err(|error| error.to_string()),
        };
        let (standing, seen) = watch::channel(Standing { token, share, error: None, rejected: false });
        let (since, not_before) = (Moment::now().uptime, Duration::ZERO);
        Ok((Renewal { kubeconfig, share, turn: 0, pause: FIRST_PAUSE, since, not_before, standing }, seen))
    }

    /// Until it is dropped, or somebody else looks after the kubeconfig: one that was not there when this began may be an
    /// administrator's.
    pub async fn run(mut self) {
        while let Some(wait) = self.round(Moment::now()).await {
            tokio::time::sleep(wait).await;
        }
    }

    /// Looks at the token, renews it if it is time; how long until the next look. `None`: it is nobody's of ours.
    async fn round(&mut self, now: Moment) -> Option<Duration> {
        let read = Credential::open(&self.kubeconfig).and_then(|all| Ok((all.token()?, all)));
        let (token, credential) = match read {
            Ok(read) => read,
            Err(CredentialError::Foreign { .. }) => return None,
            Err(error) => {
                self.standing.send_modify(|standing| standing.token = Err(error.to_string()));
                return Some(LOOK);
            }
        };
        self.look_at(&token, now);
        let left = self.left(&token, now);
        if !left.is_zero() {
            return Some(left.min(LOOK));
        }
        Some(match renew(&credential, &token, self.turn).await {
            Ok(new) => self.take(&new, now),
            Err(error) => self.note(&error, &token, now),
        })
    }

    /// How long until the next one is asked for: when the calendar or our own clock says so, whichever is first.
    fn left(&self, token: &Token, now: Moment) -> Duration {
        let by_calendar = token.after(self.share).duration_since(now.calendar);
        let by_calendar = Duration::try_from(by_calendar).unwrap_or_default();
        let until = |uptime: Duration| uptime.saturating_sub(now.uptime);
        let by_own_clock = until(self.since.saturating_add(self.part(token)));
        by_calendar.min(by_own_clock).max(until(self.not_before))
    }

    fn part(&self, token: &Token) -> Duration {
        Duration::try_from(token.after(self.share).duration_since(token.issued)).unwrap_or_default()
    }

    fn take(&mut self, new: &Token, now: Moment) -> Duration {
        tracing::info!(expires = %new.expires, "the token of this host was renewed");
        self.look_at(new, now);
        self.not_before = now.uptime.saturating_add(self.part(new));
        FIRST_PAUSE
    }

    /// Another one than before: whatever was wrong was wrong with that one.
    fn look_at(&mut self, token: &Token, now: Moment) {
        if self.standing.borrow().token.as_ref().ok() == Some(token) {
            return;
        }
        (self.pause, self.since, self.not_before) = (FIRST_PAUSE, now.uptime, Duration::ZERO);
        let (share, token) = (self.share, Ok(token.clone()));
        self.standing.send_replace(Standing { token, share, error: None, rejected: false });
    }

    fn note(&mut self, error: &RenewError, token: &Token, now: Moment) -> Duration {
        let (why, rejected) = (error.say(token), error.code() == Some(401));
        if self.standing.borrow().error.is_none() {
            tracing::warn!("the token of this host cannot be renewed, tried again: {why}");
        }
        self.standing.send_modify(|standing| (standing.error, standing.rejected) = (Some(why), rejected));
        self.turn += 1;
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        self.not_before = now.uptime + pause;
        pause.min(LOOK)
    }
}

async fn renew(credential: &Credential, token: &Token, turn: usize) -> Result<Token, RenewError> {
    let client = credential.client(turn).await?;
    let lifetime = Duration::try_from(token.lifetime()).unwrap_or_default();
    let new = request_token(&client, &token.namespace, &token.account, lifetime).await?;
    // Who rejoined meanwhile has a better one.
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

    fn say(&self, token: &Token) -> String {
        if self.code() != Some(403) {
            return self.to_string();
        }
        format!("{self}: `{}` mends the role, and what it prints is not needed here", command("grant", token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;
    use crate::token::tests::{text, token};

    /// Where the calendar and the uptime go alike.
    fn at(second: u64) -> Moment {
        moment(second, second)
    }

    fn moment(calendar: u64, uptime: u64) -> Moment {
        let calendar = jiff::Timestamp::from_second(calendar.try_into().unwrap()).unwrap();
        Moment { calendar, uptime: Duration::from_secs(uptime) }
    }

    /// Of a host whose API server does not answer.
    fn credential(dir: &tempfile::TempDir, token: &Token) -> Credential {
        let code = Code {
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

    fn renewal(dir: &tempfile::TempDir) -> (Renewal, watch::Receiver<Standing>) {
        let (renewal, seen) = Renewal::of(dir.path().join("kubeconfig"), HALF).unwrap();
        (Renewal { since: at(2_000).uptime, ..renewal }, seen)
    }

    #[tokio::test]
    async fn another_token_is_another_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let credential = credential(&dir, &token("beeline-hosts", "vm-1", 1_000, 4_600));
        let (mut renewal, seen) = renewal(&dir);
        assert_eq!(renewal.round(at(2_000)).await, Some(LOOK), "nothing to do");
        assert_eq!(renewal.round(at(2_795)).await, Some(Duration::from_secs(5)), "until half its life");
        let first = renewal.round(at(2_801)).await;
        assert!(seen.borrow().error.is_some() && first == Some(FIRST_PAUSE), "nobody answers there");
        assert_eq!(renewal.round(at(2_802)).await, Some(FIRST_PAUSE / 2), "not yet again");
        assert_eq!(renewal.round(at(2_803)).await, Some(FIRST_PAUSE * 2));
        credential.replace(&token("beeline-hosts", "vm-1", 2_800, 6_400)).unwrap();
        assert_eq!(renewal.round(at(2_804)).await, Some(LOOK));
        assert!(seen.borrow().error.is_none(), "rejoined");
    }

    #[tokio::test]
    async fn a_slow_clock_does_not_let_it_expire() {
        let dir = tempfile::tempdir().unwrap();
        let credential = credential(&dir, &token("beeline-hosts", "vm-1", 1_000, 4_600));
        let (mut renewal, seen) = renewal(&dir);
        credential.replace(&token("beeline-hosts", "vm-1", 50_000, 53_600)).unwrap();
        assert_eq!(renewal.round(at(2_000)).await, Some(LOOK));
        assert_eq!(renewal.round(at(3_795)).await, Some(Duration::from_secs(5)), "half a life after it was first seen");
        renewal.round(at(3_800)).await;
        assert!(seen.borrow().error.is_some(), "it was tried");
    }

    #[tokio::test]
    async fn a_fast_clock_does_not_renew_without_end() {
        let dir = tempfile::tempdir().unwrap();
        credential(&dir, &token("beeline-hosts", "vm-1", 1_000, 4_600));
        let (mut renewal, _seen) = renewal(&dir);
        renewal.take(&token("beeline-hosts", "vm-1", 1_000, 4_600), at(90_000));
        assert_eq!(renewal.round(at(90_001)).await, Some(LOOK), "not before half a life has passed");
    }

    /// As after a boot with the calendar ten hours ahead and no network yet; then it is put right.
    #[tokio::test]
    async fn a_clock_that_is_put_right_does_not_stop_the_renewal() {
        let dir = tempfile::tempdir().unwrap();
        let own = token("beeline-hosts", "vm-1", 1_000, 4_600);
        credential(&dir, &own);
        let (mut renewal, seen) = renewal(&dir);
        renewal.since = Duration::from_secs(10);
        assert_eq!(
            renewal.round(moment(39_000, 10)).await,
            Some(FIRST_PAUSE),
            "past half: it is tried, and nobody answers"
        );
        assert_eq!(renewal.round(moment(3_001, 12)).await, Some(FIRST_PAUSE * 2), "tried again, not in ten hours");
        assert_eq!(renewal.round(moment(3_003, 14)).await, Some(FIRST_PAUSE), "not before its pause is over");
        assert_eq!(renewal.turn, 2);
        let new = token("beeline-hosts", "vm-1", 3_000, 6_600);
        renewal.take(&new, moment(39_000, 100));
        assert!(seen.borrow().error.is_none());
        assert_eq!(renewal.left(&new, moment(3_100, 200)), Duration::from_secs(1_700), "half its life by either clock");
        assert_eq!(renewal.left(&new, moment(90_000, 200)), Duration::from_secs(1_700));
    }

    #[tokio::test]
    async fn files_that_cannot_be_read_are_looked_at_again() {
        let dir = tempfile::tempdir().unwrap();
        let own = token("beeline-hosts", "vm-1", 1_000, 4_600);
        credential(&dir, &own);
        let (mut renewal, seen) = renewal(&dir);
        std::fs::remove_file(dir.path().join("token")).unwrap();
        assert_eq!(renewal.round(at(2_000)).await, Some(LOOK));
        assert!(seen.borrow().token.is_err());
        credential(&dir, &own);
        renewal.round(at(2_000)).await;
        assert!(seen.borrow().token.is_ok());
        std::fs::write(dir.path().join("other"), "{\"apiVersion\":\"v1\",\"kind\":\"Config\"}").unwrap();
        assert!(Renewal::of(dir.path().join("other"), HALF).is_err(), "not ours");
    }

    #[tokio::test]
    async fn a_kubeconfig_that_comes_later_and_is_not_ours_ends_it() {
        let dir = tempfile::tempdir().unwrap();
        let (mut renewal, seen) = renewal(&dir);
        assert_eq!(renewal.round(at(2_000)).await, Some(LOOK), "it may yet be joined");
        std::fs::write(dir.path().join("kubeconfig"), "{\"apiVersion\":\"v1\",\"kind\":\"Config\"}").unwrap();
        assert_eq!(renewal.round(at(2_015)).await, None);
        renewal.run().await;
        assert!(seen.has_changed().is_err(), "and nobody tells of it any more");
    }

    #[tokio::test]
    async fn no_token_of_a_cluster_stops_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        credential(&dir, &token("beeline-hosts", "vm-1", 1_000, 4_600));
        let (mut renewal, seen) = renewal(&dir);
        let strange = text("beeline-hosts", "vm-1", -377_705_023_201, 253_402_207_200);
        std::fs::write(dir.path().join("token"), strange).unwrap();
        assert_eq!(renewal.round(at(2_000)).await, Some(LOOK));
        assert!(seen.borrow().token.as_ref().is_err_and(|why| why.contains("holds from")), "{:?}", seen.borrow().token);
    }
}
