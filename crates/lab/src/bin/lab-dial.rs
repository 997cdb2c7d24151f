//! Socket calls by JSON, one op per line: `{"Socket":{"family":"V4","sort":"Tcp"}}`. See `beeline_lab::op`.

fn main() {
    beeline_lab::child::main()
}
