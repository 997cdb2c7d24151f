//! Runs the Python programs of `programs/`: socket calls that the harness has no request for.

use crate::fixture::TIMEOUT;
use beeline_harness::{RunningProgram, TestHost, TestProgram};
use serde_json::Value;
use std::net::SocketAddr;

/// The address as the programs expect it: `["10.96.0.10", 80]`.
pub fn pair(address: SocketAddr) -> Value {
    serde_json::json!([address.ip().to_string(), address.port()])
}

/// Starts a program with these arguments in the context of `program`.
pub fn start(program: TestProgram, script: &str, args: &Value) -> RunningProgram {
    let input = format!("{}\n{script}", include_str!("programs/calls.py"));
    program.args(["-", &args.to_string()]).input(input).spawn().unwrap()
}

/// Waits for the end of the program and returns the last line of its output, which is JSON.
pub fn result(program: RunningProgram) -> Value {
    let output = program.finish(TIMEOUT).unwrap();
    assert!(output.status.success(), "{output:?}");
    let line = output.stdout.lines().last().unwrap_or_default();
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

pub fn run(host: &TestHost, script: &str, args: &Value) -> Value {
    result(start(host.program("python3").unwrap(), script, args))
}
