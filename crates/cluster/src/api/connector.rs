//! Connects to API servers. The sockets have a priority by which the BPF programs know the agent: a Service that claims the
//! address of an API server must not cut the agent off from the server that would tell it of the Service's deletion. The
//! addresses that were resolved are kept, so that the planner can refuse such a claim.

use beeline_model::Address;
use beeline_model::row::AGENT_SOCKET_PRIORITY;
use futures::future::BoxFuture;
use http::Uri;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::Client;
use kube::client::{Body, ConfigExt};
use socket2::SockRef;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};
use tower::{BoxError, Layer, ServiceExt};

/// An address of a server is given up after this time if the server has another one.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(2);

/// By host and port as the configuration names them.
type AddressesByServer = BTreeMap<(String, u16), Vec<SocketAddr>>;

/// The addresses of the API servers.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerAddresses(Arc<Mutex<AddressesByServer>>);

impl ServerAddresses {
    fn set(&self, host: &str, port: u16, addresses: Vec<SocketAddr>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert((host.to_owned(), port), addresses);
    }

    /// Adds a server whose URL contains its address. The addresses of a name are known when it is dialled.
    pub(crate) fn add(&self, server: &Uri) {
        if let Some((host, port)) = host_and_port(server)
            && let Ok(address) = host.parse::<IpAddr>()
        {
            self.set(host, port, vec![SocketAddr::new(address, port)]);
        }
    }

    pub(crate) fn list(&self) -> Vec<(Address, u16)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().flatten().map(|server| (Address::from(server.ip()), server.port())).collect()
    }
}

/// The host without the brackets of an IPv6 address.
fn host_and_port(server: &Uri) -> Option<(&str, u16)> {
    let default = if server.scheme_str() == Some("http") { 80 } else { 443 };
    let host = server.host()?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Some((host, server.port_u16().unwrap_or(default)))
}

#[derive(Clone)]
struct ServerConnector {
    addresses: ServerAddresses,
}

impl tower::Service<Uri> for ServerConnector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<TokioIo<TcpStream>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let addresses = self.addresses.clone();
        Box::pin(async move { Ok(TokioIo::new(connect(&server, &addresses).await?)) })
    }
}

async fn connect(server: &Uri, known: &ServerAddresses) -> io::Result<TcpStream> {
    let (host, port) = host_and_port(server).ok_or_else(|| io::Error::other(format!("{server} has no host")))?;
    let addresses: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await?.collect();
    known.set(host, port, addresses.clone());
    let mut failure = io::Error::other(format!("{host} has no address"));
    for (position, address) in addresses.iter().enumerate() {
        let is_last = position + 1 == addresses.len();
        match tokio::time::timeout(ADDRESS_TIMEOUT, dial(*address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failure = error,
            // The caller limits the time for the last address.
            Err(_) if is_last => return dial(*address).await,
            Err(_) => failure = io::Error::new(io::ErrorKind::TimedOut, format!("{address} does not answer")),
        }
    }
    Err(failure)
}

async fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = open_socket(address)?.connect(address).await?;
    stream.set_nodelay(true)?;
    // The hooks have seen the socket; what it sends is queued as everything else.
    let _ = SockRef::from(&stream).set_priority(0);
    Ok(stream)
}

/// A process without the right to set the priority is no agent, so nothing depends on it.
fn open_socket(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    let _ = SockRef::from(&socket).set_priority(AGENT_SOCKET_PRIORITY);
    Ok(socket)
}

/// The client that `kube` would build, with `ServerConnector` in place of its own connector. `kube` is built without
/// support for proxies, and says so if the kubeconfig names one.
pub(super) fn client(config: kube::Config, addresses: ServerAddresses) -> kube::Result<Client> {
    if config.proxy_url.is_some() {
        return Client::try_from(config);
    }
    let connector = config.rustls_https_connector_with_connector(ServerConnector { addresses })?;
    let mut connector = TimeoutConnector::new(connector);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let client: HttpClient<_, Body> = HttpClient::builder(TokioExecutor::new()).build(connector);
    let service = config.extra_headers_layer()?.layer(client.map_err(BoxError::from));
    let service = tower::util::option_layer(config.auth_layer()?).layer(service);
    Ok(Client::new(config.base_uri_layer().layer(service), config.default_namespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_the_port_and_the_address_of_its_url() {
        let addresses = ServerAddresses::default();
        for server in
            ["https://192.0.2.1:6443", "https://[2001:db8::1]", "http://192.0.2.2/path", "https://api.example"]
        {
            addresses.add(&server.parse().unwrap());
        }
        let listed: Vec<String> = addresses.list().iter().map(|(address, port)| format!("{address} {port}")).collect();
        assert_eq!(listed, ["192.0.2.1 6443", "192.0.2.2 80", "2001:db8::1 443"]);
    }

    /// Needs root, as all tests that set a priority.
    #[tokio::test]
    async fn a_socket_has_the_agents_priority_only_until_it_is_connected() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let socket = open_socket(address).unwrap();
        assert_eq!(SockRef::from(&socket).priority().unwrap(), AGENT_SOCKET_PRIORITY);
        let known = ServerAddresses::default();
        let server: Uri = format!("http://localhost:{}", address.port()).parse().unwrap();
        let stream = connect(&server, &known).await.unwrap();
        assert_eq!(SockRef::from(&stream).priority().unwrap(), 0);
        assert!(known.list().contains(&(Address::from(address.ip()), address.port())), "the name was resolved");
    }
}
