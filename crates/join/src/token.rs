//! A ServiceAccount token and its claims. The claims are read, not verified: only the API server can verify them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use std::fmt;

#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    text: String,
    pub namespace: String,
    pub account: String,
    pub issued: Timestamp,
    pub expires: Timestamp,
}

#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("not a ServiceAccount token (three parts separated by dots)")]
    Format,
    #[error("the claims of the token cannot be read: {0}")]
    Claims(String),
    #[error("the subject {0:?} of the token is not a ServiceAccount")]
    Subject(String),
    #[error(
        "the token is valid from {issued} until {expires}: a lifetime must be more than zero and at most ten years"
    )]
    Lifetime { issued: Timestamp, expires: Timestamp },
}

/// Upper limit of a token's lifetime. Times are calculated from it, so an absurd value must not overflow them.
const MAX_LIFETIME: SignedDuration = SignedDuration::from_hours(10 * 366 * 24);

#[derive(Deserialize)]
struct Claims {
    sub: String,
    iat: i64,
    exp: i64,
}

impl Token {
    pub fn parse(text: &str) -> Result<Token, TokenError> {
        let text = text.trim().to_owned();
        let parts: Vec<&str> = text.split('.').collect();
        let [_, claims, _] = parts[..] else { return Err(TokenError::Format) };
        let claims = URL_SAFE_NO_PAD.decode(claims).map_err(|e| TokenError::Claims(e.to_string()))?;
        let claims: Claims = serde_json::from_slice(&claims).map_err(|e| TokenError::Claims(e.to_string()))?;
        let name = claims.sub.strip_prefix("system:serviceaccount:").and_then(|name| name.split_once(':'));
        let (namespace, account) = name.ok_or_else(|| TokenError::Subject(claims.sub.clone()))?;
        let time = |seconds| Timestamp::from_second(seconds).map_err(|e| TokenError::Claims(e.to_string()));
        let (issued, expires) = (time(claims.iat)?, time(claims.exp)?);
        let lifetime = expires.duration_since(issued);
        if !lifetime.is_positive() || lifetime > MAX_LIFETIME {
            return Err(TokenError::Lifetime { issued, expires });
        }
        Ok(Token { namespace: namespace.into(), account: account.into(), issued, expires, text })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn lifetime(&self) -> SignedDuration {
        self.expires.duration_since(self.issued)
    }

    pub fn is_expired(&self, now: Timestamp) -> bool {
        now >= self.expires
    }

    /// The time at which `fraction` of the token's lifetime has passed.
    pub fn time_at(&self, fraction: f64) -> Timestamp {
        let millis = (self.lifetime().as_millis() as f64 * fraction.clamp(0.0, 1.0)) as i64;
        self.issued.checked_add(SignedDuration::from_millis(millis)).unwrap_or(self.expires)
    }
}

/// Leaves out the token's text, which is a secret.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({}/{} until {})", self.namespace, self.account, self.expires)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn token(namespace: &str, account: &str, issued: i64, expires: i64) -> Token {
        Token::parse(&text(namespace, account, issued, expires)).unwrap()
    }

    pub(crate) fn text(namespace: &str, account: &str, issued: i64, expires: i64) -> String {
        let sub = format!("system:serviceaccount:{namespace}:{account}");
        let claims = serde_json::json!({ "sub": sub, "iat": issued, "exp": expires, "iss": "x" }).to_string();
        format!("e30.{}.c2lnbmF0dXJl", URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn claims_give_the_account_and_the_lifetime() {
        let token = token("beeline-hosts", "vm-1.example", 1_000, 4_600);
        assert_eq!((token.namespace.as_str(), token.account.as_str()), ("beeline-hosts", "vm-1.example"));
        assert_eq!(token.lifetime(), SignedDuration::from_secs(3_600));
        assert_eq!(token.time_at(0.5).as_second(), 2_800);
        assert!(!token.is_expired(Timestamp::from_second(4_599).unwrap()));
        assert!(token.is_expired(Timestamp::from_second(4_600).unwrap()));
        assert!(!format!("{token:?}").contains(token.text()));
    }

    #[test]
    fn malformed_tokens_are_refused() {
        assert!(matches!(Token::parse("abc"), Err(TokenError::Format)));
        assert!(matches!(Token::parse("a.b.c"), Err(TokenError::Claims(_))));
        let user = URL_SAFE_NO_PAD.encode(r#"{"sub":"alice","iat":1,"exp":2}"#);
        assert!(matches!(Token::parse(&format!("e30.{user}.c2")), Err(TokenError::Subject(_))));
    }

    /// A cluster may issue any lifetime, and times are calculated from it.
    #[test]
    fn absurd_lifetimes_are_refused() {
        let (begin, end) = (Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
        for (issued, expires) in [(begin, end), (0, end), (begin, 0), (7, 7), (8, 7), (0, 11 * 365 * 86_400)] {
            let parsed = Token::parse(&text("beeline-hosts", "vm-1", issued, expires));
            assert!(matches!(parsed, Err(TokenError::Lifetime { .. })), "{issued} {expires}: {parsed:?}");
        }
        assert!(Token::parse(&text("beeline-hosts", "vm-1", 0, 365 * 86_400)).is_ok());
    }
}
