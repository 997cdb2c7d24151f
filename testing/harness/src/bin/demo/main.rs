//! Demo: real servers in network namespaces, an agent with the manifests of `examples/manifests`, connections to every
//! kind of Service address, a killed backend, and one table of the results. Everything that the demo creates is removed
//! at its end, also after Ctrl-C or a failure.

mod cleanup;
mod scenario;
mod table;

use std::{process::ExitCode, time::Instant};

use anyhow::{Result, ensure};
use beeline_harness::{ExampleCluster, TestHost, interrupt};

use crate::table::ResultTable;

fn main() -> ExitCode {
    interrupt::install_handler();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) if interrupt::was_interrupted() => {
            eprintln!("\ndemo: interrupted; everything that it created has been removed");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let start = Instant::now();
    beeline_harness::check_requirements()?;
    progress("creating two nodes and four pods in network namespaces, and starting the agent on node-1");
    let mut example = ExampleCluster::build()?;
    let mut table = ResultTable::default();
    progress("connecting from pod-c to every kind of Service address, 60 times each");
    scenario::dial_every_address(&example, &mut table)?;
    progress("killing a backend and connecting again");
    scenario::kill_a_backend(&mut example, &mut table)?;
    println!();
    scenario::run_command(&example, &["explain", "10.96.0.10:80/TCP"])?;
    let topology = topology(&example);
    progress("stopping the agent and removing everything");
    cleanup::remove_all(example)?;
    println!("\n{topology}\n{table}");
    let (rows, failures) = (table.rows(), table.failures());
    ensure!(failures == 0, "{failures} of {rows} rows are not as expected, see above");
    println!(
        "{rows} of {rows} rows are as expected, in {:.1} s. Nothing is left behind.",
        start.elapsed().as_secs_f64()
    );
    println!("Next: `make cluster` starts a Kubernetes cluster on this machine with Beeline on every node.");
    Ok(())
}

fn progress(text: &str) {
    println!("demo: {text} ...");
}

/// Nodes and pods of the example, with their roles.
fn topology(example: &ExampleCluster) -> String {
    let label = |host: &TestHost| format!("{} {:<11}", host.name, host.v4);
    let pod = |number: usize| label(example.network.pod(number));
    let [first, second] = [0, 1].map(|number: usize| label(&example.network.nodes[number].host));
    format!(
        "  {first} ──┬── {}  server\n    (Beeline's agent)  ├── {}  server\n                       └── {}  client\n  \
         {second} ───── {}  server\n",
        pod(0),
        pod(1),
        pod(2),
        pod(3)
    )
}
