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
static __always_inline void write_peer(struct peer *p, const struct dial *d, const struct verdict *v)
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
 * MPTCP: connect runs on a subflow's socket, getpeername on the parent's, which knows its first subflow. Only here the
 * record is kept by the subflow's cookie, in a map of its own (LRU: nothing tells when a subflow ends).
 */
static __always_inline bool is_subflow(struct bpf_sock *sk)
{
    struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);

    return tp && bpf_core_field_exists(tp->is_mptcp) && tp->is_mptcp;
}

static __always_inline __u64 first_subflow_cookie(struct bpf_sock_addr *ctx)
{
    struct mptcp_sock *parent = NULL;
    struct sock *first;

    if (!bpf_core_type_exists(struct mptcp_sock))
        return 0;
    /* The program's context is, inside the kernel, a bpf_sock_addr_kern. */
    bpf_probe_read_kernel(&parent, sizeof(parent),
                          (void *)ctx + bpf_core_field_offset(struct bpf_sock_addr_kern, sk));
    first = BPF_CORE_READ(parent, first);
    return BPF_CORE_READ(first, __sk_common.skc_cookie.counter);
}

static __always_inline void record_tcp(struct bpf_sock_addr *ctx, const struct dial *d,
                                       const struct verdict *v)
{
    struct tcp_record *r =
        bpf_sk_storage_get(&tcp_record, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

    if (!r) {
        count_stat(STAT_RECORD_FAILED);
        return;
    }
    write_peer(&r->peer, d, v);
    if (is_subflow(ctx->sk)) {
        __u64 cookie = bpf_get_socket_cookie(ctx);

        bpf_map_update_elem(&mptcp_record, &cookie, r, BPF_ANY);
    }
}

/* ---- UDP ---- */

static __always_inline struct udp_record *make_udp_record(struct bpf_sock_addr *ctx)
{
    struct udp_record *r =
        bpf_sk_storage_get(&udp_record, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

    if (!r) {
        count_stat(STAT_RECORD_FAILED);
        return NULL;
    }
    if (r->epoch != epoch || !r->cookie) {
        /* Ids of other tables mean nothing here; the addresses still do. */
        for (int i = 0; i < UDP_PEERS; i++)
            r->peer[i].backend = 0;
        r->epoch = epoch;
        r->cookie = bpf_get_socket_cookie(ctx);
        r->netns = bpf_get_netns_cookie(ctx);
    }
    return r;
}

static __always_inline void record_udp_connect(struct bpf_sock_addr *ctx, const struct dial *d,
                                               const struct verdict *v)
{
    struct udp_record *r = make_udp_record(ctx);

    if (r)
        write_peer(&r->peer[0], d, v);
}

/* The entry that an unconnected send to this frontend used before. */
static __always_inline struct peer *peer_dialled(struct udp_record *r, const struct dial *d)
{
    for (int i = 1; i < UDP_PEERS; i++)
        if (is_dialled(&r->peer[i], d))
            return &r->peer[i];
    return NULL;
}

static __always_inline struct peer *peer_chosen(struct udp_record *r, const struct address *a,
                                                __be16 port)
{
    for (int i = 0; i < UDP_PEERS; i++)
        if (is_chosen(&r->peer[i], a, port))
            return &r->peer[i];
    return NULL;
}

static __always_inline bool record_overflow(const struct udp_record *r, const struct dial *d,
                                            const struct verdict *v)
{
    struct overflow_key key = {
        .cookie = r->cookie,
        .chosen = v->address,
        .chosen_port = v->port,
    };
    struct peer p = {};

    write_peer(&p, d, v);
    count_stat(STAT_RECORD_OVERFLOW);
    return bpf_map_update_elem(&overflow, &key, &p, BPF_ANY) == 0;
}

/* False: the reply could not be shown as coming from where the application sent to, so the send must fail. */
static __always_inline bool record_udp_send(struct bpf_sock_addr *ctx, const struct dial *d,
                                            const struct verdict *v)
{
    struct udp_record *r = make_udp_record(ctx);
    struct peer *p;
    __u32 at;

    if (!r)
        return false;
    p = peer_dialled(r, d);
    if (p && is_chosen(p, &v->address, v->port) && p->backend == v->backend)
        return true;
    /* Two frontends that lead to one backend: the last dialled wins. Never the connected entry. */
    for (int i = 1; !p && i < UDP_PEERS; i++)
        if (is_chosen(&r->peer[i], &v->address, v->port))
            p = &r->peer[i];
    if (!p) {
        at = __sync_fetch_and_add(&r->used, 1) + 1;
        if (at >= UDP_PEERS) {
            r->used = UDP_PEERS - 1;
            return record_overflow(r, d, v);
        }
        p = &r->peer[at & (UDP_PEERS - 1)];
    }
    write_peer(p, d, v);
    return true;
}

/* ---- what the application is shown ---- */

static __always_inline const struct peer *shown_by_recvmsg(struct bpf_sock_addr *ctx,
                                                           const struct address *a, __be16 port)
{
    struct udp_record *r = bpf_sk_storage_get(&udp_record, ctx->sk, 0, 0);
    struct overflow_key key = { .chosen = *a, .chosen_port = port };
    struct peer *p;

    if (!r)
        return NULL;
    p = peer_chosen(r, a, port);
    if (p || r->used < UDP_PEERS - 1)
        return p;
    key.cookie = r->cookie;
    return bpf_map_lookup_elem(&overflow, &key);
}

static __always_inline const struct peer *shown_by_getpeername(struct bpf_sock_addr *ctx,
                                                               const struct address *a, __be16 port)
{
    if (ctx->protocol == IPPROTO_UDP) {
        struct udp_record *r = bpf_sk_storage_get(&udp_record, ctx->sk, 0, 0);

        if (r && is_chosen(&r->peer[0], a, port))
            return &r->peer[0];
    } else if (ctx->protocol == IPPROTO_TCP) {
        struct tcp_record *r = bpf_sk_storage_get(&tcp_record, ctx->sk, 0, 0);

        if (r && is_chosen(&r->peer, a, port))
            return &r->peer;
    } else if (ctx->protocol == IPPROTO_MPTCP) {
        __u64 cookie = first_subflow_cookie(ctx);
        struct tcp_record *r = bpf_map_lookup_elem(&mptcp_record, &cookie);

        if (r && is_chosen(&r->peer, a, port))
            return &r->peer;
    }
    return NULL;
}

/* A connect that is no service: an older record would give a direct dial to the same pod the virtual address. */
static __always_inline void forget(struct bpf_sock_addr *ctx)
{
    if (ctx->protocol == IPPROTO_UDP) {
        struct udp_record *r = bpf_sk_storage_get(&udp_record, ctx->sk, 0, 0);

        if (r)
            WRITE_ONCE(r->peer[0].chosen_port, 0);
    } else {
        struct tcp_record *r = bpf_sk_storage_get(&tcp_record, ctx->sk, 0, 0);

        if (r)
            WRITE_ONCE(r->peer.chosen_port, 0);
    }
}
