/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * Finds what shares are charged for socket records that do not exist any more, and takes it back.
 * The hook of the socket's release does not run for sockets of the kernel itself, nor while it is
 * detached. User space runs start_recount, waits for an RCU grace period, iterates over all records
 * with the count_* programs, and runs finish_recount. Only one recount runs at a time.
 *
 * During a recount `unexplained_bytes` is what the share was charged at the start, less the records
 * that the iterators found, less what was taken back since. Programs charge and release records at
 * the same time, but what is left is never more than the error:
 *
 * - A record that is released is subtracted once or twice. The release changes record_bytes before
 *   unexplained_bytes, and the start clears unexplained_bytes before it reads record_bytes: a
 *   release that the start does not see in record_bytes is not cleared.
 * - A record that is charged before the start and created after it is found: the grace period ends
 *   after the program that creates it. If the program takes the charge back, that is subtracted.
 * - A record that is charged after the start may be found, and is then subtracted from a sum that
 *   does not contain it.
 *
 * So a charge never becomes less than what its records use. What a recount does not notice, because
 * records were created or released meanwhile, is left for the next one.
 */
#pragma once
#include "share.h"

struct recount_state {
    __u64 bytes; /* taken back */
};

static long start_share(struct bpf_map *map, __u64 *id, struct share *s, void *unused)
{
    /* Atomic operations that return a value are barriers. */
    __sync_lock_test_and_set(&s->unexplained_bytes, 0);
    __sync_fetch_and_add(&s->unexplained_bytes, READ_ONCE(s->record_bytes));
    return 0;
}

SEC("syscall")
int start_recount(void *ctx)
{
    bpf_for_each_map_elem(&share, start_share, NULL, 0);
    return 0;
}

static __always_inline int count_record(__u64 id, __s64 bytes)
{
    struct share *s = id ? bpf_map_lookup_elem(&share, &id) : NULL;

    if (s)
        __sync_fetch_and_add(&s->unexplained_bytes, -bytes);
    return 0;
}

/* These write no output. The kernel pauses an iteration only for output, and may then skip records.
 */
#define COUNT(name, type, bytes)                                                                   \
    SEC("iter/bpf_sk_storage_map")                                                                 \
    int name(struct bpf_iter__bpf_sk_storage_map *ctx)                                             \
    {                                                                                              \
        struct type *r = ctx->value;                                                               \
                                                                                                   \
        return ctx->sk && r ? count_record(r->share, bytes) : 0;                                   \
    }

COUNT(count_tcp_records, tcp_record, TCP_RECORD_BYTES)
COUNT(count_udp_records, udp_record, UDP_RECORD_BYTES)
COUNT(count_udp_overflows, udp_overflow, UDP_OVERFLOW_BYTES)

static long finish_share(struct bpf_map *map, __u64 *id, struct share *s,
                         struct recount_state *state)
{
    __s64 surplus = READ_ONCE(s->unexplained_bytes);
    struct share *total = share_total_row();

    if (surplus <= 0 || !total)
        return 0;
    add_use(&s->record_bytes, &total->record_bytes, -surplus, RECORD_RESERVE);
    state->bytes += surplus;
    return 0;
}

/* Returns the number of bytes that were taken back, at most 2^31 - 1. */
SEC("syscall")
int finish_recount(void *ctx)
{
    struct recount_state state = {};

    bpf_for_each_map_elem(&share, finish_share, &state, 0);
    return state.bytes > 0x7fffffff ? 0x7fffffff : state.bytes;
}
