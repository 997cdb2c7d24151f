//! What a host may be called: its account is an object of the cluster with this name.

use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(String);

#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} cannot be the name of a host: small letters, digits, '-' and '.', beginning and ending with a letter or digit, at most 200{hint}",
    hint = suggestion(.0)
)]
pub struct HostNameError(String);

impl HostName {
    pub fn parse(text: &str) -> Result<HostName, HostNameError> {
        if is_name(text) { Ok(HostName(text.to_owned())) } else { Err(HostNameError(text.to_owned())) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The same for what may only be one word, such as a cluster's name; `None` if nothing is left of it.
    pub fn tidy(text: &str) -> Option<String> {
        let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let text: String = text.chars().map(letter).take(63).collect();
        let text = text.trim_matches('-').to_owned();
        (!text.is_empty()).then_some(text)
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Room is left for what is put before it in the name of its binding.
fn is_name(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let word = |word: &str| edge(word.chars().next()) && edge(word.chars().last());
    let letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    text.len() <= 200 && text.chars().all(letter) && text.split('.').all(word)
}

fn suggestion(text: &str) -> String {
    let lower: String = text.to_ascii_lowercase().replace('_', "-").trim_matches(['-', '.']).into();
    if is_name(&lower) { format!("; such as {lower}") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_objects() {
        for good in ["a", "vm-1", "vm-1.example.net", "7"] {
            assert!(HostName::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "a..b", "a.-b", "A", "a_b", "a/b", "a b", "ä", &"a".repeat(201)] {
            assert!(HostName::parse(bad).is_err(), "{bad}");
        }
        assert!(HostName::parse("My_VM").unwrap_err().to_string().ends_with("such as my-vm"));
        assert_eq!(HostName::tidy("admin@Shop.EU/1").as_deref(), Some("admin-shop-eu-1"));
        assert_eq!(HostName::tidy("@@"), None);
    }
}
