//! Shared by the property tests: random clusters, comparable results of dials, and maps that observe or fail writes.

pub mod dial_result;
pub mod objects;
pub mod observed_maps;
pub mod random_cluster;
pub mod reference;
pub mod seed;
