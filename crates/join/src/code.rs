//! The code that an administrator hands to a host: all that it needs to become known to the cluster, as one word.
//!
//! Nine bytes (version, length, checksum) and then JSON, in URL-safe base64. Nine bytes are exactly twelve characters, so
//! what was lost from a paste can be told before anything else is read. Who the host is and until when the code holds
//! stands in the token itself and nowhere else: two places could contradict each other.
//!
//! That token is short-lived: a code passes through terminals and chats. `join` takes it once, to ask for the host's own
//! token, which never leaves the host.

use crate::token::{Token, TokenError};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use std::time::Duration;

const VERSION: u8 = 1;
/// Version, length, checksum.
const HEAD: usize = 9;
const HEAD_TEXT: usize = 12;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// What the administrator calls the cluster.
    pub cluster: String,
    /// The UID of the namespace `kube-system`: what a cluster is known by.
    pub uid: String,
    /// URLs of its API servers, tried in turn.
    pub servers: Vec<String>,
    /// The name that the servers' certificates are for, where it is not the URL's.
    pub server_name: Option<String>,
    /// Who signed the servers' certificates (DER); none: an authority that every host knows.
    pub authorities: Vec<Vec<u8>>,
    /// Good for asking for the host's own.
    pub token: Token,
    /// How long the host's own tokens hold, each.
    pub lifetime: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum CodeError {
    #[error("the code is empty: paste what `beeline grant HOST` printed after `beeline join`")]
    Empty,
    #[error("the code has the character {0:?} at place {1}, which no code has: was something else pasted with it?")]
    Character(char, usize),
    #[error("the code is cut off, {0} of {1} characters are here: copy the whole line that `beeline grant` printed")]
    Cut(usize, usize),
    #[error("the code is cut off after {0} characters: copy the whole line that `beeline grant` printed")]
    Short(usize),
    #[error("the code has {0} characters more than it should: copy only the line that `beeline grant` printed")]
    Long(usize),
    #[error(
        "the code is of version {0}, and this beeline reads version {VERSION}: use one version of beeline on both sides"
    )]
    Version(u8),
    #[error("the code was altered on its way (its checksum is wrong): copy it again, or run `beeline grant` again")]
    Altered,
    #[error("the code cannot be read ({0}): run `beeline grant` again, with the version of beeline that this host has")]
    Content(String),
    #[error("the code's token: {0}")]
    Token(#[from] TokenError),
}

/// As it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
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

impl Code {
    pub fn encode(&self) -> String {
        let wire = Wire {
            cluster: self.cluster.clone(),
            uid: self.uid.clone(),
            servers: self.servers.clone(),
            name: self.server_name.clone(),
            ca: self.authorities.iter().map(|der| STANDARD.encode(der)).collect(),
            token: self.token.text().to_owned(),
            lifetime: self.lifetime.as_secs(),
        };
        frame(VERSION, &serde_json::to_vec(&wire).unwrap_or_default())
    }

    pub fn decode(text: &str) -> Result<Code, CodeError> {
        let bytes = unframe(&tidy(text)?)?;
        let wire: Wire = serde_json::from_slice(&bytes).map_err(|e| CodeError::Content(e.to_string()))?;
        if wire.servers.is_empty() {
            return Err(CodeError::Content("it names no API server".into()));
        }
        let der = |text: &String| STANDARD.decode(text).map_err(|e| CodeError::Content(format!("its authority: {e}")));
        Ok(Code {
            cluster: wire.cluster,
            uid: wire.uid,
            servers: wire.servers,
            server_name: wire.name,
            authorities: wire.ca.iter().map(der).collect::<Result<_, _>>()?,
            token: Token::parse(&wire.token)?,
            lifetime: Duration::from_secs(wire.lifetime),
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

/// Without what a paste brings along: blanks, line ends of a terminal that wraps, and the words before the code.
fn tidy(text: &str) -> Result<String, CodeError> {
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let text = text.strip_prefix("beelinejoin").unwrap_or(&text).to_owned();
    let strange = |c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_');
    match text.char_indices().find(|(_, c)| strange(*c)) {
        _ if text.is_empty() => Err(CodeError::Empty),
        Some((at, c)) => Err(CodeError::Character(c, at + 1)),
        None => Ok(text),
    }
}

fn unframe(text: &str) -> Result<Vec<u8>, CodeError> {
    let head = text.get(..HEAD_TEXT).ok_or(CodeError::Short(text.len()))?;
    let head = URL_SAFE_NO_PAD.decode(head).map_err(|_| CodeError::Altered)?;
    let number = |at: usize| head[at..at + 4].iter().fold(0, |all, byte| all << 8 | u32::from(*byte));
    if head[0] != VERSION {
        return Err(CodeError::Version(head[0]));
    }
    let wanted = ((HEAD + number(1) as usize) * 4).div_ceil(3);
    match text.len() {
        have if have < wanted => return Err(CodeError::Cut(have, wanted)),
        have if have > wanted => return Err(CodeError::Long(have - wanted)),
        _ => {}
    }
    let content = URL_SAFE_NO_PAD.decode(text).map_err(|_| CodeError::Altered)?.split_off(HEAD);
    if checksum(&content) == number(5) { Ok(content) } else { Err(CodeError::Altered) }
}

/// CRC-32: finds what a hand or a terminal does to a text. Who alters it on purpose is stopped by the API server.
fn checksum(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |s, _| s >> 1 ^ (0xEDB8_8320 & 0u32.wrapping_sub(s & 1)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::tests::token;

    fn code() -> Code {
        Code {
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
    fn says_again_what_was_said() {
        let text = code().encode();
        assert_eq!(Code::decode(&text).unwrap(), code());
        let wrapped = format!("beeline join {}\n  {}\r\n", &text[..60], &text[60..]);
        assert_eq!(Code::decode(&wrapped).unwrap(), code(), "as a terminal wraps it");
    }

    #[test]
    fn the_checksum_is_the_well_known_one() {
        assert_eq!(checksum(b"123456789"), 0xCBF4_3926);
    }

    #[test]
    fn every_cut_is_called_a_cut() {
        let text = code().encode();
        for end in 1..text.len() {
            let error = Code::decode(&text[..end]).unwrap_err();
            assert!(matches!(error, CodeError::Cut(..) | CodeError::Short(_)), "{end}: {error}");
        }
        assert!(matches!(Code::decode(&format!("{text}AA")), Err(CodeError::Long(2))));
        assert!(matches!(Code::decode(" \n"), Err(CodeError::Empty)));
    }

    #[test]
    fn every_altered_character_is_found() {
        let text = code().encode();
        for at in 0..text.len() {
            let other = if text.as_bytes()[at] == b'A' { "B" } else { "A" };
            let mut altered = text.clone();
            altered.replace_range(at..=at, other);
            let decoded = Code::decode(&altered);
            // The last character has bits that carry nothing.
            assert!(decoded.is_err() || (at + 1 == text.len() && decoded.unwrap() == code()), "{at}");
        }
        let error = Code::decode(&text.replacen(&text[20..21], "%", 1)).unwrap_err();
        assert!(matches!(error, CodeError::Character('%', _)), "{error}");
    }

    #[test]
    fn another_version_is_named() {
        let error = Code::decode(&frame(9, b"{}")).unwrap_err().to_string();
        assert!(error.contains("version 9") && error.contains("version 1"), "{error}");
        let error = Code::decode(&frame(VERSION, b"{\"cluster\": 1}")).unwrap_err();
        assert!(matches!(error, CodeError::Content(_)), "{error}");
    }
}
