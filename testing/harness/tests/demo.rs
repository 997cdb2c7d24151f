//! `make demo` for a newcomer: it succeeds, and everything that it prints fits 100 columns.

use std::process::Command;

#[test]
fn the_demo_succeeds_and_fits_100_columns() {
    let output = Command::new(env!("CARGO_BIN_EXE_demo")).output().unwrap();
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{error}");
    let table = text.split("CONNECT TO").nth(1).expect("a table of results");
    assert!(table.contains("ClusterIP") && table.contains("rows are as expected"), "{text}");
    let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > 100).collect();
    assert!(wide.is_empty(), "wider than 100 columns: {wide:#?}");
}
