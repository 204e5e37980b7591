/* Token buckets per network; `projections/pipeline/ratelimit.py` has the same rules in Python, and
 * one suite of tests runs on both.
 *
 * A bucket is the moment at which its network has its whole allowance again, in microseconds times
 * the limit: every limit divides evenly. All threads share the buckets, under one lock that is held
 * for less than a microsecond. */
#include "core.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MINUTE_US 60000000
#define NONE UINT32_MAX
#define FIRST_SIZE 1024 /* buckets that there is room for at first; it doubles as they come */

/* Octets of a network, its length, and whether it is one of IPv6. */
struct place {
    uint8_t octets[16];
    uint8_t bits;
    bool is_ipv6;
};

struct bucket {
    struct place place;
    uint8_t owed; /* up to a hundred for each slip: the share is spread evenly, without chance */
    uint32_t chain;          /* of the same hash */
    uint32_t older, newer;   /* by use */
    __int128 full_at;
};

struct limiter {
    struct seed seed;
    pthread_mutex_t lock;
    atomic_bool is_enabled;
    _Atomic uint64_t slipped, dropped;
    unsigned slip;
    size_t buckets_max;
    struct family_rules rules[2]; /* IPv4, IPv6 */
    struct bucket *buckets;
    uint32_t *heads; /* of chains, as many as there is room for buckets */
    uint32_t count, room, oldest, newest;
};

struct limiter *limiter_new(const struct seed *seed) {
    struct limiter *limiter = calloc(1, sizeof *limiter);
    if (limiter && pthread_mutex_init(&limiter->lock, NULL)) {
        free(limiter);
        return NULL;
    }
    if (!limiter)
        return NULL;
    limiter->seed = *seed;
    limiter->oldest = limiter->newest = NONE;
    return limiter;
}

static void forget_buckets(struct limiter *limiter) {
    free(limiter->buckets), free(limiter->heads);
    limiter->buckets = NULL, limiter->heads = NULL;
    limiter->count = limiter->room = 0;
    limiter->oldest = limiter->newest = NONE;
}

void limiter_free(struct limiter *limiter) {
    if (!limiter)
        return;
    forget_buckets(limiter);
    free(limiter->rules[0].exempt), free(limiter->rules[1].exempt);
    pthread_mutex_destroy(&limiter->lock);
    free(limiter);
}

void limiter_configure(
    struct limiter *limiter,
    bool is_enabled,
    unsigned slip,
    size_t buckets_max,
    const struct family_rules *ipv4,
    const struct family_rules *ipv6) {
    pthread_mutex_lock(&limiter->lock);
    forget_buckets(limiter);
    free(limiter->rules[0].exempt), free(limiter->rules[1].exempt);
    limiter->rules[0] = *ipv4, limiter->rules[1] = *ipv6;
    limiter->slip = slip;
    limiter->buckets_max = buckets_max < NONE ? buckets_max : NONE - 1;
    atomic_store(&limiter->is_enabled, is_enabled);
    pthread_mutex_unlock(&limiter->lock);
}

bool limiter_is_enabled(struct limiter *limiter) { return atomic_load(&limiter->is_enabled); }

void limiter_count(struct limiter *limiter, unsigned slipped, unsigned dropped) {
    atomic_fetch_add(&limiter->slipped, slipped);
    atomic_fetch_add(&limiter->dropped, dropped);
}

struct limiter_statistics limiter_statistics(struct limiter *limiter) {
    pthread_mutex_lock(&limiter->lock);
    struct limiter_statistics seen = {.buckets = limiter->count};
    pthread_mutex_unlock(&limiter->lock);
    seen.slipped = atomic_load(&limiter->slipped);
    seen.dropped = atomic_load(&limiter->dropped);
    return seen;
}

/* --- addresses ------------------------------------------------------------------------------- */

static struct place place_of(const uint8_t *client, size_t size, unsigned bits) {
    struct place place = {.bits = (uint8_t)bits, .is_ipv6 = size == 16};
    memcpy(place.octets, client, bits / 8);
    if (bits % 8)
        place.octets[bits / 8] = client[bits / 8] & (uint8_t)(0xff << (8 - bits % 8));
    return place;
}

static bool is_same(const struct place *one, const struct place *other) {
    return one->bits == other->bits && one->is_ipv6 == other->is_ipv6 &&
           !memcmp(one->octets, other->octets, sizeof one->octets);
}

/* --- buckets, under the lock ------------------------------------------------------------------ */

static uint32_t head_of(const struct limiter *limiter, const struct place *place) {
    /* All octets of a place are set, so it is hashed as it lies. */
    uint64_t hash = keyed_hash(&limiter->seed, (const uint8_t *)place, sizeof *place);
    return (uint32_t)hash & (limiter->room - 1);
}

static void link_newest(struct limiter *limiter, uint32_t index) {
    struct bucket *bucket = &limiter->buckets[index];
    bucket->older = limiter->newest, bucket->newer = NONE;
    if (limiter->newest != NONE)
        limiter->buckets[limiter->newest].newer = index;
    else
        limiter->oldest = index;
    limiter->newest = index;
}

static void unlink_use(struct limiter *limiter, uint32_t index) {
    struct bucket *bucket = &limiter->buckets[index];
    if (bucket->older != NONE)
        limiter->buckets[bucket->older].newer = bucket->newer;
    else
        limiter->oldest = bucket->newer;
    if (bucket->newer != NONE)
        limiter->buckets[bucket->newer].older = bucket->older;
    else
        limiter->newest = bucket->older;
}

static void link_chain(struct limiter *limiter, uint32_t index) {
    uint32_t *head = &limiter->heads[head_of(limiter, &limiter->buckets[index].place)];
    limiter->buckets[index].chain = *head;
    *head = index;
}

static void unlink_chain(struct limiter *limiter, uint32_t index) {
    uint32_t *at = &limiter->heads[head_of(limiter, &limiter->buckets[index].place)];
    while (*at != index)
        at = &limiter->buckets[*at].chain;
    *at = limiter->buckets[index].chain;
}

/* More room, as long as there is memory. */
static void grow(struct limiter *limiter) {
    uint32_t room = limiter->room ? limiter->room * 2 : FIRST_SIZE;
    struct bucket *buckets = realloc(limiter->buckets, room * sizeof *buckets);
    if (!buckets)
        return;
    limiter->buckets = buckets;
    uint32_t *heads = realloc(limiter->heads, room * sizeof *heads);
    if (!heads)
        return;
    limiter->heads = heads;
    limiter->room = room;
    memset(heads, 0xff, room * sizeof *heads);
    for (uint32_t i = 0; i < limiter->count; i++)
        link_chain(limiter, i);
}

/* The bucket of a network, now the most recently used one; NULL without memory. An evicted one
 * starts full. */
static struct bucket *bucket_of(struct limiter *limiter, const struct place *place) {
    if (limiter->room) {
        uint32_t index = limiter->heads[head_of(limiter, place)];
        while (index != NONE && !is_same(&limiter->buckets[index].place, place))
            index = limiter->buckets[index].chain;
        if (index != NONE) {
            if (index != limiter->newest) {
                unlink_use(limiter, index);
                link_newest(limiter, index);
            }
            return &limiter->buckets[index];
        }
    }
    if (limiter->count < limiter->buckets_max && limiter->count == limiter->room)
        grow(limiter);
    uint32_t index;
    if (limiter->count < limiter->buckets_max && limiter->count < limiter->room) {
        index = limiter->count++;
    } else {
        index = limiter->oldest;
        if (index == NONE)
            return NULL;
        unlink_use(limiter, index);
        unlink_chain(limiter, index);
    }
    /* The first query over the limit is a slip, unless there are none. */
    limiter->buckets[index] = (struct bucket){.place = *place, .owed = 99};
    link_chain(limiter, index);
    link_newest(limiter, index);
    return &limiter->buckets[index];
}

/* Allowance that is left. Rounds down: an allowance that is not whole is none. */
static int64_t left_of(__int128 full_at, __int128 now, uint64_t limit) {
    __int128 owed = full_at - now;
    if (owed <= 0)
        return (int64_t)limit;
    return (int64_t)((__int128)limit - (owed + MINUTE_US - 1) / MINUTE_US);
}

static uint64_t take(
    struct limiter *limiter, const uint8_t *client, size_t size, uint64_t count, int64_t now_us) {
    const struct family_rules *rules = &limiter->rules[size == 16];
    for (size_t i = 0; i < rules->exempt_count; i++)
        if (is_within(client, size, &rules->exempt[i]))
            return count;
    for (size_t i = 0; i < rules->level_count; i++) {
        const struct level *level = &rules->levels[i];
        struct place place = place_of(client, size, level->bits);
        struct bucket *bucket = bucket_of(limiter, &place);
        if (!bucket)
            continue;
        __int128 now = (__int128)now_us * level->limit;
        int64_t left = left_of(bucket->full_at, now, level->limit);
        if (left <= 0)
            return 0;
        if ((uint64_t)left < count)
            count = (uint64_t)left;
        bucket->full_at = (bucket->full_at > now ? bucket->full_at : now) +
                          (__int128)count * MINUTE_US;
    }
    return count;
}

uint64_t limiter_take(
    struct limiter *limiter, const uint8_t *client, size_t size, uint64_t count, int64_t now_us) {
    client = unmapped(client, &size);
    pthread_mutex_lock(&limiter->lock);
    uint64_t allowed = take(limiter, client, size, count, now_us);
    pthread_mutex_unlock(&limiter->lock);
    return allowed;
}

bool limiter_slips(struct limiter *limiter, const uint8_t *client, size_t size) {
    client = unmapped(client, &size);
    bool slips = false;
    pthread_mutex_lock(&limiter->lock);
    const struct family_rules *rules = &limiter->rules[size == 16];
    if (rules->level_count) {
        struct place place = place_of(client, size, rules->levels[0].bits);
        struct bucket *bucket = bucket_of(limiter, &place);
        if (bucket) {
            unsigned owed = bucket->owed + limiter->slip;
            slips = owed >= 100;
            bucket->owed = (uint8_t)(slips ? owed - 100 : owed);
        }
    }
    pthread_mutex_unlock(&limiter->lock);
    return slips;
}
