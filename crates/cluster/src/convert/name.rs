//! Names that the API accepts, and one copy of each word that many facts share.

use beeline_model::{Name, OwnerName};
use std::collections::HashSet;

/// A DNS-1123 label. The API is stricter for Services of old (DNS-1035); what matters here is that no name holds a
/// character that means something in our own texts.
pub(super) fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_word(text)
}

/// A DNS-1123 subdomain: EndpointSlices and Nodes.
pub(super) fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_word)
}

fn is_word(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty() && !text.starts_with('-') && !text.ends_with('-') && text.bytes().all(inner)
}

#[derive(Default)]
pub(super) struct Names {
    words: HashSet<Name>,
    services: HashSet<OwnerName>,
}

impl Names {
    pub(super) fn word(&mut self, text: &str) -> Name {
        if let Some(word) = self.words.get(text) {
            return word.clone();
        }
        let word = Name::from(text);
        self.words.insert(word.clone());
        word
    }

    pub(super) fn service(&mut self, cluster: &str, namespace: &str, name: &str) -> OwnerName {
        let service = OwnerName::new(cluster, namespace, name);
        if let Some(known) = self.services.get(&service) {
            return known.clone();
        }
        self.services.insert(service.clone());
        service
    }

    /// `objects`: how many there are now. Each brings at most a service and a few words of its own.
    pub(super) fn trim(&mut self, objects: usize) {
        const SLACK: usize = 1024;
        if self.services.len() > 2 * objects + SLACK {
            self.services = HashSet::new();
        }
        if self.words.len() > 4 * objects + SLACK {
            self.words = HashSet::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_subdomains() {
        for good in ["a", "web-1", "0", &"a".repeat(63)] {
            assert!(is_label(good) && is_subdomain(good), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a_b", "a/b", "a b", "ä", &"a".repeat(64)] {
            assert!(!is_label(bad), "{bad}");
        }
        assert!(is_subdomain("ip-10-0-0-1.eu.compute.internal") && !is_label("a.b"));
        assert!(!is_subdomain("a..b") && !is_subdomain(&"a.".repeat(127)));
    }

    #[test]
    fn words_are_shared_and_forgotten() {
        let mut names = Names::default();
        assert!(std::sync::Arc::ptr_eq(&names.word("http"), &names.word("http")));
        for i in 0..10_000 {
            names.word(&i.to_string());
            names.service("local", "default", &i.to_string());
        }
        names.trim(10_000);
        assert_eq!((names.services.len(), names.words.len()), (10_000, 10_001));
        names.trim(10);
        assert_eq!((names.services.len(), names.words.len()), (0, 0));
    }
}
