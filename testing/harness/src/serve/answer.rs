//! What a server of the lab says: its identity, bare or as the body of an HTTP response.

use std::net::SocketAddr;

/// Written by hand rather than through `Identity`: a storm asks for tens of thousands a second.
pub(crate) fn line(name: &str, at: SocketAddr, peer: SocketAddr) -> Vec<u8> {
    format!("{name} {at} peer={peer}\n").into_bytes()
}

pub(crate) fn to(request: &[u8], name: &str, at: SocketAddr, peer: SocketAddr) -> Vec<u8> {
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
