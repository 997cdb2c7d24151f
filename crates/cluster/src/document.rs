//! Splits a YAML stream into documents at its `---` lines, before anything is parsed. So a broken document affects no
//! other document, and only one document is in memory at a time. A line that starts with `---` is always a separator:
//! YAML forbids such a line inside quoted and block scalars.

use std::io::{self, BufRead};

/// The largest document in bytes. It protects the memory and exceeds the dump of any real cluster.
pub(crate) const MAX_DOCUMENT: usize = 256 << 20;

pub(crate) struct Document {
    /// Counted from 1. Documents without content are not counted.
    pub(crate) number: u32,
    /// The number of lines in the file before the document.
    pub(crate) line: u64,
    pub(crate) text: Vec<u8>,
    /// The text is truncated at the limit and must not be parsed.
    pub(crate) is_too_large: bool,
}

pub(crate) struct DocumentReader<R> {
    reader: R,
    number: u32,
    line: u64,
    /// The `---` line that ended the last document. It belongs to the next one, because content may follow on it.
    next_start: Vec<u8>,
    limit: usize,
}

impl<R: BufRead> DocumentReader<R> {
    pub(crate) fn new(reader: R) -> DocumentReader<R> {
        DocumentReader { reader, number: 0, line: 0, next_start: Vec::new(), limit: MAX_DOCUMENT }
    }

    /// Reads the next document that has content.
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
        let start = self.line - u64::from(!self.next_start.is_empty());
        let mut text = std::mem::take(&mut self.next_start);
        let (mut content, mut is_too_large) = (is_content(text.get(3..).unwrap_or_default()), false);
        let mut line = Vec::new();
        let end = loop {
            line.clear();
            if self.reader.read_until(b'\n', &mut line)? == 0 {
                break true;
            }
            self.line += 1;
            match boundary(&line) {
                Some(Boundary::Start) => {
                    self.next_start = line;
                    break false;
                }
                Some(Boundary::End) => break false,
                // Directives between documents, such as the YAML version, are not needed.
                None if !content && line.starts_with(b"%") => continue,
                None => content |= is_content(&line),
            }
            is_too_large |= text.len() + line.len() > self.limit;
            if !is_too_large {
                text.extend_from_slice(&line);
            }
        };
        self.number += u32::from(content);
        Ok((Document { number: self.number, line: start, text, is_too_large }, content, end))
    }
}

impl<R: BufRead> Iterator for DocumentReader<R> {
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
    // A byte order mark may precede the first document.
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

    fn split(text: &str) -> Vec<(u32, u64, String)> {
        let documents = DocumentReader::new(text.as_bytes()).map(Result::unwrap);
        documents.map(|d| (d.number, d.line, String::from_utf8(d.text).unwrap())).collect()
    }

    #[test]
    fn documents_are_separated_at_markers_only() {
        assert_eq!(split("a: 1\n---\nb: 2\n"), [(1, 0, "a: 1\n".into()), (2, 1, "---\nb: 2\n".into())]);
        assert_eq!(split("a: |\n  ---\nb: ----\n"), [(1, 0, "a: |\n  ---\nb: ----\n".into())]);
        assert_eq!(
            split("--- {a: 1}\r\n--- # note\r\nb: 2"),
            [(1, 0, "--- {a: 1}\r\n".into()), (2, 1, "--- # note\r\nb: 2".into())]
        );
    }

    #[test]
    fn documents_without_content_are_not_counted() {
        assert_eq!(split(""), []);
        assert_eq!(split("---\n---\n# nothing\n\n---\n"), []);
        assert_eq!(split("# head\n---\na: 1\n...\n---\n\n"), [(1, 1, "---\na: 1\n".into())]);
        assert_eq!(split("%YAML 1.2\n---\na: 1\n"), [(1, 1, "---\na: 1\n".into())]);
        assert_eq!(split("\u{feff}---\na: 1\n").len(), 1);
    }

    #[test]
    fn a_document_beyond_the_limit_is_truncated_and_the_next_one_is_complete() {
        let text = format!("a: {}\nb: 1\n---\nc: 1\n", "x".repeat(100));
        let mut documents = DocumentReader { limit: 50, ..DocumentReader::new(text.as_bytes()) };
        let first = documents.next().unwrap().unwrap();
        assert!(first.is_too_large && first.text.len() <= 50);
        let second = documents.next().unwrap().unwrap();
        assert!(!second.is_too_large && second.number == 2);
    }
}
