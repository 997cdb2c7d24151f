//! A wire that can be cut or frozen: a TCP proxy before the API server. Frozen, it takes connections and bytes and lets
//! nothing through, as a server whose machine hangs.

use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub struct Proxy {
    pub url: String,
    frozen: Arc<watch::Sender<bool>>,
}

impl Proxy {
    pub async fn before(server: &'static str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let frozen = Arc::new(watch::channel(false).0);
        let held = frozen.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(join(near, server, held.subscribe()));
            }
        });
        Proxy { url, frozen }
    }

    pub fn freeze(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }
}

async fn join(near: TcpStream, server: &'static str, frozen: watch::Receiver<bool>) {
    let Ok(far) = TcpStream::connect(server).await else { return };
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    tokio::join!(pass(near_in, far_out, frozen.clone()), pass(far_in, near_out, frozen));
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut frozen: watch::Receiver<bool>,
) {
    let mut bytes = vec![0; 16 << 10];
    loop {
        let Ok(count) = from.read(&mut bytes).await else { return };
        // What was under way when it froze stays under way for ever: a thaw is for new connections.
        if *frozen.borrow_and_update() {
            return std::future::pending().await;
        }
        if count == 0 || to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
