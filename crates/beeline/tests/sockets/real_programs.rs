//! Dials of external programs: curl, Python, dig and getent.

use crate::fixture::{AgentFixture, EndpointSpec, ManifestFile, TIMEOUT};
use beeline_harness::{ProgramOutput, RunningProgram, TestHost, TestNetwork};
use serde_json::json;

fn run(host: &TestHost, program: &str, args: &[&str], input: &str) -> ProgramOutput {
    let output = host.program(program).unwrap().args(args).input(input).run().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    output
}

#[test]
fn curl_and_asyncio_reach_the_service() {
    let network = TestNetwork::new(2).unwrap();
    let web = ManifestFile::service("web", 10)
        .with_external(30080, &["203.0.113.1"], &[])
        .backed_by(&[(network.pod(0), "node-1")]);
    let fixture = AgentFixture::with_manifests(network, &[web], &[]);
    let _server = fixture.network.pod(0).serve(8080).unwrap();
    let asyncio = "import asyncio\n\
        class Ask(asyncio.DatagramProtocol):\n\
        \x20   def connection_made(self, t): t.sendto(b'who')\n\
        \x20   def datagram_received(self, data, at): print('udp', data.decode().split()[0], at[0], at[1]); done.set()\n\
        async def main():\n\
        \x20   global done\n\
        \x20   for host in ('10.96.0.10', 'fd00:96::10'):\n\
        \x20       r, w = await asyncio.open_connection(host, 80)\n\
        \x20       w.write(b'who\\n'); await w.drain()\n\
        \x20       print('tcp', (await r.readline()).decode().split()[0], *w.get_extra_info('peername')[:2])\n\
        \x20       done = asyncio.Event()\n\
        \x20       await asyncio.get_running_loop().create_datagram_endpoint(Ask, remote_addr=(host, 80))\n\
        \x20       await asyncio.wait_for(done.wait(), 5)\n\
        asyncio.run(main())\n";
    for host in [fixture.network.node(), fixture.network.pod(1)] {
        for url in ["http://10.96.0.10/", "http://[fd00:96::10]/", "http://172.31.0.11:30080/", "http://203.0.113.1/"] {
            let output = run(host, "curl", &["-sS", "-m", "5", "-w", "%{remote_ip}\n", url, url], "");
            assert_eq!(
                output.stdout.matches("pod-a 10.244.1.2:8080").count() + output.stdout.matches("pod-a [").count(),
                2
            );
            let address = url.trim_start_matches("http://").trim_end_matches('/').trim_end_matches(":30080");
            let address = address.trim_matches(['[', ']']);
            assert_eq!(
                output.stdout.lines().filter(|l| *l == address).count(),
                2,
                "curl reports the dialled address: {output:?}"
            );
        }
        let output = run(host, "python3", &["-"], asyncio);
        let lines: Vec<&str> = output.stdout.lines().collect();
        let expected = [
            "tcp pod-a 10.96.0.10 80",
            "udp pod-a 10.96.0.10 80",
            "tcp pod-a fd00:96::10 80",
            "udp pod-a fd00:96::10 80",
        ];
        assert_eq!(lines, expected);
    }
}

/// Starts a real DNS server in a pod, with an answer that identifies the pod.
fn unbound(pod: &TestHost, dir: &std::path::Path, answer: &str) -> RunningProgram {
    let path = dir.join(format!("{}.conf", pod.name));
    let text = format!(
        "server:\n interface: {}\n interface: {}\n access-control: 0.0.0.0/0 allow\n access-control: ::/0 allow\n \
         username: \"\"\n chroot: \"\"\n directory: \"{}\"\n pidfile: \"\"\n use-syslog: no\n logfile: \"\"\n \
         verbosity: 1\n do-daemonize: no\n num-threads: 1\n module-config: \"iterator\"\n local-zone: \"test.\" static\n \
         local-data: \"web.test. A {answer}\"\nremote-control:\n control-enable: no\n",
        pod.v4,
        pod.v6,
        dir.display()
    );
    std::fs::write(&path, text).unwrap();
    let path = path.display().to_string();
    let mut server = pod.program("unbound").unwrap().args(["-d", "-c", &path]).spawn().unwrap();
    server.wait_for("start of service", TIMEOUT).unwrap();
    server
}

#[test]
fn dig_and_getent_reach_a_dns_server() {
    let network = TestNetwork::new(3).unwrap();
    let ports = json!({ "ports": [
        { "name": "tcp", "port": 53, "protocol": "TCP" }, { "name": "udp", "port": 53, "protocol": "UDP" },
    ] });
    let dns = |pod: &TestHost| {
        ManifestFile::service("dns", 53).with_spec(ports.clone()).with_endpoints(53, &[EndpointSpec::of(pod, "node-1")])
    };
    let (first, second) = (dns(network.pod(0)), dns(network.pod(1)));
    let fixture = AgentFixture::with_manifests(network, &[first], &[]);
    let dir = tempfile::tempdir().unwrap();
    let _servers = [
        unbound(fixture.network.pod(0), dir.path(), "192.0.2.1"),
        unbound(fixture.network.pod(1), dir.path(), "192.0.2.2"),
    ];
    let ask = |host: &TestHost, answer: &str| {
        for server in ["@10.96.0.53", "@fd00:96::53"] {
            for transport in ["+notcp", "+tcp"] {
                let args = [server, transport, "+time=3", "+tries=1", "web.test", "A"];
                let output = run(host, "dig", &args, "");
                assert!(output.stdout.contains(&format!("\t{answer}\n")), "{args:?}: {output:?}");
                // dig prints the source of the reply, and warns if it is not the server that was asked.
                let server = server.trim_start_matches('@');
                assert!(output.stdout.contains(&format!("SERVER: {server}#53({server})")), "{output:?}");
            }
        }
        for conf in ["nameserver 10.96.0.53\n", "nameserver fd00:96::53\n", "nameserver 10.96.0.53\noptions use-vc\n"] {
            let program = host.program("getent").unwrap().args(["ahostsv4", "web.test"]);
            let output = program.resolv_conf(conf).unwrap().run().unwrap();
            assert!(output.stdout.starts_with(answer), "{conf:?}: {output:?}");
        }
    };
    ask(fixture.network.node(), "192.0.2.1");
    ask(fixture.network.pod(2), "192.0.2.1");
    fixture.apply(&second);
    ask(fixture.network.pod(2), "192.0.2.2");
}
