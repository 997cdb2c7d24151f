//! A stream of text to documents. A YAML stream is cut at its `---` lines before anything is parsed, so that a broken
//! document loses only itself and no more than one is held in memory. (A line that starts with `---` separates
//! documents wherever it stands, even inside a quoted or block scalar: YAML forbids it there.)

use std::io::{self, BufRead};

/// Larger than any list that a cluster would be dumped to; a guard, not a target.
const LIMIT: usize = 256 << 20;

pub(crate) struct Document {
    /// From 1; documents without content are not counted.
    pub(crate) number: u32,
    /// How many lines of the file come before it.
    pub(crate) line: u64,
    pub(crate) text: Vec<u8>,
    /// Cut off at the limit: only good for a refusal.
    pub(crate) too_large: bool,
}

pub(crate) struct Documents<R> {
    reader: R,
    number: u32,
    line: u64,
    /// A `---` line read ahead: it belongs to the next document, since content may follow on it.
    ahead: Vec<u8>,
    limit: usize,
}

impl<R: BufRead> Documents<R> {
    pub(crate) fn new(reader: R) -> Documents<R> {
        Documents { reader, number: 0, line: 0, ahead: Vec::new(), limit: LIMIT }
    }

    /// The next document that says anything.
    fn read(&mut self) -> io::Result<Option<Document>> {
        loop {
            let (document, content, end) = self.read_one()?;
            if content {
                return Ok(Some(document));
            }
            if end {
                return Ok(None);
            }
        }
    }

    fn read_one(&mut self) -> io::Result<(Document, bool, bool)> {
        let start = self.line - u64::from(!self.ahead.is_empty());
        let mut text = std::mem::take(&mut self.ahead);
        let (mut content, mut too_large) = (is_content(text.get(3..).unwrap_or_default()), false);
        let mut line = Vec::new();
        let end = loop {
            line.clear();
            if self.reader.read_until(b'\n', &mut line)? == 0 {
                break true;
            }
            self.line += 1;
            match boundary(&line) {
                Some(Boundary::Start) => {
                    self.ahead = line;
                    break false;
                }
                Some(Boundary::End) => break false,
                // Directives say which YAML version follows; they stand between documents and carry nothing for us.
                None if !content && line.starts_with(b"%") => continue,
                None => content |= is_content(&line),
            }
            too_large |= text.len() + line.len() > self.limit;
            if !too_large {
                text.extend_from_slice(&line);
            }
        };
        self.number += u32::from(content);
        Ok((Document { number: self.number, line: start, text, too_large }, content, end))
    }
}

impl<R: BufRead> Iterator for Documents<R> {
    type Item = io::Result<Document>;

    fn next(&mut self) -> Option<io::Result<Document>> {
        self.read().transpose()
    }
}

enum Boundary {
    Start,
    End,
}

fn boundary(line: &[u8]) -> Option<Boundary> {
    let ends = |rest: &[u8]| rest.first().is_none_or(u8::is_ascii_whitespace);
    // A byte-order mark may stand before the first document.
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    match line {
        [b'-', b'-', b'-', rest @ ..] if ends(rest) => Some(Boundary::Start),
        [b'.', b'.', b'.', rest @ ..] if ends(rest) => Some(Boundary::End),
        _ => None,
    }
}

fn is_content(line: &[u8]) -> bool {
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    line.iter().find(|byte| !byte.is_ascii_whitespace()).is_some_and(|byte| *byte != b'#')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str) -> Vec<(u32, u64, String)> {
        let documents = Documents::new(text.as_bytes()).map(Result::unwrap);
        documents.map(|d| (d.number, d.line, String::from_utf8(d.text).unwrap())).collect()
    }

    #[test]
    fn cuts_at_markers_only() {
        assert_eq!(cut("a: 1\n---\nb: 2\n"), [(1, 0, "a: 1\n".into()), (2, 1, "---\nb: 2\n".into())]);
        assert_eq!(cut("a: |\n  ---\nb: ----\n"), [(1, 0, "a: |\n  ---\nb: ----\n".into())]);
        assert_eq!(
            cut("--- {a: 1}\r\n--- # note\r\nb: 2"),
            [(1, 0, "--- {a: 1}\r\n".into()), (2, 1, "--- # note\r\nb: 2".into())]
        );
    }

    #[test]
    fn documents_without_content_are_not_counted() {
        assert_eq!(cut(""), []);
        assert_eq!(cut("---\n---\n# nothing\n\n---\n"), []);
        assert_eq!(cut("# head\n---\na: 1\n...\n---\n\n"), [(1, 1, "---\na: 1\n".into())]);
        assert_eq!(cut("%YAML 1.2\n---\na: 1\n"), [(1, 1, "---\na: 1\n".into())]);
        assert_eq!(cut("\u{feff}---\na: 1\n").len(), 1);
    }

    #[test]
    fn a_document_beyond_the_limit_is_cut_off_and_the_next_one_is_whole() {
        let text = format!("a: {}\nb: 1\n---\nc: 1\n", "x".repeat(100));
        let mut documents = Documents { limit: 50, ..Documents::new(text.as_bytes()) };
        let first = documents.next().unwrap().unwrap();
        assert!(first.too_large && first.text.len() <= 50);
        let second = documents.next().unwrap().unwrap();
        assert!(!second.too_large && second.number == 2);
    }
}
