//! A TCP proxy for the API server that can be frozen. A frozen proxy accepts connections and bytes but forwards nothing, as
//! a server whose machine hangs.

use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub struct Proxy {
    pub url: String,
    frozen: Arc<watch::Sender<bool>>,
}

impl Proxy {
    pub async fn start(server: &'static str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let frozen = Arc::new(watch::channel(false).0);
        let state = frozen.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, server, state.subscribe()));
            }
        });
        Proxy { url, frozen }
    }

    pub fn freeze(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }
}

async fn forward(client: TcpStream, server: &'static str, frozen: watch::Receiver<bool>) {
    let Ok(upstream) = TcpStream::connect(server).await else { return };
    let ((client_in, client_out), (server_in, server_out)) = (client.into_split(), upstream.into_split());
    tokio::join!(copy(client_in, server_out, frozen.clone()), copy(server_in, client_out, frozen));
}

async fn copy(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut frozen: watch::Receiver<bool>,
) {
    let mut bytes = vec![0; 16 << 10];
    loop {
        let Ok(count) = from.read(&mut bytes).await else { return };
        // A connection that was open during a freeze stays stuck. Only new connections work afterwards.
        if *frozen.borrow_and_update() {
            return std::future::pending().await;
        }
        if count == 0 || to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
