/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Functions on addresses. An IPv4 address is always in IPv4-mapped form. */
#pragma once
#include "abi_packet.h"

static __always_inline struct address mapped(__be32 ip)
{
    struct address a = { .word = { 0, 0, bpf_htonl(0xffff), ip } };

    return a;
}

static __always_inline bool is_v4(const struct address *a)
{
    return !a->word[0] && !a->word[1] && a->word[2] == bpf_htonl(0xffff);
}

static __always_inline bool same_address(const struct address *a, const struct address *b)
{
    return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] &&
           a->word[3] == b->word[3];
}

static __always_inline bool is_zero(const struct address *a)
{
    return !(a->word[0] | a->word[1] | a->word[2] | a->word[3]);
}

static __always_inline bool is_loopback(const struct address *a)
{
    if (is_v4(a))
        return (a->word[3] & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
    return !a->word[0] && !a->word[1] && !a->word[2] && a->word[3] == bpf_htonl(1);
}

/* The kernel treats the destinations 0.0.0.0 and :: as loopback. */
static __always_inline void replace_any_by_loopback(struct address *a)
{
    if (is_v4(a) && !a->word[3])
        a->word[3] = bpf_htonl(0x7f000001);
    else if (!a->word[0] && !a->word[1] && !a->word[2] && !a->word[3])
        a->word[3] = bpf_htonl(1);
}
