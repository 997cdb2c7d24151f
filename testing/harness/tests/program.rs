//! External programs in a network namespace and a cgroup.

use std::time::Duration;

use beeline_harness::TestNetwork;

#[test]
fn curl_and_python_reach_a_pod() {
    let network = TestNetwork::new(1).unwrap();
    let server = network.pod(0).serve(8080).unwrap();
    for url in ["http://10.244.1.2:8080/", "http://[fd00:244::1:2]:8080/x"] {
        let output = network.node().program("curl").unwrap().args(["-sS", "-m", "5", url, url]).run().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.stdout.lines().filter(|line| line.starts_with("pod-a ")).count(), 2, "{output:?}");
    }
    let script = "import asyncio\n\
        async def main():\n\
        \x20   reader, writer = await asyncio.open_connection('10.244.1.2', 8080)\n\
        \x20   writer.write(b'who\\n'); await writer.drain()\n\
        \x20   print((await reader.readline()).decode(), writer.get_extra_info('peername'))\n\
        asyncio.run(main())\n";
    let output = network.node().program("python3").unwrap().args(["-"]).input(script).run().unwrap();
    assert!(output.stdout.starts_with("pod-a 10.244.1.2:8080 "), "{output:?}");
    assert!(output.stdout.contains("('10.244.1.2', 8080)"), "{output:?}");
    assert_eq!((server.connections(), server.requests()), (3, 5));
}

#[test]
fn a_program_runs_in_its_namespace_and_cgroup() {
    let network = TestNetwork::new(1).unwrap();
    let pod = network.pod(0);
    let output = pod.program("cat").unwrap().args(["/proc/self/cgroup"]).run().unwrap();
    let group = output.stdout.lines().find(|line| line.starts_with("0::")).unwrap().to_owned();
    assert!(pod.cgroup.path().ends_with(group.trim_start_matches("0::/")), "{group}");
    let output = pod.program("ip").unwrap().args(["-4", "-o", "addr"]).run().unwrap();
    assert!(output.stdout.contains("10.244.1.2/24"), "{output:?}");
}

#[test]
fn a_program_can_have_its_own_resolv_conf() {
    let network = TestNetwork::new(0).unwrap();
    let program = network.node().program("cat").unwrap().args(["/etc/resolv.conf"]);
    let output = program.resolv_conf("nameserver 10.96.0.10\n").unwrap().run().unwrap();
    assert_eq!(output.stdout, "nameserver 10.96.0.10\n");
    let outside = std::fs::read_to_string("/etc/resolv.conf").unwrap();
    assert!(!outside.contains("10.96.0.10"));
}

#[test]
fn a_program_that_hangs_is_killed() {
    let network = TestNetwork::new(0).unwrap();
    let hang = || network.node().program("sh").unwrap().args(["-c", "echo ready; exec sleep 60"]);
    let error = hang().limit(Duration::from_millis(200)).run().unwrap_err();
    assert!(error.to_string().contains("did not end within"), "{error}");
    let mut running = hang().spawn().unwrap();
    running.wait_for("ready", Duration::from_secs(5)).unwrap();
    assert_eq!(network.node().cgroup.procs(), [running.pid()]);
    running.kill().unwrap();
    assert!(network.node().cgroup.procs().is_empty());
}
