/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * Reports a verdict as an event: failures, a sample or all dials, by the event level in the map
 * `control`. An event that does not fit into the ring buffer is counted as lost.
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

static __always_inline void report(const struct control *c, __u8 hook, const struct dial *d,
                                   const struct verdict *v)
{
    struct event *e;

    if (!is_reported(c, d, v))
        return;
    e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
    if (!e) {
        count_stat(STAT_EVENT_LOST);
        return;
    }
    e->time = bpf_ktime_get_ns();
    e->cgroup = bpf_get_current_cgroup_id();
    e->netns = d->client;
    e->pid = bpf_get_current_pid_tgid() >> 32;
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
    e->pad = 0;
    e->set = v->set;
    e->limited = v->limited;
    e->view = d->view;
    bpf_get_current_comm(e->process, sizeof(e->process));
    bpf_ringbuf_submit(e, 0);
}
