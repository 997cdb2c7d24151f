//! Tells news from repetition. A watch of the edge cache begins with all that its database has, which may be older than
//! the list that was just taken from the cloud: also what that list no longer names. A list of the database itself lacks
//! what never came by as an event, and has old versions of what changed while nobody watched: it can only add.

use std::collections::{HashMap, HashSet};

#[derive(Default)]
pub(crate) struct Sieve {
    /// By key: the version that was taken in.
    known: HashMap<Box<str>, Option<u64>>,
    /// Of the last list that came from the cloud, and so named everything up to it.
    complete: Option<u64>,
}

impl Sieve {
    /// A list of the cloud has been read; gives what it does not name any more. What it names has gone through `is_other`.
    pub(crate) fn list(&mut self, named: &HashSet<Box<str>>, version: Option<u64>) -> Vec<Box<str>> {
        self.complete = version;
        let gone: Vec<Box<str>> = self.known.keys().filter(|key| !named.contains(*key)).cloned().collect();
        for key in &gone {
            self.known.remove(key);
        }
        gone
    }

    /// Of a list of the cloud: other than what was taken in. It counts even where it is older: a cloud may be restored.
    pub(crate) fn is_other(&mut self, key: &str, version: Option<u64>) -> bool {
        let before = self.known.insert(key.into(), version);
        version.is_none() || before != Some(version)
    }

    /// Of a watch, or of a list of the database: newer than what was taken in.
    pub(crate) fn is_news(&mut self, key: &str, version: Option<u64>) -> bool {
        let news = match (self.known.get(key), version) {
            (_, None) | (Some(None), _) => true,
            (Some(Some(before)), Some(now)) => now > *before,
            // The list did not name it, though it is older: it was deleted in the cloud.
            (None, Some(now)) => self.complete.is_none_or(|complete| now > complete),
        };
        if news {
            self.known.insert(key.into(), version);
        }
        news
    }

    pub(crate) fn forget(&mut self, key: &str) {
        self.known.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(sieve: &mut Sieve, objects: &[(&str, u64)], version: u64) -> (Vec<String>, Vec<String>) {
        let other = objects.iter().filter(|(key, version)| sieve.is_other(key, Some(*version)));
        let other: Vec<String> = other.map(|(key, _)| (*key).to_owned()).collect();
        let named = objects.iter().map(|(key, _)| (*key).into()).collect();
        let mut gone: Vec<String> = sieve.list(&named, Some(version)).iter().map(ToString::to_string).collect();
        gone.sort();
        (other, gone)
    }

    #[test]
    fn a_repetition_is_no_news_and_what_was_deleted_does_not_rise() {
        let mut sieve = Sieve::default();
        assert_eq!(list(&mut sieve, &[("a", 5), ("b", 7)], 9).0, ["a", "b"]);
        assert!(!sieve.is_news("a", Some(5)) && !sieve.is_news("b", Some(6)), "the database's word is no newer");
        assert!(!sieve.is_news("deleted", Some(8)), "the cloud's list did not name it");
        assert!(sieve.is_news("b", Some(10)) && sieve.is_news("new", Some(11)));
        assert!(!sieve.is_news("b", Some(10)));
        assert_eq!(list(&mut sieve, &[("a", 5), ("new", 12)], 12), (vec!["new".into()], vec!["b".into()]));
    }

    #[test]
    fn what_the_database_names_is_news_only_while_the_cloud_has_said_nothing_newer() {
        let mut sieve = Sieve::default();
        assert!(sieve.is_news("a", Some(5)) && sieve.is_news("late", Some(8)) && !sieve.is_news("a", Some(5)));
        list(&mut sieve, &[("a", 5), ("b", 12)], 20);
        assert!(!sieve.is_news("b", Some(7)), "the database was not told of the last change");
        assert!(!sieve.is_news("deleted", Some(15)), "nor of this one's end");
    }

    #[test]
    fn what_is_forgotten_may_come_again_and_a_list_counts_even_if_it_is_older() {
        let mut sieve = Sieve::default();
        list(&mut sieve, &[("a", 50)], 60);
        sieve.forget("a");
        assert!(sieve.is_news("a", Some(61)));
        assert_eq!(list(&mut sieve, &[("a", 3)], 4).0, ["a"], "a cluster that was restored");
        assert!(sieve.is_news("b", Some(5)));
    }

    #[test]
    fn without_a_version_everything_is_news() {
        let mut sieve = Sieve::default();
        assert!(sieve.is_news("a", None) && sieve.is_news("a", None) && sieve.is_news("a", Some(1)));
    }
}
