//! Socket calls by JSON, one op per line: `{"Socket":{"family":"V4","sort":"Tcp"}}`. See `beeline_harness::op`.

fn main() {
    beeline_harness::child::main()
}
