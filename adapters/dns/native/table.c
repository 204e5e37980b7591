/* Answers that may be repeated.
 *
 * Many readers, no locks: they follow pointers that are replaced whole. What leaves the table stays
 * readable until every reader that may have seen it is done (epochs, after K. Fraser, "Practical
 * lock freedom", 2004, section 5.2.3). Writers take turns.
 *
 * A change drops what came of it by one write, for each slot that it concerns, of the generation that
 * begins with it: an answer carries the one that it was asked for in, and readers compare. So an
 * answer that was computed before a change and comes after it is never given.
 *
 * When there is no room, a hand goes round the circle of all answers: what was used since it last
 * came by stays, the rest goes. A flood of names that nobody asks for twice pushes out itself. */
#include "core.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_MAX 64    /* of the hand for one answer: then what it points at goes, used or not */
#define LIMBO_BATCH 64  /* answers that left, before it is looked who still reads */
#define LIMBO_SHARE 4   /* of the table's octets may wait for slow readers, one part in so many */
#define NOT_READING 0
#define CLIENTS 8192    /* whose classes are known, at most; a power of two */
#define SECOND_US 1000000
#define MIX 0x9e3779b97f4a7c15u /* odd: different numbers stay different */
#define CACHE_LINE 64
#define APPROACHED 3 /* lines of an entry: of most, all that an answer takes */

struct reader {
    _Alignas(64) _Atomic uint64_t epoch; /* when it began to read, or NOT_READING */
    bool is_taken;
};

/* Read without a lock: what was read counts if the sequence is even, and the same afterwards. */
struct client {
    _Atomic uint64_t sequence;   /* odd while the rest is written */
    _Atomic uint64_t generation; /* in which its class is known; 0 is before the first */
    _Atomic uint64_t who;        /* scope, size and class, an octet each */
    _Atomic uint64_t address[2];
};

struct table {
    _Atomic uint64_t changed[SLOTS]; /* generation in which each slot changed last */
    _Atomic uint64_t epoch;
    _Atomic uint32_t sample;
    struct seed seed;
    _Atomic(struct entry *) *buckets;
    uint64_t mask;
    struct reader *readers;

    pthread_mutex_t changes_lock; /* held for some writes to `changed` */

    pthread_mutex_t admitted_lock; /* held for a look at some networks */
    struct network *admitted;
    size_t admitted_count;
    bool is_everybody_admitted;

    pthread_mutex_t clients_lock; /* of who writes one of them */
    struct client *clients;
    _Atomic uint64_t classed; /* the latest generation of which a class was learned */

    pthread_mutex_t cookies_lock; /* held for a copy of some octets */
    struct cookie_keys cookie_keys;
    bool has_cookie_keys;

    pthread_mutex_t lock; /* of all below */
    unsigned readers_count; /* numbers ever given, from 0 */
    struct entry **circle;
    uint32_t *vacant; /* positions in the circle */
    size_t vacant_count, hand;
    size_t entries_max, bytes_max, bytes;
    struct entry *limbo; /* newest first */
    size_t limbo_count, limbo_bytes;
};

uint64_t table_hash(const struct table *table, const uint8_t *octets, size_t size) {
    return keyed_hash(&table->seed, octets, size);
}

/* The first two octets, which are ours, are mixed in: so there is one hash to be computed for all
 * classes. Which others a question falls together with still nobody can know. */
uint64_t table_key_hash(const struct table *table, const uint8_t *key, size_t size) {
    return table_hash(table, key + 2, size - 2) ^ (key[0] | (uint64_t)kind_in_key(key) << 8) * MIX;
}

/* Buckets are told apart by the low bits, which the upper half of a product has all of a class in. */
uint64_t hash_for_class(uint64_t hash, uint8_t client_class) {
    return hash ^ ((client_class * MIX) >> 32);
}

/* --- making ---------------------------------------------------------------------------------- */

struct table *table_new(size_t entries_max, size_t bytes_max, const struct seed *seed) {
    struct table *table = calloc(1, sizeof *table);
    if (!table)
        return NULL;
    size_t buckets = 1;
    while (buckets < entries_max)
        buckets *= 2;
    table->mask = buckets - 1;
    table->entries_max = entries_max;
    table->bytes_max = bytes_max;
    table->seed = *seed;
    table->buckets = calloc(buckets, sizeof *table->buckets);
    table->readers = aligned_alloc(64, READERS_MAX * sizeof *table->readers);
    table->circle = calloc(entries_max, sizeof *table->circle);
    table->vacant = calloc(entries_max, sizeof *table->vacant);
    table->clients = calloc(CLIENTS, sizeof *table->clients);
    if (!table->buckets || !table->readers || !table->circle || !table->vacant ||
        !table->clients || pthread_mutex_init(&table->clients_lock, NULL) ||
        pthread_mutex_init(&table->lock, NULL) || pthread_mutex_init(&table->changes_lock, NULL) ||
        pthread_mutex_init(&table->admitted_lock, NULL) ||
        pthread_mutex_init(&table->cookies_lock, NULL)) {
        free(table->buckets), free(table->readers), free(table->circle), free(table->vacant);
        free(table->clients);
        free(table);
        return NULL;
    }
    memset(table->readers, 0, READERS_MAX * sizeof *table->readers);
    table->readers_count = 1;
    atomic_store(&table->epoch, 1);
    atomic_store(&table->changed[ALL], 1), atomic_store(&table->changed[LATEST], 1);
    atomic_store(&table->sample, 1);
    for (size_t i = 0; i < entries_max; i++)
        table->vacant[i] = (uint32_t)(entries_max - 1 - i);
    table->vacant_count = entries_max;
    return table;
}

void table_free(struct table *table) {
    if (!table)
        return;
    for (size_t i = 0; i < table->entries_max; i++)
        free(table->circle[i]);
    for (struct entry *entry = table->limbo, *next; entry; entry = next) {
        next = entry->limbo_next;
        free(entry);
    }
    pthread_mutex_destroy(&table->lock), pthread_mutex_destroy(&table->admitted_lock);
    pthread_mutex_destroy(&table->changes_lock);
    pthread_mutex_destroy(&table->cookies_lock), pthread_mutex_destroy(&table->clients_lock);
    free(table->clients);
    free(table->admitted);
    free(table->buckets), free(table->readers), free(table->circle), free(table->vacant);
    free(table);
}

unsigned table_register(struct table *table) {
    unsigned found = 0;
    pthread_mutex_lock(&table->lock);
    for (unsigned i = 1; i < READERS_MAX && !found; i++)
        if (!table->readers[i].is_taken) {
            table->readers[i].is_taken = true;
            found = i;
            if (i >= table->readers_count)
                table->readers_count = i + 1;
        }
    pthread_mutex_unlock(&table->lock);
    return found;
}

void table_unregister(struct table *table, unsigned number) {
    pthread_mutex_lock(&table->lock);
    table->readers[number].is_taken = false;
    pthread_mutex_unlock(&table->lock);
}

/* --- reading --------------------------------------------------------------------------------- */

/* Sequentially consistent, all of these: either a writer sees the epoch of a reader, or the reader
 * sees what the writer has taken out before it looked. */

void table_enter(struct table *table, unsigned number) {
    atomic_store(&table->readers[number].epoch, atomic_load(&table->epoch));
}

void table_leave(struct table *table, unsigned number) {
    atomic_store_explicit(&table->readers[number].epoch, NOT_READING, memory_order_release);
}

void table_prefetch(const struct table *table, uint64_t hash) {
    __builtin_prefetch((const void *)&table->buckets[hash & table->mask]);
}

void table_approach(const struct table *table, uint64_t hash) {
    const uint8_t *first = (const uint8_t *)atomic_load(&table->buckets[hash & table->mask]);
    for (unsigned i = 0; first && i < APPROACHED; i++)
        __builtin_prefetch(first + (size_t)i * CACHE_LINE);
}

/* Whether nothing that an answer comes of changed since a generation. */
static bool is_good(
    const struct table *table, uint64_t generation, const uint8_t *slots, unsigned count) {
    bool is_over = generation < atomic_load(&table->changed[ALL]);
    for (unsigned i = 0; i < count; i++)
        is_over |= generation < atomic_load(&table->changed[slots[i]]);
    return !is_over;
}

static bool is_entry_good(const struct table *table, const struct entry *entry) {
    return is_good(table, entry->generation, entry->slots, entry->slot_count);
}

const struct entry *table_find(
    struct table *table, const uint8_t *key, size_t size, uint64_t hash) {
    struct entry *entry = atomic_load(&table->buckets[hash & table->mask]);
    for (; entry; entry = atomic_load(&entry->next)) {
        if (entry->hash != hash || entry->key_size != size || memcmp(entry->octets, key, size))
            continue;
        if (!is_entry_good(table, entry))
            return NULL;
        if (!atomic_load_explicit(&entry->is_used, memory_order_relaxed))
            atomic_store_explicit(&entry->is_used, true, memory_order_relaxed);
        return entry;
    }
    return NULL;
}

void table_set_sample(struct table *table, uint32_t one_in) {
    atomic_store_explicit(&table->sample, one_in, memory_order_relaxed);
}

uint32_t table_sample(const struct table *table) {
    return atomic_load_explicit(&table->sample, memory_order_relaxed);
}

void table_admit(struct table *table, struct network *networks, size_t count, bool is_everybody) {
    pthread_mutex_lock(&table->admitted_lock);
    struct network *before = table->admitted;
    table->admitted = networks;
    table->admitted_count = count;
    table->is_everybody_admitted = is_everybody;
    pthread_mutex_unlock(&table->admitted_lock);
    free(before);
}

bool table_admits(struct table *table, const uint8_t *client, size_t size) {
    client = unmapped(client, &size);
    pthread_mutex_lock(&table->admitted_lock);
    bool is_admitted = table->is_everybody_admitted;
    for (size_t i = 0; i < table->admitted_count && !is_admitted; i++)
        is_admitted = is_within(client, size, &table->admitted[i]);
    pthread_mutex_unlock(&table->admitted_lock);
    return is_admitted;
}

/* Each client has one place, which others may take. */
static struct client *place_of(
    struct table *table, uint8_t scope, const uint8_t *client, size_t size) {
    uint64_t hash = table_hash(table, client, size) + scope;
    return &table->clients[hash & (CLIENTS - 1)];
}

static uint64_t who_of(uint8_t scope, size_t size) { return (uint64_t)scope << 16 | size << 8; }

void table_learn_class(
    struct table *table, uint64_t generation, uint8_t scope, const uint8_t *client, size_t size,
    uint8_t client_class) {
    if (generation < table_since(table, FILTERS))
        return;
    client = unmapped(client, &size);
    struct client *place = place_of(table, scope, client, size);
    uint64_t address[2] = {0};
    memcpy(address, client, size);
    pthread_mutex_lock(&table->clients_lock);
    uint64_t sequence = atomic_load_explicit(&place->sequence, memory_order_relaxed);
    atomic_store_explicit(&place->sequence, sequence + 1, memory_order_relaxed);
    /* Who reads one of these sees that the sequence is odd, or later. */
    atomic_store_explicit(&place->generation, generation, memory_order_release);
    atomic_store_explicit(
        &place->who, who_of(scope, size) | client_class, memory_order_release);
    atomic_store_explicit(&place->address[0], address[0], memory_order_release);
    atomic_store_explicit(&place->address[1], address[1], memory_order_release);
    atomic_store_explicit(&place->sequence, sequence + 2, memory_order_release);
    if (atomic_load(&table->classed) < generation)
        atomic_store(&table->classed, generation);
    pthread_mutex_unlock(&table->clients_lock);
}

uint8_t table_class_of(
    struct table *table, uint8_t scope, const uint8_t *client, size_t size, uint64_t since) {
    if (atomic_load(&table->classed) < since)
        return 0;
    client = unmapped(client, &size);
    struct client *place = place_of(table, scope, client, size);
    uint64_t address[2] = {0};
    memcpy(address, client, size);
    uint64_t sequence = atomic_load_explicit(&place->sequence, memory_order_acquire);
    uint64_t generation = atomic_load_explicit(&place->generation, memory_order_acquire);
    uint64_t who = atomic_load_explicit(&place->who, memory_order_acquire);
    bool is_same =
        atomic_load_explicit(&place->address[0], memory_order_acquire) == address[0] &&
        atomic_load_explicit(&place->address[1], memory_order_acquire) == address[1];
    if (sequence % 2 || sequence != atomic_load_explicit(&place->sequence, memory_order_relaxed) ||
        !is_same || generation < since || (who & ~0xffull) != who_of(scope, size))
        return 0;
    return (uint8_t)who;
}

void table_set_cookie_keys(struct table *table, const struct cookie_keys *keys) {
    pthread_mutex_lock(&table->cookies_lock);
    table->cookie_keys = *keys;
    table->has_cookie_keys = true;
    pthread_mutex_unlock(&table->cookies_lock);
}

bool table_cookie_keys(struct table *table, struct cookie_keys *keys) {
    pthread_mutex_lock(&table->cookies_lock);
    bool has_keys = table->has_cookie_keys;
    *keys = table->cookie_keys;
    pthread_mutex_unlock(&table->cookies_lock);
    return has_keys;
}

size_t entry_ttl_at(const struct entry *entry, size_t i) {
    uint16_t at;
    memcpy(&at, entry->octets + entry->key_size + entry->wire_size + i * sizeof at, sizeof at);
    return at;
}

void entry_age(const struct entry *entry, uint8_t *wire, int64_t now_us) {
    int64_t more = (now_us - entry->stored_us) / SECOND_US - entry->aged_s;
    if (more <= 0)
        return;
    for (size_t i = 0; i < entry->ttl_count; i++) {
        uint8_t *at = wire + entry_ttl_at(entry, i);
        uint32_t ttl = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
        ttl = ttl > more ? ttl - (uint32_t)more : 0;
        at[0] = (uint8_t)(ttl >> 24), at[1] = (uint8_t)(ttl >> 16);
        at[2] = (uint8_t)(ttl >> 8), at[3] = (uint8_t)ttl;
    }
}

uint64_t table_generation(const struct table *table) {
    return atomic_load(&table->changed[LATEST]);
}

uint64_t table_since(const struct table *table, uint8_t slot) {
    uint64_t all = atomic_load(&table->changed[ALL]), one = atomic_load(&table->changed[slot]);
    return one > all ? one : all;
}

/* --- writing, under the lock ------------------------------------------------------------------ */

static size_t size_of(const struct entry *entry) {
    return sizeof *entry + entry->key_size + entry->wire_size +
           entry->ttl_count * sizeof(uint16_t);
}

/* What left before then is read by nobody. */
static uint64_t oldest_reader(struct table *table) {
    uint64_t oldest = atomic_fetch_add(&table->epoch, 1) + 1;
    for (unsigned i = 1; i < table->readers_count; i++) {
        uint64_t epoch = atomic_load(&table->readers[i].epoch);
        if (epoch != NOT_READING && epoch < oldest)
            oldest = epoch;
    }
    return oldest;
}

/* Free what left before the oldest reader began. */
static void empty_limbo(struct table *table) {
    uint64_t oldest = oldest_reader(table);
    for (struct entry **at = &table->limbo, *entry; (entry = *at);) {
        if (entry->left_at >= oldest) {
            at = &entry->limbo_next;
            continue;
        }
        *at = entry->limbo_next;
        table->limbo_count--;
        table->limbo_bytes -= size_of(entry);
        free(entry);
    }
}

static void remove_entry(struct table *table, struct entry *entry) {
    _Atomic(struct entry *) *at = &table->buckets[entry->hash & table->mask];
    for (struct entry *other; (other = atomic_load(at)) != entry;)
        at = &other->next;
    atomic_store(at, atomic_load(&entry->next)); /* its own `next` still leads its readers on */
    table->circle[entry->position] = NULL;
    table->vacant[table->vacant_count++] = entry->position;
    table->bytes -= size_of(entry);
    entry->left_at = atomic_load(&table->epoch);
    entry->limbo_next = table->limbo;
    table->limbo = entry;
    table->limbo_bytes += size_of(entry);
    if (++table->limbo_count % LIMBO_BATCH == 0)
        empty_limbo(table);
}

static void make_room(struct table *table, size_t size) {
    unsigned steps = 0;
    while (!table->vacant_count || table->bytes + size > table->bytes_max) {
        struct entry *entry = table->circle[table->hand];
        table->hand = table->hand + 1 == table->entries_max ? 0 : table->hand + 1;
        if (!entry)
            continue;
        if (is_entry_good(table, entry) && steps++ < STEPS_MAX &&
            atomic_exchange_explicit(&entry->is_used, false, memory_order_relaxed))
            continue;
        remove_entry(table, entry);
    }
}

static struct entry *find_own(struct table *table, const struct entry *like) {
    struct entry *entry = atomic_load(&table->buckets[like->hash & table->mask]);
    while (entry && (entry->hash != like->hash || entry->key_size != like->key_size ||
                     memcmp(entry->octets, like->octets, like->key_size)))
        entry = atomic_load(&entry->next);
    return entry;
}

static bool put_entry(struct table *table, struct entry *entry) {
    if (table->limbo_bytes > table->bytes_max / LIMBO_SHARE) {
        empty_limbo(table);
        if (table->limbo_bytes > table->bytes_max / LIMBO_SHARE)
            return false;
    }
    struct entry *before = find_own(table, entry);
    if (before) {
        if (before->generation > entry->generation)
            return false;
        atomic_init(&entry->is_used, atomic_load_explicit(&before->is_used, memory_order_relaxed));
        remove_entry(table, before);
    }
    make_room(table, size_of(entry));
    entry->position = table->vacant[--table->vacant_count];
    table->circle[entry->position] = entry;
    table->bytes += size_of(entry);
    _Atomic(struct entry *) *bucket = &table->buckets[entry->hash & table->mask];
    atomic_init(&entry->next, atomic_load(bucket));
    atomic_store(bucket, entry);
    return true;
}

static struct entry *entry_new(
    const struct table *table,
    uint64_t generation,
    const uint8_t *key,
    size_t key_size,
    const struct answer *answer) {
    size_t ttls_size = answer->ttl_count * sizeof *answer->ttls_at;
    struct entry *entry = malloc(sizeof *entry + key_size + answer->wire_size + ttls_size);
    if (!entry)
        return NULL;
    entry->hash = hash_for_class(table_key_hash(table, key, key_size), class_in_key(key));
    entry->generation = generation;
    entry->key_size = (uint16_t)key_size;
    entry->wire_size = (uint16_t)answer->wire_size;
    entry->place = answer->place;
    entry->is_restricted = answer->is_restricted;
    entry->until_us = answer->until_us;
    entry->stored_us = answer->stored_us;
    entry->aged_s = answer->aged_s;
    entry->ttl_count = (uint16_t)answer->ttl_count;
    entry->cookie_at = answer->cookie_at;
    entry->slot_count = answer->slot_count;
    memcpy(entry->slots, answer->slots, sizeof entry->slots);
    atomic_init(&entry->is_used, false);
    uint8_t *at = entry->octets;
    memcpy(at, key, key_size), at += key_size;
    memcpy(at, answer->wire, answer->wire_size), at += answer->wire_size;
    if (ttls_size)
        memcpy(at, answer->ttls_at, ttls_size);
    return entry;
}

bool table_store(
    struct table *table,
    uint64_t generation,
    const uint8_t *key,
    size_t key_size,
    const struct answer *answer) {
    if (!is_good(table, generation, answer->slots, answer->slot_count))
        return false;
    struct entry *entry = entry_new(table, generation, key, key_size, answer);
    if (!entry)
        return false;
    bool is_kept = false;
    pthread_mutex_lock(&table->lock);
    if (size_of(entry) <= table->bytes_max)
        is_kept = put_entry(table, entry);
    pthread_mutex_unlock(&table->lock);
    if (!is_kept)
        free(entry);
    return is_kept;
}

uint64_t table_epoch(const struct table *table) { return atomic_load(&table->epoch); }

uint64_t table_oldest(struct table *table) {
    pthread_mutex_lock(&table->lock);
    uint64_t oldest = oldest_reader(table);
    pthread_mutex_unlock(&table->lock);
    return oldest;
}

/* Slots first: who is told of the new generation asks after the change, and nobody else's answer may
 * seem to be of it. */
void table_invalidate(struct table *table, const uint8_t *slots, size_t count) {
    pthread_mutex_lock(&table->changes_lock);
    uint64_t generation = table_generation(table) + 1;
    for (size_t i = 0; i < count; i++)
        if (slots[i] != LATEST)
            atomic_store(&table->changed[slots[i]], generation);
    atomic_store(&table->changed[LATEST], generation);
    pthread_mutex_unlock(&table->changes_lock);
}

struct table_statistics table_statistics(struct table *table) {
    pthread_mutex_lock(&table->lock);
    struct table_statistics seen = {
        .entries = table->entries_max - table->vacant_count,
        .bytes = table->bytes,
        .in_limbo = table->limbo_count,
    };
    pthread_mutex_unlock(&table->lock);
    return seen;
}
