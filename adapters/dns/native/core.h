/* The native packet engine's core: no Python in here, so that fuzzers and sanitizers run it alone.
 *
 * hash.c     for the tables
 * message.c  what a datagram says, as far as the engine cares
 * table.c    answers that may be repeated, read without locks
 * zone.c     names of zones, and what is answered of them
 * cookies.c  what is answered to a DNS cookie
 * networks.c who may be given what is not for everybody
 * limiter.c  token buckets per network
 * sampling.c of which queries the query log is told
 * queue.c    octets from one thread to another
 * worker.c   threads that receive, answer and send
 * repeat.c   repeats for those who ask from Python
 * http2.c    what a request over HTTP/2 says, and the response with an answer
 *
 * module*.c bind it to Python. docs/decisions/0040 says why it is made like this. */
#ifndef KUDURRU_CORE_H
#define KUDURRU_CORE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --- hash ----------------------------------------------------------------------------------- */

/* What nobody outside knows. */
struct seed {
    uint64_t words[2];
};

/* For tables: fast. */
uint64_t keyed_hash(const struct seed *seed, const uint8_t *octets, size_t size);
/* For cookies: as RFC 9018 has it. */
uint64_t siphash_2_4(const struct seed *seed, const uint8_t *octets, size_t size);

/* --- messages ------------------------------------------------------------------------------- */

#define HEADER_SIZE 12
#define MESSAGE_MAX 4096 /* octets of the longest message taken or sent, as in mmsg.py */
#define NAME_MAX_SIZE 255
#define LABEL_MAX 63
#define KEY_MAX 512 /* octets: a question, EDNS and some options; who sends more is not remembered */
#define UDP_PLAIN_MAX 512
#define UDP_EDNS_MAX 1232 /* of what we send, whatever more a client could take */

/* Offset after the question's name; 0 where there is none that is whole and uncompressed. */
size_t name_end(const uint8_t *packet, size_t size);

/* The key of a message in the table: the scope and a kind in the place of the ID (and a class, see
 * `key_for_class`), and the message, the letters of its name lowered. Writes at most KEY_MAX octets; 0 where there is no key.
 *
 * Sizes of EDNS (RFC 6891 section 6.2.3) that lead to the same answers are one there.
 *
 * A cookie (RFC 7873) that is the only option is no part of it: then `cookie_at` is where it is, up
 * to the end of the message. Else it is 0. */
size_t message_key(
    uint8_t scope, const uint8_t *packet, size_t size, uint8_t *key, size_t *cookie_at);

/* Make it the key of an answer for one class of clients. */
void key_for_class(uint8_t *key, uint8_t client_class);
uint8_t class_in_key(const uint8_t *key);
uint8_t kind_in_key(const uint8_t *key);

/* What a query over the limit gets. */
enum slip { SLIP_NOTHING, SLIP_HERE, SLIP_ELSEWHERE };

/* Turn a query into the empty answer that sends its client to TCP, where it lies. SLIP_NOTHING:
 * it must not be answered. SLIP_ELSEWHERE: it has more than a question and a bare OPT record, and
 * is left as it is. */
enum slip slip_in_place(uint8_t *packet, size_t *size);

#define SHORT_MAX UDP_PLAIN_MAX

/* Write what of an answer fits everywhere, at most SHORT_MAX octets: its question and OPT record, and
 * that the rest is to be had over TCP. The size; 0: it is as short already, is signed, or unusual. */
size_t shortened(const uint8_t *packet, size_t size, uint8_t *shorter);

/* Whether a message asks for the name that is never charged. */
bool is_health_query(const uint8_t *packet, size_t size);

/* --- networks ------------------------------------------------------------------------------- */

struct network {
    uint8_t octets[16];
    uint8_t bits;
    bool is_ipv6;
};

/* IPv4 addresses among those of IPv6 (RFC 4291 section 2.5.5.2) are IPv4 addresses. */
const uint8_t *unmapped(const uint8_t *client, size_t *size);
/* `client` as `unmapped` has it. */
bool is_within(const uint8_t *client, size_t size, const struct network *network);

/* --- cookies -------------------------------------------------------------------------------- */

#define COOKIE_SIZE 24 /* of those that we make, with the client's part */
#define COOKIE_MAX 40
#define COOKIE_DAYS 3

/* Of the day before `day`, of that day and of the next; days since 1970. */
struct cookie_keys {
    int64_t day;
    struct seed keys[COOKIE_DAYS];
};

/* What to answer to the cookie of a client, of COOKIE_SIZE octets: the same one while it is right and
 * not old, else a fresh one. `option` has 8 octets or 16 to COOKIE_MAX. False: a key is missing. */
bool cookie_answer(
    const struct cookie_keys *keys, const uint8_t *option, size_t size, const uint8_t *client,
    size_t client_size, int64_t now_s, uint8_t *cookie);

/* --- table ---------------------------------------------------------------------------------- */

#define READERS_MAX 4096 /* threads: two for each socket of each listener, and one for those in Python */

/* What answers come of, by number. A zone has the one that its name leads to, others may have the same:
 * a change of one of them ends the answers of all. */
enum slot {
    LATEST,  /* whatever it was that changed last */
    ALL,     /* what ends every answer */
    FILTERS, /* policies, groups of clients, lists */
    FIRST_ZONE,
    SLOTS = 256
};
#define ANSWER_SLOTS_MAX 6 /* what comes of more comes of LATEST */

struct table;

/* What may be repeated. `wire` is without its ID, its question in lower case. */
struct answer {
    const uint8_t *wire;
    size_t wire_size;
    uint16_t place;     /* where it is counted */
    bool is_restricted; /* for clients that `table_admit` names */
    int64_t until_us;   /* monotonic time at which it ends; 0: never */
    /* TTLs count down from then on: places in `wire`, and how much was taken off already. */
    int64_t stored_us;
    uint32_t aged_s;
    const uint16_t *ttls_at;
    size_t ttl_count;
    uint16_t cookie_at; /* place in `wire` of a cookie, which is each client's own; 0: none */
    /* It is over when one of them changes. ALL need not be named. */
    uint8_t slots[ANSWER_SLOTS_MAX];
    uint8_t slot_count;
};

/* An answer in the table. `octets` are the key, the answer and the places of its TTLs. */
struct entry {
    _Atomic(struct entry *) next; /* of its bucket */
    struct entry *limbo_next;
    uint64_t hash;
    uint64_t generation; /* of the table when its answer was asked for */
    uint8_t slots[ANSWER_SLOTS_MAX];
    uint8_t slot_count;
    bool is_restricted;
    uint64_t left_at;    /* epoch in which it left the table */
    uint32_t position;   /* in the table's circle */
    uint16_t key_size;
    uint16_t wire_size;
    uint16_t place;
    uint16_t ttl_count;
    uint16_t cookie_at;
    uint32_t aged_s;
    int64_t stored_us, until_us;
    atomic_bool is_used;
    uint8_t octets[];
};

static inline const uint8_t *entry_wire(const struct entry *entry) {
    return entry->octets + entry->key_size;
}

/* Where TTL i is, in the wire. */
size_t entry_ttl_at(const struct entry *entry, size_t i);
/* Count the TTLs down in a copy of the wire. */
void entry_age(const struct entry *entry, uint8_t *wire, int64_t now_us);

struct table_statistics {
    uint64_t entries, bytes, in_limbo;
};

/* NULL without memory. */
struct table *table_new(size_t entries_max, size_t bytes_max, const struct seed *seed);
void table_free(struct table *table); /* when no reader and no writer is left */

/* Of any octets, keyed. */
uint64_t table_hash(const struct table *table, const uint8_t *octets, size_t size);
/* Of a key, without its class. */
uint64_t table_key_hash(const struct table *table, const uint8_t *key, size_t size);
/* Of the same key for a class of clients, from that hash. */
uint64_t hash_for_class(uint64_t hash, uint8_t client_class);
/* Have the processor fetch what a look-up will read. */
void table_prefetch(const struct table *table, uint64_t hash);
/* A round later. */
void table_approach(const struct table *table, uint64_t hash);

/* A reader brackets every use of entries with these; 0 < number < READERS_MAX is its own. */
void table_enter(struct table *table, unsigned number);
void table_leave(struct table *table, unsigned number);
/* A number nobody else has; 0 when there are none left. */
unsigned table_register(struct table *table);
void table_unregister(struct table *table, unsigned number);
/* Now, for what is taken out of other tables with the same readers. */
uint64_t table_epoch(const struct table *table);
/* What was taken out in an epoch before this one is read by nobody any more. Any thread. */
uint64_t table_oldest(struct table *table);

/* The answer that is good now, or NULL; it lives until `table_leave`. */
const struct entry *table_find(
    struct table *table, const uint8_t *key, size_t size, uint64_t hash);

/* Now: one more with each change. */
uint64_t table_generation(const struct table *table);
/* The generation of the last change that ended what comes of a slot. */
uint64_t table_since(const struct table *table, uint8_t slot);
/* Keep an answer that was asked for in `generation`: false when something that it comes of changed
 * since, or there is no room. Any thread. */
bool table_store(
    struct table *table,
    uint64_t generation,
    const uint8_t *key,
    size_t key_size,
    const struct answer *answer);
/* Whom restricted answers are for, nobody at first. Takes over `networks`, from malloc. */
void table_admit(struct table *table, struct network *networks, size_t count, bool is_everybody);
bool table_admits(struct table *table, const uint8_t *client, size_t size);
#define CLASSES_MAX 127

/* Remember of which class a client of a scope is (1 to CLASSES_MAX), until FILTERS change. Answers
 * whose keys name a class are for its clients only. Of many clients some are forgotten. */
void table_learn_class(
    struct table *table, uint64_t generation, uint8_t scope, const uint8_t *client, size_t size,
    uint8_t client_class);
/* The class of a client, 0 where it is not known. FILTERS changed last in generation `since`: only
 * answers that are as young are for it, and only while that is so. */
uint8_t table_class_of(
    struct table *table, uint8_t scope, const uint8_t *client, size_t size, uint64_t since);
/* Keys for the cookies in answers; there are none at first. */
void table_set_cookie_keys(struct table *table, const struct cookie_keys *keys);
bool table_cookie_keys(struct table *table, struct cookie_keys *keys);
/* These changed. When it returns, no reader that looks up finds what came of them before. Any
 * thread. */
void table_invalidate(struct table *table, const uint8_t *slots, size_t count);
/* The query log is told of one query in so many, 1 or more; at first of all. Any thread. */
void table_set_sample(struct table *table, uint32_t one_in);
uint32_t table_sample(const struct table *table);
struct table_statistics table_statistics(struct table *table);

/* --- repeats, one by one ---------------------------------------------------------------------- */

#define STREAM_MESSAGE_MAX 65535 /* octets that two octets of length can say */

/* Whose messages come together, and what was found out about them. */
struct asker {
    struct table *table;
    uint8_t scope;
    const uint8_t *client; /* 4 or 16 octets */
    size_t client_size;
    bool is_named; /* its address does not say what is for it */
    int64_t now_us;
    bool is_admitted_known, is_admitted, is_class_known;
    uint8_t client_class;
    uint64_t classed_since; /* when FILTERS changed last */
};

struct repeated {
    uint16_t place;
    uint8_t client_class;
};

void asker_init(
    struct asker *asker, struct table *table, uint8_t scope, const uint8_t *client,
    size_t client_size, bool is_named);
/* Write the answer to a message that the table knows, and its size; 0: it does not, or `room` is too
 * little. Between `table_enter` and `table_leave`. */
size_t repeat_message(
    struct asker *asker, const uint8_t *packet, size_t size, uint8_t *answer, size_t room,
    struct repeated *repeated);

/* --- requests over HTTP/2 --------------------------------------------------------------------- */

#define HPACK_SIZE 4096 /* what a table has unless others are agreed on (RFC 9113 section 6.5.2) */
#define HPACK_OVERHEAD 32
#define HTTP2_KEY_MAX 2048
#define HTTP2_FIELDS_MAX 128 /* octets of the fields that all responses have */
#define HTTP2_HEAD_MAX 256   /* octets of a response before its answer */
#define HTTP2_ANSWER_MAX 16384 /* octets in one frame, whatever more a client takes */

struct hpack_entry {
    uint16_t at, name_size, value_size; /* in `octets`, the value behind the name */
};

/* The dynamic table that a client writes. */
struct hpack {
    uint16_t size_max, used, count;
    struct hpack_entry entries[HPACK_SIZE / HPACK_OVERHEAD]; /* oldest first */
    uint8_t octets[HPACK_SIZE];
};

/* A new entry, of at most HPACK_SIZE octets with the name. */
void hpack_add(
    struct hpack *table, const uint8_t *name, size_t name_size, const uint8_t *value,
    size_t value_size);

/* What came in a frame of headers, and of data where one follows. */
struct http2_request {
    uint32_t stream;
    size_t size;   /* octets of its frames; 0: it is not whole */
    bool has_body; /* or is to have one */
    const uint8_t *body;
    size_t body_size;
    bool has_length; /* it says how long its body is */
    uint32_t length;
    bool is_changed; /* it left another table */
    const uint8_t *packet; /* the message in its path, NULL: none */
    size_t packet_size;
    uint8_t message[HTTP2_KEY_MAX];
    /* All fields, but the message in the path and the length of the body: who has the same key says
     * the same otherwise. */
    size_t key_size;
    uint8_t key[HTTP2_KEY_MAX];
};

/* Before all else. */
void http2_init(void);
/* Read the request that begins what has arrived: octets of its frame of headers, 0: there is none,
 * or an unusual one. It refers to what has arrived. `table` stays; `changed` becomes what the
 * request leaves, where `is_changed`. */
size_t http2_read(
    struct hpack *table, struct hpack *changed, const uint8_t *arrived, size_t size,
    struct http2_request *request);
/* The message of a request that is whole, and as long as it says; else NULL. */
const uint8_t *http2_message(const struct http2_request *request, bool is_get, size_t *size);
/* Put a response before its answer, which has HTTP2_HEAD_MAX octets of room there: where it begins.
 * `fields` are the header block's first ones, at most HTTP2_FIELDS_MAX octets; `is_private`: answers
 * are not the same for all, but those of zones. */
uint8_t *http2_respond(
    uint8_t *wire, size_t size, uint32_t stream, const uint8_t *fields, size_t fields_size,
    bool is_private);

/* --- limiter -------------------------------------------------------------------------------- */

#define LEVELS_MAX 129

struct level {
    uint8_t bits;
    uint64_t limit; /* queries a minute, and at once */
};

/* What holds for one address family. */
struct family_rules {
    size_t level_count, exempt_count;
    struct level levels[LEVELS_MAX]; /* smallest networks first */
    struct network *exempt;          /* owned by the limiter once configured */
};

struct limiter;

/* NULL without memory. */
struct limiter *limiter_new(const struct seed *seed);
void limiter_free(struct limiter *limiter);
/* All buckets are full then. */
void limiter_configure(
    struct limiter *limiter,
    bool is_enabled,
    unsigned slip,
    size_t buckets_max,
    const struct family_rules *ipv4,
    const struct family_rules *ipv6);
bool limiter_is_enabled(struct limiter *limiter);
/* How many of `count` queries of a client (4 or 16 octets) are within every limit; they are
 * charged. `now_us` is monotonic time. */
uint64_t limiter_take(
    struct limiter *limiter, const uint8_t *client, size_t size, uint64_t count, int64_t now_us);
/* Whether a query over the limit is one of those that get an answer. */
bool limiter_slips(struct limiter *limiter, const uint8_t *client, size_t size);
/* Count what became of queries over the limit. */
void limiter_count(struct limiter *limiter, unsigned slipped, unsigned dropped);

struct limiter_statistics {
    uint64_t slipped, dropped, buckets;
};
struct limiter_statistics limiter_statistics(struct limiter *limiter);

/* --- sampling ------------------------------------------------------------------------------- */

/* Of one thread. */
struct sampling {
    uint64_t state; /* of chance: begins with what nobody outside knows */
    uint32_t one_in, left, place; /* queries until the next one is told of, and its place in its stretch */
};

/* How many queries the one that is answered now stands for in the query log: one of each `one_in`
 * stands for all of them, and of the others, 0, it is not told. */
uint32_t sampling_weigh(struct sampling *sampling, uint32_t one_in);

/* --- queues --------------------------------------------------------------------------------- */

/* Records of octets from one thread that writes to one that reads. */
struct queue {
    uint8_t *octets;
    size_t size;                /* a power of two */
    _Atomic uint64_t head, tail; /* ever read and written */
};

bool queue_init(struct queue *queue, size_t size);
void queue_free(struct queue *queue);

/* What became of a record. After FIRST the reader may be asleep: it had taken all before. */
enum put { NO_ROOM, PUT, FIRST };

/* Put a record of a head and a body. */
enum put queue_put(
    struct queue *queue,
    const void *head,
    size_t head_size,
    const void *body,
    size_t body_size);
/* Octets of the next record; 0: there is none. */
size_t queue_next(const struct queue *queue);
/* Take it. */
void queue_take(struct queue *queue, void *record, size_t size);

/* --- sending -------------------------------------------------------------------------------- */

#define BATCH 64
#define CONTROL_MAX CMSG_SPACE(sizeof(struct in6_pktinfo))

struct mmsghdr;

struct sender {
    int fd;
    atomic_bool is_joining; /* answers of one length to one client go as one, until that fails */
};

/* What became of so many messages. Those that are full found no room in the socket. */
struct sent {
    unsigned sent, refused, full;
};

void sender_init(struct sender *sender, int fd, bool may_join);
/* Send messages of one part each, at most BATCH, and in any order; never waits. From any thread.
 * Whether message i went is in `went[i]`. */
struct sent send_all(
    struct sender *sender, struct mmsghdr *messages, unsigned number, bool *went);

/* --- workers -------------------------------------------------------------------------------- */

#define PLACES 2048 /* type and RCODE of what is counted: 91 types, 16 codes */
#define ORIGIN_MAX 96 /* a socket address and its packet info */

struct zones;

#define RECENT 1024

struct worker_options {
    int fd;
    struct zones *zones; /* NULL: there are none */
    uint8_t scope; /* of its keys in the table */
    bool is_ipv6;
    bool has_packet_info;
    bool hears_repeats; /* queries answered here are told of */
    bool joins_answers; /* those of one length to one client go as one, where the system can */
    size_t misses_size, urgent_size, repeats_size; /* octets of the queues, powers of two */
};

enum counter {
    RECEIVED,
    ANSWERED,
    MALFORMED,
    FULL,        /* the system had no room for an answer */
    BUSY,        /* no room in the queue for Python */
    SEND_ERRORS,
    UNSENT,      /* repeats among those two, which are no hits */
    UNTOLD,      /* repeats that found no room in the queue */
    COUNTERS,
};

/* Heads of records in the queues; the message follows. */
struct miss {
    uint8_t is_slip; /* over the limit, and to be told to come over TCP */
    uint8_t origin_size;
    uint8_t origin[ORIGIN_MAX];
};

#define REPEATED (-1)

struct repeat {
    uint32_t weight; /* queries that it stands for */
    uint8_t client_class; /* that it was answered for */
    uint8_t client_size;
    int8_t rcode; /* of an answer from the zones; REPEATED: it was given before */
    uint8_t client[16];
};

struct worker;

/* NULL with errno. `limiter` may be NULL. `wake_fd` is an eventfd, written to when a queue gets its
 * first record. */
struct worker *worker_new(
    const struct worker_options *options,
    struct table *table,
    struct limiter *limiter,
    int wake_fd);
/* 0 or errno. */
int worker_start(struct worker *worker);
/* Stop receiving; the socket still sends. Waits for the thread. */
void worker_stop(struct worker *worker);
void worker_free(struct worker *worker);

struct queue *worker_misses(struct worker *worker);
/* Misses that ask for the name that is never charged, and wait for no others. */
struct queue *worker_urgent(struct worker *worker);
struct queue *worker_repeats(struct worker *worker);
uint64_t worker_counter(const struct worker *worker, enum counter which);
/* Client i of the last RECENT batches: an IPv4 address, or a number for an IPv6 /64. 0: there is none
 * that was not taken before. */
uint32_t worker_take_recent(struct worker *worker, unsigned i);
/* Whether its socket has lost datagrams, since this was called last: Python is woken for it once. */
bool worker_take_overflow(struct worker *worker);
uint64_t worker_hits(const struct worker *worker, unsigned place);
/* Answers from the zones. */
uint64_t worker_zone_hits(const struct worker *worker, unsigned rcode, unsigned rtype);
/* Wait for the batch under way, if any: what it sent is counted then, and what it read in the table
 * it reads no more. Not for ever: whether it is over. */
bool worker_settle(const struct worker *worker);

/* The address in an origin, 4 or 16 octets. */
const uint8_t *origin_client(const struct worker *worker, const uint8_t *origin, size_t *size);

struct datagram {
    const uint8_t *origin, *octets;
    size_t origin_size, size;
};

/* Whether an origin of so many octets is one of this worker's. */
bool worker_is_origin(const struct worker *worker, size_t size);

/* Send answers to origins, from another thread, at most BATCH; never waits. What became of them. */
struct sent worker_send(struct worker *worker, const struct datagram *datagrams, unsigned count);

#endif
