/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * Types shared by the BPF programs and user space: map keys, map values, the event and the enums.
 * User space gets these types from BTF through the generated skeleton, so each byte is defined
 * once, here. `__be16/__be32` is network byte order, `__u*` host byte order. Padding is explicit
 * and sizes are asserted in abi_size.h.
 *
 * A dial is looked up in this order: filter (does any service use this port or range?) -> frontend
 * -> set -> backend. The agent writes those rows. The kernel writes affinity, tokens, counters and
 * socket records, which are in maps of their own.
 */
#pragma once
#include "abi_share.h"
#include "abi_stat.h"

/* An IPv4 address is stored IPv4-mapped (::ffff:a.b.c.d): both families share maps and code. */
struct address {
    __be32 word[4];
};

/*
 * The version of the table layout. It is incremented whenever the key or the value of a table
 * changes. An agent that finds tables of another version builds new tables beside them.
 */
#ifdef BEELINE_OTHER_LAYOUT
/* A second layout for the upgrade tests: the same meaning, other sizes. */
enum layout { LAYOUT = 1006 };
#define OTHER_LAYOUT_PAD __u64 other_layout;
#else
enum layout { LAYOUT = 6 };
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

/* The object that a set belongs to. Precedence: LocalRedirectPolicy, BalancingPolicy, Service. */
enum rule {
    RULE_NONE = 0,
    RULE_SERVICE = 1,
    RULE_BALANCING = 2,
    RULE_REDIRECT = 3,
};

enum scope {
    SCOPE_INSIDE = 0, /* a dial of a socket on this host */
    SCOPE_OUTSIDE = 1, /* a packet from another host (packet path) */
};

/* ---- filter: one row, which ends most dials that are not for a service ---- */
enum port_bit {
    PORT_FRONTEND = 1, /* a frontend has this protocol and port */
    PORT_NODE = 2, /* a NodePort has this protocol and port */
};

/* PORT_WORDS is 65536 ports x 2 bits / 64. */
enum { PORT_WORDS = 2048, RANGES = 4 };

struct filter {
    __u64 ports[2 * PORT_WORDS]; /* two bits per port; TCP first, then UDP */
    /*
     * Ranges that cover all ClusterIPs, per family. They are needed because a dial to a known
     * ClusterIP is refused on a port that its Service does not have. Each range is one word, so
     * that a reader never sees half of it; 0 means unused.
     * v4: address << 32 | mask. v6: first 56 bits of the address << 8 | prefix length (1..56).
     */
    __u64 v4[RANGES];
    __u64 v6[RANGES];
    /*
     * Odd while the agent replaces rows of a hash. On a replacement the kernel inserts the new
     * element at the head of the chain and then removes the old one, so a concurrent lookup can
     * miss both. A lookup that finds nothing is repeated if this word is odd or has changed.
     */
    __u64 exchange;
    OTHER_LAYOUT_PAD
};

/* ---- frontend: the address, port and protocol that is dialled ---- */
struct frontend_key {
    /* For a NodePort: 0.0.0.0 (mapped) or ::, and `view` is the id of the node's cluster. */
    struct address address;
    __u32 view;
    __be16 port; /* port 0 with protocol 0 marks a known ClusterIP */
    __u8 protocol;
    __u8 scope;
    OTHER_LAYOUT_PAD
};

/*
 * Read as ONE u64. `mark` holds the kind (low 3 bits) and a tag computed from the key. The kernel
 * recycles hash elements at once, so the tag tells whether the row still belongs to the key.
 *
 * `mark` comes first. The kernel copies a value into a recycled element with memcpy(), which may
 * copy byte by byte from the start. A lookup that still holds the element then sees the new tag
 * before any byte of the new set, and never the new set with its own tag. `struct node` and
 * `struct cgroup_rule` have the tag first for the same reason.
 */
struct frontend {
    __u32 mark;
    __u32 set;
};

enum mark { MARK_KIND = 7 };

/* ---- set: the backends that one kind of dial may pick from; one cache line ---- */

/* SPAN_INLINE: the backend ids are in the set row itself. */
enum span_base { SPAN_INLINE = 0xffffffff };

enum { INLINE_SLOTS = 8 };

enum set_id {
    SET_NONE = 0,
    SET_CLOSED = 1, /* a known ClusterIP on a port that its Service does not have */
    SET_FIRST = 2,
};

/*
 * The state of a backend and the role of a set use the same bits, so one load tells whether a
 * backend belongs to a set.
 */
enum role {
    ROLE_CLUSTER = 1,
    ROLE_LOCAL = 2, /* on this node */
    ROLE_NODE = 4, /* on the node in the field `node` */
};

enum when_empty {
    EMPTY_REFUSE = 0, /* the service has no endpoint at all */
    /* Endpoints exist, but not in this set or not for this client: --no-local-endpoint-action. */
    EMPTY_FAIL = 1,
};

enum set_flag {
    SET_SOURCE_RANGES = 1, /* the client's address must be in the map `source` */
    /* NodePort with externalTrafficPolicy Local: only this node's addresses; else when_empty. */
    SET_OWN_NODE = 2,
    SET_SELF_NEXT = 4, /* a pod that the policy selects (map `member`) uses the next set */
    SET_V6 = 8, /* the address family, because an empty set has no backend that shows it */
    SET_LIMITED = 16, /* a pick takes a token from the policy's bucket; without one: next set */
};

struct set {
    /* base:32 | count:16 | generation:16, read as one word. Only dumps use the generation. */
    __u64 span;
    __u32 next; /* the set with the next lower precedence; SET_NONE means none */
    __u32 owner; /* id in the map `names`; index into the map `counters` */
    __u32 affinity; /* seconds; 0 means no session affinity */
    __u32 policy; /* policy number, used by SET_SELF_NEXT and SET_LIMITED; 0 means no policy */
    __u32 node; /* ROLE_NODE: id of the node */
    __u8 role;
    __u8 rule;
    __u8 when_empty;
    __u8 flags;
    __u32 slot[INLINE_SLOTS];
    OTHER_LAYOUT_PAD
};

/* ---- backend: written once, except for its state ---- */
enum backend_flag {
    BACKEND_UDP = 1, /* the map `backend_index` has a row for this backend */
};

struct backend {
    struct address address;
    __be16 port;
    __u16 flags;
    __u32 node;
    __u32 owner;
    __u32 state; /* generation:24 | role bits:8; no role bits means not in use */
    OTHER_LAYOUT_PAD
};

/* ---- node: addresses of nodes and the cluster of each; read as ONE u64 ---- */
enum node_flag {
    NODE_OWN = 1,
    NODE_LOOPBACK = 2, /* only for clients in the host's own network namespace */
    NODE_EXACT_LOOPBACK = 4, /* 127.0.0.1 itself, not all of 127.0.0.0/8 */
};

struct node {
    __u32 tag;
    __u16 cluster;
    __u16 flags;
};

/* ---- source: clients that may dial a load-balancer address (loadBalancerSourceRanges) ---- */
struct source_key {
    __u32 prefix; /* 64 + prefix length of the mapped address */
    __u32 owner;
    __u32 family; /* 4 or 6, because a short v6 prefix would also cover mapped addresses */
    struct address address;
};

/*
 * ---- policies ----
 * A policy's number is the id of its name (NAME_POLICY). It stays the same while the policy has a
 * set, also across restarts of the agent. The bucket belongs to this number and not to the
 * policy's uid: a policy that is deleted and created again with the same name gets a full bucket
 * if the agent saw the deletion, and otherwise continues with the remaining tokens.
 */

/*
 * Written by the agent and read as one word, so that a dial never sees the rate of one limit with
 * the burst of another. 0 means no limit.
 */
struct bucket {
    __u32 rate; /* tokens per second */
    __u32 burst; /* capacity of the bucket in tokens */
};

/*
 * Written by the kernel; one row per policy, shared by all sets, ports and families of the policy.
 * An all-zero row is a full bucket: the agent zeroes the row when it assigns the number.
 *
 * A spin lock guards the row instead of one atomic word. A dial that loses the race for a word
 * would have to retry, the verifier requires a bounded number of retries, and after the last one an
 * available token would be denied. The lock is held for a few instructions, and Linux 6.1 allows it
 * in every program type that is used here. Two words also have room for exact arithmetic: credit is
 * counted in billionths of a token, so no rate is rounded to whole nanoseconds.
 */
struct level {
    struct bpf_spin_lock lock;
    __u32 pad;
    __u64 time; /* ns, monotonic: when `credit` was computed */
    __u64 credit; /* billionths of a token */
};

enum { TOKEN = 1000000000 };

/* A pod that a policy selects, identified by the pod's cgroup. Container cgroups are below it. */
struct member_key {
    __u64 cgroup;
    __u32 policy;
    __u32 pad;
};

enum { MEMBER_LEVELS = 4 };

/*
 * ---- pod: the addresses of the pods of this node, by the pod's cgroup ----
 * The source address of a dial is not known before the kernel has chosen a route, but a restricted
 * load-balancer address needs it. The reader copies the addresses first and reads the tag last: the
 * kernel writes the tag of a recycled element first.
 */
struct pod {
    __u32 tag;
    __be32 v4; /* 0 means none */
    struct address v6; /* all zero means none */
};

/*
 * ---- name: id -> text, so that a restart and `beeline status` need no API server ----
 * The layout of this table is versioned separately.
 */
enum { NAME_TEXT = 248 };

struct name {
    __u16 length; /* 0 means that the row is free */
    __u16 kind; /* enum name_kind */
    __u32 number; /* the number of the service, shared by all its ports */
    __u8 text[NAME_TEXT];
};

enum name_kind {
    NAME_SERVICE_PORT = 1,
    NAME_NODE = 2,
    NAME_POLICY = 3,
};

/* ---- rows that the kernel writes ---- */
enum affinity_family {
    AFFINITY_V4 = 4,
    AFFINITY_V6 = 6,
    AFFINITY_BY_ADDRESS = 16, /* flag: the client is a source address (packet path) */
};

struct affinity_key {
    /* A source address, or the cookie of a network namespace in the first two words. */
    struct address client;
    __u32 owner;
    __u32 family; /* enum affinity_family */
};

struct affinity {
    __u32 backend;
    __u32 generation;
    __u64 used; /* ns, monotonic */
    __u32 epoch;
    __u32 timeout; /* seconds */
    __u64 share; /* the share that this row is charged to */
};

struct counters {
    __u64 dials; /* resolved to a backend */
    __u64 refused;
    __u64 no_local;
    __u64 affinity_hits;
    __u64 raced; /* picks that were repeated because the set changed at the same time */
    __u64 source_denied;
    __u64 limited;
    __u64 pad;
};

/* One translation in the record of a socket. */
struct peer {
    struct address dialled;
    struct address chosen;
    __be16 dialled_port;
    __be16 chosen_port; /* 0 means that the entry is empty */
    /* 0 means: written with tables of another epoch, so owner and backend are unknown. */
    __u32 owner;
    __u32 backend; /* 0 means: the frontend uses another backend by now */
    __u32 generation; /* 24 bits, and enum peer_flag */
};

enum peer_flag {
    /* Another frontend has since been translated to the same backend; that one is reported. */
    PEER_SHADOWED = 1 << 30,
    PEER_REDIRECTED = 1 << 29, /* TCP: the dial was resolved by a LocalRedirectPolicy */
};

struct tcp_record {
    __u64 share; /* the share that this record is charged to; 0 means none */
    struct peer peer;
};

enum { UDP_PEERS = 8 };

struct udp_record {
    __u64 share;
    __u64 cookie;
    __u64 netns;
    __u32 epoch; /* epoch of the tables that the ids in the record belong to */
    __u32 used; /* number of entries in use after peer[0] */
    struct peer peer[UDP_PEERS]; /* peer[0] is the connected peer */
};

/*
 * Further translations of an unconnected UDP socket that uses more services than `udp_record`
 * holds. It is socket storage too: it is freed with the socket, and no other socket can evict it.
 * It is allocated only when it is needed, and it fits into the option memory that Linux 6.1 allows
 * a socket (20 KiB).
 */
enum { UDP_OVERFLOW_PEERS = 128 };

struct udp_overflow {
    __u64 share;
    __u32 epoch;
    __u32 used; /* number of entries in use after peer[0] */
    struct peer peer[UDP_OVERFLOW_PEERS]; /* peer[0] is not used: index 0 means none */
};

/* ---- control: one row, written while the programs run ---- */
enum event_level {
    EVENTS_OFF = 0,
    EVENTS_FAILURES = 1,
    EVENTS_SAMPLE = 2,
    EVENTS_ALL = 3,
};

struct control {
    __u64 heartbeat; /* ns, monotonic: the agent's last heartbeat */
    /* ns without a heartbeat after which dials are not resolved; 0 means never */
    __u64 agent_down_timeout;
    __u32 event_level;
    __u32 event_sample; /* 1 in N */
    __u64 cgroup_levels; /* bit L: the map `cgroup` has a cgroup that is L levels below the root */
    /* Depths of pod cgroups below the root, one byte each, stored as depth + 1; 0 means unused. */
    __u32 member_levels;
    __u32 share_level; /* level of the cgroups that are shares, see share.h */
    __u64 record_limit; /* bytes of socket records above the reserves; 0 means no limit */
    struct address host4; /* source address of the host's own dials, mapped; zero means unknown */
    struct address host6;
    __u32 packet_flags; /* enum packet_flag */
    __u32 pad;
};

/* ---- cgroup: a rule for the processes below a cgroup; read as ONE u64 ---- */

/* In place of a view: the dials of these processes are not resolved. */
enum cgroup_view { CGROUP_EXCLUDED = 0xffffffff };

struct cgroup_rule {
    __u32 tag;
    __u32 view;
};

/* ---- event ---- */

/*
 * The events of one cgroup in one period of 2^EVENT_PERIOD_SHIFT ns (134 ms). 128 of them are 950 a
 * second: a monitor can read several such cgroups, and the ring buffer holds the periods of 50.
 */
enum { EVENT_PERIOD_SHIFT = 27, EVENTS_PER_PERIOD = 128 };

struct event_rate {
    __u64 period; /* number of the current period */
    __u64 events; /* in this period */
};

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
    REASON_LIMITED = 7, /* above the policy's limit, and there is no next set */
    REASON_SELF = 8, /* a pod that the policy selects dialled it, and there is no next set */
};

enum hook {
    HOOK_CONNECT = 1,
    HOOK_SEND = 2,
    HOOK_PACKET = 3,
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
    __u8 affinity; /* 1 means that session affinity chose the backend */
    __u8 pad;
    __u32 set;
    __u32 limited; /* as in struct verdict */
    __u32 view; /* view of the process that dialled */
    char process[16];
    struct address source; /* HOOK_PACKET: source address of the packet */
    __be16 source_port;
    __u16 pad2[3];
};

/* ---- input and output of the decision ---- */
struct dial {
    struct address address;
    struct address source;
    __u64 client;
    __u64 now;
    __u32 view;
    __u32 random;
    __u32 prefer; /* the backend in the socket's record; 0 means none */
    __u32 prefer_generation;
    __be16 port;
    __u8 protocol;
    __u8 scope;
    __u8 source_known;
    __u8 host; /* the client is in the host's own network namespace */
    __u8 packet; /* a packet and not a socket: the source address identifies the client */
    __u8 pad;
    __u64 share; /* the share of the client, see share.h */
    /* Ancestor cgroups of the client at `member_levels`; set only for SET_SELF_NEXT. */
    __u64 cgroup[MEMBER_LEVELS];
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
    __u32 limited; /* owner of the set whose limit the dial exceeded; 0 means that none was */
    __u32 suspended; /* owner of the set in which a suspended backend was skipped; 0 means none */
};
