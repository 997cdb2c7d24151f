//! The name of a host. The host's ServiceAccount has this name, so the name must be valid for a Kubernetes object.

use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(String);

#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is not a valid host name: use at most 200 lowercase letters, digits, '-' and '.', with a letter or digit at both ends{hint}",
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

    /// Turns any text into a single valid label, such as a cluster's name. `None` if no valid character is left.
    pub fn sanitize(text: &str) -> Option<String> {
        let valid = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let text: String = text.chars().map(valid).take(63).collect();
        let text = text.trim_matches('-').to_owned();
        (!text.is_empty()).then_some(text)
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// 200 characters leave room for the prefix in the name of the host's ClusterRoleBinding.
fn is_name(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let is_label = |label: &str| edge(label.chars().next()) && edge(label.chars().last());
    let is_valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    text.len() <= 200 && text.chars().all(is_valid) && text.split('.').all(is_label)
}

fn suggestion(text: &str) -> String {
    let lower: String = text.to_ascii_lowercase().replace('_', "-").trim_matches(['-', '.']).into();
    if is_name(&lower) { format!("; for example {lower}") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_valid_object_names() {
        for good in ["a", "vm-1", "vm-1.example.net", "7"] {
            assert!(HostName::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "a..b", "a.-b", "A", "a_b", "a/b", "a b", "ä", &"a".repeat(201)] {
            assert!(HostName::parse(bad).is_err(), "{bad}");
        }
        assert!(HostName::parse("My_VM").unwrap_err().to_string().ends_with("for example my-vm"));
        assert_eq!(HostName::sanitize("admin@Shop.EU/1").as_deref(), Some("admin-shop-eu-1"));
        assert_eq!(HostName::sanitize("@@"), None);
    }
}
