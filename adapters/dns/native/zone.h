/* Names of the zones that are served, for threads that answer from them without Python.
 *
 * What is here is a copy, kept up to date by the event loop: one item per name, which holds its
 * RRsets as domain/dns/images.py packs them. Answered is what is plain: data at the name or its
 * wildcard, no data, and no such name. The rest is left to Python, and so is everything while the
 * zones are closed, which they are from the moment that they change until the change is here too.
 *
 * Readers take no locks. They compare the version before and after they look: what they found
 * together was there together. What is taken out stays readable as the table's epochs have it. */
#ifndef KUDURRU_ZONE_H
#define KUDURRU_ZONE_H

#include "core.h"

#define ZONE_TYPES 512  /* types below are counted one by one; others are left to Python */
#define ZONE_RCODES 4   /* NOERROR to NXDOMAIN */
#define POINTERS_MAX 3  /* to the apex, in the SOA of a negative answer */

struct item;
struct zone;
struct zones;

/* A question of the usual kind: QUERY, class IN, and at most an OPT record without options. */
struct question {
    size_t end; /* in the message */
    uint16_t rtype;
    uint16_t limit; /* octets that its answer may have */
    bool has_opt, is_dnssec_ok;
};

/* False where it is of another kind. `name_end` is where its name ends. */
bool read_question(
    const uint8_t *packet, size_t size, size_t name_end, struct question *question);

#define LABELS_MAX 128 /* with the root */

/* A name on its way through the zones. */
struct path {
    const struct zone *zone;
    _Atomic(struct item *) *bucket;
    const uint8_t *octets;
    unsigned count; /* of labels; the root is at `starts[count]` */
    unsigned apex;  /* label where the zone's name begins */
    uint8_t starts[LABELS_MAX];
    uint64_t hashes[LABELS_MAX]; /* of the name from each label on */
};

/* What stands behind the question, in memory that lives until `table_leave`. */
struct found {
    const uint8_t *wire;
    uint16_t wire_size;
    uint16_t rr_count;
    uint8_t rcode;
    bool is_negative; /* `wire` is a SOA record, with pointers to the apex to be written */
    uint8_t pointer_count;
    uint16_t pointers_at[POINTERS_MAX];
    uint8_t apex_at; /* in the question's name */
};

/* NULL without memory. `table` has the readers, and outlives the zones. */
struct zones *zones_new(size_t bytes_max, const struct seed *seed, struct table *table);
void zones_free(struct zones *zones); /* when no reader is left */

/* --- reading, between `table_enter` and `table_leave` ------------------------------------------ */

/* 0 while the zones are closed. */
uint64_t zones_version(const struct zones *zones);
/* The three steps of a look-up. Who looks up many names takes each step for all of them, so that the
 * processor waits for many parts of a large zone at a time. */

/* Find the zone of a question's name, in lower case, which lives as long as `path` does. False: it
 * is of none. */
bool zones_locate(const struct zones *zones, const uint8_t *name, struct path *path);
void zones_approach(const struct path *path);
/* What a version of the zones answers, the version of before the first step; false where it is left
 * to Python. */
bool zones_find(
    const struct zones *zones, uint64_t version, const struct path *path, uint16_t rtype,
    struct found *found);
/* Whether it is no longer than the client takes. */
bool fits(const struct found *found, const struct question *question);
/* Write an answer that fits over its query. Its octets. */
size_t write_answer(
    const struct found *found, const struct question *question, uint8_t *packet);

/* --- writing, one thread ----------------------------------------------------------------------- */

/* Names are whole and uncompressed, or refused, and in lower case, or never found. */

/* From now on readers leave everything to Python. */
void zones_close(struct zones *zones);
void zones_open(struct zones *zones);

enum zone_fault { ZONE_WELL, ZONE_REFUSED, ZONE_FULL };

/* What follows is refused while readers could take the half of it for the whole: zones come and go
 * while all are closed, names while they are, or their zone is mute. */

/* Take in a zone that has no names yet. It is mute: what is asked of it is left to Python. ZONE_FULL
 * only without memory: a zone that is not here would be answered by the one above it. */
enum zone_fault zones_add(struct zones *zones, const uint8_t *apex, size_t apex_size);
/* Forget a zone and its names, should it be here. */
enum zone_fault zones_drop(struct zones *zones, const uint8_t *apex, size_t apex_size);
/* Give a zone a voice: the SOA of its negative answers, with room for `pointer_count` pointers. No
 * octets of it make it mute. */
enum zone_fault zones_speak(
    struct zones *zones, const uint8_t *apex, size_t apex_size, const uint8_t *soa,
    size_t soa_size, const uint16_t *pointers_at, size_t pointer_count);
/* Let a name exist in its zone, with this image; an empty one is of a name that has names below it
 * only. `is_unusual`: what is asked of this very name is left to Python. */
enum zone_fault zones_put(
    struct zones *zones, const uint8_t *name, size_t name_size, size_t apex_size,
    const uint8_t *image, size_t image_size, bool is_unusual);
enum zone_fault zones_remove(
    struct zones *zones, const uint8_t *name, size_t name_size, size_t apex_size);
/* Free up to `limit` items that nobody reads any more. Whether there are others. */
bool zones_sweep(struct zones *zones, size_t limit);

struct zones_statistics {
    uint64_t zones, names, bytes;
};
struct zones_statistics zones_statistics(const struct zones *zones);

#endif
