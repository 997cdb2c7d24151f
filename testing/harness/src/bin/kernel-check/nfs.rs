//! An NFS mount at a ClusterIP. The kernel itself dials, from a worker in the root cgroup, so the agent must serve the root of
//! cgroup2. That is done only in a guest, which `scripts/kernels/init` marks by a variable.

use std::{
    ffi::CString,
    fs,
    io::{ErrorKind, Read},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use beeline_harness::{ExampleCluster, SocketFamily, TestHost, cgroup_mount};
use rustix::mount::{MountFlags, mount};

use crate::{check::Checks, dials::at};

const SERVICE: &str = "10.96.0.70:2049";
const FILE: &str = "nfs.yaml";
const TARGET: &str = "/tmp/nfs";
const TIMEOUT: Duration = Duration::from_secs(90);

fn manifest(pod: &TestHost) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: nfs}}\nspec:\n  clusterIP: 10.96.0.70\n  \
         ports: [{{name: nfs, port: 2049}}]\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: nfs-1\n  \
         labels: {{kubernetes.io/service-name: nfs}}\naddressType: IPv4\nports: [{{name: nfs, port: 2049}}]\n\
         endpoints:\n- addresses: [{}]\n  conditions: {{ready: true}}\n",
        pod.v4
    )
}

/// The first server never answers, is removed from the Service and closes the connection. The kernel must dial the Service
/// again and reach the second server.
pub fn mounted(example: &mut ExampleCluster, checks: &mut Checks) {
    if std::env::var_os("BEELINE_GUEST").is_none() {
        println!("not checked: a mount at a ClusterIP, which needs an agent at the root cgroup of a guest");
        return;
    }
    checks.check("an NFS mount at a ClusterIP dials the Service again after a lost connection", |_| run(example));
    checks.check("doctor knows that mounts dial the Service again", |_| {
        let checks: serde_json::Value = serde_json::from_str(&example.agent.run(&["doctor", "-o", "json"])?)?;
        let found = checks.as_array().into_iter().flatten().find(|check| check["what"] == "mounts at a service");
        let found = found.context("doctor has no such check")?;
        ensure!(found["level"] == "ok", "{found}");
        Ok("")
    });
}

fn run(example: &mut ExampleCluster) -> Result<String> {
    example.agent.cgroup = Some(cgroup_mount()?);
    let (first, second) = (example.network.pod(0), example.network.pod(1));
    example.agent.write(FILE, &manifest(first))?;
    example.agent.start(&example.network)?;
    let (first_server, second_server) = (listen(first)?, listen(second)?);
    fs::create_dir_all(TARGET)?;
    let node = example.network.node();
    thread::scope(|scope| {
        let mounting = scope.spawn(|| node.run_in(mount_service));
        let result = follow(example, first_server, &second_server);
        // Without a server the mount fails soon.
        drop(second_server);
        let mounted = mounting.join().expect("no panic in the mount thread")?;
        let text = result.with_context(|| format!("the mount returned {mounted:?}"))?;
        ensure!(mounted.is_err(), "a server that never answers was mounted");
        Ok(text)
    })
}

fn follow(example: &ExampleCluster, first_server: TcpListener, second_server: &TcpListener) -> Result<String> {
    let connection = accept_call(&first_server).context("the first pod was not dialled")?;
    example.agent.write(FILE, &manifest(example.network.pod(1)))?;
    wait_for_second(example, second_server)?;
    // Closed before the connection: a dial of the first pod itself would be refused.
    drop(first_server);
    drop(connection);
    let started = Instant::now();
    accept_call(second_server).context("the second pod was not dialled after the first was gone")?;
    Ok(format!("after {} ms", started.elapsed().as_millis()))
}

/// Waits until a process that dials the Service reaches the second pod.
fn wait_for_second(example: &ExampleCluster, server: &TcpListener) -> Result<()> {
    let end = Instant::now() + TIMEOUT;
    while Instant::now() < end {
        let socket = example.client.tcp(SocketFamily::V4)?;
        socket.connect(at(SERVICE))?;
        if try_accept(server)?.is_some() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(50));
    }
    bail!("the Service still leads to the first pod")
}

fn mount_service() -> rustix::io::Result<()> {
    let options = "vers=4.1,proto=tcp,port=2049,addr=10.96.0.70,clientaddr=172.31.0.11,soft,timeo=100,retrans=2";
    let options = CString::new(options).expect("no zero byte");
    mount("10.96.0.70:/", Path::new(TARGET), "nfs4", MountFlags::empty(), Some(&*options))
}

fn listen(pod: &TestHost) -> Result<TcpListener> {
    let address: SocketAddr = pod.v4(2049);
    let listener = pod.run_in(move || TcpListener::bind(address))??;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn try_accept(listener: &TcpListener) -> Result<Option<TcpStream>> {
    match listener.accept() {
        Ok((stream, _)) => {
            stream.set_nonblocking(false)?;
            Ok(Some(stream))
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Accepts a connection on which the kernel sends an RPC call. The dials of `wait_for_second` send nothing.
fn accept_call(listener: &TcpListener) -> Result<TcpStream> {
    loop {
        let mut connection = accept(listener)?;
        connection.set_read_timeout(Some(TIMEOUT))?;
        let mut call = [0; 12];
        match connection.read_exact(&mut call) {
            Ok(()) => {
                ensure!(call[0] == 0x80 && call[8..] == [0; 4], "not an RPC call: {call:?}");
                return Ok(connection);
            }
            Err(error) if [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset].contains(&error.kind()) => {}
            Err(error) => return Err(error).context("no RPC call arrived"),
        }
    }
}

fn accept(listener: &TcpListener) -> Result<TcpStream> {
    let end = Instant::now() + TIMEOUT;
    while Instant::now() < end {
        if let Some(stream) = try_accept(listener)? {
            return Ok(stream);
        }
        thread::sleep(Duration::from_millis(20));
    }
    bail!("no connection within {TIMEOUT:?}")
}
