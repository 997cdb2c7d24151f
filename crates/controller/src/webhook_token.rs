//! The token by which the webhook recognises the API server. An API server has no credentials for webhooks unless its
//! administrator configures some, but it calls the path that the ValidatingWebhookConfiguration names. The leader writes a
//! path with a token into it, and every replica answers only at such a path.
//!
//! A token is an HMAC of the current hour, by a key that never leaves the Secret of the webhook's certificate. It changes
//! every hour because the API server repeats the path in its error messages while no replica answers. Each replica also
//! accepts the tokens of the hours before and after, so a change needs no coordination.

use ring::hmac;
use ring::rand::SystemRandom;
use std::fmt::Write;
use std::sync::{PoisonError, RwLock};

/// Lifetime of a token in seconds.
const PERIOD: u64 = 3600;
const PREFIX: &str = "/admit/";

#[derive(Debug, Default)]
pub struct WebhookTokens(RwLock<Option<hmac::Key>>);

impl WebhookTokens {
    pub fn set_key(&self, key: &[u8]) {
        let key = hmac::Key::new(hmac::HMAC_SHA256, key);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(key);
    }

    /// The path that the API server should call, `now` being the time in seconds. `None` without a key.
    pub fn path(&self, now: u64) -> Option<String> {
        let key = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let tag = hmac::sign(key.as_ref()?, &message(now / PERIOD));
        Some(tag.as_ref().iter().fold(PREFIX.to_owned(), |mut path, byte| {
            let _ = write!(path, "{byte:02x}");
            path
        }))
    }

    /// Whether a request at this path comes from somebody who knows a current token. Takes the same time for every wrong
    /// token.
    pub fn accepts(&self, path: &str, now: u64) -> bool {
        let key = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (Some(key), Some(tag)) = (key.as_ref(), path.strip_prefix(PREFIX).and_then(parse_hex)) else {
            return false;
        };
        let period = now / PERIOD;
        [period, period.saturating_sub(1), period + 1].iter().any(|p| hmac::verify(key, &message(*p), &tag).is_ok())
    }
}

fn message(period: u64) -> [u8; 8] {
    period.to_be_bytes()
}

fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let is_hex = text.len().is_multiple_of(2) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let bytes = (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok());
    is_hex.then_some(())?;
    bytes.collect()
}

/// A new random key.
pub fn generate_key() -> anyhow::Result<Vec<u8>> {
    let key: [u8; 32] = ring::rand::generate(&SystemRandom::new())
        .map_err(|_| anyhow::anyhow!("the system has no random numbers for the webhook's token"))?
        .expose();
    Ok(key.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_accepted_for_its_hour_and_the_next_one() {
        let (tokens, now) = (WebhookTokens::default(), 1_000 * PERIOD);
        assert!(tokens.path(now).is_none() && !tokens.accepts("/admit/", now), "no key yet");
        tokens.set_key(&generate_key().unwrap());
        let path = tokens.path(now).unwrap();
        assert_eq!(path.len(), PREFIX.len() + 64);
        for accepted in [now, now + PERIOD - 1, now + 2 * PERIOD - 1, now - 1] {
            assert!(tokens.accepts(&path, accepted), "{accepted}");
        }
        assert!(!tokens.accepts(&path, now + 2 * PERIOD) && !tokens.accepts(&path, now - PERIOD - 1));
        let other = WebhookTokens::default();
        other.set_key(&generate_key().unwrap());
        assert!(!other.accepts(&path, now), "another key");
    }

    #[test]
    fn other_paths_are_not_accepted() {
        let (tokens, now) = (WebhookTokens::default(), 7 * PERIOD);
        tokens.set_key(b"key");
        let path = tokens.path(now).unwrap();
        for wrong in ["", "/", "/admit", "/admit/", "/admit/00", "/admit/zz", "/admit/ü0", "/healthz"] {
            assert!(!tokens.accepts(wrong, now), "{wrong}");
        }
        assert!(!tokens.accepts(&path[..path.len() - 2], now) && !tokens.accepts(&format!("{path}00"), now));
    }
}
