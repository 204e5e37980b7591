/* Zones by apex and names by zone: two kinds of items in tables that grow bucket by bucket (linear
 * hashing, after W. Litwin, 1980), so that no change waits for a table to be made anew.
 *
 * A name's hash comes of those of its labels from the right, so the hashes of all its ancestors are
 * at hand. A reader who looks while something is moved may miss it, and is told so by the version:
 * it sees chains that end, and memory that is there. */
#include "zone.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define SEGMENTS_MAX 28 /* of buckets: each as large as all before it together */
#define BUCKETS_MIN 16
#define BUCKETS_PER_ITEM 2 /* half are empty: who asks for what is not there waits for memory half as often */
#define RRSET_HEAD 10  /* type, number of records, octets */
#define CACHE_LINE 64

#define QR 0x80 /* of the third octet */
#define OPCODE 0x78
#define AA 0x04
#define RD 0x01
#define OPT_SIZE 11
#define DNSSEC_OK 0x80
#define NXDOMAIN 3

enum {
    TYPE_NS = 2, TYPE_CNAME = 5, TYPE_SOA = 6, TYPE_PTR = 12, TYPE_MX = 15, TYPE_SRV = 33,
    TYPE_DNAME = 39, TYPE_OPT = 41, TYPE_DS = 43, TYPE_SVCB = 64, TYPE_HTTPS = 65
};

struct item {
    _Atomic(struct item *) next; /* of its bucket */
    uint32_t hash;
    uint32_t size; /* octets of a zone's apex, of a name's image */
};

struct index {
    _Atomic(_Atomic(struct item *) *) segments[SEGMENTS_MAX];
    _Atomic uint32_t buckets;
    uint32_t items;
};

/* A name, by its labels before the apex. */
struct node {
    struct item item;
    uint8_t name_size;
    bool is_others; /* a zone cut or a DNAME: what is below is of others, or elsewhere */
    bool is_unusual;
    uint8_t octets[]; /* the labels, then the image */
};

/* What a zone says to those who ask for what is not there. */
struct voice {
    uint16_t size, pointers_at[POINTERS_MAX];
    uint8_t pointer_count;
    uint8_t octets[];
};

struct zone {
    struct item item;
    _Atomic(struct voice *) voice; /* NULL: mute */
    struct index names;
    struct zone *limbo_next; /* once it was dropped */
    uint64_t left_at;
    uint32_t swept; /* buckets */
    uint8_t apex[];
};

/* What was taken out and may still be read: a node or a voice. */
struct left {
    void *block;
    size_t size;
    uint64_t at; /* epoch */
};

struct zones {
    _Atomic uint64_t version; /* odd while closed */
    struct seed seed;
    struct table *table;
    struct index by_apex;
    size_t bytes, bytes_max;
    uint64_t names;
    struct left *limbo; /* oldest first */
    size_t limbo_count, limbo_room;
    struct zone *dropped;
};

static unsigned number_at(const uint8_t *octets) {
    return (unsigned)octets[0] << 8 | octets[1];
}

/* Octets of an RRset's records. */
static size_t length_at(const uint8_t *rrset) {
    return (size_t)number_at(rrset + 6) << 16 | number_at(rrset + 8);
}

/* --- questions and answers ------------------------------------------------------------------- */

bool read_question(
    const uint8_t *packet, size_t size, size_t name_end, struct question *question) {
    size_t end = name_end + 4;
    if (!name_end || end > size || packet[2] & (QR | OPCODE) || number_at(packet + 4) != 1 ||
        number_at(packet + 6) || number_at(packet + 8) || number_at(packet + name_end + 2) != 1)
        return false;
    *question = (struct question){
        .end = end, .rtype = (uint16_t)number_at(packet + name_end), .limit = UDP_PLAIN_MAX};
    const uint8_t *opt = packet + end;
    switch (number_at(packet + 10)) {
    case 0:
        return size == end;
    case 1:
        /* The name of the root, the type, version 0, and no options. */
        if (size != end + OPT_SIZE || opt[0] || number_at(opt + 1) != TYPE_OPT || opt[6] ||
            number_at(opt + 9))
            return false;
        unsigned limit = number_at(opt + 3);
        limit = limit < UDP_PLAIN_MAX ? UDP_PLAIN_MAX : limit;
        question->limit = (uint16_t)(limit > UDP_EDNS_MAX ? UDP_EDNS_MAX : limit);
        question->has_opt = true;
        question->is_dnssec_ok = opt[7] & DNSSEC_OK;
        return true;
    default:
        return false;
    }
}

static void put_number(uint8_t *at, unsigned number) {
    at[0] = (uint8_t)(number >> 8), at[1] = (uint8_t)number;
}

static size_t size_of_answer(const struct found *found, const struct question *question) {
    return question->end + found->wire_size + (question->has_opt ? OPT_SIZE : 0);
}

bool fits(const struct found *found, const struct question *question) {
    return size_of_answer(found, question) <= question->limit;
}

size_t write_answer(
    const struct found *found, const struct question *question, uint8_t *packet) {
    uint8_t *body = packet + question->end;
    packet[2] = QR | AA | (packet[2] & RD);
    packet[3] = found->rcode;
    put_number(packet + 6, found->is_negative ? 0 : found->rr_count);
    put_number(packet + 8, found->is_negative);
    put_number(packet + 10, question->has_opt);
    memcpy(body, found->wire, found->wire_size);
    for (unsigned i = 0; i < found->pointer_count; i++)
        put_number(body + found->pointers_at[i], 0xc000u | (HEADER_SIZE + found->apex_at));
    if (question->has_opt) {
        uint8_t opt[OPT_SIZE] = {0, 0, TYPE_OPT, UDP_EDNS_MAX >> 8, UDP_EDNS_MAX & 0xff};
        opt[7] = question->is_dnssec_ok ? DNSSEC_OK : 0;
        memcpy(body + found->wire_size, opt, sizeof opt);
    }
    return size_of_answer(found, question);
}

/* --- names ----------------------------------------------------------------------------------- */

/* Whether octets are one whole name; nothing is known of them before. */
static bool is_name(const uint8_t *octets, size_t size) {
    size_t at = 0;
    while (at < size && octets[at] && octets[at] <= LABEL_MAX)
        at += octets[at] + 1u;
    return size && size <= NAME_MAX_SIZE && at == size - 1 && !octets[at];
}

static uint64_t hash_below(const struct seed *seed, uint64_t hash, const uint8_t *label) {
    struct seed below = {{seed->words[0] ^ hash, seed->words[1]}};
    return keyed_hash(&below, label, label[0] + 1u);
}

static void read_name(const struct seed *seed, const uint8_t *octets, struct path *name) {
    unsigned count = 0;
    size_t at = 0;
    for (; octets[at]; at += octets[at] + 1u)
        name->starts[count++] = (uint8_t)at;
    name->starts[count] = (uint8_t)at;
    name->octets = octets;
    name->count = count;
    uint64_t hash = 0;
    name->hashes[count] = 0;
    for (unsigned i = count; i-- > 0;) {
        hash = hash_below(seed, hash, octets + name->starts[i]);
        name->hashes[i] = hash;
    }
}

/* --- tables of items ------------------------------------------------------------------------- */

static unsigned bits_of(uint32_t number) { return 32u - (unsigned)__builtin_clz(number); }

/* Where a bucket is; its segment is there. */
static _Atomic(struct item *) *bucket_at(const struct index *index, uint32_t bucket) {
    unsigned segment = bucket < BUCKETS_MIN ? 0 : bits_of(bucket) - bits_of(BUCKETS_MIN - 1);
    uint32_t first = segment ? BUCKETS_MIN << (segment - 1) : 0;
    return &atomic_load(&index->segments[segment])[bucket - first];
}

static _Atomic(struct item *) *bucket_of(const struct index *index, uint32_t hash) {
    uint32_t buckets = atomic_load(&index->buckets);
    uint32_t half = 1u << (bits_of(buckets) - 1); /* the largest power of two within */
    uint32_t bucket = hash & (2 * half - 1);
    return bucket_at(index, bucket < buckets ? bucket : bucket & (half - 1));
}

static bool index_init(struct index *index) {
    _Atomic(struct item *) *first = calloc(BUCKETS_MIN, sizeof *first);
    atomic_init(&index->segments[0], first);
    atomic_init(&index->buckets, BUCKETS_MIN);
    return first != NULL;
}

static void index_free(struct index *index) {
    for (unsigned i = 0; i < SEGMENTS_MAX; i++)
        free(atomic_load(&index->segments[i]));
}

/* Divide one bucket in two, should there be fewer than BUCKETS_PER_ITEM for each, and memory. */
static void index_grow(struct index *index) {
    uint32_t buckets = atomic_load(&index->buckets);
    uint32_t half = 1u << (bits_of(buckets) - 1);
    if (BUCKETS_PER_ITEM * (uint64_t)index->items <= buckets || bits_of(buckets) - bits_of(BUCKETS_MIN) + 1 >= SEGMENTS_MAX)
        return;
    if (buckets == half) { /* the first of a segment */
        _Atomic(struct item *) *more = calloc(half, sizeof *more);
        if (!more)
            return;
        atomic_store(&index->segments[bits_of(half) - bits_of(BUCKETS_MIN - 1)], more);
    }
    _Atomic(struct item *) *at = bucket_at(index, buckets - half);
    _Atomic(struct item *) *other = bucket_at(index, buckets);
    for (struct item *item; (item = atomic_load(at));) {
        if ((item->hash & (2 * half - 1)) != buckets) {
            at = &item->next;
            continue;
        }
        atomic_store(at, atomic_load(&item->next));
        atomic_store(&item->next, atomic_load(other));
        atomic_store(other, item);
    }
    atomic_store(&index->buckets, buckets + 1);
}

static void index_put(struct index *index, struct item *item) {
    _Atomic(struct item *) *bucket = bucket_of(index, item->hash);
    atomic_init(&item->next, atomic_load(bucket));
    atomic_store(bucket, item);
    index->items++;
    for (unsigned i = 0; i < BUCKETS_PER_ITEM; i++)
        index_grow(index);
}

static void index_remove(struct index *index, struct item *item) {
    _Atomic(struct item *) *at = bucket_of(index, item->hash);
    for (struct item *other; (other = atomic_load(at)) != item;)
        at = &other->next;
    atomic_store(at, atomic_load(&item->next));
    index->items--;
}

static struct zone *find_zone(
    const struct zones *zones, uint32_t hash, const uint8_t *apex, size_t size) {
    struct item *item = atomic_load(bucket_of(&zones->by_apex, hash));
    for (; item; item = atomic_load(&item->next))
        if (item->hash == hash && item->size == size &&
            !memcmp(((struct zone *)item)->apex, apex, size))
            return (struct zone *)item;
    return NULL;
}

static struct node *find_node(
    const struct zone *zone, uint32_t hash, const uint8_t *labels, size_t size) {
    struct item *item = atomic_load(bucket_of(&zone->names, hash));
    for (; item; item = atomic_load(&item->next)) {
        struct node *node = (struct node *)item;
        if (item->hash == hash && node->name_size == size && !memcmp(node->octets, labels, size))
            return node;
    }
    return NULL;
}

/* --- reading --------------------------------------------------------------------------------- */

uint64_t zones_version(const struct zones *zones) {
    uint64_t version = atomic_load(&zones->version);
    return version & 1 ? 0 : version;
}

/* Types whose answers hold more than their RRset, or names that are compressed; those that ask for
 * something else than data; and those of which the parent side knows more. */
static bool is_for_python(uint16_t rtype) {
    switch (rtype) {
    case 0:
    case TYPE_OPT:
    case TYPE_DS:
        return true;
    default:
        return (rtype >= 128 && rtype < 256) || rtype >= ZONE_TYPES;
    }
}

static bool needs_python(uint16_t rtype) {
    switch (rtype) {
    case TYPE_NS:
    case TYPE_CNAME:
    case TYPE_SOA:
    case TYPE_PTR:
    case TYPE_MX:
    case TYPE_SRV:
    case TYPE_SVCB:
    case TYPE_HTTPS:
        return true;
    default:
        return false;
    }
}

static bool say_no(
    const struct voice *voice, unsigned rcode, size_t apex_at, struct found *found) {
    *found = (struct found){.wire = voice->octets, .wire_size = voice->size,
                            .rcode = (uint8_t)rcode, .is_negative = true,
                            .pointer_count = voice->pointer_count, .apex_at = (uint8_t)apex_at};
    memcpy(found->pointers_at, voice->pointers_at, sizeof found->pointers_at);
    return true;
}

/* RFC 1034 section 4.3.2 step 3a: the name is there, and `node` has its data. */
static bool find_at_node(
    const struct node *node, const struct voice *voice, uint16_t rtype, size_t apex_at,
    struct found *found) {
    if (node->is_unusual || node->is_others)
        return false;
    const uint8_t *at = node->octets + node->name_size, *end = at + node->item.size;
    bool is_alias = false;
    while (at < end) {
        unsigned of = number_at(at);
        size_t length = length_at(at); /* as `is_image` has seen */
        if (of == rtype) {
            if (needs_python(rtype) || length > UDP_EDNS_MAX)
                return false;
            *found = (struct found){.wire = at + RRSET_HEAD, .wire_size = (uint16_t)length,
                                    .rr_count = (uint16_t)number_at(at + 4)};
            return true;
        }
        is_alias |= of == TYPE_CNAME;
        at += RRSET_HEAD + length;
    }
    return !is_alias && say_no(voice, 0, apex_at, found);
}

/* RFC 4592 section 3.3.1: the name is not there; `encloser` is where the longest name begins that
 * is. */
static bool find_wildcard(
    const struct zones *zones, const struct zone *zone, const struct voice *voice,
    const struct path *name, unsigned encloser, size_t apex_at, uint16_t rtype,
    struct found *found) {
    uint8_t labels[NAME_MAX_SIZE] = {1, '*'}; /* no longer than the name, which has others there */
    size_t start = name->starts[encloser], size = apex_at - start;
    memcpy(labels + 2, name->octets + start, size);
    uint64_t hash = hash_below(&zones->seed, name->hashes[encloser], labels);
    const struct node *node = find_node(zone, (uint32_t)hash, labels, size + 2);
    return node ? find_at_node(node, voice, rtype, apex_at, found)
                : say_no(voice, NXDOMAIN, apex_at, found);
}

static bool find_in_zone(
    const struct zones *zones, const struct voice *voice, const struct path *name, uint16_t rtype,
    struct found *found) {
    size_t apex_at = name->starts[name->apex];
    const struct zone *zone = name->zone;
    const struct node *node = NULL;
    if (!name->apex)
        node = find_node(zone, (uint32_t)name->hashes[0], name->octets, 0);
    for (unsigned i = name->apex; i-- > 0;) {
        size_t start = name->starts[i];
        node = find_node(
            zone, (uint32_t)name->hashes[i], name->octets + start, apex_at - start);
        if (!node)
            return find_wildcard(zones, zone, voice, name, i + 1, apex_at, rtype, found);
        if (node->is_others)
            return false;
    }
    return node && find_at_node(node, voice, rtype, apex_at, found);
}

bool zones_locate(const struct zones *zones, const uint8_t *octets, struct path *name) {
    read_name(&zones->seed, octets, name);
    size_t size = name->starts[name->count] + 1u;
    for (name->apex = 0; name->apex <= name->count; name->apex++) {
        size_t start = name->starts[name->apex];
        name->zone =
            find_zone(zones, (uint32_t)name->hashes[name->apex], octets + start, size - start);
        if (name->zone) {
            name->bucket = bucket_of(&name->zone->names, (uint32_t)name->hashes[0]);
            __builtin_prefetch((const void *)name->bucket);
            return true;
        }
    }
    return false;
}

void zones_approach(const struct path *name) {
    const uint8_t *first = (const uint8_t *)atomic_load(name->bucket);
    if (first) {
        __builtin_prefetch(first);
        __builtin_prefetch(first + CACHE_LINE);
    }
}

#ifdef IN_BETWEEN
void IN_BETWEEN(void); /* tests change the zone there */
#else
#define IN_BETWEEN() ((void)0)
#endif

bool zones_find(
    const struct zones *zones, uint64_t version, const struct path *name, uint16_t rtype,
    struct found *found) {
    const struct voice *voice = atomic_load(&name->zone->voice);
    if (!voice || is_for_python(rtype) || (!name->apex && rtype == TYPE_SOA))
        return false;
    IN_BETWEEN();
    return find_in_zone(zones, voice, name, rtype, found) && zones_version(zones) == version;
}

/* --- writing --------------------------------------------------------------------------------- */

static size_t size_of_node(const struct node *node) {
    return sizeof *node + node->name_size + node->item.size;
}

static size_t size_of_zone(const struct zone *zone) {
    return sizeof *zone + zone->item.size + BUCKETS_MIN * sizeof(struct item *);
}

static size_t size_of_voice(const struct voice *voice) { return sizeof *voice + voice->size; }

static void *allocate(struct zones *zones, size_t size) {
    if (size > zones->bytes_max || zones->bytes > zones->bytes_max - size)
        return NULL;
    void *block = malloc(size);
    if (block)
        zones->bytes += size;
    return block;
}

/* Free a block once nobody reads it. */
static void leave(struct zones *zones, void *block, size_t size) {
    uint64_t at = table_epoch(zones->table);
    if (zones->limbo_count == zones->limbo_room) {
        size_t room = zones->limbo_room ? 2 * zones->limbo_room : 64;
        struct left *limbo = realloc(zones->limbo, room * sizeof *limbo);
        if (!limbo) { /* readers take microseconds */
            while (table_oldest(zones->table) <= at)
                sched_yield();
            free(block);
            zones->bytes -= size;
            return;
        }
        zones->limbo = limbo, zones->limbo_room = room;
    }
    zones->limbo[zones->limbo_count++] = (struct left){.block = block, .size = size, .at = at};
}

struct zones *zones_new(size_t bytes_max, const struct seed *seed, struct table *table) {
    struct zones *zones = calloc(1, sizeof *zones);
    if (!zones || !index_init(&zones->by_apex)) {
        free(zones);
        return NULL;
    }
    zones->seed = *seed;
    zones->table = table;
    zones->bytes_max = bytes_max;
    atomic_init(&zones->version, 1);
    return zones;
}

/* Free names of a zone that nobody reads, at most `limit`; true when it is gone itself. */
static bool free_zone(struct zones *zones, struct zone *zone, size_t *limit) {
    for (; zone->swept < atomic_load(&zone->names.buckets); zone->swept++) {
        _Atomic(struct item *) *bucket = bucket_at(&zone->names, zone->swept);
        for (struct item *item; (item = atomic_load(bucket)); --*limit) {
            if (!*limit)
                return false;
            atomic_store(bucket, atomic_load(&item->next));
            zones->bytes -= size_of_node((struct node *)item);
            zones->names--;
            free(item);
        }
    }
    zones->bytes -= size_of_zone(zone);
    index_free(&zone->names);
    free(zone);
    return true;
}

void zones_free(struct zones *zones) {
    if (!zones)
        return;
    size_t all = SIZE_MAX;
    for (uint32_t i = 0; i < atomic_load(&zones->by_apex.buckets); i++) {
        struct item *item = atomic_load(bucket_at(&zones->by_apex, i));
        for (struct item *next; item; item = next) {
            next = atomic_load(&item->next);
            free(atomic_load(&((struct zone *)item)->voice));
            free_zone(zones, (struct zone *)item, &all);
        }
    }
    for (struct zone *zone = zones->dropped, *next; zone; zone = next) {
        next = zone->limbo_next;
        free_zone(zones, zone, &all);
    }
    for (size_t i = 0; i < zones->limbo_count; i++)
        free(zones->limbo[i].block);
    free(zones->limbo);
    index_free(&zones->by_apex);
    free(zones);
}

void zones_close(struct zones *zones) { atomic_fetch_or(&zones->version, 1); }

void zones_open(struct zones *zones) {
    if (atomic_load(&zones->version) & 1)
        atomic_fetch_add(&zones->version, 1);
}

static bool is_open(const struct zones *zones) { return zones_version(zones) != 0; }

/* Whether readers answer from a zone. */
static bool is_read(const struct zones *zones, const struct zone *zone) {
    return is_open(zones) && atomic_load(&zone->voice);
}

/* The zone of an apex; its hash goes to `hash`. */
static struct zone *zone_of(
    const struct zones *zones, const uint8_t *apex, size_t size, uint32_t *hash) {
    struct path name;
    read_name(&zones->seed, apex, &name);
    *hash = (uint32_t)name.hashes[0];
    return find_zone(zones, *hash, apex, size);
}

enum zone_fault zones_add(struct zones *zones, const uint8_t *apex, size_t apex_size) {
    uint32_t hash;
    if (is_open(zones) || !is_name(apex, apex_size) || zone_of(zones, apex, apex_size, &hash))
        return ZONE_REFUSED;
    struct zone *zone = calloc(1, sizeof *zone + apex_size);
    if (!zone || !index_init(&zone->names)) {
        free(zone);
        return ZONE_FULL;
    }
    zone->item.hash = hash;
    zone->item.size = (uint32_t)apex_size;
    memcpy(zone->apex, apex, apex_size);
    zones->bytes += size_of_zone(zone);
    index_put(&zones->by_apex, &zone->item);
    return ZONE_WELL;
}

static void silence(struct zones *zones, struct zone *zone, struct voice *voice) {
    struct voice *before = atomic_exchange(&zone->voice, voice);
    if (!before)
        return;
    atomic_fetch_add(&zones->version, 2); /* who still has it finds nothing that counts */
    leave(zones, before, size_of_voice(before));
}

enum zone_fault zones_drop(struct zones *zones, const uint8_t *apex, size_t apex_size) {
    uint32_t hash;
    if (is_open(zones))
        return ZONE_REFUSED;
    struct zone *zone = is_name(apex, apex_size) ? zone_of(zones, apex, apex_size, &hash) : NULL;
    if (!zone)
        return ZONE_WELL;
    silence(zones, zone, NULL);
    index_remove(&zones->by_apex, &zone->item);
    zone->left_at = table_epoch(zones->table);
    zone->limbo_next = zones->dropped;
    zones->dropped = zone;
    return ZONE_WELL;
}

enum zone_fault zones_speak(
    struct zones *zones, const uint8_t *apex, size_t apex_size, const uint8_t *soa,
    size_t soa_size, const uint16_t *pointers_at, size_t pointer_count) {
    uint32_t hash;
    struct zone *zone = is_name(apex, apex_size) ? zone_of(zones, apex, apex_size, &hash) : NULL;
    bool is_right = zone && soa_size <= UDP_EDNS_MAX && pointer_count <= POINTERS_MAX;
    for (size_t i = 0; is_right && i < pointer_count; i++)
        is_right = pointers_at[i] + 2u <= soa_size;
    if (!is_right)
        return ZONE_REFUSED;
    struct voice *voice = NULL;
    if (soa_size) {
        voice = allocate(zones, sizeof *voice + soa_size);
        if (!voice)
            return ZONE_FULL;
        voice->size = (uint16_t)soa_size;
        voice->pointer_count = (uint8_t)pointer_count;
        memcpy(voice->pointers_at, pointers_at, pointer_count * sizeof *pointers_at);
        memcpy(voice->octets, soa, soa_size);
    }
    silence(zones, zone, voice);
    return ZONE_WELL;
}

/* Whether octets are RRsets one after another. */
static bool is_image(const uint8_t *at, size_t size, bool is_apex, bool *is_others) {
    const uint8_t *end = at + size;
    *is_others = false;
    while (at < end) {
        if (end - at < RRSET_HEAD || (size_t)(end - at) - RRSET_HEAD < length_at(at))
            return false;
        unsigned rtype = number_at(at);
        *is_others |= rtype == TYPE_DNAME || (rtype == TYPE_NS && !is_apex);
        at += RRSET_HEAD + length_at(at);
    }
    return true;
}

/* The zone of a name, the name's node, and its hash; false where the name is none, or its zone is
 * not here, or is read. */
static bool place_of(
    const struct zones *zones, const uint8_t *octets, size_t size, size_t apex_size,
    struct zone **zone, struct node **node, uint32_t *hash) {
    if (!is_name(octets, size) || apex_size > size)
        return false;
    struct path name;
    read_name(&zones->seed, octets, &name);
    unsigned apex = 0;
    while (apex < name.count && name.starts[apex] < size - apex_size)
        apex++;
    if (name.starts[apex] != size - apex_size)
        return false;
    *zone = find_zone(zones, (uint32_t)name.hashes[apex], octets + size - apex_size, apex_size);
    *hash = (uint32_t)name.hashes[0];
    *node = *zone ? find_node(*zone, *hash, octets, size - apex_size) : NULL;
    return *zone && !is_read(zones, *zone);
}

static void remove_node(struct zones *zones, struct zone *zone, struct node *node) {
    index_remove(&zone->names, &node->item);
    zones->names--;
    leave(zones, node, size_of_node(node));
}

enum zone_fault zones_put(
    struct zones *zones, const uint8_t *name, size_t name_size, size_t apex_size,
    const uint8_t *image, size_t image_size, bool is_unusual) {
    struct zone *zone;
    struct node *before;
    uint32_t hash;
    bool is_others;
    if (!place_of(zones, name, name_size, apex_size, &zone, &before, &hash) ||
        !is_image(image, image_size, name_size == apex_size, &is_others) || image_size > INT32_MAX)
        return ZONE_REFUSED;
    size_t labels_size = name_size - apex_size;
    if (before && before->item.size == image_size && before->is_unusual == is_unusual &&
        (!image_size || !memcmp(before->octets + labels_size, image, image_size)))
        return ZONE_WELL;
    struct node *node = allocate(zones, sizeof *node + labels_size + image_size);
    if (!node)
        return ZONE_FULL;
    node->item.hash = hash;
    node->item.size = (uint32_t)image_size;
    node->name_size = (uint8_t)labels_size;
    node->is_others = is_others;
    node->is_unusual = is_unusual;
    memcpy(node->octets, name, labels_size);
    if (image_size)
        memcpy(node->octets + labels_size, image, image_size);
    if (before)
        remove_node(zones, zone, before);
    index_put(&zone->names, &node->item);
    zones->names++;
    return ZONE_WELL;
}

enum zone_fault zones_remove(
    struct zones *zones, const uint8_t *name, size_t name_size, size_t apex_size) {
    struct zone *zone;
    struct node *node;
    uint32_t hash;
    if (!place_of(zones, name, name_size, apex_size, &zone, &node, &hash))
        return ZONE_REFUSED;
    if (node)
        remove_node(zones, zone, node);
    return ZONE_WELL;
}

bool zones_sweep(struct zones *zones, size_t limit) {
    if (!zones->limbo_count && !zones->dropped)
        return false;
    uint64_t oldest = table_oldest(zones->table);
    size_t freed = 0;
    for (; freed < zones->limbo_count && freed < limit; freed++) {
        struct left *left = &zones->limbo[freed];
        if (left->at >= oldest)
            break;
        zones->bytes -= left->size;
        free(left->block);
    }
    limit -= freed;
    zones->limbo_count -= freed;
    if (freed)
        memmove(zones->limbo, zones->limbo + freed, zones->limbo_count * sizeof *zones->limbo);
    for (struct zone **at = &zones->dropped, *zone; limit && (zone = *at);) {
        struct zone *next = zone->limbo_next;
        if (zone->left_at >= oldest)
            at = &zone->limbo_next;
        else if (free_zone(zones, zone, &limit))
            *at = next;
    }
    return zones->limbo_count || zones->dropped;
}

struct zones_statistics zones_statistics(const struct zones *zones) {
    return (struct zones_statistics){
        .zones = zones->by_apex.items, .names = zones->names, .bytes = zones->bytes};
}
