/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Values and maps of the candidates for the per-socket record. */
#ifndef BEELINE_BENCH_RECORD_H
#define BEELINE_BENCH_RECORD_H

/* The record: the dialled address and the selected backend. */
struct record {
    __u8 address[16];
    __u8 chosen[16];
    __be16 port;
    __be16 chosen_port;
    __u32 service;
    __u32 backend;
    __u32 flags;
};
_Static_assert(sizeof(struct record) == 48, "the size that is being measured");

/* Record of a UDP socket that uses several Services at the same time. */
struct wide_record {
    struct record first;
    __u8 padding[352];
};
_Static_assert(sizeof(struct wide_record) == 400, "the size that is being measured");

/* The record of the socket `cookie`, or free if that is 0. */
struct cell64 {
    __u64 cookie;
    struct record record;
    __u64 reserved;
};
_Static_assert(sizeof(struct cell64) == 64, "one cache line");

/* Record of a connected socket, whose backend is the socket's own peer and is not stored. */
struct cell32 {
    __u64 cookie;
    __u8 address[16];
    __be16 port;
    __u16 flags;
    __u32 backend;
};
_Static_assert(sizeof(struct cell32) == 32,
               "two sockets that follow each other share a cache line");

#define RECORDS (1 << 17)

#define STORAGE(name, value_type)                                                                  \
    struct {                                                                                       \
        __uint(type, BPF_MAP_TYPE_SK_STORAGE);                                                     \
        __uint(map_flags, BPF_F_NO_PREALLOC);                                                      \
        __type(key, __s32);                                                                        \
        __type(value, value_type);                                                                 \
    } name SEC(".maps")

#define CELLS(name, value_type)                                                                    \
    struct {                                                                                       \
        __uint(type, BPF_MAP_TYPE_ARRAY);                                                          \
        __uint(map_flags, BPF_F_MMAPABLE);                                                         \
        __uint(max_entries, RECORDS);                                                              \
        __type(key, __u32);                                                                        \
        __type(value, value_type);                                                                 \
    } name SEC(".maps")

#define BY_COOKIE(name, kind, flags)                                                               \
    struct {                                                                                       \
        __uint(type, kind);                                                                        \
        __uint(map_flags, flags);                                                                  \
        __uint(max_entries, RECORDS);                                                              \
        __type(key, __u64);                                                                        \
        __type(value, struct record);                                                              \
    } name SEC(".maps")

STORAGE(storage48_map, struct record);
STORAGE(storage400_map, struct wide_record);
BY_COOKIE(hash_map, BPF_MAP_TYPE_HASH, 0);
BY_COOKIE(lazy_map, BPF_MAP_TYPE_HASH, BPF_F_NO_PREALLOC);
BY_COOKIE(lru_map, BPF_MAP_TYPE_LRU_HASH, 0);
BY_COOKIE(overflow_map, BPF_MAP_TYPE_HASH, BPF_F_NO_PREALLOC); /* rarely used */
CELLS(cell64_map, struct cell64);
CELLS(cell32_map, struct cell32);

#endif
