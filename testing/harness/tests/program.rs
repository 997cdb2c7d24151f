//! Programs that were not written here, in a namespace and a cgroup.

use std::time::Duration;

use beeline_harness::Lab;

#[test]
fn curl_and_python_speak_to_a_pod() {
    let lab = Lab::new(1).unwrap();
    let server = lab.pod(0).serve(8080).unwrap();
    for url in ["http://10.244.1.2:8080/", "http://[fd00:244::1:2]:8080/x"] {
        let output = lab.node().program("curl").unwrap().args(["-sS", "-m", "5", url, url]).run().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.stdout.lines().filter(|line| line.starts_with("pod-a ")).count(), 2, "{output:?}");
    }
    let script = "import asyncio\n\
        async def main():\n\
        \x20   reader, writer = await asyncio.open_connection('10.244.1.2', 8080)\n\
        \x20   writer.write(b'who\\n'); await writer.drain()\n\
        \x20   print((await reader.readline()).decode(), writer.get_extra_info('peername'))\n\
        asyncio.run(main())\n";
    let output = lab.node().program("python3").unwrap().args(["-"]).input(script).run().unwrap();
    assert!(output.stdout.starts_with("pod-a 10.244.1.2:8080 "), "{output:?}");
    assert!(output.stdout.contains("('10.244.1.2', 8080)"), "{output:?}");
    assert_eq!((server.connections(), server.requests()), (3, 5));
}

#[test]
fn a_program_is_in_its_namespace_and_cgroup() {
    let lab = Lab::new(1).unwrap();
    let pod = lab.pod(0);
    let output = pod.program("cat").unwrap().args(["/proc/self/cgroup"]).run().unwrap();
    let group = output.stdout.lines().find(|line| line.starts_with("0::")).unwrap().to_owned();
    assert!(pod.cgroup.path().ends_with(group.trim_start_matches("0::/")), "{group}");
    let output = pod.program("ip").unwrap().args(["-4", "-o", "addr"]).run().unwrap();
    assert!(output.stdout.contains("10.244.1.2/24"), "{output:?}");
}

#[test]
fn resolv_conf_is_private() {
    let lab = Lab::new(0).unwrap();
    let program = lab.node().program("cat").unwrap().args(["/etc/resolv.conf"]);
    let output = program.resolv_conf("nameserver 10.96.0.10\n").unwrap().run().unwrap();
    assert_eq!(output.stdout, "nameserver 10.96.0.10\n");
    let outside = std::fs::read_to_string("/etc/resolv.conf").unwrap();
    assert!(!outside.contains("10.96.0.10"));
}

#[test]
fn a_program_that_hangs_is_ended() {
    let lab = Lab::new(0).unwrap();
    let hang = || lab.node().program("sh").unwrap().args(["-c", "echo ready; exec sleep 60"]);
    let error = hang().limit(Duration::from_millis(200)).run().unwrap_err();
    assert!(error.to_string().contains("still ran"), "{error}");
    let mut running = hang().spawn().unwrap();
    running.wait_for("ready", Duration::from_secs(5)).unwrap();
    assert_eq!(lab.node().cgroup.procs(), [running.pid()]);
    running.kill().unwrap();
    assert!(lab.node().cgroup.procs().is_empty());
}
