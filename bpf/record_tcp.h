/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The records of TCP sockets. */
#pragma once
#include "peer.h"

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

/*
 * A socket of the kernel itself, such as that of an NFS mount. The release hook does not run for
 * it, so that its record could not be taken back, and no application asks for its peer.
 */
static __always_inline bool is_kernel_socket(struct bpf_sock *sk)
{
    struct sock *s = (struct sock *)bpf_skc_to_tcp_sock(sk);

    return s && BPF_CORE_READ_BITFIELD(s, sk_kern_sock);
}

static __always_inline struct tcp_record *create_tcp_record(struct bpf_sock_addr *ctx,
                                                            const struct dial *d, bool subflow)
{
    __u64 share = charge_record(d->share, TCP_RECORD_BYTES);
    struct tcp_record *r;

    if (!share)
        return NULL;
    r = subflow ? parent_record(ctx->sk, BPF_SK_STORAGE_GET_F_CREATE)
                : bpf_sk_storage_get(&tcp_record, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
    if (r)
        store_share(&r->share, share, TCP_RECORD_BYTES);
    else
        release_record(share, TCP_RECORD_BYTES);
    return r;
}

static __always_inline void record_tcp(struct bpf_sock_addr *ctx, const struct dial *d,
                                       const struct verdict *v)
{
    bool subflow = bpf_core_type_exists(struct mptcp_sock) && is_subflow(ctx->sk);
    struct tcp_record *r =
        subflow ? parent_record(ctx->sk, 0) : bpf_sk_storage_get(&tcp_record, ctx->sk, 0, 0);

    if (!r && !subflow && is_kernel_socket(ctx->sk))
        return;
    if (!r)
        r = create_tcp_record(ctx, d, subflow);
    if (!r) {
        count_stat(STAT_RECORD_FAILED);
        return;
    }
    write_peer(&r->peer, d, v);
    if (v->rule == RULE_REDIRECT)
        r->peer.generation |= PEER_REDIRECTED;
}

static __always_inline void clear_tcp_record(struct bpf_sock_addr *ctx)
{
    bool subflow = bpf_core_type_exists(struct mptcp_sock) && is_subflow(ctx->sk);
    struct tcp_record *r =
        subflow ? parent_record(ctx->sk, 0) : bpf_sk_storage_get(&tcp_record, ctx->sk, 0, 0);

    if (r)
        WRITE_ONCE(r->peer.chosen_port, 0);
}
