/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * Candidates for the map layout. Each resolves random services to one of their backends in a loop
 * that is timed inside the kernel. The result of a resolve selects the next service: dials of real
 * applications do not overlap, and with independent iterations the processor would hide the cache
 * misses of one iteration behind the next.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>

/* {view, protocol, scope, port} and the 16 bytes of the address, as the three words that they are
 * compared by. */
struct key {
    __u64 what;
    __u64 high;
    __u64 low;
};
_Static_assert(sizeof(struct key) == 24, "the size that is being measured");

#define INLINE_IDS 10

struct set {
    __u64 span; /* base 32, count 16, generation 16: one load, never torn */
    __u32 next;
    __u32 affinity;
    __u32 limit;
    __u32 service;
    __u32 ids[INLINE_IDS];
};
_Static_assert(sizeof(struct set) == 64, "one cache line");

struct backend {
    __u64 high;
    __u64 low;
    __u32 port;
    __u32 node;
    __u64 flags;
};
_Static_assert(sizeof(struct backend) == 32, "half a cache line");

struct count {
    __u32 id;
    __u32 count;
};

struct index {
    __u32 id;
    __u32 index;
};

struct address {
    __u64 high;
    __u64 low;
    __u64 port;
};

struct row {
    struct key key;
    __u64 value;
};

struct bucket {
    struct row rows[2];
};
_Static_assert(sizeof(struct bucket) == 64, "one cache line");

/* Map sizes are set before loading, for each number of services. */
#define TABLE(name, kind, flags, key_type, value_type)                                             \
    struct {                                                                                       \
        __uint(type, kind);                                                                        \
        __uint(map_flags, flags);                                                                  \
        __uint(max_entries, 1);                                                                    \
        __type(key, key_type);                                                                     \
        __type(value, value_type);                                                                 \
    } name SEC(".maps")

TABLE(frontend, BPF_MAP_TYPE_HASH, 0, struct key, __u64); /* {set 32, tag 32}: one load */
TABLE(lazy_frontend, BPF_MAP_TYPE_HASH, BPF_F_NO_PREALLOC, struct key, __u64);
TABLE(bucket, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, __u32, struct bucket);
TABLE(set, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, __u32, struct set);
TABLE(slot, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, __u32, __u32);
TABLE(backend, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, __u32, struct backend);
TABLE(plain_service, BPF_MAP_TYPE_HASH, 0, struct key, struct count);
TABLE(plain_backend, BPF_MAP_TYPE_HASH, 0, struct index, struct address);

const volatile __u32 bucket_mask;

/* The loop's arguments and, on return, its result. */
struct loop_args {
    __u32 services;
    __u32 iterations;
    __u64 random;
    __u64 nanoseconds;
    __u64 misses;
};

static __always_inline __u64 mix(__u64 word)
{
    word *= 0x9e3779b97f4a7c15ULL;
    return word ^ (word >> 29);
}

static __always_inline __u32 tag_of(const struct key *key)
{
    return mix(mix(key->what ^ key->high) ^ key->low) >> 32;
}

static __always_inline void make_key(struct key *key, __u64 random, __u32 services)
{
    __u64 service = ((random >> 32) * services) >> 32;

    key->what = 80ULL << 32 | 6;
    key->high = 0;
    key->low = (0x0a600000 + service) << 32 | 0xffff0000;
}

static __always_inline __u64 backend_at(__u32 id)
{
    struct backend *row = bpf_map_lookup_elem(&backend, &id);

    return row ? row->low ^ row->port : 0;
}

static __always_inline struct set *set_at(__u64 value, const struct key *key)
{
    __u32 id = value;

    return value >> 32 == tag_of(key) ? bpf_map_lookup_elem(&set, &id) : 0;
}

/* Scales instead of dividing, because a division would be the most expensive instruction. */
static __always_inline __u64 below(__u32 random, __u16 count)
{
    return (__u64)random * count >> 32;
}

static __always_inline __u64 pick_inline(__u64 value, const struct key *key, __u32 random)
{
    struct set *row = set_at(value, key);
    __u64 pick;

    if (!row)
        return 0;
    pick = below(random, row->span >> 32);
    barrier_var(pick); /* clang would fold the shift and the scale by 4, and the verifier lose the
                          bound */
    return pick < INLINE_IDS ? backend_at(row->ids[pick]) : 0;
}

static __always_inline __u64 pick_slot(__u64 value, const struct key *key, __u32 random)
{
    struct set *row = set_at(value, key);
    __u32 *id, at;
    __u64 span;

    if (!row)
        return 0;
    span = row->span;
    at = (__u32)span + below(random, span >> 32);
    id = bpf_map_lookup_elem(&slot, &at);
    return id ? backend_at(*id) : 0;
}

static __always_inline __u64 resolve_none(const struct key *key, __u32 random)
{
    return key->low | 1;
}

static __always_inline __u64 resolve_inline(const struct key *key, __u32 random)
{
    __u64 *value = bpf_map_lookup_elem(&frontend, key);

    return value ? pick_inline(*value, key, random) : 0;
}

static __always_inline __u64 resolve_slot(const struct key *key, __u32 random)
{
    __u64 *value = bpf_map_lookup_elem(&frontend, key);

    return value ? pick_slot(*value, key, random) : 0;
}

static __always_inline __u64 resolve_lazy(const struct key *key, __u32 random)
{
    __u64 *value = bpf_map_lookup_elem(&lazy_frontend, key);

    return value ? pick_inline(*value, key, random) : 0;
}

static __always_inline __u64 resolve_plain(const struct key *key, __u32 random)
{
    struct count *service = bpf_map_lookup_elem(&plain_service, key);
    struct address *address;
    struct index index;

    if (!service)
        return 0;
    index.id = service->id;
    index.index = below(random, service->count);
    address = bpf_map_lookup_elem(&plain_backend, &index);
    return address ? address->low ^ address->port : 0;
}

static __always_inline int same(const struct key *a, const struct key *b)
{
    return a->low == b->low && a->what == b->what && a->high == b->high;
}

/* A custom hash in an array: key and value of a service share one cache line, and user space writes
 * it by mmap. */
static __always_inline __u64 resolve_bucket(const struct key *key, __u32 random)
{
    __u32 home = tag_of(key);

    for (int step = 0; step < 8; step++) {
        __u32 at = (home + step) & bucket_mask;
        struct bucket *line = bpf_map_lookup_elem(&bucket, &at);

        if (!line)
            return 0;
        if (same(&line->rows[0].key, key))
            return pick_inline(line->rows[0].value, key, random);
        if (same(&line->rows[1].key, key))
            return pick_inline(line->rows[1].value, key, random);
        if (!line->rows[1].key.what)
            return 0;
    }
    return 0;
}

/* The clock is read around the whole loop, because reading it costs as much as one iteration. */
#define LOOP(name)                                                                                 \
    static long iterate_##name(__u64 number, struct loop_args *loop)                               \
    {                                                                                              \
        struct key key;                                                                            \
        __u64 found;                                                                               \
                                                                                                   \
        make_key(&key, loop->random, loop->services);                                              \
        found = resolve_##name(&key, loop->random);                                                \
        loop->misses += !found;                                                                    \
        loop->random = mix(loop->random ^ found ^ number) + number;                                \
        return 0;                                                                                  \
    }                                                                                              \
    SEC("syscall") int loop_##name(struct loop_args *args)                                         \
    {                                                                                              \
        struct loop_args loop = *args;                                                             \
        __u64 start = bpf_ktime_get_ns();                                                          \
                                                                                                   \
        bpf_loop(loop.iterations, iterate_##name, &loop, 0);                                       \
        args->nanoseconds = bpf_ktime_get_ns() - start;                                            \
        args->random = loop.random;                                                                \
        args->misses = loop.misses;                                                                \
        return 0;                                                                                  \
    }

LOOP(none)
LOOP(inline)
LOOP(slot)
LOOP(plain)
LOOP(lazy)
LOOP(bucket)

char LICENSE[] SEC("license") = "Dual BSD/GPL";
