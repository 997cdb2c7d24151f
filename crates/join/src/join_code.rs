//! The join code that `beeline grant` prints and `beeline join` reads: everything a host needs to join the cluster, as one
//! word.
//!
//! Format: nine bytes (version, length, checksum), then JSON, all in URL-safe base64. Nine bytes are exactly twelve
//! characters, so a truncated paste is detected before anything else is decoded. The host's name and the expiry of the
//! code are only in the token, so that they cannot contradict it.
//!
//! The token is short-lived, because a code passes through terminals and chats. `join` uses it once, to request the host's
//! own token, which never leaves the host.

use crate::token::{Token, TokenError};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use std::time::Duration;

const VERSION: u8 = 1;
/// Bytes of version, length and checksum.
const HEADER_BYTES: usize = 9;
/// Characters of the header in base64.
const HEADER_CHARS: usize = 12;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinCode {
    /// The cluster's name in the administrator's kubeconfig.
    pub cluster: String,
    /// The UID of the namespace `kube-system`, which identifies the cluster.
    pub uid: String,
    /// URLs of the API servers, tried in this order.
    pub servers: Vec<String>,
    /// The name in the servers' certificates, if it differs from the host in the URL.
    pub server_name: Option<String>,
    /// The CA certificates of the servers, in DER. Empty means the system's CA certificates.
    pub authorities: Vec<Vec<u8>>,
    /// Short-lived token, used once to request the host's own token.
    pub token: Token,
    /// Lifetime of each of the host's own tokens.
    pub lifetime: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum JoinCodeError {
    #[error("the code is empty: paste what `beeline grant HOST` printed after `beeline join`")]
    Empty,
    #[error(
        "the code contains the character {0:?} at position {1}, which is not valid: check what else was pasted with it"
    )]
    Character(char, usize),
    #[error("the code is cut off, with {0} of {1} characters: copy the whole line that `beeline grant` printed")]
    Truncated(usize, usize),
    #[error("the code is cut off after {0} characters: copy the whole line that `beeline grant` printed")]
    TruncatedHeader(usize),
    #[error("the code has {0} characters too many: copy only the line that `beeline grant` printed")]
    TooLong(usize),
    #[error(
        "the code is of version {0}, but this beeline reads version {VERSION}: use the same version of beeline on both sides"
    )]
    Version(u8),
    #[error("the code was altered (wrong checksum): copy it again, or run `beeline grant` again")]
    Altered,
    #[error("the code cannot be read ({0}): run `beeline grant` again with the beeline version of this host")]
    Content(String),
    #[error("the token in the code is not usable: {0}; run `beeline grant` again")]
    Token(#[from] TokenError),
}

/// The JSON part of the code.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonContent {
    cluster: String,
    uid: String,
    servers: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ca: Vec<String>,
    token: String,
    lifetime: u64,
}

impl JoinCode {
    pub fn encode(&self) -> String {
        let content = JsonContent {
            cluster: self.cluster.clone(),
            uid: self.uid.clone(),
            servers: self.servers.clone(),
            name: self.server_name.clone(),
            ca: self.authorities.iter().map(|der| STANDARD.encode(der)).collect(),
            token: self.token.text().to_owned(),
            lifetime: self.lifetime.as_secs(),
        };
        frame(VERSION, &serde_json::to_vec(&content).unwrap_or_default())
    }

    pub fn decode(text: &str) -> Result<JoinCode, JoinCodeError> {
        let bytes = unframe(&strip_paste(text)?)?;
        let content: JsonContent = serde_json::from_slice(&bytes).map_err(|e| JoinCodeError::Content(e.to_string()))?;
        if content.servers.is_empty() {
            return Err(JoinCodeError::Content("it contains no API server".into()));
        }
        let der = |text: &String| {
            STANDARD.decode(text).map_err(|e| JoinCodeError::Content(format!("its CA certificate: {e}")))
        };
        Ok(JoinCode {
            cluster: content.cluster,
            uid: content.uid,
            servers: content.servers,
            server_name: content.name,
            authorities: content.ca.iter().map(der).collect::<Result<_, _>>()?,
            token: Token::parse(&content.token)?,
            lifetime: Duration::from_secs(content.lifetime),
        })
    }
}

fn frame(version: u8, content: &[u8]) -> String {
    let mut bytes = vec![version];
    bytes.extend(u32::try_from(content.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend(checksum(content).to_be_bytes());
    bytes.extend(content);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Removes what a paste adds: blanks, the line ends of a terminal that wraps, and the words `beeline join`.
fn strip_paste(text: &str) -> Result<String, JoinCodeError> {
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let text = text.strip_prefix("beelinejoin").unwrap_or(&text).to_owned();
    let is_invalid = |c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_');
    match text.char_indices().find(|(_, c)| is_invalid(*c)) {
        _ if text.is_empty() => Err(JoinCodeError::Empty),
        Some((at, c)) => Err(JoinCodeError::Character(c, at + 1)),
        None => Ok(text),
    }
}

fn unframe(text: &str) -> Result<Vec<u8>, JoinCodeError> {
    let header = text.get(..HEADER_CHARS).ok_or(JoinCodeError::TruncatedHeader(text.len()))?;
    let header = URL_SAFE_NO_PAD.decode(header).map_err(|_| JoinCodeError::Altered)?;
    let number = |at: usize| header[at..at + 4].iter().fold(0, |all, byte| all << 8 | u32::from(*byte));
    if header[0] != VERSION {
        return Err(JoinCodeError::Version(header[0]));
    }
    let expected = ((HEADER_BYTES + number(1) as usize) * 4).div_ceil(3);
    match text.len() {
        have if have < expected => return Err(JoinCodeError::Truncated(have, expected)),
        have if have > expected => return Err(JoinCodeError::TooLong(have - expected)),
        _ => {}
    }
    let content = URL_SAFE_NO_PAD.decode(text).map_err(|_| JoinCodeError::Altered)?.split_off(HEADER_BYTES);
    if checksum(&content) == number(5) { Ok(content) } else { Err(JoinCodeError::Altered) }
}

/// CRC-32. It detects accidental changes; against deliberate ones the API server verifies the token.
fn checksum(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |s, _| s >> 1 ^ (0xEDB8_8320 & 0u32.wrapping_sub(s & 1)))
    })
}

/// A check for tests and the fuzzer: any text is decoded or refused without a panic, and a code that is decoded is encoded to
/// an equal one. The input is used as a code, and as the content of a code with a correct header. Returns whether it was
/// decoded.
#[doc(hidden)]
pub fn check_join_code(input: &[u8]) -> bool {
    let decoded =
        JoinCode::decode(&String::from_utf8_lossy(input)).or_else(|_| JoinCode::decode(&frame(VERSION, input)));
    let Ok(code) = decoded else { return false };
    assert!(!code.servers.is_empty());
    assert_eq!(JoinCode::decode(&code.encode()).ok().as_ref(), Some(&code));
    let (first, last) = (code.token.time_at(0.0), code.token.time_at(1.0));
    assert!(first == code.token.issued && last <= code.token.expires, "{first} {last}");
    assert!(!code.token.is_expired(first));
    crate::admin_command("revoke", &code.token);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::tests::token;

    fn code() -> JoinCode {
        JoinCode {
            cluster: "shop".into(),
            uid: "4b7c".into(),
            servers: vec!["https://192.0.2.1:6443".into(), "https://[2001:db8::1]:6443".into()],
            server_name: None,
            authorities: vec![vec![0x30, 0x82, 1, 2, 3]],
            token: token("beeline-hosts", "vm-1", 1_000, 4_600),
            lifetime: Duration::from_secs(86_400),
        }
    }

    #[test]
    fn decode_returns_what_was_encoded() {
        let text = code().encode();
        assert_eq!(JoinCode::decode(&text).unwrap(), code());
        let wrapped = format!("beeline join {}\n  {}\r\n", &text[..60], &text[60..]);
        assert_eq!(JoinCode::decode(&wrapped).unwrap(), code(), "wrapped by a terminal");
    }

    #[test]
    fn the_checksum_is_crc_32() {
        assert_eq!(checksum(b"123456789"), 0xCBF4_3926);
    }

    #[test]
    fn every_truncated_code_is_reported_as_truncated() {
        let text = code().encode();
        for end in 1..text.len() {
            let error = JoinCode::decode(&text[..end]).unwrap_err();
            assert!(
                matches!(error, JoinCodeError::Truncated(..) | JoinCodeError::TruncatedHeader(_)),
                "{end}: {error}"
            );
        }
        assert!(matches!(JoinCode::decode(&format!("{text}AA")), Err(JoinCodeError::TooLong(2))));
        assert!(matches!(JoinCode::decode(" \n"), Err(JoinCodeError::Empty)));
    }

    #[test]
    fn every_altered_character_is_detected() {
        let text = code().encode();
        for at in 0..text.len() {
            let other = if text.as_bytes()[at] == b'A' { "B" } else { "A" };
            let mut altered = text.clone();
            altered.replace_range(at..=at, other);
            let decoded = JoinCode::decode(&altered);
            // The last character has unused bits.
            assert!(decoded.is_err() || (at + 1 == text.len() && decoded.unwrap() == code()), "{at}");
        }
        let error = JoinCode::decode(&text.replacen(&text[20..21], "%", 1)).unwrap_err();
        assert!(matches!(error, JoinCodeError::Character('%', _)), "{error}");
    }

    #[test]
    fn another_version_is_reported() {
        let error = JoinCode::decode(&frame(9, b"{}")).unwrap_err().to_string();
        assert!(error.contains("version 9") && error.contains("version 1"), "{error}");
        let error = JoinCode::decode(&frame(VERSION, b"{\"cluster\": 1}")).unwrap_err();
        assert!(matches!(error, JoinCodeError::Content(_)), "{error}");
    }
}
