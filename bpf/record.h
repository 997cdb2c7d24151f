/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * Socket records: the address that was dialled and the backend that replaced it, so that
 * getpeername and recvmsg report the address that the application knows. Records are in socket
 * storage: freed with the socket, without a shared limit, and without garbage collection.
 *
 * A record is valid only while its backend is the peer that the kernel reports.
 * connect(AF_UNSPEC) runs no hook, so a record cannot be cleared there.
 */
#pragma once
#include "resolve.h"

static __always_inline bool is_chosen(const struct peer *p, const struct address *a, __be16 port)
{
    return p->chosen_port == port && port && same_address(&p->chosen, a);
}

static __always_inline bool is_dialled(const struct peer *p, const struct dial *d)
{
    return p->chosen_port && p->dialled_port == d->port && same_address(&p->dialled, &d->address);
}

/* A nonzero chosen_port makes an entry valid, so it is cleared first and written last. */
static __always_inline void write_peer(struct peer *p, const struct dial *d,
                                       const struct verdict *v)
{
    WRITE_ONCE(p->chosen_port, 0);
    p->dialled = d->address;
    p->dialled_port = d->port;
    p->chosen = v->address;
    p->owner = v->owner;
    p->backend = v->backend;
    p->generation = v->generation;
    WRITE_ONCE(p->chosen_port, v->port);
}

/* ---- TCP ---- */

/*
 * MPTCP: connect runs on the socket of a subflow, getpeername on the parent socket. The record is
 * therefore stored on the parent. Further subflows connect by themselves to the backend of the
 * first one: they neither write nor clear the record.
 */
static __always_inline bool is_subflow(struct bpf_sock *sk)
{
    struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);

    return tp && bpf_core_field_exists(tp->is_mptcp) && tp->is_mptcp;
}

static __always_inline struct tcp_record *parent_record(struct bpf_sock *sk, __u64 flags)
{
    struct mptcp_sock *parent = bpf_skc_to_mptcp_sock(sk);

    if (!parent || (void *)parent->first != (void *)sk)
        return NULL;
    return bpf_sk_storage_get(&tcp_record, parent, 0, flags);
}

static __always_inline void record_tcp(struct bpf_sock_addr *ctx, const struct dial *d,
                                       const struct verdict *v)
{
    bool subflow = bpf_core_type_exists(struct mptcp_sock) && is_subflow(ctx->sk);
    struct tcp_record *r =
        subflow ? parent_record(ctx->sk, BPF_SK_STORAGE_GET_F_CREATE)
                : bpf_sk_storage_get(&tcp_record, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

    if (r)
        write_peer(&r->peer, d, v);
    else
        count_stat(STAT_RECORD_FAILED);
}

/* ---- UDP ---- */

static __always_inline struct udp_record *get_or_create_udp_record(struct bpf_sock_addr *ctx)
{
    struct udp_record *r = bpf_sk_storage_get(&udp_record, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

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

/* All entries of the record are in use; further translations are in the map `overflow`. */
static __always_inline bool is_full(const struct udp_record *r)
{
    return r->used >= UDP_PEERS - 1;
}

static __always_inline struct overflow_key overflow_key_of(const struct udp_record *r, __u16 by,
                                                           const struct address *a, __be16 port)
{
    struct overflow_key key = { .cookie = r->cookie, .address = *a, .port = port, .by = by };

    return key;
}

/*
 * The next three functions search the entries and return an index, 0 for none. They are global
 * functions, as decide() is: inlined, each entry at which a search may end is a separate path
 * through all following code, and the verifier rejected the number of paths.
 */

/*
 * Several frontends can use one backend. Each continues to use it, but only the frontend that was
 * dialled last is reported for its replies.
 */
__attribute__((noinline)) int shadow_others(struct udp_record *r, const struct address *a,
                                            __u32 port, __u32 except)
{
    if (!r || !a)
        return 0;
    for (__u32 i = 1; i < UDP_PEERS; i++)
        if (i != except && is_chosen(&r->peer[i], a, port))
            r->peer[i].generation |= PEER_SHADOWED;
    return 0;
}

/*
 * The entry with the backend that a frontend continues to use. An entry without a backend id is
 * only used to report late replies.
 */
__attribute__((noinline)) int entry_in_use(struct udp_record *r, const struct dial *d)
{
    if (!r || !d)
        return 0;
    for (__u32 i = 1; i < UDP_PEERS; i++)
        if (is_dialled(&r->peer[i], d) && r->peer[i].backend)
            return i;
    return 0;
}

/* The entry with the same addresses; its ids may differ. */
__attribute__((noinline)) int entry_with_addresses(struct udp_record *r, const struct dial *d,
                                                   const struct verdict *v)
{
    if (!r || !d || !v)
        return 0;
    for (__u32 i = 1; i < UDP_PEERS; i++)
        if (is_dialled(&r->peer[i], d) && is_chosen(&r->peer[i], &v->address, v->port))
            return i;
    return 0;
}

/*
 * The application dialled this backend, but not by a send to a frontend. From now on no frontend is
 * reported for its replies.
 */
static __always_inline void shadow_all(struct udp_record *r, const struct address *a, __be16 port)
{
    struct overflow_key key = overflow_key_of(r, BY_CHOSEN, a, port);

    shadow_others(r, a, port, 0);
    if (is_full(r) && bpf_map_lookup_elem(&overflow, &key))
        bpf_map_delete_elem(&overflow, &key);
}

static __always_inline void record_udp_connect(struct bpf_sock_addr *ctx, const struct dial *d,
                                               const struct verdict *v)
{
    struct udp_record *r = get_or_create_udp_record(ctx);

    if (!r)
        return;
    write_peer(&r->peer[0], d, v);
    shadow_all(r, &v->address, v->port);
}

static __always_inline bool is_reported_for(const struct peer *p, const struct address *a,
                                            __be16 port)
{
    return is_chosen(p, a, port) && !(p->generation & PEER_SHADOWED);
}

static __always_inline bool is_same(const struct peer *p, const struct dial *d,
                                    const struct verdict *v)
{
    return p && is_dialled(p, d) && is_chosen(p, &v->address, v->port) &&
           p->backend == v->backend && p->generation == v->generation;
}

/* True if both rows are in the map already. A lookup costs less than an update. */
static __always_inline bool has_overflow(const struct udp_record *r, const struct dial *d,
                                         const struct verdict *v)
{
    struct overflow_key key = overflow_key_of(r, BY_DIALLED, &d->address, d->port);

    if (!is_same(bpf_map_lookup_elem(&overflow, &key), d, v))
        return false;
    key = overflow_key_of(r, BY_CHOSEN, &v->address, v->port);
    return is_same(bpf_map_lookup_elem(&overflow, &key), d, v);
}

static __always_inline bool record_overflow(const struct udp_record *r, const struct dial *d,
                                            const struct verdict *v)
{
    struct overflow_key key = overflow_key_of(r, BY_DIALLED, &d->address, d->port);
    struct peer p = {};

    write_peer(&p, d, v);
    count_stat(STAT_RECORD_OVERFLOW);
    /*
     * Only the BY_CHOSEN row must be stored. Without the BY_DIALLED row, the next send to the
     * frontend picks a backend again.
     */
    bpf_map_update_elem(&overflow, &key, &p, BPF_ANY);
    key = overflow_key_of(r, BY_CHOSEN, &v->address, v->port);
    return bpf_map_update_elem(&overflow, &key, &p, BPF_ANY) == 0;
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

/* An entry that can be reused; 0 means none. */
__attribute__((noinline)) int reusable_entry(struct udp_record *r)
{
    if (!r)
        return 0;
    for (__u32 i = 1; i < UDP_PEERS; i++)
        if (is_reusable(&r->peer[i]))
            return i;
    return 0;
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

/*
 * Returns false if the record cannot be stored. The reply could then not be reported with the
 * address that the application sent to, so the send must fail.
 */
static __always_inline bool record_udp_send(struct bpf_sock_addr *ctx, const struct dial *d,
                                            const struct verdict *v)
{
    struct udp_record *r = get_or_create_udp_record(ctx);
    __u32 former, at;
    struct peer *p;

    if (!r)
        return false;
    former = entry_in_use(r, d) & (UDP_PEERS - 1);
    p = &r->peer[former];
    if (former && is_reported_for(p, &v->address, v->port) && p->backend == v->backend)
        return true;
    at = !former && is_full(r) && has_overflow(r, d, v) ? UDP_PEERS : entry_for(r, d, v, former);
    shadow_others(r, &v->address, v->port, at);
    if (at == UDP_PEERS)
        return true;
    if (!at)
        return record_overflow(r, d, v);
    at &= UDP_PEERS - 1;
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
    struct peer *p;
    __u32 at;

    if (!r || r->epoch != epoch)
        return NULL;
    p = &r->peer[0];
    if (is_dialled(p, d) && is_connected_to(ctx->sk, family, &p->chosen, p->chosen_port))
        return p;
    at = entry_in_use(r, d);
    if (!at && is_full(r)) {
        struct overflow_key key = overflow_key_of(r, BY_DIALLED, &d->address, d->port);

        return bpf_map_lookup_elem(&overflow, &key);
    }
    return at ? &r->peer[at & (UDP_PEERS - 1)] : NULL;
}

/* ---- addresses reported to the application ---- */

static __always_inline const struct peer *peer_for_recvmsg(struct bpf_sock_addr *ctx,
                                                           const struct address *a, __be16 port)
{
    struct udp_record *r = bpf_sk_storage_get(&udp_record, ctx->sk, 0, 0);
    struct peer *p;

    if (!r)
        return NULL;
    for (int i = 1; i < UDP_PEERS; i++)
        if (is_reported_for(&r->peer[i], a, port))
            return &r->peer[i];
    if (is_full(r)) {
        struct overflow_key key = overflow_key_of(r, BY_CHOSEN, a, port);

        p = bpf_map_lookup_elem(&overflow, &key);
        if (p)
            return p;
    }
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
    shadow_all(r, &d->address, d->port);
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
        shadow_all(r, &d->address, d->port);
}

static __always_inline void clear_tcp_record(struct bpf_sock_addr *ctx)
{
    bool subflow = bpf_core_type_exists(struct mptcp_sock) && is_subflow(ctx->sk);
    struct tcp_record *r =
        subflow ? parent_record(ctx->sk, 0) : bpf_sk_storage_get(&tcp_record, ctx->sk, 0, 0);

    if (r)
        WRITE_ONCE(r->peer.chosen_port, 0);
}
