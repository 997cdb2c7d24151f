/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * Candidates for the storage of the per-socket record. Each candidate has its own hooks and shares
 * only the rewrite, so that it is measured with exactly the hooks that it would need in production:
 * a record in socket storage needs no release hook, a record keyed by cookie does.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "record.h"

#define SERVICE_ADDRESS bpf_htonl(0x0a600001) /* 10.96.0.1 */
#define SERVICE_PORT bpf_htons(80)
#define LOOPBACK bpf_htonl(0x7f000001)

const volatile __be16 server_port;

/*
 * In 1/65536. All candidates get cookies from one counter, so each of n candidates sees every n-th
 * cookie. In production a candidate would see all of them, and neighbours would share cache lines.
 * User space therefore sets 1/n.
 */
__u32 cells_per_cookie = 1 << 16;

static __always_inline void fill(struct record *record)
{
    __builtin_memset(record, 0, sizeof(*record));
    record->address[10] = record->address[11] = 0xff;
    record->chosen[10] = record->chosen[11] = 0xff;
    *(__be32 *)&record->address[12] = SERVICE_ADDRESS;
    *(__be32 *)&record->chosen[12] = LOOPBACK;
    record->port = SERVICE_PORT;
    record->chosen_port = server_port;
    record->service = 7;
    record->backend = 21;
}

/* Candidate: socket storage. The kernel frees it with the socket. */

static __always_inline void store_storage48(struct bpf_sock_addr *ctx)
{
    struct record *record;

    if (!ctx->sk)
        return;
    record = bpf_sk_storage_get(&storage48_map, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
    if (record)
        fill(record);
}

static __always_inline struct record *load_storage48(struct bpf_sock_addr *ctx)
{
    return ctx->sk ? bpf_sk_storage_get(&storage48_map, ctx->sk, 0, 0) : 0;
}

static __always_inline void store_storage400(struct bpf_sock_addr *ctx)
{
    struct wide_record *record;

    if (!ctx->sk)
        return;
    record = bpf_sk_storage_get(&storage400_map, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
    if (record)
        fill(&record->first);
}

static __always_inline struct record *load_storage400(struct bpf_sock_addr *ctx)
{
    return ctx->sk ? bpf_sk_storage_get(&storage400_map, ctx->sk, 0, 0) : 0;
}

/* Candidates: a hash by cookie, with each kind of hash. */

#define COOKIE_HASH(name)                                                                          \
    static __always_inline void store_##name(struct bpf_sock_addr *ctx)                            \
    {                                                                                              \
        __u64 cookie = bpf_get_socket_cookie(ctx);                                                 \
        struct record record;                                                                      \
                                                                                                   \
        fill(&record);                                                                             \
        bpf_map_update_elem(&name##_map, &cookie, &record, BPF_ANY);                               \
    }                                                                                              \
    static __always_inline struct record *load_##name(struct bpf_sock_addr *ctx)                   \
    {                                                                                              \
        __u64 cookie = bpf_get_socket_cookie(ctx);                                                 \
                                                                                                   \
        return bpf_map_lookup_elem(&name##_map, &cookie);                                          \
    }

COOKIE_HASH(hash)
COOKIE_HASH(lazy)
COOKIE_HASH(lru)

/*
 * Candidates: a cell selected by the low bits of the cookie. Cookies are consecutive, so a cell is
 * in use only if a socket whose cookie differs by a multiple of RECORDS still exists. The younger
 * socket then uses a hash. No record is evicted.
 */

static __always_inline __u32 cell_of(__u64 cookie)
{
    return (cookie * cells_per_cookie >> 16) & (RECORDS - 1);
}

static __always_inline void store_overflow(__u64 cookie)
{
    struct record record;

    fill(&record);
    bpf_map_update_elem(&overflow_map, &cookie, &record, BPF_ANY);
}

/* Only one of two sockets with the same cell gets it. */
static __always_inline int claim(__u64 *owner, __u64 cookie)
{
    __u64 before = __sync_val_compare_and_swap(owner, 0, cookie);

    return !before || before == cookie;
}

static __always_inline void store_cell64(struct bpf_sock_addr *ctx)
{
    __u64 cookie = bpf_get_socket_cookie(ctx);
    __u32 index = cell_of(cookie);
    struct cell64 *cell = bpf_map_lookup_elem(&cell64_map, &index);

    if (cell && claim(&cell->cookie, cookie))
        fill(&cell->record);
    else
        store_overflow(cookie);
}

static __always_inline struct record *load_cell64(struct bpf_sock_addr *ctx)
{
    __u64 cookie = bpf_get_socket_cookie(ctx);
    __u32 index = cell_of(cookie);
    struct cell64 *cell = bpf_map_lookup_elem(&cell64_map, &index);

    if (cell && cell->cookie == cookie)
        return &cell->record;
    return bpf_map_lookup_elem(&overflow_map, &cookie);
}

static __always_inline void store_cell32(struct bpf_sock_addr *ctx)
{
    __u64 cookie = bpf_get_socket_cookie(ctx);
    __u32 index = cell_of(cookie);
    struct cell32 *cell = bpf_map_lookup_elem(&cell32_map, &index);

    if (!cell || !claim(&cell->cookie, cookie))
        return store_overflow(cookie);
    __builtin_memset(cell->address, 0, sizeof(cell->address));
    cell->address[10] = cell->address[11] = 0xff;
    *(__be32 *)&cell->address[12] = SERVICE_ADDRESS;
    cell->port = SERVICE_PORT;
    cell->flags = 0;
    cell->backend = 21;
}

/* For comparison: the rewrite without a record. */

static __always_inline void store_none(struct bpf_sock_addr *ctx)
{
}

static __always_inline int is_service(struct bpf_sock_addr *ctx)
{
    return ctx->user_ip4 == SERVICE_ADDRESS && ctx->user_port == SERVICE_PORT;
}

#define CONNECT(name)                                                                              \
    SEC("cgroup/connect4") int connect_##name(struct bpf_sock_addr *ctx)                           \
    {                                                                                              \
        if (!is_service(ctx))                                                                      \
            return 1;                                                                              \
        store_##name(ctx);                                                                         \
        ctx->user_ip4 = LOOPBACK;                                                                  \
        ctx->user_port = server_port;                                                              \
        return 1;                                                                                  \
    }

#define RECEIVE(name)                                                                              \
    SEC("cgroup/recvmsg4") int receive_##name(struct bpf_sock_addr *ctx)                           \
    {                                                                                              \
        struct record *record = load_##name(ctx);                                                  \
                                                                                                   \
        if (!record || record->chosen_port != ctx->user_port)                                      \
            return 1;                                                                              \
        ctx->user_ip4 = *(__be32 *)&record->address[12];                                           \
        ctx->user_port = record->port;                                                             \
        return 1;                                                                                  \
    }

CONNECT(none)
CONNECT(storage48)
CONNECT(storage400)
CONNECT(hash)
CONNECT(lazy)
CONNECT(lru)
CONNECT(cell64)
CONNECT(cell32)

RECEIVE(storage48)
RECEIVE(storage400)
RECEIVE(hash)
RECEIVE(lazy)
RECEIVE(lru)
RECEIVE(cell64)

SEC("cgroup/connect4") int connect_empty(struct bpf_sock_addr *ctx)
{
    return 1;
}

SEC("cgroup/recvmsg4") int receive_empty(struct bpf_sock_addr *ctx)
{
    return 1;
}

SEC("cgroup/recvmsg4") int receive_cell32(struct bpf_sock_addr *ctx)
{
    __u64 cookie = bpf_get_socket_cookie(ctx);
    __u32 index = cell_of(cookie);
    struct cell32 *cell = bpf_map_lookup_elem(&cell32_map, &index);
    struct record *record;

    /* The record belongs to the connection. After a disconnect, datagrams from other peers reach
     * the socket. */
    if (!ctx->sk || ctx->sk->dst_port != ctx->user_port)
        return 1;
    if (cell && cell->cookie == cookie) {
        ctx->user_ip4 = *(__be32 *)&cell->address[12];
        ctx->user_port = cell->port;
        return 1;
    }
    record = bpf_map_lookup_elem(&overflow_map, &cookie);
    if (!record)
        return 1;
    ctx->user_ip4 = *(__be32 *)&record->address[12];
    ctx->user_port = record->port;
    return 1;
}

/* The rewrite without a record, the baseline of all candidates. */
SEC("cgroup/recvmsg4") int receive_none(struct bpf_sock_addr *ctx)
{
    if (ctx->user_port != server_port)
        return 1;
    ctx->user_ip4 = SERVICE_ADDRESS;
    ctx->user_port = SERVICE_PORT;
    return 1;
}

/* Reads the cookie without creating one. A socket without a cookie has no record, and must cost
 * almost nothing. */
static __always_inline __u64 cookie_of(struct bpf_sock *sk)
{
    __u64 cookie = 0;

    bpf_probe_read_kernel(&cookie, sizeof(cookie),
                          (void *)sk + bpf_core_field_offset(struct sock, __sk_common.skc_cookie));
    return cookie;
}

#define RELEASE(name)                                                                              \
    SEC("cgroup/sock_release") int release_##name(struct bpf_sock *sk)                             \
    {                                                                                              \
        __u64 cookie = cookie_of(sk);                                                              \
                                                                                                   \
        if (cookie)                                                                                \
            bpf_map_delete_elem(&name##_map, &cookie);                                             \
        return 1;                                                                                  \
    }

RELEASE(hash)
RELEASE(lazy)

#define RELEASE_CELL(name)                                                                         \
    SEC("cgroup/sock_release") int release_##name(struct bpf_sock *sk)                             \
    {                                                                                              \
        __u64 cookie = cookie_of(sk);                                                              \
        struct name *cell;                                                                         \
        __u32 index;                                                                               \
                                                                                                   \
        if (!cookie)                                                                               \
            return 1;                                                                              \
        index = cell_of(cookie);                                                                   \
        cell = bpf_map_lookup_elem(&name##_map, &index);                                           \
        if (cell && cell->cookie == cookie)                                                        \
            __sync_lock_test_and_set(&cell->cookie, 0);                                            \
        else                                                                                       \
            bpf_map_delete_elem(&overflow_map, &cookie);                                           \
        return 1;                                                                                  \
    }

RELEASE_CELL(cell64)
RELEASE_CELL(cell32)

char LICENSE[] SEC("license") = "Dual BSD/GPL";
