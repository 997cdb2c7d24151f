//! Programs that were not written here.

use crate::ground::{Endpoint, Ground, Object, PATIENCE};
use beeline_harness::{Lab, Output, Place, Running};
use serde_json::json;

fn run(place: &Place, program: &str, args: &[&str], input: &str) -> Output {
    let output = place.program(program).unwrap().args(args).input(input).run().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    output
}

#[test]
fn curl_and_asyncio() {
    let lab = Lab::new(2).unwrap();
    let web = Object::service("web", 10).external(30080, &["203.0.113.1"], &[]).at(&[(lab.pod(0), "node-1")]);
    let ground = Ground::on(lab, &[web], &[]);
    let _server = ground.lab.pod(0).serve(8080).unwrap();
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
    for place in [ground.lab.node(), ground.lab.pod(1)] {
        for url in ["http://10.96.0.10/", "http://[fd00:96::10]/", "http://172.31.0.11:30080/", "http://203.0.113.1/"] {
            let output = run(place, "curl", &["-sS", "-m", "5", "-w", "%{remote_ip}\n", url, url], "");
            assert_eq!(
                output.stdout.matches("pod-a 10.244.1.2:8080").count() + output.stdout.matches("pod-a [").count(),
                2
            );
            let host = url.trim_start_matches("http://").trim_end_matches('/').trim_end_matches(":30080");
            let host = host.trim_matches(['[', ']']);
            assert_eq!(
                output.stdout.lines().filter(|l| *l == host).count(),
                2,
                "curl is shown whom it dialled: {output:?}"
            );
        }
        let output = run(place, "python3", &["-"], asyncio);
        let said: Vec<&str> = output.stdout.lines().collect();
        let expected = [
            "tcp pod-a 10.96.0.10 80",
            "udp pod-a 10.96.0.10 80",
            "tcp pod-a fd00:96::10 80",
            "udp pod-a fd00:96::10 80",
        ];
        assert_eq!(said, expected);
    }
}

/// A real DNS server, with an address that says which pod it is.
fn unbound(pod: &Place, dir: &std::path::Path, answer: &str) -> Running {
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
    server.wait_for("start of service", PATIENCE).unwrap();
    server
}

#[test]
fn dig_and_getent_ask_a_real_server() {
    let lab = Lab::new(3).unwrap();
    let ports = json!({ "ports": [
        { "name": "tcp", "port": 53, "protocol": "TCP" }, { "name": "udp", "port": 53, "protocol": "UDP" },
    ] });
    let dns =
        |pod: &Place| Object::service("dns", 53).spec(ports.clone()).endpoints(53, &[Endpoint::of(pod, "node-1")]);
    let (first, second) = (dns(lab.pod(0)), dns(lab.pod(1)));
    let ground = Ground::on(lab, &[first], &[]);
    let dir = tempfile::tempdir().unwrap();
    let _servers =
        [unbound(ground.lab.pod(0), dir.path(), "192.0.2.1"), unbound(ground.lab.pod(1), dir.path(), "192.0.2.2")];
    let ask = |place: &Place, answer: &str| {
        for server in ["@10.96.0.53", "@fd00:96::53"] {
            for transport in ["+notcp", "+tcp"] {
                let args = [server, transport, "+time=3", "+tries=1", "web.test", "A"];
                let output = run(place, "dig", &args, "");
                assert!(output.stdout.contains(&format!("\t{answer}\n")), "{args:?}: {output:?}");
                // dig tells who answered, and would have warned of another source.
                let server = server.trim_start_matches('@');
                assert!(output.stdout.contains(&format!("SERVER: {server}#53({server})")), "{output:?}");
            }
        }
        for conf in ["nameserver 10.96.0.53\n", "nameserver fd00:96::53\n", "nameserver 10.96.0.53\noptions use-vc\n"] {
            let program = place.program("getent").unwrap().args(["ahostsv4", "web.test"]);
            let output = program.resolv_conf(conf).unwrap().run().unwrap();
            assert!(output.stdout.starts_with(answer), "{conf:?}: {output:?}");
        }
    };
    ask(ground.lab.node(), "192.0.2.1");
    ask(ground.lab.pod(2), "192.0.2.1");
    ground.apply(&second);
    ask(ground.lab.pod(2), "192.0.2.2");
}
