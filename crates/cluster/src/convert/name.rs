//! Checks names as the API does, and interns names that many objects share.

use beeline_model::{Name, ServiceName};
use std::collections::HashSet;

/// A DNS-1123 label. The API was stricter for Services before (DNS-1035). It matters here only that no name contains a
/// character with a meaning in our own formats.
pub(super) fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_label_of_any_length(text)
}

/// A DNS-1123 subdomain: the names of EndpointSlices, Pods and Nodes.
pub(super) fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label_of_any_length)
}

fn is_label_of_any_length(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty() && !text.starts_with('-') && !text.ends_with('-') && text.bytes().all(inner)
}

/// One shared copy of each name.
#[derive(Default)]
pub(super) struct NameInterner {
    names: HashSet<Name>,
    services: HashSet<ServiceName>,
}

impl NameInterner {
    pub(super) fn intern(&mut self, text: &str) -> Name {
        if let Some(name) = self.names.get(text) {
            return name.clone();
        }
        let name = Name::from(text);
        self.names.insert(name.clone());
        name
    }

    pub(super) fn intern_service(&mut self, cluster: &str, namespace: &str, name: &str) -> ServiceName {
        let service = ServiceName::new(cluster, namespace, name);
        if let Some(known) = self.services.get(&service) {
            return known.clone();
        }
        self.services.insert(service.clone());
        service
    }

    /// `objects` is the current number of objects. Each of them brings at most one Service and a few names of its own.
    pub(super) fn trim(&mut self, objects: usize) {
        const SLACK: usize = 1024;
        if self.services.len() > 2 * objects + SLACK {
            self.services = HashSet::new();
        }
        if self.names.len() > 4 * objects + SLACK {
            self.names = HashSet::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_subdomains_are_checked() {
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
    fn names_are_shared_and_trimmed() {
        let mut names = NameInterner::default();
        assert!(std::sync::Arc::ptr_eq(&names.intern("http"), &names.intern("http")));
        for i in 0..10_000 {
            names.intern(&i.to_string());
            names.intern_service("local", "default", &i.to_string());
        }
        names.trim(10_000);
        assert_eq!((names.services.len(), names.names.len()), (10_000, 10_001));
        names.trim(10);
        assert_eq!((names.services.len(), names.names.len()), (0, 0));
    }
}
