// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
/*
 * Notices that the backend of a LocalRedirectPolicy refuses TCP connections. The program runs at
 * the socket operations of the cgroup whose dials are resolved. It asks for the state changes of
 * redirected dials only, so other connections cost one lookup of their socket record.
 *
 * A dial counts if the kernel ended it in SYN_SENT with ECONNREFUSED: the answer was a reset or an
 * ICMP message that says so. A client that closes its socket, and a timeout, do not count.
 *
 * The agent attaches the program while it runs and a LocalRedirectPolicy exists, and does not pin
 * the link: without an agent nobody checks whether a suspended backend is healthy again.
 */
#include "record.h"

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 1 << 16);
} refusals SEC(".maps");

static __always_inline struct tcp_record *redirect_record(struct bpf_sock *sk)
{
    struct tcp_record *r = bpf_sk_storage_get(&tcp_record, sk, 0, 0);

    return r && r->peer.chosen_port && r->peer.generation & PEER_REDIRECTED ? r : NULL;
}

static __always_inline bool is_refused(struct bpf_sock *sk)
{
    struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);

    return tp && tp->inet_conn.icsk_inet.sk.sk_err == ECONNREFUSED;
}

static __always_inline void report_refusal(const struct suspension_key *backend)
{
    struct refusal *r = bpf_ringbuf_reserve(&refusals, sizeof(*r), 0);

    if (!r)
        return;
    r->backend = *backend;
    r->pad = 0;
    bpf_ringbuf_submit(r, 0);
}

static __always_inline void suspend(const struct peer *p)
{
    struct suspension_key key = { .address = p->chosen, .port = p->chosen_port };
    __u64 now = bpf_ktime_get_ns();
    struct suspension first = { .until = now + SUSPENSION_NS, .reported = now };
    struct suspension *s = bpf_map_lookup_elem(&suspended, &key);

    count_stat(STAT_REDIRECT_REFUSED);
    if (!s) {
        bpf_map_update_elem(&suspended, &key, &first, BPF_ANY);
        report_refusal(&key);
        return;
    }
    /* Signed, because another CPU may have read its clock later. */
    if ((__s64)(READ_ONCE(s->trusted_until) - now) <= 0 && (__s64)(READ_ONCE(s->until) - now) <= 0)
        WRITE_ONCE(s->until, now + SUSPENSION_NS);
    if ((__s64)(now - READ_ONCE(s->reported)) >= REFUSAL_REPORT_NS) {
        WRITE_ONCE(s->reported, now);
        report_refusal(&key);
    }
}

SEC("sockops")
int watch_redirects(struct bpf_sock_ops *ctx)
{
    struct tcp_record *r;
    struct bpf_sock *sk;
    __u32 op = ctx->op;

    if (op != BPF_SOCK_OPS_TCP_CONNECT_CB && op != BPF_SOCK_OPS_STATE_CB)
        return 1;
    if (op == BPF_SOCK_OPS_STATE_CB && (ctx->args[0] != SK_SYN_SENT || ctx->args[1] != SK_CLOSE))
        return 1;
    sk = ctx->sk;
    if (!sk)
        return 1;
    r = redirect_record(sk);
    if (!r)
        return 1;
    if (op == BPF_SOCK_OPS_TCP_CONNECT_CB)
        bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
    else if (is_refused(sk))
        suspend(&r->peer);
    return 1;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
