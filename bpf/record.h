/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * What a socket remembers: which address was dialled and what it became, so that getpeername and recvmsg show the
 * address that the application knows. Socket storage: freed with the socket, no shared limit, nothing to sweep.
 *
 * A record counts only while its backend is the peer that the kernel shows: connect(AF_UNSPEC) runs no hook, so
 * nothing can be reset there.
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

/* The port is what makes an entry valid: cleared first and written last. */
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
 * MPTCP: connect runs on a subflow's socket, getpeername on the parent's, so the record is the parent's. Further subflows
 * dial by themselves what the first one reached: they neither write it nor forget it.
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

static __always_inline struct udp_record *make_udp_record(struct bpf_sock_addr *ctx)
{
    struct udp_record *r = bpf_sk_storage_get(&udp_record, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

    if (!r) {
        count_stat(STAT_RECORD_FAILED);
        return NULL;
    }
    if (r->epoch != epoch || !r->cookie) {
        /* Ids of other tables mean nothing here; the addresses still do. */
        for (int i = 0; i < UDP_PEERS; i++)
            r->peer[i].backend = r->peer[i].owner = 0;
        r->epoch = epoch;
        r->cookie = bpf_get_socket_cookie(ctx);
        r->netns = bpf_get_netns_cookie(ctx);
    }
    return r;
}

/* The socket's own entries are taken; further ones are in map `overflow`. */
static __always_inline bool is_full(const struct udp_record *r)
{
    return r->used >= UDP_PEERS - 1;
}

static __always_inline struct overflow_key overflow_of(const struct udp_record *r, __u16 by,
                                                       const struct address *a, __be16 port)
{
    struct overflow_key key = { .cookie = r->cookie, .address = *a, .port = port, .by = by };

    return key;
}

/*
 * The next three walk the entries and give an index, 0 for none. Global functions, as decide() is: inlined, each entry
 * that a walk may end at is a path of its own through all that follows, and together they were too many.
 */

/* Frontends that lead to one backend each keep it, but only the last dialled is shown. */
__attribute__((noinline)) int shadow_others(struct udp_record *r, const struct address *a,
                                            __u32 port, __u32 but)
{
    if (!r || !a)
        return 0;
    for (__u32 i = 1; i < UDP_PEERS; i++)
        if (i != but && is_chosen(&r->peer[i], a, port))
            r->peer[i].generation |= PEER_SHADOWED;
    return 0;
}

/* The entry by which a frontend keeps its backend. One that names none is only shown, for late answers. */
__attribute__((noinline)) int entry_of(struct udp_record *r, const struct dial *d)
{
    if (!r || !d)
        return 0;
    for (__u32 i = 1; i < UDP_PEERS; i++)
        if (is_dialled(&r->peer[i], d) && r->peer[i].backend)
            return i;
    return 0;
}

/* An entry that says the same already, but for its ids. */
__attribute__((noinline)) int entry_like(struct udp_record *r, const struct dial *d,
                                         const struct verdict *v)
{
    if (!r || !d || !v)
        return 0;
    for (__u32 i = 1; i < UDP_PEERS; i++)
        if (is_dialled(&r->peer[i], d) && is_chosen(&r->peer[i], &v->address, v->port))
            return i;
    return 0;
}

/* This backend was dialled in another way than by a send to a frontend: no frontend is shown for it any more. */
static __always_inline void shadow_all(struct udp_record *r, const struct address *a, __be16 port)
{
    struct overflow_key key = overflow_of(r, BY_CHOSEN, a, port);

    shadow_others(r, a, port, 0);
    if (is_full(r) && bpf_map_lookup_elem(&overflow, &key))
        bpf_map_delete_elem(&overflow, &key);
}

static __always_inline void record_udp_connect(struct bpf_sock_addr *ctx, const struct dial *d,
                                               const struct verdict *v)
{
    struct udp_record *r = make_udp_record(ctx);

    if (!r)
        return;
    write_peer(&r->peer[0], d, v);
    shadow_all(r, &v->address, v->port);
}

static __always_inline bool is_shown(const struct peer *p, const struct address *a, __be16 port)
{
    return is_chosen(p, a, port) && !(p->generation & PEER_SHADOWED);
}

static __always_inline bool is_same(const struct peer *p, const struct dial *d,
                                    const struct verdict *v)
{
    return p && is_dialled(p, d) && is_chosen(p, &v->address, v->port) &&
           p->backend == v->backend && p->generation == v->generation;
}

/* Both rows stand in the map already, which is dearer to write than to ask. */
static __always_inline bool has_overflow(const struct udp_record *r, const struct dial *d,
                                         const struct verdict *v)
{
    struct overflow_key key = overflow_of(r, BY_DIALLED, &d->address, d->port);

    if (!is_same(bpf_map_lookup_elem(&overflow, &key), d, v))
        return false;
    key = overflow_of(r, BY_CHOSEN, &v->address, v->port);
    return is_same(bpf_map_lookup_elem(&overflow, &key), d, v);
}

static __always_inline bool record_overflow(const struct udp_record *r, const struct dial *d,
                                            const struct verdict *v)
{
    struct overflow_key key = overflow_of(r, BY_DIALLED, &d->address, d->port);
    struct peer p = {};

    write_peer(&p, d, v);
    count_stat(STAT_RECORD_OVERFLOW);
    /* Only what is shown must be stored: without the other row the frontend keeps no backend, no more. */
    bpf_map_update_elem(&overflow, &key, &p, BPF_ANY);
    key = overflow_of(r, BY_CHOSEN, &v->address, v->port);
    return bpf_map_update_elem(&overflow, &key, &p, BPF_ANY) == 0;
}

/* Its backend answers no more, or its frontend has another: the entry may be had by one that needs it. */
static __always_inline bool is_gone(const struct peer *p)
{
    __u32 id = p->backend, state;
    struct backend *b = bpf_map_lookup_elem(&backend, &id);

    if (!b)
        return true;
    state = READ_ONCE(b->state);
    return !(state & 0xff) || state >> 8 != (p->generation & ~PEER_SHADOWED);
}

/* An entry to take over. */
__attribute__((noinline)) int entry_gone(struct udp_record *r)
{
    if (!r)
        return 0;
    for (__u32 i = 1; i < UDP_PEERS; i++)
        if (is_gone(&r->peer[i]))
            return i;
    return 0;
}

/*
 * Where to write a translation. The frontend's former entry stays where it is, as answers of that backend may be under
 * way; it is written over only where nothing else is left. 0: there is no room.
 */
static __always_inline __u32 entry_for(struct udp_record *r, const struct dial *d,
                                       const struct verdict *v, __u32 former)
{
    __u32 at = entry_like(r, d, v);

    if (at)
        return at;
    at = __sync_fetch_and_add(&r->used, 1) + 1;
    if (at < UDP_PEERS)
        return at;
    r->used = UDP_PEERS - 1;
    return former ? former : entry_gone(r);
}

/* False: the reply could not be shown as coming from where the application sent to, so the send must fail. */
static __always_inline bool record_udp_send(struct bpf_sock_addr *ctx, const struct dial *d,
                                            const struct verdict *v)
{
    struct udp_record *r = make_udp_record(ctx);
    __u32 former, at;
    struct peer *p;

    if (!r)
        return false;
    former = entry_of(r, d) & (UDP_PEERS - 1);
    p = &r->peer[former];
    if (former && is_shown(p, &v->address, v->port) && p->backend == v->backend)
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

/* Whether the kernel's own peer is this one: connect(AF_UNSPEC) clears it without a hook. */
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
 * One socket keeps its backend for one frontend while that backend lives. On a connected socket that is the connected
 * one: the kernel would drop the answer of another.
 */
static __always_inline const struct peer *peer_kept(struct bpf_sock_addr *ctx, int family,
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
    at = entry_of(r, d);
    if (!at && is_full(r)) {
        struct overflow_key key = overflow_of(r, BY_DIALLED, &d->address, d->port);

        return bpf_map_lookup_elem(&overflow, &key);
    }
    return at ? &r->peer[at & (UDP_PEERS - 1)] : NULL;
}

/* ---- what the application is shown ---- */

static __always_inline const struct peer *shown_by_recvmsg(struct bpf_sock_addr *ctx,
                                                           const struct address *a, __be16 port)
{
    struct udp_record *r = bpf_sk_storage_get(&udp_record, ctx->sk, 0, 0);
    struct peer *p;

    if (!r)
        return NULL;
    for (int i = 1; i < UDP_PEERS; i++)
        if (is_shown(&r->peer[i], a, port))
            return &r->peer[i];
    if (is_full(r)) {
        struct overflow_key key = overflow_of(r, BY_CHOSEN, a, port);

        p = bpf_map_lookup_elem(&overflow, &key);
        if (p)
            return p;
    }
    /* A connected socket receives from its peer only. */
    p = &r->peer[0];
    return ctx->sk->state == SK_ESTABLISHED && is_chosen(p, a, port) ? p : NULL;
}

static __always_inline const struct peer *shown_by_getpeername(struct bpf_sock_addr *ctx,
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
 * A connect that is no service: an older record would give a direct dial to the same pod the virtual address. The kernel
 * may still say no to it, and a UDP socket then keeps the peer that it has: its record goes only where it would be shown
 * for the very address that is dialled.
 */
static __always_inline void forget_udp(struct bpf_sock_addr *ctx, const struct dial *d)
{
    struct udp_record *r = bpf_sk_storage_get(&udp_record, ctx->sk, 0, 0);

    if (!r)
        return;
    if (is_chosen(&r->peer[0], &d->address, d->port))
        WRITE_ONCE(r->peer[0].chosen_port, 0);
    shadow_all(r, &d->address, d->port);
}

/* A send that is no service, likewise; one to the connected peer may be a plain send(), which dials nothing. */
static __always_inline void forget_sent(struct bpf_sock_addr *ctx, int family, const struct dial *d)
{
    struct udp_record *r = bpf_sk_storage_get(&udp_record, ctx->sk, 0, 0);

    if (r && !is_connected_to(ctx->sk, family, &d->address, d->port))
        shadow_all(r, &d->address, d->port);
}

static __always_inline void forget_tcp(struct bpf_sock_addr *ctx)
{
    bool subflow = bpf_core_type_exists(struct mptcp_sock) && is_subflow(ctx->sk);
    struct tcp_record *r =
        subflow ? parent_record(ctx->sk, 0) : bpf_sk_storage_get(&tcp_record, ctx->sk, 0, 0);

    if (r)
        WRITE_ONCE(r->peer.chosen_port, 0);
}
