//! Responses of an echo server: its identity line, bare or as the body of an HTTP response.

use std::net::SocketAddr;

/// Formats the line directly instead of through `ServerIdentity`, because a load test requests tens of thousands a
/// second.
pub(crate) fn line(name: &str, at: SocketAddr, peer: SocketAddr) -> Vec<u8> {
    format!("{name} {at} peer={peer}\n").into_bytes()
}

pub(crate) fn build(request: &[u8], name: &str, at: SocketAddr, peer: SocketAddr) -> Vec<u8> {
    let body = line(name, at, peer);
    if !is_http(request) {
        return body;
    }
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\n");
    let body = if request.starts_with(b"HEAD ") { &[][..] } else { &body };
    [head.as_bytes(), body].concat()
}

fn is_http(request: &[u8]) -> bool {
    [&b"GET "[..], b"HEAD ", b"POST "].iter().any(|method| request.starts_with(method))
}
