//! The candidates, as the programs that each attaches.

/// What a dial goes through. A hook names no program where a candidate needs none.
pub struct Variant {
    pub name: &'static str,
    pub about: &'static str,
    /// Dials the service's address; the others dial the server itself.
    pub service: bool,
    /// Gives its sockets a cookie.
    pub cookie: bool,
    pub connect: Option<&'static str>,
    pub receive: Option<&'static str>,
    pub release: Option<&'static str>,
    /// Where its records lie; storage lies with the socket and is not counted.
    pub maps: &'static [&'static str],
}

/// The variant without any program: what the others are compared with.
pub const DIRECT: usize = 0;
/// The variant that rewrites but records nothing: what a record comes on top of.
pub const NONE: usize = 3;

pub const VARIANTS: [Variant; 11] = [
    Variant { about: "no program at all", service: false, ..variant("direct") },
    Variant {
        about: "hooks that return at once",
        service: false,
        connect: Some("connect_empty"),
        receive: Some("receive_empty"),
        ..variant("empty")
    },
    Variant {
        about: "no service; the release hook finds no cookie",
        service: false,
        connect: Some("connect_hash"),
        receive: Some("receive_empty"),
        release: Some("release_hash"),
        ..variant("bystander")
    },
    Variant {
        about: "rewrite, no record",
        connect: Some("connect_none"),
        receive: Some("receive_none"),
        ..variant("none")
    },
    Variant {
        about: "socket storage, 48 bytes",
        connect: Some("connect_storage48"),
        receive: Some("receive_storage48"),
        ..variant("storage 48")
    },
    Variant {
        about: "socket storage, 400 bytes",
        connect: Some("connect_storage400"),
        receive: Some("receive_storage400"),
        ..variant("storage 400")
    },
    Variant {
        about: "hash by cookie, preallocated; deleted at release",
        cookie: true,
        connect: Some("connect_hash"),
        receive: Some("receive_hash"),
        release: Some("release_hash"),
        maps: &["hash_map"],
        ..variant("hash")
    },
    Variant {
        about: "the same with BPF_F_NO_PREALLOC",
        cookie: true,
        connect: Some("connect_lazy"),
        receive: Some("receive_lazy"),
        release: Some("release_lazy"),
        maps: &["lazy_map"],
        ..variant("hash lazy")
    },
    Variant {
        about: "LRU hash by cookie, no release hook; forgets idle sockets",
        cookie: true,
        connect: Some("connect_lru"),
        receive: Some("receive_lru"),
        maps: &["lru_map"],
        ..variant("lru")
    },
    Variant {
        about: "array cell by cookie, hash if taken; cleared at release",
        cookie: true,
        connect: Some("connect_cell64"),
        receive: Some("receive_cell64"),
        release: Some("release_cell64"),
        maps: &["cell64_map", "overflow_map"],
        ..variant("cell 64")
    },
    Variant {
        about: "the same in 32 bytes, for connected sockets only",
        cookie: true,
        connect: Some("connect_cell32"),
        receive: Some("receive_cell32"),
        release: Some("release_cell32"),
        maps: &["cell32_map", "overflow_map"],
        ..variant("cell 32")
    },
];

const fn variant(name: &'static str) -> Variant {
    Variant { name, about: "", service: true, cookie: false, connect: None, receive: None, release: None, maps: &[] }
}
