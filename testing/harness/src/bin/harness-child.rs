//! Makes socket calls from JSON requests, one per line: `{"Socket":{"family":"V4","socket_type":"Tcp"}}`. See
//! `beeline_harness::protocol`.

fn main() {
    beeline_harness::child::main()
}
