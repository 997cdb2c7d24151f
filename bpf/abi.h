/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * All that the two halves agree on: keys, values, the event, enums. User space gets these types from BTF through the
 * generated skeleton, so each byte is defined once, here. `__be16/__be32` is network order, `__u*` host order, padding
 * is explicit and sizes are asserted.
 *
 * A dial walks: filter (is this any service's port or range at all?) -> frontend -> set -> backend. The agent owns
 * those rows; what the kernel itself writes (affinity, tokens, counters, socket records) lies in maps of its own.
 */
#pragma once
#include "kernel.h"

/* An IPv4 address is held mapped (::ffff:a.b.c.d), so that both families share maps and code. */
struct address {
    __be32 word[4];
};

/* Counted up whenever a table's key or value changes: an agent rebuilds tables of another layout beside the old ones. */
#ifdef BEELINE_OTHER_LAYOUT
/* A second layout, for the upgrade tests: same meaning, other sizes. */
enum layout { LAYOUT = 1003 };
#define OTHER_LAYOUT_PAD __u64 other_layout;
#else
enum layout { LAYOUT = 3 };
#define OTHER_LAYOUT_PAD
#endif

enum kind {
    KIND_NONE = 0,
    KIND_CLUSTER_IP = 1,
    KIND_NODE_PORT = 2,
    KIND_LOAD_BALANCER = 3,
    KIND_EXTERNAL_IP = 4,
    KIND_VIRTUAL = 5,
};

/* Which level of the order decided: LocalRedirect > Balancing > Service. */
enum rule {
    RULE_NONE = 0,
    RULE_SERVICE = 1,
    RULE_BALANCING = 2,
    RULE_REDIRECT = 3,
};

enum scope {
    SCOPE_INSIDE = 0, /* a dial of a socket on this host */
    SCOPE_OUTSIDE = 1, /* a packet from elsewhere (packet path) */
};

/* ---- filter: one row; a dial that is no service mostly ends here ---- */
enum port_bit {
    PORT_FRONTEND = 1, /* some frontend has this protocol and port */
    PORT_NODE = 2, /* some NodePort has */
};

enum { PORT_WORDS = 2048 /* 65536 ports x 2 bits / 64 */, RANGES = 4 };

struct filter {
    __u64 ports[2 * PORT_WORDS]; /* two bits a port; TCP first, then UDP */
    /*
     * Covering ranges of all ClusterIPs, per family, because a known ClusterIP is refused on a port it does not have.
     * One word each, so that a reader never sees half a range; 0 = unused.
     * v4: address << 32 | mask. v6: the first 56 bits of the address << 8 | prefix length (1..56).
     */
    __u64 v4[RANGES];
    __u64 v6[RANGES];
    /*
     * Odd while rows of a hash are exchanged. The kernel puts the new element at the head of its chain and then takes
     * the old one out: a reader between the two meets neither. Whoever finds nothing looks again if this has moved.
     */
    __u64 exchange;
    OTHER_LAYOUT_PAD
};

/* ---- frontend: what is dialled ---- */
struct frontend_key {
    struct address
        address; /* 0.0.0.0 (mapped) or :: for a NodePort, under the node's cluster instead of a view */
    __u32 view;
    __be16 port; /* 0 with protocol 0: "this ClusterIP is known" */
    __u8 protocol;
    __u8 scope;
    OTHER_LAYOUT_PAD
};

/* Read as ONE u64. `mark` holds the kind (low 3 bits) and a tag of the key: elements of a hash are recycled at once. */
struct frontend {
    __u32 set;
    __u32 mark;
};

enum mark { MARK_KIND = 7 };

/* ---- set: the backends one kind of dial may pick from; a cache line ---- */
enum span_base { SPAN_INLINE = 0xffffffff /* the ids stand in the row itself */ };

enum { INLINE_SLOTS = 8 };

enum set_id {
    SET_NONE = 0,
    SET_CLOSED = 1, /* a known ClusterIP on a port that its Service does not have */
    SET_FIRST = 2,
};

/* A backend's state and a set's role speak the same bits: "is this backend in that set" is one load. */
enum role {
    ROLE_CLUSTER = 1,
    ROLE_LOCAL = 2, /* on this node */
    ROLE_NODE = 4, /* on the node that `node` names */
};

enum when_empty {
    EMPTY_REFUSE = 0, /* the service has no endpoint anywhere */
    EMPTY_FAIL =
        1, /* others exist, but not in this set or not for this dialler: empty_local decides */
};

enum set_flag {
    SET_SOURCE_RANGES = 1, /* the dialler's address must be in map `source` */
    SET_OWN_NODE =
        2, /* as a NodePort for our own addresses only (external Local); others: when_empty */
    SET_SELF_NEXT = 4, /* a pod that its policy selects (map `member`) goes to the next set */
    SET_V6 = 8, /* the family, which an empty set's members do not tell */
    SET_LIMITED = 16, /* a pick costs a token of the policy's bucket; without one: the next set */
};

struct set {
    /* base:32 | count:16 | generation:16, read as one. The generation is for whoever compares two dumps. */
    __u64 span;
    __u32 next; /* the set below in the order, SET_NONE: none */
    __u32 owner; /* id in map `names`; index of counters */
    __u32 affinity; /* seconds, 0: none */
    __u32 policy; /* its number: SET_SELF_NEXT and SET_LIMITED ask by it; 0: none */
    __u32 node; /* ROLE_NODE: id of that node */
    __u8 role;
    __u8 rule;
    __u8 when_empty;
    __u8 flags;
    __u32 slot[INLINE_SLOTS];
    OTHER_LAYOUT_PAD
};

/* ---- backend: written once, but for its state ---- */
struct backend {
    struct address address;
    __be16 port;
    __u16 flags;
    __u32 node;
    __u32 owner;
    __u32 state; /* generation:24 | role bits:8; role bits 0: not in use */
    OTHER_LAYOUT_PAD
};

/* ---- node: which addresses are nodes', of which cluster; read as ONE u64 ---- */
enum node_flag {
    NODE_OWN = 1,
    NODE_LOOPBACK = 2, /* only for diallers in the host's own network namespace */
    NODE_ALONE = 4, /* 127.0.0.1 itself, not all of 127.0.0.0/8 */
};

struct node {
    __u16 cluster;
    __u16 flags;
    __u32 tag;
};

/* ---- source: who may dial a load-balancer address ---- */
struct source_key {
    __u32 prefix; /* 64 + prefix length of the mapped address */
    __u32 owner;
    __u32 family; /* 4 or 6: a short v6 prefix would cover mapped addresses too */
    struct address address;
};

/*
 * ---- policies ----
 * A policy's number is the id of its name (NAME_POLICY), so it lasts as long as the policy has a set, across restarts.
 * It is the number that a bucket belongs to, not the policy's uid: one that is deleted and made again under its name gets
 * a full bucket if the agent saw it gone in between, and goes on with what is left if it did not.
 */

/* Written by the agent; one word, so that no dial sees the rate of one limit and the burst of another. 0: no limit. */
struct bucket {
    __u32 rate; /* tokens a second */
    __u32 burst; /* tokens that it holds at most */
};

/*
 * Written by the kernel, one row a policy: its sets, ports and families share it. All zero: full, which is how the agent
 * hands a number out.
 *
 * A lock, not one atomic word: a dial that lost the race for a word must try again, and the verifier wants an end to
 * that, after which a token would be refused that is there. The lock is held for a few instructions, and 6.1 takes it in
 * every program type that we use. And two words have room for exact arithmetic: credit is kept in billionths of a token,
 * so that no rate is rounded to whole nanoseconds.
 */
struct level {
    struct bpf_spin_lock lock;
    __u32 pad;
    __u64 time; /* ns, monotonic: when `credit` was right */
    __u64 credit; /* billionths of a token */
};

enum { TOKEN = 1000000000 };

/* A pod that a policy selects, by the cgroup of the pod: its containers' lie below. */
struct member_key {
    __u64 cgroup;
    __u32 policy;
    __u32 pad;
};

enum { MEMBER_LEVELS = 4 };

/* ---- name: id -> text, so that restart and `status` need no API server. Its layout is versioned apart. ---- */
enum { NAME_TEXT = 248 };

struct name {
    __u16 length; /* 0: free */
    __u16 kind; /* enum name_kind */
    __u32 number; /* the service's own number, shared by all its ports */
    __u8 text[NAME_TEXT];
};

enum name_kind {
    NAME_SERVICE_PORT = 1,
    NAME_NODE = 2,
    NAME_POLICY = 3,
};

/* ---- what the kernel writes ---- */
struct affinity_key {
    __u64 client; /* network namespace cookie */
    __u32 owner;
    __u32 family;
};

struct affinity {
    __u32 backend;
    __u32 generation;
    __u64 used; /* ns, monotonic */
    struct address address; /* of that backend, so that the row outlives a change of table layout */
    __be16 port;
    __u16 pad;
    __u32 epoch;
};

struct counters {
    __u64 dials; /* answered with a backend */
    __u64 refused;
    __u64 no_local;
    __u64 affinity_hits;
    __u64 raced; /* picks that met a change and were made again */
    __u64 source_denied;
    __u64 limited;
    __u64 pad;
};

enum stat {
    STAT_RECORD_FAILED = 0, /* a socket record could not be stored */
    STAT_RECORD_OVERFLOW = 1, /* a UDP socket talks to more services than its record holds */
    STAT_SEND_FAILED =
        2, /* an unconnected send was failed, as its reply could not have been shown */
    STAT_EVENT_LOST = 3,
    STAT_SOURCE_UNKNOWN = 4,
    STAT_BOUND_LOOPBACK = 5, /* left alone: the socket is bound to a loopback address */
    STAT_ORPHANED = 6, /* left alone: no agent for longer than --orphan allows */
    STAT_RACED_OUT = 7, /* three picks in a row met a change */
    STAT_OPTED_OUT = 8,
    STAT_NO_PORT = 9, /* refused: the ClusterIP is known and has no such port */
    STATS = 16,
};

/* One translation that a socket remembers. */
struct peer {
    struct address dialled;
    struct address chosen;
    __be16 dialled_port;
    __be16 chosen_port; /* 0: the entry is empty */
    __u32 owner; /* 0: of other tables, known by what was dialled only; so is the backend */
    __u32 backend; /* 0: the frontend has another by now */
    __u32 generation; /* 24 bits, and PEER_SHADOWED */
};

/* Another frontend has led to the same backend since, and is the one that is shown. */
enum peer_flag { PEER_SHADOWED = 1 << 30 };

struct tcp_record {
    struct peer peer;
};

enum { UDP_PEERS = 8 };

struct udp_record {
    __u64 cookie;
    __u64 netns;
    __u32 epoch; /* of the tables that the ids in it belong to */
    __u32 used; /* entries claimed beyond peer[0] */
    struct peer peer[UDP_PEERS]; /* [0]: the connected one */
};

/* A translation has two rows: what to show for an answer, and which backend a frontend keeps. */
enum overflow_by { BY_CHOSEN = 0, BY_DIALLED = 1 };

struct overflow_key {
    __u64 cookie;
    struct address address;
    __be16 port;
    __u16 by;
    __u32 pad;
};

/* ---- control: one row, written while running ---- */
enum event_level {
    EVENTS_OFF = 0,
    EVENTS_FAILURES = 1,
    EVENTS_SAMPLE = 2,
    EVENTS_ALL = 3,
};

struct control {
    __u64 heartbeat; /* ns, monotonic: the agent's last sign of life */
    __u64 orphan; /* ns without one before dials are left alone; 0: never */
    __u32 event_level;
    __u32 event_sample; /* 1 in N */
    __u64 cgroup_levels; /* bit L: some row of map `cgroup` is a cgroup L levels below the root */
    /* Where cgroups of pods stand, a byte each: how many levels below the root, and one; 0: unused. */
    __u32 member_levels;
    __u32 pad;
    struct address host4; /* what the host itself dials from, mapped; zero: unknown */
    struct address host6;
};

enum cgroup_flag { CGROUP_UNTOUCHED = 1 };

struct cgroup_rule {
    __u32 flags;
    __u32 view;
};

/* ---- event ---- */
enum action {
    ACTION_UNTOUCHED = 0,
    ACTION_RESOLVED = 1,
    ACTION_REFUSED = 2,
};

enum reason {
    REASON_NONE = 0,
    REASON_NO_ENDPOINT = 1,
    REASON_NO_LOCAL = 2,
    REASON_NO_PORT = 3, /* the ClusterIP is known, the port is not */
    REASON_SOURCE_DENIED = 4,
    REASON_SOURCE_UNKNOWN = 5,
    REASON_RECORD = 6, /* the record of an unconnected send could not be stored */
    REASON_LIMITED = 7, /* over the policy's limit, and no set is below */
    REASON_SELF = 8, /* a pod that the policy selects dialled it, and no set is below */
};

enum hook {
    HOOK_CONNECT = 1,
    HOOK_SEND = 2,
};

struct event {
    __u64 time;
    __u64 cgroup;
    __u64 netns;
    __u32 pid;
    __u32 owner;
    struct address dialled;
    struct address chosen;
    __be16 dialled_port;
    __be16 chosen_port;
    __u8 protocol;
    __u8 rule;
    __u8 kind;
    __u8 action;
    __u8 reason;
    __u8 hook;
    __u8 affinity; /* 1: the backend was remembered */
    __u8 pad;
    __u32 set;
    __u32 limited; /* as in the verdict */
    __u32 view; /* of whoever dialled */
    char process[16];
};

/* ---- the decision's input and output: also what the test doors take and give ---- */
struct dial {
    struct address address;
    struct address source;
    __u64 client;
    __u64 now;
    __u32 view;
    __u32 random;
    __u32 prefer; /* the backend that the socket's record holds, 0: none */
    __u32 prefer_generation;
    __be16 port;
    __u8 protocol;
    __u8 scope;
    __u8 source_known;
    __u8 host; /* the dialler stands in the host's own network namespace */
    __u16 pad;
    __u64 cgroup[MEMBER_LEVELS]; /* above the dialler, at member_levels; only if the set asks */
};

struct verdict {
    struct address address;
    __u32 set;
    __u32 owner;
    __u32 backend;
    __u32 generation;
    __be16 port;
    __u8 action;
    __u8 reason;
    __u8 kind;
    __u8 rule;
    __u8 affinity;
    __u8 races;
    __u32 limited; /* owner of the set above whose limit this dial was; 0: of none */
    __u32 pad;
};

/* ---- the test doors (door.bpf.c) ---- */
struct question {
    struct dial dial;
    struct verdict verdict;
};

/*
 * The same dial again and again while the tables change. The backend of service S stands at port P for every S, so a
 * chosen port other than `expect` is a pod of another service.
 */
struct siege {
    struct dial dial; /* now 0: by the clock */
    __u32 rounds;
    __be16 expect;
    __u16 pad;
    __u64 resolved;
    __u64 refused;
    __u64 untouched;
    __u64 wrong;
    __u64 took; /* ns */
    __u32 spread; /* > 1: the dialled v4 address is counted up by a random number below this */
    __u32 linger; /* ns that one dial in 256 waits after its look, as if interrupted there */
};

/* A connected UDP socket with a record, as the survey reports it. */
struct surveyed {
    struct peer peer;
    __u64 cookie;
    __u64 netns;
    __u64 inode;
    __u32 netns_inode;
    __u32 epoch;
    struct address local; /* with local_port and device: what netlink finds a socket by */
    __be16 local_port;
    __u16 pad;
    __u32 device;
};

#ifndef BEELINE_OTHER_LAYOUT
_Static_assert(sizeof(struct filter) == 32840, "filter");
_Static_assert(sizeof(struct frontend_key) == 24, "frontend_key");
_Static_assert(sizeof(struct set) == 64, "set is one cache line");
_Static_assert(sizeof(struct backend) == 32, "backend");
#endif
_Static_assert(sizeof(struct frontend) == 8, "frontend is read as one word");
_Static_assert(sizeof(struct node) == 8, "node is read as one word");
_Static_assert(sizeof(struct source_key) == 28, "source_key");
_Static_assert(sizeof(struct bucket) == 8, "bucket is read as one word");
_Static_assert(sizeof(struct level) == 24, "level");
_Static_assert(sizeof(struct member_key) == 16, "member_key");
_Static_assert(sizeof(struct name) == 256, "name");
_Static_assert(sizeof(struct affinity_key) == 16, "affinity_key");
_Static_assert(sizeof(struct affinity) == 40, "affinity");
_Static_assert(sizeof(struct peer) == 48, "peer");
_Static_assert(sizeof(struct tcp_record) == 48, "tcp_record");
_Static_assert(sizeof(struct udp_record) == 408, "udp_record");
_Static_assert(sizeof(struct overflow_key) == 32, "overflow_key");
_Static_assert(sizeof(struct counters) == 64, "counters");
_Static_assert(sizeof(struct cgroup_rule) == 8, "cgroup_rule");
_Static_assert(sizeof(struct control) == 72, "control");
_Static_assert(sizeof(struct event) == 104, "event");
_Static_assert(sizeof(struct dial) == 104, "dial");
_Static_assert(sizeof(struct verdict) == 48, "verdict");
_Static_assert(sizeof(struct surveyed) == 104, "surveyed");
