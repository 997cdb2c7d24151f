/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * Socket records: the address that was dialled and the backend that replaced it, so that
 * getpeername and recvmsg report the address that the application knows. Records are in socket
 * storage: freed with the socket, without garbage collection. The program that creates a record
 * charges its memory to a share (share.h), and the hook of the socket's release takes it back.
 *
 * A record is valid only while its backend is the peer that the kernel reports.
 * connect(AF_UNSPEC) runs no hook, so a record cannot be cleared there.
 */
#pragma once
#include "record_tcp.h"

/* ---- UDP ---- */

static __always_inline struct udp_record *create_udp_record(struct bpf_sock_addr *ctx,
                                                            const struct dial *d)
{
    __u64 share = charge_record(d->share, UDP_RECORD_BYTES);
    struct udp_record *r;

    if (!share)
        return NULL;
    r = bpf_sk_storage_get(&udp_record, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
    if (r)
        store_share(&r->share, share, UDP_RECORD_BYTES);
    else
        release_record(share, UDP_RECORD_BYTES);
    return r;
}

static __always_inline struct udp_record *get_or_create_udp_record(struct bpf_sock_addr *ctx,
                                                                   const struct dial *d)
{
    struct udp_record *r = bpf_sk_storage_get(&udp_record, ctx->sk, 0, 0);

    if (!r)
        r = create_udp_record(ctx, d);
    if (!r) {
        count_stat(STAT_RECORD_FAILED);
        return NULL;
    }
    if (r->epoch != epoch || !r->cookie) {
        /* Ids of another epoch are not valid in these tables; the addresses are. */
        for (int i = 0; i < UDP_PEERS; i++)
            r->peer[i].backend = r->peer[i].owner = 0;
        r->epoch = epoch;
        r->cookie = bpf_get_socket_cookie(ctx);
        r->netns = bpf_get_netns_cookie(ctx);
    }
    return r;
}

/* All entries of the record are in use; further translations are in `udp_overflow`. */
static __always_inline bool is_full(const struct udp_record *r)
{
    return r->used >= UDP_PEERS - 1;
}

static __always_inline struct udp_overflow *overflow_of(struct bpf_sock_addr *ctx,
                                                        const struct udp_record *r)
{
    struct udp_overflow *o;

    if (!is_full(r))
        return NULL;
    o = bpf_sk_storage_get(&udp_overflow, ctx->sk, 0, 0);
    return o && o->epoch == epoch ? o : NULL;
}

/* Ids of another epoch are not valid in these tables; the addresses are. A global function. */
__attribute__((noinline)) int forget_overflow_ids(struct udp_overflow *o)
{
    if (!o)
        return 0;
    for (__u32 i = 1; i < UDP_OVERFLOW_PEERS; i++)
        o->peer[i].backend = o->peer[i].owner = 0;
    o->epoch = epoch;
    return 0;
}

static __always_inline struct udp_overflow *create_overflow(struct bpf_sock_addr *ctx,
                                                            const struct dial *d)
{
    __u64 share = charge_record(d->share, UDP_OVERFLOW_BYTES);
    struct udp_overflow *o;

    if (!share)
        return NULL;
    o = bpf_sk_storage_get(&udp_overflow, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
    if (o)
        store_share(&o->share, share, UDP_OVERFLOW_BYTES);
    else
        release_record(share, UDP_OVERFLOW_BYTES);
    return o;
}

static __always_inline struct udp_overflow *get_or_create_overflow(struct bpf_sock_addr *ctx,
                                                                   const struct dial *d)
{
    struct udp_overflow *o = bpf_sk_storage_get(&udp_overflow, ctx->sk, 0, 0);

    if (!o)
        o = create_overflow(ctx, d);
    if (o && o->epoch != epoch)
        forget_overflow_ids(o);
    return o;
}

static __always_inline bool is_reported_for(const struct peer *p, const struct address *a,
                                            __be16 port)
{
    return is_chosen(p, a, port) && !(p->generation & PEER_SHADOWED);
}

/*
 * True if the backend is gone or the frontend uses another backend, so that the entry can be
 * reused.
 */
static __always_inline bool is_reusable(const struct peer *p)
{
    __u32 id = p->backend, state;
    struct backend *b = bpf_map_lookup_elem(&backend, &id);

    if (!b)
        return true;
    state = READ_ONCE(b->state);
    return !(state & 0xff) || state >> 8 != (p->generation & ~PEER_SHADOWED);
}

/*
 * SEARCH defines a function that returns the first entry of a record for which `match` holds, 0 for
 * none. These are global functions, as decide() is: inlined, each entry at which a search may end
 * is a separate path through all following code, and the verifier rejected the number of paths. A
 * global function can take a struct but no array of any length, so there is one for each record.
 */
#define SEARCH(name, end, arguments, match)                                                        \
    __attribute__((noinline)) int name arguments                                                   \
    {                                                                                              \
        if (!r)                                                                                    \
            return 0;                                                                              \
        for (__u32 i = 1; i < end; i++) {                                                          \
            struct peer *p = &r->peer[i];                                                          \
                                                                                                   \
            if (match)                                                                             \
                return i;                                                                          \
        }                                                                                          \
        return 0;                                                                                  \
    }

#define SEARCH_BOTH(name, match, ...)                                                              \
    SEARCH(name, UDP_PEERS, (struct udp_record * r, ##__VA_ARGS__), match)                         \
    SEARCH(overflow_##name, UDP_OVERFLOW_PEERS, (struct udp_overflow * r, ##__VA_ARGS__), match)

/*
 * The entry with the backend that a frontend continues to use. An entry without a backend id is
 * only used to report late replies.
 */
SEARCH_BOTH(entry_in_use, d &&is_dialled(p, d) && p->backend, const struct dial *d)

/* The entry with the same addresses; its ids may differ. */
SEARCH_BOTH(entry_with_addresses, d &&v &&is_dialled(p, d) && is_chosen(p, &v->address, v->port),
            const struct dial *d, const struct verdict *v)

SEARCH_BOTH(reusable_entry, is_reusable(p))

/* The entry whose frontend is reported for a reply from this address. */
SEARCH_BOTH(reported_entry, a &&is_reported_for(p, a, port), const struct address *a, __u32 port)

/* Returns false, so that a search continues. */
static __always_inline bool shadow(struct peer *p)
{
    p->generation |= PEER_SHADOWED;
    return false;
}

/*
 * Several frontends can use one backend. Each continues to use it, but only the frontend that was
 * dialled last is reported for its replies.
 */
SEARCH_BOTH(shadow_others, a &&i != except && is_chosen(p, a, port) && shadow(p),
            const struct address *a, __u32 port, __u32 except)

/*
 * The application dialled this backend, but not by a send to a frontend. From now on no frontend is
 * reported for its replies.
 */
static __always_inline void shadow_all(struct bpf_sock_addr *ctx, struct udp_record *r,
                                       const struct address *a, __be16 port)
{
    struct udp_overflow *o = overflow_of(ctx, r);

    shadow_others(r, a, port, 0);
    if (o)
        overflow_shadow_others(o, a, port, 0);
}

static __always_inline void record_udp_connect(struct bpf_sock_addr *ctx, const struct dial *d,
                                               const struct verdict *v)
{
    struct udp_record *r = get_or_create_udp_record(ctx, d);

    if (!r)
        return;
    write_peer(&r->peer[0], d, v);
    shadow_all(ctx, r, &v->address, v->port);
}

/*
 * The entry to write a translation to; 0 means that there is none. The frontend's former entry
 * stays, because replies of that backend may be in flight. It is overwritten only if no other
 * entry is free.
 */
static __always_inline __u32 entry_for(struct udp_record *r, const struct dial *d,
                                       const struct verdict *v, __u32 former)
{
    __u32 at = entry_with_addresses(r, d, v);

    if (at)
        return at;
    at = __sync_fetch_and_add(&r->used, 1) + 1;
    if (at < UDP_PEERS)
        return at;
    r->used = UDP_PEERS - 1;
    return former ? former : reusable_entry(r);
}

/* As entry_for(), for a translation that does not fit into the record. */
static __always_inline __u32 overflow_entry_for(struct udp_overflow *o, const struct dial *d,
                                                const struct verdict *v, __u32 former)
{
    __u32 at = overflow_entry_with_addresses(o, d, v);

    if (at)
        return at;
    at = __sync_fetch_and_add(&o->used, 1) + 1;
    if (at < UDP_OVERFLOW_PEERS)
        return at;
    o->used = UDP_OVERFLOW_PEERS - 1;
    return former ? former : overflow_reusable_entry(o);
}

/* Returns false if there is no memory or no free entry. */
static __always_inline bool record_overflow(struct bpf_sock_addr *ctx, const struct dial *d,
                                            const struct verdict *v)
{
    struct udp_overflow *o = get_or_create_overflow(ctx, d);
    __u32 former, at;

    if (!o) {
        count_stat(STAT_RECORD_FAILED);
        return false;
    }
    former = overflow_entry_in_use(o, d) & (UDP_OVERFLOW_PEERS - 1);
    if (former && is_reported_for(&o->peer[former], &v->address, v->port) &&
        o->peer[former].backend == v->backend)
        return true;
    at = overflow_entry_for(o, d, v, former) & (UDP_OVERFLOW_PEERS - 1);
    if (!at) {
        count_stat(STAT_RECORD_FAILED);
        return false;
    }
    overflow_shadow_others(o, &v->address, v->port, at);
    if (former && former != at)
        o->peer[former].backend = 0;
    write_peer(&o->peer[at], d, v);
    count_stat(STAT_RECORD_OVERFLOW);
    return true;
}

/*
 * Returns false if the record cannot be stored. The reply could then not be reported with the
 * address that the application sent to, so the send must fail.
 */
static __always_inline bool record_udp_send(struct bpf_sock_addr *ctx, const struct dial *d,
                                            const struct verdict *v)
{
    struct udp_record *r = get_or_create_udp_record(ctx, d);
    struct udp_overflow *o;
    __u32 former, at;
    struct peer *p;

    if (!r)
        return false;
    former = entry_in_use(r, d) & (UDP_PEERS - 1);
    p = &r->peer[former];
    if (former && is_reported_for(p, &v->address, v->port) && p->backend == v->backend)
        return true;
    o = former ? NULL : overflow_of(ctx, r);
    at = o && overflow_entry_in_use(o, d) ? 0 : entry_for(r, d, v, former);
    shadow_others(r, &v->address, v->port, at);
    if (!at)
        return record_overflow(ctx, d, v);
    at &= UDP_PEERS - 1;
    o = overflow_of(ctx, r);
    if (o)
        overflow_shadow_others(o, &v->address, v->port, 0);
    if (former && former != at)
        p->backend = 0;
    write_peer(&r->peer[at], d, v);
    return true;
}

/* Compares with the kernel's own peer, which connect(AF_UNSPEC) clears without a hook. */
static __always_inline bool is_connected_to(struct bpf_sock *sk, int family,
                                            const struct address *a, __be16 port)
{
    if (sk->state != SK_ESTABLISHED || sk->dst_port != port)
        return false;
    if (family == 4)
        return is_v4(a) && sk->dst_ip4 == a->word[3];
    return sk->dst_ip6[0] == a->word[0] && sk->dst_ip6[1] == a->word[1] &&
           sk->dst_ip6[2] == a->word[2] && sk->dst_ip6[3] == a->word[3];
}

/*
 * The backend that a socket uses for a frontend stays the same while that backend exists. For a
 * connected socket it is the connected peer: the kernel would drop replies of another backend.
 */
static __always_inline const struct peer *recorded_peer(struct bpf_sock_addr *ctx, int family,
                                                        const struct dial *d)
{
    struct udp_record *r = bpf_sk_storage_get(&udp_record, ctx->sk, 0, 0);
    struct udp_overflow *o;
    struct peer *p;
    __u32 at;

    if (!r || r->epoch != epoch)
        return NULL;
    p = &r->peer[0];
    if (is_dialled(p, d) && is_connected_to(ctx->sk, family, &p->chosen, p->chosen_port))
        return p;
    at = entry_in_use(r, d);
    if (at)
        return &r->peer[at & (UDP_PEERS - 1)];
    o = overflow_of(ctx, r);
    at = o ? overflow_entry_in_use(o, d) & (UDP_OVERFLOW_PEERS - 1) : 0;
    return o && at ? &o->peer[at] : NULL;
}

/* ---- addresses reported to the application ---- */

static __always_inline const struct peer *peer_for_recvmsg(struct bpf_sock_addr *ctx,
                                                           const struct address *a, __be16 port)
{
    struct udp_record *r = bpf_sk_storage_get(&udp_record, ctx->sk, 0, 0);
    struct udp_overflow *o;
    struct peer *p;
    __u32 at;

    if (!r)
        return NULL;
    for (int i = 1; i < UDP_PEERS; i++)
        if (is_reported_for(&r->peer[i], a, port))
            return &r->peer[i];
    /* Late replies to entries of another epoch are reported, too. */
    o = is_full(r) ? bpf_sk_storage_get(&udp_overflow, ctx->sk, 0, 0) : NULL;
    at = o ? overflow_reported_entry(o, a, port) & (UDP_OVERFLOW_PEERS - 1) : 0;
    if (o && at)
        return &o->peer[at];
    /* A connected socket receives only from its connected peer, which is peer[0]. */
    p = &r->peer[0];
    return ctx->sk->state == SK_ESTABLISHED && is_chosen(p, a, port) ? p : NULL;
}

static __always_inline const struct peer *peer_for_getpeername(struct bpf_sock_addr *ctx,
                                                               const struct address *a, __be16 port)
{
    if (ctx->protocol == IPPROTO_UDP) {
        struct udp_record *r = bpf_sk_storage_get(&udp_record, ctx->sk, 0, 0);

        if (r && is_chosen(&r->peer[0], a, port))
            return &r->peer[0];
    } else if (ctx->protocol == IPPROTO_TCP || ctx->protocol == IPPROTO_MPTCP) {
        struct tcp_record *r = bpf_sk_storage_get(&tcp_record, ctx->sk, 0, 0);

        if (r && is_chosen(&r->peer, a, port))
            return &r->peer;
    }
    return NULL;
}

/*
 * For a connect that is not for a service. An older record would make a direct dial to the same
 * pod report the virtual address. The kernel may still reject the connect, and a UDP socket then
 * keeps its peer: the record is cleared only if it would be reported for the dialled address.
 */
static __always_inline void clear_udp_record(struct bpf_sock_addr *ctx, const struct dial *d)
{
    struct udp_record *r = bpf_sk_storage_get(&udp_record, ctx->sk, 0, 0);

    if (!r)
        return;
    if (is_chosen(&r->peer[0], &d->address, d->port))
        WRITE_ONCE(r->peer[0].chosen_port, 0);
    shadow_all(ctx, r, &d->address, d->port);
}

/*
 * For a send that is not for a service. A send to the connected peer may be a plain send(), which
 * is not a new dial and leaves the record as it is.
 */
static __always_inline void clear_sent_peer(struct bpf_sock_addr *ctx, int family,
                                            const struct dial *d)
{
    struct udp_record *r = bpf_sk_storage_get(&udp_record, ctx->sk, 0, 0);

    if (r && !is_connected_to(ctx->sk, family, &d->address, d->port))
        shadow_all(ctx, r, &d->address, d->port);
}

/* ---- release ---- */

static __always_inline void release_udp_records(struct bpf_sock *sk)
{
    struct udp_record *r = bpf_sk_storage_get(&udp_record, sk, 0, 0);
    struct udp_overflow *o;

    if (!r)
        return;
    release_record(r->share, UDP_RECORD_BYTES);
    r->share = 0;
    o = bpf_sk_storage_get(&udp_overflow, sk, 0, 0);
    if (o) {
        release_record(o->share, UDP_OVERFLOW_BYTES);
        o->share = 0;
    }
}

/*
 * Takes back what the records of a closed socket were charged. The kernel frees the records of a
 * TCP socket a little later, when its connection has ended.
 */
static __always_inline void release_records(struct bpf_sock *sk)
{
    struct tcp_record *r;

    if (sk->protocol == IPPROTO_UDP) {
        release_udp_records(sk);
        return;
    }
    r = bpf_sk_storage_get(&tcp_record, sk, 0, 0);
    if (r) {
        release_record(r->share, TCP_RECORD_BYTES);
        r->share = 0;
    }
}
