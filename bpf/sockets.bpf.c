// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
/*
 * Stale UDP sockets. `list_connected_udp` iterates over the sockets that have a record, in all
 * network namespaces at once, and reports the connected ones. User space decides which of them use
 * a backend that is gone. `destroy_listed` then iterates over the UDP sockets of one namespace
 * (that of the process which opens the iterator) and destroys exactly the sockets in the map
 * `destroy_list`: by cookie, and only while still connected to that backend.
 *
 * The programs of recount.h iterate over the same records.
 */
#include "record.h"
#include "recount.h"
#include "socket_entry.h"

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 65536);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, __u64); /* cookie */
    __type(value, struct peer);
} destroy_list SEC(".maps");

extern int bpf_sock_destroy(struct sock_common *sk) __ksym __weak;

static __always_inline struct address from_in6(const struct in6_addr *a)
{
    struct address result = { .word = { a->in6_u.u6_addr32[0], a->in6_u.u6_addr32[1],
                                        a->in6_u.u6_addr32[2], a->in6_u.u6_addr32[3] } };

    return result;
}

/* As is_connected_to(), for a kernel socket whose fields are read by CO-RE. */
static __always_inline bool still_connected(struct sock *sk, const struct peer *p)
{
    struct sock_common *c = &sk->__sk_common;
    struct address a;

    if (c->skc_state != SK_ESTABLISHED || !p->chosen_port || c->skc_dport != p->chosen_port)
        return false;
    a = is_v4(&p->chosen) ? mapped(c->skc_daddr) : from_in6(&c->skc_v6_daddr);
    return same_address(&a, &p->chosen);
}

static __always_inline void write_entry(struct seq_file *seq, struct sock *sk, const struct peer *p,
                                        const struct udp_record *r)
{
    struct socket_entry s = { .peer = *p };
    struct sock_common *c = &sk->__sk_common;

    s.local = is_v4(&p->chosen) ? mapped(c->skc_rcv_saddr) : from_in6(&c->skc_v6_rcv_saddr);
    s.local_port = bpf_htons(c->skc_num);
    s.device = c->skc_bound_dev_if;
    s.cookie = r ? r->cookie : c->skc_cookie.counter;
    s.netns = r ? r->netns : 0;
    s.epoch = r ? r->epoch : 0;
    s.netns_inode = c->skc_net.net->ns.inum;
    s.inode = BPF_CORE_READ(sk, sk_socket, file, f_inode, i_ino);
    bpf_seq_write(seq, &s, sizeof(s));
}

/* Lists connected UDP sockets only: the ones that may be stale. */
SEC("iter/bpf_sk_storage_map")
int list_connected_udp(struct bpf_iter__bpf_sk_storage_map *ctx)
{
    struct sock *sk = ctx->sk;
    struct udp_record *r = ctx->value;

    if (sk && r && still_connected(sk, &r->peer[0]))
        write_entry(ctx->meta->seq, sk, &r->peer[0], r);
    return 0;
}

/* Lists all entries of all UDP records, for `beeline dump nat`. */
SEC("iter/bpf_sk_storage_map")
int list_udp(struct bpf_iter__bpf_sk_storage_map *ctx)
{
    struct sock *sk = ctx->sk;
    struct udp_record *r = ctx->value;

    if (!sk || !r)
        return 0;
    for (int i = 0; i < UDP_PEERS; i++)
        if (r->peer[i].chosen_port)
            write_entry(ctx->meta->seq, sk, &r->peer[i], r);
    return 0;
}

SEC("iter/bpf_sk_storage_map")
int list_tcp(struct bpf_iter__bpf_sk_storage_map *ctx)
{
    struct sock *sk = ctx->sk;
    struct tcp_record *r = ctx->value;

    if (sk && r && r->peer.chosen_port)
        write_entry(ctx->meta->seq, sk, &r->peer, NULL);
    return 0;
}

SEC("iter/udp")
int destroy_listed(struct bpf_iter__udp *ctx)
{
    struct sock *sk = (struct sock *)ctx->udp_sk;
    struct peer *p;
    __u64 cookie;

    if (!sk)
        return 0;
    cookie = sk->__sk_common.skc_cookie.counter;
    p = bpf_map_lookup_elem(&destroy_list, &cookie);
    if (!p || !still_connected(sk, p))
        return 0;
    if (bpf_sock_destroy((struct sock_common *)sk) == 0)
        bpf_seq_write(ctx->meta->seq, &cookie, sizeof(cookie));
    return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
