/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The entries of socket records. */
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

/*
 * Stores the share of a new record. Another thread may have created the record of the same socket
 * at the same time; then this thread's charge is taken back.
 */
static __always_inline void store_share(__u64 *at, __u64 share, __s64 bytes)
{
    if (__sync_val_compare_and_swap(at, 0, share))
        release_record(share, bytes);
}
