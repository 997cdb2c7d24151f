/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * Reports a verdict as an event: failures, a sample or all dials, by the event level in the map
 * `control`. The agent sets the level to off while nothing reads events. Each cgroup has a rate, so
 * that the dials of one cannot fill the ring buffer and lose the events of the others. Events above
 * the rate, and events that do not fit into the ring buffer, are counted.
 */
#pragma once
#include "resolve.h"

static __always_inline bool is_reported(const struct control *c, const struct dial *d,
                                        const struct verdict *v)
{
    switch (READ_ONCE(c->event_level)) {
    case EVENTS_ALL:
        return true;
    case EVENTS_SAMPLE:
        if (v->reason != REASON_NONE)
            return true;
        return c->event_sample && d->random % c->event_sample == 0;
    case EVENTS_FAILURES:
        return v->reason != REASON_NONE;
    default:
        return false;
    }
}

/*
 * Two processors that begin a period at the same time may both reset the row and report a few
 * events more. A row that is recycled for another cgroup, or evicted, begins again: the limit
 * guards the buffer and need not be exact.
 */
static __always_inline bool is_within_rate(__u64 cgroup, __u64 now)
{
    struct event_rate first = { .period = now >> EVENT_PERIOD_SHIFT, .events = 1 };
    struct event_rate *rate = bpf_map_lookup_elem(&event_rate, &cgroup);

    if (!rate) {
        bpf_map_update_elem(&event_rate, &cgroup, &first, BPF_ANY);
        return true;
    }
    if (READ_ONCE(rate->period) != first.period) {
        WRITE_ONCE(rate->period, first.period);
        WRITE_ONCE(rate->events, 1);
        return true;
    }
    if (READ_ONCE(rate->events) >= EVENTS_PER_PERIOD)
        return false;
    __sync_fetch_and_add(&rate->events, 1);
    return true;
}

/* Returns a new event with everything but the fields of the process; NULL if there is no room. */
static __always_inline struct event *new_event(__u64 cgroup, __u8 hook, const struct dial *d,
                                               const struct verdict *v)
{
    __u64 now = bpf_ktime_get_ns();
    struct event *e;

    if (!is_within_rate(cgroup, now)) {
        count_stat(STAT_EVENT_LIMITED);
        return NULL;
    }
    e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
    if (!e) {
        count_stat(STAT_EVENT_LOST);
        return NULL;
    }
    __builtin_memset(e, 0, sizeof(*e));
    e->time = now;
    e->cgroup = cgroup;
    e->netns = d->client;
    e->owner = v->owner;
    e->dialled = d->address;
    e->chosen = v->address;
    e->dialled_port = d->port;
    e->chosen_port = v->port;
    e->protocol = d->protocol;
    e->rule = v->rule;
    e->kind = v->kind;
    e->action = v->action;
    e->reason = v->reason;
    e->hook = hook;
    e->affinity = v->affinity;
    e->set = v->set;
    e->limited = v->limited;
    e->view = d->view;
    return e;
}

static __always_inline void report(const struct control *c, __u8 hook, const struct dial *d,
                                   const struct verdict *v)
{
    struct event *e;

    if (!is_reported(c, d, v))
        return;
    e = new_event(bpf_get_current_cgroup_id(), hook, d, v);
    if (!e)
        return;
    e->pid = bpf_get_current_pid_tgid() >> 32;
    bpf_get_current_comm(e->process, sizeof(e->process));
    bpf_ringbuf_submit(e, 0);
}

/* A packet belongs to no process. All packets share the rate of cgroup 0. */
static __always_inline void report_packet(const struct control *c, const struct dial *d,
                                          __be16 source_port, const struct verdict *v)
{
    struct event *e;

    if (!is_reported(c, d, v))
        return;
    e = new_event(0, HOOK_PACKET, d, v);
    if (!e)
        return;
    e->source = d->source;
    e->source_port = source_port;
    bpf_ringbuf_submit(e, 0);
}
