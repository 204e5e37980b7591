/* A thread with a socket: it takes batches of datagrams, answers repeats, what is plain in the zones
 * and what is over the limit, and hands the rest to Python.
 *
 * An answer is written over its query, in the buffer that the system filled; headers for receiving
 * and for sending point at the same octets. Counters have one writer each; who reads them first
 * waits for the batch under way (`worker_settle`), so an answer that somebody has got is counted. */
#define _GNU_SOURCE
#include "core.h"
#include "zone.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define STRIDE (MESSAGE_MAX + 64) /* one octet shows that a datagram was cut; for the rest see mmsg.py */
#define CHECK_S 1          /* when it looks whether to stop, should nothing wake it */
#define PAUSE_NS 1000000   /* after a fault of the system that we know nothing of */
#define SETTLE_NS 50000000 /* longest wait for a batch: its thread may not get a processor */
#define SPIN_NS 20000
#define WATCH_US 20000 /* between looks at what a socket has lost */
#define MEMINFO 55       /* SO_MEMINFO of asm-generic/socket.h, which old headers lack */
#define MEMINFO_DROPS 8  /* SK_MEMINFO_DROPS of linux/sock_diag.h */
#define MIX 2654435761u /* as in overload.py */
#define SOMEBODY 0x80000000u /* too; 0 is nobody */

/* Where an answer is counted once it was sent, beside the places of the table. */
#define NOWHERE PLACES
#define ZONE_PLACES (PLACES + 1)

/* What becomes of a datagram. */
enum verdict { ANSWER, SLIP, DROP };

struct worker {
    struct worker_options options;
    struct table *table;
    struct limiter *limiter;
    int wake_fd;
    struct sender sender;
    unsigned reader;
    pthread_t thread;
    bool is_started;
    atomic_bool is_stopping;

    _Alignas(64) _Atomic uint64_t sequence; /* odd during a batch */
    _Atomic uint64_t counters[COUNTERS];
    _Atomic uint32_t recent[RECENT]; /* clients, each of another batch; 0: none */
    unsigned recent_at;
    int64_t watched_us;
    uint32_t lost;
    atomic_bool is_overflowing; /* and nobody was told of it yet */
    _Atomic uint64_t hits[PLACES];
    _Atomic uint64_t zone_hits[ZONE_RCODES * ZONE_TYPES];
    struct queue misses, urgent, repeats;
    struct sampling sampling;

    uint8_t *octets;
    size_t sizes[BATCH];
    uint8_t keys[BATCH][KEY_MAX];
    size_t key_sizes[BATCH], cookies_at[BATCH];
    uint64_t hashes[BATCH];
    uint8_t classes[BATCH];
    const struct entry *entries[BATCH];
    struct path paths[BATCH];
    bool is_located[BATCH];
    enum verdict verdicts[BATCH];
    uint16_t places[BATCH]; /* where a repeat is counted, once it was sent; else NOWHERE */
    struct sockaddr_in6 addresses[BATCH]; /* room for either family */
    _Alignas(struct cmsghdr) uint8_t controls[BATCH][CONTROL_MAX];
    struct iovec taken[BATCH], given[BATCH];
    struct mmsghdr to_take[BATCH], to_give[BATCH];
};

/* Counters have one writer. */
static void add(_Atomic uint64_t *counter, uint64_t more) {
    uint64_t now = atomic_load_explicit(counter, memory_order_relaxed);
    atomic_store_explicit(counter, now + more, memory_order_relaxed);
}

static void count(struct worker *worker, enum counter which, uint64_t more) {
    add(&worker->counters[which], more);
}

static uint8_t *slot(struct worker *worker, unsigned i) {
    return worker->octets + (size_t)i * STRIDE;
}

/* --- making ---------------------------------------------------------------------------------- */

struct worker *worker_new(
    const struct worker_options *options,
    struct table *table,
    struct limiter *limiter,
    int wake_fd) {
    struct worker *worker = aligned_alloc(64, (sizeof *worker + 63) / 64 * 64);
    if (!worker) {
        errno = ENOMEM;
        return NULL;
    }
    memset(worker, 0, sizeof *worker);
    worker->options = *options;
    worker->table = table;
    worker->limiter = limiter;
    worker->wake_fd = wake_fd;
    sender_init(&worker->sender, options->fd, options->joins_answers);
    worker->octets = malloc((size_t)BATCH * STRIDE);
    worker->reader = table_register(table);
    worker->sampling.state =
        table_hash(table, (const uint8_t *)&worker->reader, sizeof worker->reader);
    if (!worker->octets || !worker->reader || !queue_init(&worker->misses, options->misses_size) ||
        !queue_init(&worker->urgent, options->urgent_size) ||
        (options->hears_repeats && !queue_init(&worker->repeats, options->repeats_size))) {
        worker_free(worker);
        errno = ENOMEM;
        return NULL;
    }
    return worker;
}

void worker_free(struct worker *worker) {
    if (!worker)
        return;
    worker_stop(worker);
    if (worker->reader)
        table_unregister(worker->table, worker->reader);
    queue_free(&worker->misses), queue_free(&worker->urgent), queue_free(&worker->repeats);
    free(worker->octets);
    free(worker);
}

struct queue *worker_misses(struct worker *worker) { return &worker->misses; }
struct queue *worker_urgent(struct worker *worker) { return &worker->urgent; }
struct queue *worker_repeats(struct worker *worker) { return &worker->repeats; }

uint64_t worker_counter(const struct worker *worker, enum counter which) {
    return atomic_load_explicit(&worker->counters[which], memory_order_relaxed);
}

uint64_t worker_hits(const struct worker *worker, unsigned place) {
    return atomic_load_explicit(&worker->hits[place], memory_order_relaxed);
}

uint64_t worker_zone_hits(const struct worker *worker, unsigned rcode, unsigned rtype) {
    return atomic_load_explicit(&worker->zone_hits[rcode * ZONE_TYPES + rtype], memory_order_relaxed);
}

uint32_t worker_take_recent(struct worker *worker, unsigned i) {
    return atomic_exchange_explicit(&worker->recent[i], 0, memory_order_relaxed);
}

bool worker_take_overflow(struct worker *worker) {
    return atomic_exchange(&worker->is_overflowing, false);
}

bool worker_settle(const struct worker *worker) {
    uint64_t before = atomic_load(&worker->sequence);
    if (before % 2 == 0)
        return true;
    struct timespec pause = {.tv_nsec = SPIN_NS};
    for (int waited = 0; waited < SETTLE_NS && atomic_load(&worker->sequence) == before;
         waited += SPIN_NS)
        nanosleep(&pause, NULL);
    return atomic_load(&worker->sequence) != before;
}

/* --- addresses ------------------------------------------------------------------------------- */

static const uint8_t *octets_of(bool is_ipv6, const void *address, size_t *size) {
    *size = is_ipv6 ? 16 : 4;
    return (const uint8_t *)address + (is_ipv6 ? offsetof(struct sockaddr_in6, sin6_addr)
                                               : offsetof(struct sockaddr_in, sin_addr));
}

/* That of message i of the batch. */
static const uint8_t *client_of(const struct worker *worker, unsigned i, size_t *size) {
    return octets_of(worker->options.is_ipv6, &worker->addresses[i], size);
}

const uint8_t *origin_client(const struct worker *worker, const uint8_t *origin, size_t *size) {
    return octets_of(worker->options.is_ipv6, origin, size);
}

static socklen_t address_size(const struct worker *worker) {
    return worker->options.is_ipv6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

_Static_assert(sizeof(struct sockaddr_in6) + CONTROL_MAX <= ORIGIN_MAX, "an origin has room");

bool worker_is_origin(const struct worker *worker, size_t size) {
    size_t address = address_size(worker);
    return size == address ||
           (worker->options.has_packet_info && size > address && size <= address + CONTROL_MAX);
}

/* The way back is the routing table's: of what was received the address is kept, the interface is
 * not. */
static void forget_interface(struct msghdr *message) {
    for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head; head = CMSG_NXTHDR(message, head)) {
        if (head->cmsg_level == IPPROTO_IP && head->cmsg_type == IP_PKTINFO)
            ((struct in_pktinfo *)(void *)CMSG_DATA(head))->ipi_ifindex = 0;
        if (head->cmsg_level == IPPROTO_IPV6 && head->cmsg_type == IPV6_PKTINFO)
            ((struct in6_pktinfo *)(void *)CMSG_DATA(head))->ipi6_ifindex = 0;
    }
}

/* --- the limiter ----------------------------------------------------------------------------- */

/* Charge the queries of a batch: all those of a client together, clients in the order in which they
 * come. The health name is free. */
static void judge(struct worker *worker, unsigned number, int64_t now_us) {
    bool is_done[BATCH] = {false};
    for (unsigned i = 0; i < number; i++) {
        worker->verdicts[i] = ANSWER;
        is_done[i] = is_health_query(slot(worker, i), worker->sizes[i]);
    }
    for (unsigned i = 0; i < number; i++) {
        if (is_done[i])
            continue;
        size_t size, other_size;
        const uint8_t *client = client_of(worker, i, &size);
        unsigned same[BATCH], together = 0;
        for (unsigned j = i; j < number; j++)
            if (!is_done[j]) {
                const uint8_t *other = client_of(worker, j, &other_size);
                if (size == other_size && !memcmp(client, other, size)) {
                    same[together++] = j;
                    is_done[j] = true;
                }
            }
        uint64_t allowed = limiter_take(worker->limiter, client, size, together, now_us);
        for (unsigned j = (unsigned)allowed; j < together; j++)
            worker->verdicts[same[j]] = limiter_slips(worker->limiter, client, size) ? SLIP : DROP;
    }
}

/* --- answering ------------------------------------------------------------------------------- */

struct batch {
    struct worker *worker;
    unsigned number;
    int64_t now_us;
    bool has_news; /* for Python */
    uint32_t one_in; /* queries, of which the query log is told of one */
    uint64_t zones_version; /* 0: they are closed */
    bool is_admitted_known, is_admitted; /* the client of message `admitted_at` */
    unsigned admitted_at;
    bool is_class_known;
    uint8_t client_class; /* of the client of message `classed_at` */
    unsigned classed_at;
    uint64_t classed_since; /* when FILTERS changed last */
    bool are_keys_known, has_keys;
    int64_t now_s; /* wall time */
    struct cookie_keys keys;
    uint8_t cookie[COOKIE_SIZE]; /* of the answer in hand */
};

static void hand_over(struct batch *batch, unsigned i, bool is_slip) {
    struct worker *worker = batch->worker;
    struct msghdr *message = &worker->to_take[i].msg_hdr;
    struct miss head = {.is_slip = is_slip};
    size_t control = message->msg_control ? message->msg_controllen : 0;
    head.origin_size = (uint8_t)(address_size(worker) + control);
    memcpy(head.origin, &worker->addresses[i], address_size(worker));
    memcpy(head.origin + address_size(worker), worker->controls[i], control);
    bool is_urgent = is_health_query(slot(worker, i), worker->sizes[i]);
    struct queue *queue = is_urgent ? &worker->urgent : &worker->misses;
    switch (queue_put(queue, &head, sizeof head, slot(worker, i), worker->sizes[i])) {
    case NO_ROOM:
        count(worker, BUSY, 1);
        break;
    case FIRST:
        batch->has_news = true;
        break;
    case PUT:
        break;
    }
    worker->sizes[i] = 0;
}

/* Tell Python of an answer, as `head` has it but for the client. */
static void tell_of(struct batch *batch, unsigned i, size_t size, struct repeat head) {
    struct worker *worker = batch->worker;
    head.weight = sampling_weigh(&worker->sampling, batch->one_in);
    if (!head.weight)
        return;
    size_t client_size;
    const uint8_t *client = client_of(worker, i, &client_size);
    head.client_size = (uint8_t)client_size;
    memcpy(head.client, client, client_size);
    switch (queue_put(&worker->repeats, &head, sizeof head, slot(worker, i) + 2, size - 2)) {
    case NO_ROOM:
        count(worker, UNTOLD, 1);
        break;
    case FIRST:
        batch->has_news = true;
        break;
    case PUT:
        break;
    }
}

/* Whether two messages are from one client. Most batches of a busy server are, so what was found of
 * the last one is remembered. */
static bool are_of_one(const struct worker *worker, unsigned i, unsigned other) {
    size_t size, size_other;
    const uint8_t *client = client_of(worker, i, &size);
    return !memcmp(client, client_of(worker, other, &size_other), size);
}

/* The class of a client, 0 where it has none. */
static uint8_t class_of(struct batch *batch, unsigned i) {
    struct worker *worker = batch->worker;
    if (!batch->is_class_known || !are_of_one(worker, i, batch->classed_at)) {
        size_t size;
        const uint8_t *client = client_of(worker, i, &size);
        batch->client_class = table_class_of(
            worker->table, worker->options.scope, client, size, batch->classed_since);
        batch->is_class_known = true;
        batch->classed_at = i;
    }
    return batch->client_class;
}

/* The answer for the class of the client, where there are classes. */
static const struct entry *find_for_class(struct batch *batch, unsigned i) {
    struct worker *worker = batch->worker;
    uint8_t client_class = worker->classes[i];
    if (!client_class)
        return NULL;
    key_for_class(worker->keys[i], client_class);
    const struct entry *entry = table_find(
        worker->table, worker->keys[i], worker->key_sizes[i],
        hash_for_class(worker->hashes[i], client_class));
    /* After a change of filters classes are others. */
    return entry && entry->generation >= batch->classed_since &&
                   table_since(worker->table, FILTERS) == batch->classed_since
               ? entry
               : NULL;
}

/* Whether the client of a message may have restricted answers. */
static bool is_admitted(struct batch *batch, unsigned i) {
    if (batch->is_admitted_known && are_of_one(batch->worker, i, batch->admitted_at))
        return batch->is_admitted;
    size_t size;
    const uint8_t *client = client_of(batch->worker, i, &size);
    batch->is_admitted_known = true;
    batch->admitted_at = i;
    return batch->is_admitted = table_admits(batch->worker->table, client, size);
}

static int64_t wall_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec;
}

/* The cookie that belongs into the answer to message i; false: Python has to make it. */
static bool make_cookie(struct batch *batch, unsigned i) {
    struct worker *worker = batch->worker;
    if (!batch->are_keys_known) {
        batch->has_keys = table_cookie_keys(worker->table, &batch->keys);
        batch->now_s = wall_s();
        batch->are_keys_known = true;
    }
    size_t at = worker->cookies_at[i], size;
    const uint8_t *client = client_of(worker, i, &size);
    return at && batch->has_keys &&
           cookie_answer(&batch->keys, slot(worker, i) + at, worker->sizes[i] - at, client, size,
                         batch->now_s, batch->cookie);
}

static bool may_repeat(struct batch *batch, unsigned i, const struct entry *entry) {
    return entry->wire_size + 2u <= MESSAGE_MAX &&
           (!entry->until_us || batch->now_us < entry->until_us) &&
           (!entry->is_restricted || is_admitted(batch, i)) &&
           (!entry->cookie_at || make_cookie(batch, i));
}

static void repeat(struct batch *batch, unsigned i, const struct entry *entry) {
    struct worker *worker = batch->worker;
    if (worker->options.hears_repeats)
        tell_of(batch, i, worker->sizes[i], (struct repeat){
            .client_class = class_in_key(entry->octets), .rcode = REPEATED});
    uint8_t *packet = slot(worker, i);
    const uint8_t *wire = entry_wire(entry);
    size_t end = name_end(packet, worker->sizes[i]) - 2; /* in the answer, which has no ID */
    memcpy(packet + 2, wire, HEADER_SIZE - 2);           /* the name stays as it was asked */
    memcpy(packet + 2 + end, wire + end, entry->wire_size - end);
    if (entry->ttl_count)
        entry_age(entry, packet + 2, batch->now_us);
    if (entry->cookie_at)
        memcpy(packet + 2 + entry->cookie_at, batch->cookie, COOKIE_SIZE);
    worker->sizes[i] = entry->wire_size + 2u;
    worker->places[i] = entry->place;
}

/* Answer from the zones; false where they leave it to Python. */
static bool answer_from_zones(struct batch *batch, unsigned i) {
    struct worker *worker = batch->worker;
    uint8_t *packet = slot(worker, i);
    size_t asked_size = worker->sizes[i];
    struct question question;
    struct found found;
    if (!read_question(packet, asked_size, name_end(packet, asked_size), &question) ||
        is_health_query(packet, asked_size) ||
        !zones_find(worker->options.zones, batch->zones_version, &worker->paths[i],
                    question.rtype, &found) ||
        !fits(&found, &question))
        return false;
    if (worker->options.hears_repeats)
        tell_of(batch, i, asked_size, (struct repeat){.rcode = (int8_t)found.rcode});
    worker->sizes[i] = write_answer(&found, &question, packet);
    worker->places[i] = (uint16_t)(ZONE_PLACES + found.rcode * ZONE_TYPES + question.rtype);
    return true;
}

static void over_limit(struct batch *batch, unsigned i) {
    struct worker *worker = batch->worker;
    enum slip slip = SLIP_NOTHING;
    if (worker->verdicts[i] == SLIP)
        slip = slip_in_place(slot(worker, i), &worker->sizes[i]);
    limiter_count(worker->limiter, slip != SLIP_NOTHING, slip == SLIP_NOTHING);
    if (slip == SLIP_ELSEWHERE)
        hand_over(batch, i, true);
    else if (slip == SLIP_NOTHING)
        worker->sizes[i] = 0;
}

/* Find what there is for each message: an answer in the table, or a zone. In several rounds, so that
 * the processor waits for many parts of large tables at a time. */
static void look_up(struct batch *batch) {
    struct worker *worker = batch->worker;
    const struct zones *zones = batch->zones_version ? worker->options.zones : NULL;
    batch->classed_since = table_since(worker->table, FILTERS);
    for (unsigned i = 0; i < batch->number; i++) {
        worker->key_sizes[i] = message_key(
            worker->options.scope, slot(worker, i), worker->sizes[i], worker->keys[i],
            &worker->cookies_at[i]);
        if (!worker->key_sizes[i])
            continue;
        worker->hashes[i] = table_key_hash(worker->table, worker->keys[i], worker->key_sizes[i]);
        worker->classes[i] = class_of(batch, i);
        table_prefetch(worker->table, worker->hashes[i]);
        if (worker->classes[i])
            table_prefetch(worker->table, hash_for_class(worker->hashes[i], worker->classes[i]));
    }
    for (unsigned i = 0; i < batch->number; i++) {
        if (!worker->key_sizes[i])
            continue;
        table_approach(worker->table, worker->hashes[i]);
        if (worker->classes[i])
            table_approach(worker->table, hash_for_class(worker->hashes[i], worker->classes[i]));
    }
    for (unsigned i = 0; i < batch->number; i++) {
        worker->entries[i] = NULL;
        worker->is_located[i] = false;
        if (!worker->key_sizes[i])
            continue;
        worker->entries[i] = table_find(
            worker->table, worker->keys[i], worker->key_sizes[i], worker->hashes[i]);
        if (!worker->entries[i])
            worker->entries[i] = find_for_class(batch, i);
        if (!worker->entries[i] && zones) /* the name stands in the key where it does in a message */
            worker->is_located[i] =
                zones_locate(zones, worker->keys[i] + HEADER_SIZE, &worker->paths[i]);
    }
    for (unsigned i = 0; i < batch->number; i++)
        if (worker->is_located[i])
            zones_approach(&worker->paths[i]);
}

/* Messages lie in the slots, `sizes` octets each, at most MESSAGE_MAX + 1; afterwards their answers
 * do, and where there is none yet the size is 0. */
static void answer(struct batch *batch) {
    struct worker *worker = batch->worker;
    unsigned number = batch->number;
    count(worker, RECEIVED, number);
    batch->one_in = table_sample(worker->table);
    bool is_limited = worker->limiter && limiter_is_enabled(worker->limiter);
    if (is_limited)
        judge(worker, number, batch->now_us);
    table_enter(worker->table, worker->reader);
    if (worker->options.zones)
        batch->zones_version = zones_version(worker->options.zones);
    look_up(batch);
    for (unsigned i = 0; i < number; i++) {
        const struct entry *entry = worker->entries[i];
        worker->places[i] = NOWHERE;
        if (is_limited && worker->verdicts[i] != ANSWER) {
            over_limit(batch, i);
        } else if (worker->sizes[i] < HEADER_SIZE || worker->sizes[i] > MESSAGE_MAX) {
            count(worker, MALFORMED, 1);
            worker->sizes[i] = 0;
        } else if (entry && may_repeat(batch, i, entry)) {
            repeat(batch, i, entry);
        } else if (!worker->is_located[i] || !answer_from_zones(batch, i)) {
            hand_over(batch, i, false);
        }
    }
    table_leave(worker->table, worker->reader);
}

/* --- the thread ------------------------------------------------------------------------------ */

static int64_t monotonic_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void count_hit(struct worker *worker, unsigned place, bool has_gone) {
    if (place == NOWHERE)
        return;
    if (!has_gone)
        count(worker, UNSENT, 1);
    else if (place < PLACES)
        add(&worker->hits[place], 1);
    else
        add(&worker->zone_hits[place - ZONE_PLACES], 1);
}

static void send_batch(struct worker *worker, unsigned number) {
    unsigned answers = 0, from[BATCH]; /* the message that each answers */
    bool went[BATCH];
    for (unsigned i = 0; i < number; i++) {
        if (!worker->sizes[i])
            continue;
        worker->given[answers] =
            (struct iovec){.iov_base = slot(worker, i), .iov_len = worker->sizes[i]};
        struct msghdr *message = &worker->to_give[answers].msg_hdr;
        *message = worker->to_take[i].msg_hdr;
        message->msg_iov = &worker->given[answers];
        from[answers++] = i;
    }
    struct sent sent = send_all(&worker->sender, worker->to_give, answers, went);
    count(worker, ANSWERED, sent.sent);
    count(worker, SEND_ERRORS, sent.refused);
    count(worker, FULL, sent.full);
    for (unsigned j = 0; j < answers; j++)
        count_hit(worker, worker->places[from[j]], went[j]);
}

static void wake(struct worker *worker) {
    uint64_t one = 1;
    /* One that is full has woken its reader, so other faults do not matter. */
    while (write(worker->wake_fd, &one, sizeof one) < 0 && errno == EINTR)
        continue;
}

static void prepare(struct worker *worker, unsigned number) {
    for (unsigned i = 0; i < number; i++) {
        worker->taken[i] =
            (struct iovec){.iov_base = slot(worker, i), .iov_len = MESSAGE_MAX + 1};
        worker->to_take[i].msg_hdr = (struct msghdr){
            .msg_name = &worker->addresses[i],
            .msg_namelen = address_size(worker),
            .msg_iov = &worker->taken[i],
            .msg_iovlen = 1,
            .msg_control = worker->options.has_packet_info ? worker->controls[i] : NULL,
            .msg_controllen = worker->options.has_packet_info ? CONTROL_MAX : 0,
        };
    }
}

/* One client of a batch is enough to know who is there: most batches are small, unless there is a
 * flood. */
static void note_client(struct worker *worker) {
    size_t size;
    const uint8_t *client = client_of(worker, 0, &size);
    uint32_t words[2];
    memcpy(words, client, size == 16 ? 8 : 4);
    uint32_t number = ntohl(words[0]);
    if (size == 16)
        number = (number * MIX ^ ntohl(words[1])) | SOMEBODY;
    atomic_store_explicit(
        &worker->recent[worker->recent_at++ % RECENT], number, memory_order_relaxed);
}

/* A flood begins: Python is to look at it. It sleeps otherwise, as there is mostly none. */
static void watch(struct batch *batch) {
    struct worker *worker = batch->worker;
    if (batch->now_us - worker->watched_us < WATCH_US)
        return;
    worker->watched_us = batch->now_us;
    uint32_t seen[MEMINFO_DROPS + 1];
    socklen_t size = sizeof seen;
    if (getsockopt(worker->options.fd, SOL_SOCKET, MEMINFO, seen, &size) || size < sizeof seen ||
        seen[MEMINFO_DROPS] == worker->lost)
        return;
    worker->lost = seen[MEMINFO_DROPS];
    if (!atomic_exchange(&worker->is_overflowing, true))
        batch->has_news = true;
}

static void serve_batch(struct worker *worker, unsigned number) {
    atomic_fetch_add(&worker->sequence, 1);
    note_client(worker);
    for (unsigned i = 0; i < number; i++) {
        worker->sizes[i] = worker->to_take[i].msg_len;
        if (worker->options.has_packet_info)
            forget_interface(&worker->to_take[i].msg_hdr);
    }
    struct batch batch = {
        .worker = worker,
        .number = number,
        .now_us = monotonic_us(),
    };
    answer(&batch);
    send_batch(worker, number);
    watch(&batch);
    if (batch.has_news)
        wake(worker);
    atomic_fetch_add(&worker->sequence, 1);
}

static void *serve(void *context) {
    struct worker *worker = context;
    unsigned number = BATCH;
    while (!atomic_load(&worker->is_stopping)) {
        prepare(worker, number);
        int got = recvmmsg(worker->options.fd, worker->to_take, BATCH, MSG_WAITFORONE, NULL);
        /* A socket that is shut says so by a message from nobody. */
        bool is_shut = got > 0 && !worker->to_take[0].msg_hdr.msg_namelen;
        if (is_shut)
            break;
        number = got > 0 ? (unsigned)got : 0;
        if (got > 0) {
            serve_batch(worker, number);
        } else if (errno != EAGAIN && errno != EINTR) {
            struct timespec pause = {.tv_nsec = PAUSE_NS};
            nanosleep(&pause, NULL);
        }
    }
    return NULL;
}

int worker_start(struct worker *worker) {
    struct timeval patience = {.tv_sec = CHECK_S};
    if (setsockopt(worker->options.fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience))
        return errno;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the main thread's */
    int fault = pthread_create(&worker->thread, NULL, serve, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    worker->is_started = !fault;
    return fault;
}

void worker_stop(struct worker *worker) {
    if (!worker->is_started)
        return;
    atomic_store(&worker->is_stopping, true);
    /* Says ENOTCONN, and wakes who waits for a datagram all the same. */
    shutdown(worker->options.fd, SHUT_RD);
    pthread_join(worker->thread, NULL);
    worker->is_started = false;
}

struct sent worker_send(
    struct worker *worker, const struct datagram *datagrams, unsigned number) {
    struct mmsghdr messages[BATCH];
    bool went[BATCH];
    struct iovec parts[BATCH];
    struct {
        _Alignas(struct cmsghdr) uint8_t octets[CONTROL_MAX];
    } controls[BATCH];
    socklen_t size = address_size(worker);
    for (unsigned i = 0; i < number; i++) {
        const struct datagram *one = &datagrams[i];
        size_t control = one->origin_size - size;
        memcpy(controls[i].octets, one->origin + size, control);
        parts[i] = (struct iovec){.iov_base = (void *)one->octets, .iov_len = one->size};
        messages[i].msg_hdr = (struct msghdr){
            .msg_name = (void *)one->origin,
            .msg_namelen = size,
            .msg_iov = &parts[i],
            .msg_iovlen = 1,
            .msg_control = control ? controls[i].octets : NULL,
            .msg_controllen = control,
        };
    }
    return send_all(&worker->sender, messages, number, went);
}
