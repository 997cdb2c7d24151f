/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * The kernel's connection tracking, as the packet program uses it: look up an entry, remove it, and
 * create an entry with a translated destination and source. The kernel translates all packets of a
 * flow by its entry, in both directions, so Beeline has no NAT code of its own.
 *
 * The functions are in nf_conntrack and nf_nat since Linux 6.1. Kernels that have these as modules
 * need BTF for modules.
 */
#pragma once
#include "address.h"

union nf_inet_addr {
    __u32 all[4];
};

union nf_conntrack_man_proto {
    __be16 all;
} KERNEL_STRUCT;

struct nf_conntrack_man {
    union nf_inet_addr u3;
    union nf_conntrack_man_proto u;
} KERNEL_STRUCT;

struct nf_conntrack_tuple {
    struct nf_conntrack_man src;
} KERNEL_STRUCT;

struct nf_conntrack_tuple_hash {
    struct nf_conntrack_tuple tuple;
} KERNEL_STRUCT;

struct ip_ct_tcp {
    __u8 state;
} KERNEL_STRUCT;

union nf_conntrack_proto {
    struct ip_ct_tcp tcp;
} KERNEL_STRUCT;

struct nf_conn {
    struct nf_conntrack_tuple_hash tuplehash[2];
    unsigned long status;
    union nf_conntrack_proto proto;
} KERNEL_STRUCT;

/* An entry that is not inserted yet. The loader compares the kind of the type, so it is complete.
 */
struct nf_conn___init {
    struct nf_conn ct;
};

enum ip_conntrack_dir { IP_CT_DIR_ORIGINAL, IP_CT_DIR_REPLY };
enum { TCP_CONNTRACK_SYN_SENT = 1, TCP_CONNTRACK_TIME_WAIT = 7, TCP_CONNTRACK_CLOSE = 8 };
enum { IPS_DST_NAT = 1 << 5 };
enum nf_nat_manip_type { NF_NAT_MANIP_SRC, NF_NAT_MANIP_DST };

/* Only the fields that Linux 6.1 has. */
struct bpf_ct_opts {
    __s32 netns_id;
    __s32 error;
    __u8 l4proto;
    __u8 dir;
    __u8 reserved[2];
};

extern struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *skb, struct bpf_sock_tuple *tuple,
                                         __u32 tuple_size, struct bpf_ct_opts *opts,
                                         __u32 opts_size) __ksym;
extern struct nf_conn___init *bpf_skb_ct_alloc(struct __sk_buff *skb, struct bpf_sock_tuple *tuple,
                                               __u32 tuple_size, struct bpf_ct_opts *opts,
                                               __u32 opts_size) __ksym;
extern int bpf_ct_set_nat_info(struct nf_conn___init *entry, union nf_inet_addr *address, int port,
                               enum nf_nat_manip_type manip) __ksym;
extern void bpf_ct_set_timeout(struct nf_conn___init *entry, __u32 timeout_ms) __ksym;
extern struct nf_conn *bpf_ct_insert_entry(struct nf_conn___init *entry) __ksym;
extern int bpf_ct_change_timeout(struct nf_conn *entry, __u32 timeout_ms) __ksym;
extern void bpf_ct_release(struct nf_conn *entry) __ksym;

/*
 * The packet itself passes the new entry a moment later and sets the timeout of its state. If a
 * firewall drops the packet first, the entry ends after this time.
 */
enum { NEW_ENTRY_TIMEOUT_MS = 5000 };

/* The addresses and ports of a packet. */
struct flow {
    struct bpf_sock_tuple tuple;
    __u8 protocol;
    __u8 v4;
    __u16 pad;
};

/* Not a field: the verifier must see that the size is one of two constants. */
static __always_inline __u32 tuple_size(const struct flow *f)
{
    return f->v4 ? sizeof(f->tuple.ipv4) : sizeof(f->tuple.ipv6);
}

static __always_inline struct bpf_ct_opts conntrack_options(const struct flow *f)
{
    struct bpf_ct_opts opts = { .netns_id = -1, .l4proto = f->protocol };

    return opts;
}

static __always_inline union nf_inet_addr to_nf_address(const struct address *a)
{
    union nf_inet_addr out = {};

    if (is_v4(a)) {
        out.all[0] = a->word[3];
        return out;
    }
    out.all[0] = a->word[0];
    out.all[1] = a->word[1];
    out.all[2] = a->word[2];
    out.all[3] = a->word[3];
    return out;
}

/* The address and port that the replies of the flow come from: the backend of a translated flow. */
static __always_inline void replying_backend(const struct nf_conn *entry, bool v4,
                                             struct address *address, __be16 *port)
{
    const struct nf_conntrack_man *src = &entry->tuplehash[IP_CT_DIR_REPLY].tuple.src;

    if (v4) {
        *address = mapped(src->u3.all[0]);
    } else {
        address->word[0] = src->u3.all[0];
        address->word[1] = src->u3.all[1];
        address->word[2] = src->u3.all[2];
        address->word[3] = src->u3.all[3];
    }
    *port = src->u.all;
}

/*
 * Releases the entry, and tells whether there was one. The result is set by assembly after the
 * release: the compiler would otherwise set it first and test the pointer twice, and the verifier
 * of Linux 6.1 does not see that the second test has the same result.
 */
static __always_inline bool release_if_found(struct nf_conn *entry)
{
    __u64 found = 0;

    if (entry) {
        bpf_ct_release(entry);
        asm volatile("%0 = 1" : "=r"(found));
    }
    return found;
}

/* The kernel removes an entry without remaining time at the next lookup. */
static __always_inline bool has_entry(struct __sk_buff *skb, struct flow *f)
{
    struct bpf_ct_opts opts = conntrack_options(f);

    return release_if_found(bpf_skb_ct_lookup(skb, &f->tuple, tuple_size(f), &opts, sizeof(opts)));
}

/*
 * Creates the entry of a flow to `address` and `port`, with the given source address. The source is
 * always set: one client port to two frontends of one backend would otherwise collide. The kernel
 * chooses another source port if that is needed. Returns false if the entry was not created, for
 * example because another CPU has created it.
 */
static __always_inline bool insert_entry(struct __sk_buff *skb, struct flow *f,
                                         const struct address *address, __be16 port,
                                         const struct address *source)
{
    union nf_inet_addr to = to_nf_address(address), from = to_nf_address(source);
    struct bpf_ct_opts opts = conntrack_options(f);
    struct nf_conn___init *new =
        bpf_skb_ct_alloc(skb, &f->tuple, tuple_size(f), &opts, sizeof(opts));

    if (!new)
        return false;
    bpf_ct_set_timeout(new, NEW_ENTRY_TIMEOUT_MS);
    bpf_ct_set_nat_info(new, &to, bpf_ntohs(port), NF_NAT_MANIP_DST);
    bpf_ct_set_nat_info(new, &from, 0, NF_NAT_MANIP_SRC);
    return release_if_found(bpf_ct_insert_entry(new));
}
