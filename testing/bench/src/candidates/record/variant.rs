//! The candidates and the BPF programs of each.

/// Programs of a candidate at each hook; None where it needs none.
pub struct RecordVariant {
    pub name: &'static str,
    pub about: &'static str,
    /// Whether it dials the Service address instead of the server's.
    pub service: bool,
    /// Whether its sockets get a cookie.
    pub cookie: bool,
    pub connect: Option<&'static str>,
    pub receive: Option<&'static str>,
    pub release: Option<&'static str>,
    /// Maps that contain its records. Socket storage is not counted.
    pub maps: &'static [&'static str],
}

/// Index of the variant without programs, with which the others are compared.
pub const DIRECT: usize = 0;
/// Index of the variant that rewrites without a record.
pub const NONE: usize = 3;

pub const VARIANTS: [RecordVariant; 11] = [
    RecordVariant { about: "no program at all", service: false, ..variant("direct") },
    RecordVariant {
        about: "hooks that return at once",
        service: false,
        connect: Some("connect_empty"),
        receive: Some("receive_empty"),
        ..variant("empty")
    },
    RecordVariant {
        about: "no service; the release hook finds no cookie",
        service: false,
        connect: Some("connect_hash"),
        receive: Some("receive_empty"),
        release: Some("release_hash"),
        ..variant("bystander")
    },
    RecordVariant {
        about: "rewrite, no record",
        connect: Some("connect_none"),
        receive: Some("receive_none"),
        ..variant("none")
    },
    RecordVariant {
        about: "socket storage, 48 bytes",
        connect: Some("connect_storage48"),
        receive: Some("receive_storage48"),
        ..variant("storage 48")
    },
    RecordVariant {
        about: "socket storage, 400 bytes",
        connect: Some("connect_storage400"),
        receive: Some("receive_storage400"),
        ..variant("storage 400")
    },
    RecordVariant {
        about: "hash by cookie, preallocated; deleted at release",
        cookie: true,
        connect: Some("connect_hash"),
        receive: Some("receive_hash"),
        release: Some("release_hash"),
        maps: &["hash_map"],
        ..variant("hash")
    },
    RecordVariant {
        about: "the same with BPF_F_NO_PREALLOC",
        cookie: true,
        connect: Some("connect_lazy"),
        receive: Some("receive_lazy"),
        release: Some("release_lazy"),
        maps: &["lazy_map"],
        ..variant("hash lazy")
    },
    RecordVariant {
        about: "LRU hash by cookie, no release hook; evicts the records of idle sockets",
        cookie: true,
        connect: Some("connect_lru"),
        receive: Some("receive_lru"),
        maps: &["lru_map"],
        ..variant("lru")
    },
    RecordVariant {
        about: "array cell by cookie, hash if taken; cleared at release",
        cookie: true,
        connect: Some("connect_cell64"),
        receive: Some("receive_cell64"),
        release: Some("release_cell64"),
        maps: &["cell64_map", "overflow_map"],
        ..variant("cell 64")
    },
    RecordVariant {
        about: "the same in 32 bytes, for connected sockets only",
        cookie: true,
        connect: Some("connect_cell32"),
        receive: Some("receive_cell32"),
        release: Some("release_cell32"),
        maps: &["cell32_map", "overflow_map"],
        ..variant("cell 32")
    },
];

const fn variant(name: &'static str) -> RecordVariant {
    RecordVariant {
        name,
        about: "",
        service: true,
        cookie: false,
        connect: None,
        receive: None,
        release: None,
        maps: &[],
    }
}
