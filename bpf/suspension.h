/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * Suspended backends of LocalRedirectPolicies. A backend that refuses a redirected TCP dial is
 * suspended at once (refusal.bpf.c), and redirects skip it: the dials use the next set. The agent
 * is told, connects to the backend itself, and extends or ends the suspension. A suspension that
 * nobody extends ends by itself.
 *
 * The key is an address and not a backend id, so that the rows are valid for tables of any layout
 * and all redirects to one backend share a row.
 */
#pragma once
#include "abi.h"

struct suspension_key {
    struct address address;
    __be16 port;
    __u16 pad;
};

/* All times are ns, monotonic. */
struct suspension {
    __u64 until; /* redirects skip the backend until then */
    /*
     * Until then a refused dial alone does not suspend the backend, because the agent found it
     * healthy after an earlier one. A client that fakes refused dials cannot keep others away.
     */
    __u64 trusted_until;
    __u64 reported; /* when the last refused dial was reported to the agent */
};

enum {
    SUSPENSION_NS = 1000000000, /* without the agent */
    REFUSAL_REPORT_NS = 100000000, /* the shortest time between two reports of one backend */
    MAX_SUSPENSIONS = 1024,
};

/* A refused dial, as the ring buffer `refusals` reports it. */
struct refusal {
    struct suspension_key backend;
    __u32 pad;
};

_Static_assert(sizeof(struct suspension_key) == 20, "suspension_key");
_Static_assert(sizeof(struct suspension) == 24, "suspension");
_Static_assert(sizeof(struct refusal) == 24, "refusal");
