/* Repeats for those who ask one by one: Python, on behalf of clients of TCP, TLS, HTTPS and QUIC. A
 * worker (worker.c) does the same for whole batches of datagrams.
 *
 * Messages may be of any size here, and nothing is truncated: a listener has a scope of its own, so
 * an answer in the table is one that this kind of transport was given. */
#define _POSIX_C_SOURCE 200809L
#include "core.h"

#include <string.h>
#include <time.h>

void asker_init(
    struct asker *asker, struct table *table, uint8_t scope, const uint8_t *client,
    size_t client_size, bool is_named) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *asker = (struct asker){
        .table = table, .scope = scope, .client = client, .client_size = client_size,
        .is_named = is_named,
        .now_us = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000,
    };
}

static bool is_admitted(struct asker *asker) {
    if (!asker->is_admitted_known) {
        asker->is_admitted = table_admits(asker->table, asker->client, asker->client_size);
        asker->is_admitted_known = true;
    }
    return asker->is_admitted;
}

static bool make_cookie(
    struct asker *asker, const uint8_t *packet, size_t size, size_t at, uint8_t *cookie) {
    struct cookie_keys keys;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return at && table_cookie_keys(asker->table, &keys) &&
           cookie_answer(&keys, packet + at, size - at, asker->client, asker->client_size,
                         now.tv_sec, cookie);
}

/* The answer for everybody, or for the class of the client. Classes go by address, so whom a group
 * of clients names by what he calls himself has none. */
static const struct entry *find_entry(struct asker *asker, uint8_t *key, size_t size) {
    struct table *table = asker->table;
    uint64_t hash = table_key_hash(table, key, size);
    const struct entry *entry = table_find(table, key, size, hash);
    if (entry || asker->is_named)
        return entry;
    if (!asker->is_class_known) {
        asker->classed_since = table_since(table, FILTERS);
        asker->client_class = table_class_of(
            table, asker->scope, asker->client, asker->client_size, asker->classed_since);
        asker->is_class_known = true;
    }
    if (!asker->client_class)
        return NULL;
    key_for_class(key, asker->client_class);
    entry = table_find(table, key, size, hash_for_class(hash, asker->client_class));
    /* After a change of filters classes are others. */
    return entry && entry->generation >= asker->classed_since &&
                   table_since(table, FILTERS) == asker->classed_since
               ? entry
               : NULL;
}

size_t repeat_message(
    struct asker *asker, const uint8_t *packet, size_t size, uint8_t *answer, size_t room,
    struct repeated *repeated) {
    uint8_t key[KEY_MAX], cookie[COOKIE_SIZE];
    size_t cookie_at, key_size = 0;
    if (size >= HEADER_SIZE)
        key_size = message_key(asker->scope, packet, size, key, &cookie_at);
    const struct entry *entry = key_size ? find_entry(asker, key, key_size) : NULL;
    if (!entry || entry->wire_size + 2u > room ||
        (entry->until_us && asker->now_us >= entry->until_us) ||
        (entry->is_restricted && !is_admitted(asker)) ||
        (entry->cookie_at && !make_cookie(asker, packet, size, cookie_at, cookie)))
        return 0;
    size_t end = name_end(packet, size);
    memcpy(answer, packet, 2);
    memcpy(answer + 2, entry_wire(entry), entry->wire_size);
    memcpy(answer + HEADER_SIZE, packet + HEADER_SIZE, end - HEADER_SIZE); /* as it was asked */
    if (entry->ttl_count)
        entry_age(entry, answer + 2, asker->now_us);
    if (entry->cookie_at)
        memcpy(answer + 2 + entry->cookie_at, cookie, COOKIE_SIZE);
    *repeated = (struct repeated){
        .place = entry->place, .client_class = class_in_key(entry->octets)};
    return entry->wire_size + 2u;
}
