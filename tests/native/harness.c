/* Runs the native engine's core without Python, under sanitizers.
 *
 *   harness packets SEED COUNT FILE...   COUNT messages made from those in the files and from chance,
 *                                        through the whole of a batch but for the socket
 *   harness threads SEED COUNT           COUNT queries over loopback to two workers, while answers
 *                                        are stored, dropped and asked for, and limits and zones
 *                                        change
 *   harness answers SEED COUNT           COUNT answers to clients, joined and sent to a system that
 *                                        fails by chance
 *   harness requests SEED COUNT          COUNT requests over HTTP/2 made from chance
 *
 * Ends with 0 and a line of figures, or says what does not hold and ends with 1. */
#define _GNU_SOURCE
#include "worker.c" /* a batch is answered here without a socket */

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define QUEUE (1 << 16)
#define FILES_MAX 4096
#define NAMES 300 /* questions that come again */
#define MARK 8    /* octets behind an answer: the generation that it was given in */
#define SPREAD 4  /* slots that names lead to */
#define USED_SLOTS (FIRST_ZONE + SPREAD)
#define HOSTS 40  /* of the zone */
#define FIRST_MARK ((uint64_t)1 << 40) /* of the zone: no generation is as high */

static void check(bool holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "does not hold: %s\n", what);
    exit(1);
}

/* xorshift64* */
static uint64_t chance(uint64_t *state) {
    *state ^= *state >> 12, *state ^= *state << 25, *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1d;
}

static size_t make_query(uint8_t *packet, uint16_t id, unsigned name, uint64_t *state) {
    static const uint8_t HEAD[] = {1, 0, 0, 1, 0, 0, 0, 0, 0, 0};
    char label[16];
    packet[0] = id >> 8, packet[1] = id & 0xff;
    memcpy(packet + 2, HEAD, sizeof HEAD);
    int length = snprintf(label, sizeof label, "host%u", name);
    packet[12] = (uint8_t)length;
    for (int i = 0; i < length; i++)
        packet[13 + i] = (uint8_t)label[i] & (chance(state) & 1 && label[i] > '9' ? 0xdf : 0xff);
    memcpy(packet + 13 + length, "\7EXAMPLE\0\0\1\0\1", 13);
    return 13u + (size_t)length + 13;
}

/* What the answers to a name come of, whatever its letters. */
static uint8_t slot_of(const uint8_t *packet, size_t end) {
    uint8_t sum = 0;
    for (size_t at = HEADER_SIZE; at < end; at++)
        sum += packet[at] & 0xdf;
    return FIRST_ZONE + sum % SPREAD;
}

/* Keep an answer to a query, if it has the form that answers have. It is marked with the class of
 * clients, another slot that it comes of, and the generation. */
static void store(
    struct table *table, uint64_t generation, const uint8_t *packet, size_t size, size_t padding,
    uint8_t client_class, int64_t now_us) {
    uint8_t key[KEY_MAX], wire[MESSAGE_MAX], shorter[SHORT_MAX];
    size_t cookie_at, end = name_end(packet, size);
    size_t key_size = message_key(0, packet, size, key, &cookie_at);
    check(shortened(packet, size, shorter) <= SHORT_MAX, "a shortened message is short");
    if (!key_size || end + padding + 2 + MARK > sizeof wire)
        return;
    memcpy(wire, packet + 2, end - 2);
    wire[0] = (wire[0] & 0xfd) | 0x80; /* QR and no TC, which tells it from a slip */
    for (size_t at = HEADER_SIZE - 2; at < end - 2; at++)
        wire[at] = wire[at] >= 'A' && wire[at] <= 'Z' ? wire[at] | 0x20 : wire[at];
    memset(wire + end - 2, 0x55, padding);
    uint8_t other = client_class ? FILTERS : padding % 4 ? slot_of(packet, end) : LATEST;
    wire[end - 2 + padding++] = client_class;
    wire[end - 2 + padding++] = other;
    for (int i = 0; i < MARK; i++)
        wire[end - 2 + padding + (size_t)i] = (uint8_t)(generation >> 8 * i);
    key_for_class(key, client_class);
    const uint16_t ttls_at[] = {(uint16_t)(end - 2), (uint16_t)(end + 2), (uint16_t)(end - 1)};
    struct answer answer = {.wire = wire, .wire_size = end - 2 + padding + MARK, .place = 7,
                            .slots = {slot_of(packet, end), other}, .slot_count = 2};
    if (padding > 9) { /* a TTL that counts down, for some who may have it and for some time */
        answer.is_restricted = padding & 1;
        answer.until_us = padding & 2 ? now_us + 100000 : 0;
        answer.stored_us = now_us - 5000000;
        answer.aged_s = 2;
        answer.ttls_at = ttls_at, answer.ttl_count = padding % 4;
    }
    if (cookie_at && padding > 9 + COOKIE_SIZE)
        answer.cookie_at = (uint16_t)(end + 6);
    table_store(table, generation, key, key_size, &answer);
}

static uint64_t mark_of(const uint8_t *answer, size_t size) {
    uint64_t generation = 0;
    for (int i = 0; i < MARK; i++)
        generation |= (uint64_t)answer[size - MARK + (size_t)i] << 8 * i;
    return generation;
}

/* What the tests make of clients: by their last octet, three classes. */
static uint8_t class_by_address(const uint8_t *client, size_t size) { return 1 + client[size - 1] % 3; }

static bool is_slip(const uint8_t *answer, size_t size) {
    return size < 12 || (answer[2] & 0x82) == 0x82;
}

static struct limiter *new_limiter(const struct seed *seed, uint64_t limit) {
    struct limiter *limiter = limiter_new(seed);
    struct family_rules *rules = calloc(2, sizeof *rules);
    check(limiter && rules, "there is memory");
    static const uint8_t SIZES[2][3] = {{32, 24, 0}, {128, 64, 56}};
    for (int family = 0; family < 2; family++) {
        rules[family].level_count = 3;
        for (int i = 0; i < 3; i++)
            rules[family].levels[i] =
                (struct level){.bits = SIZES[family][i], .limit = limit * (unsigned)(i + 1)};
        rules[family].exempt = calloc(1, sizeof(struct network));
        rules[family].exempt_count = 1;
        rules[family].exempt[0].bits = 8;
        rules[family].exempt[0].octets[0] = 10;
    }
    limiter_configure(limiter, true, 50, 1500, &rules[0], &rules[1]);
    free(rules);
    return limiter;
}

/* --- a zone ---------------------------------------------------------------------------------- */

/* Which of its names are there follows from its mark, and every answer ends with it. */

static const uint8_t APEX[] = "\4zone";

static bool is_there(unsigned host, uint64_t mark) { return (host + mark) % 3 != 0; }

static size_t make_zone_query(uint8_t *packet, uint16_t id, unsigned host, uint64_t *state) {
    size_t size = make_query(packet, id, host, state);
    memcpy(packet + size - 13, "\4ZONE\0\0\20\0\1", 10); /* TXT, in the place of example's A */
    return size - 3;
}

/* A record that ends with the mark: of a TXT, or a SOA record but for its names. */
static size_t make_record(uint8_t *wire, unsigned rtype, uint64_t mark) {
    const uint8_t head[] = {0xc0, 0x0c, 0, (uint8_t)rtype, 0, 1, 0, 0, 1, 0, 0, MARK + 1, MARK};
    memcpy(wire, head, sizeof head);
    for (int i = 0; i < MARK; i++)
        wire[sizeof head + (size_t)i] = (uint8_t)(mark >> 8 * i);
    return sizeof head + MARK;
}

static void set_host(struct zones *zones, unsigned host, uint64_t mark) {
    uint8_t name[32], image[64] = {0, 16, 0, 0, 0, 1, 0, 0, 0, 0};
    int length = snprintf((char *)name + 1, 16, "host%u", host);
    name[0] = (uint8_t)length;
    memcpy(name + 1 + length, APEX, sizeof APEX);
    size_t size = 1u + (size_t)length + sizeof APEX;
    if (!is_there(host, mark)) {
        zones_remove(zones, name, size, sizeof APEX);
        return;
    }
    image[9] = (uint8_t)make_record(image + 10, 16, mark);
    check(zones_put(zones, name, size, sizeof APEX, image, 10u + image[9], false) == ZONE_WELL,
          "a name is taken in");
}

/* Let the zone have another mark. */
static void change_zone(struct zones *zones, uint64_t mark) {
    uint8_t soa[64];
    const uint16_t pointers_at[] = {0};
    size_t size = make_record(soa, 6, mark);
    bool is_mute = mark % 4 && mark > FIRST_MARK; /* it alone, as where others are answered meanwhile */
    if (is_mute)
        check(zones_speak(zones, APEX, sizeof APEX, NULL, 0, NULL, 0) == ZONE_WELL, "it is mute");
    else
        zones_close(zones);
    if (mark % 16 == 0) { /* all of it anew */
        zones_drop(zones, APEX, sizeof APEX);
        check(zones_add(zones, APEX, sizeof APEX) == ZONE_WELL, "a zone is taken in");
    }
    for (unsigned host = 0; host < HOSTS; host++)
        set_host(zones, host, mark);
    check(zones_speak(zones, APEX, sizeof APEX, soa, size, pointers_at, 1) == ZONE_WELL,
          "a zone speaks");
    if (!is_mute)
        zones_open(zones);
}

static struct zones *new_zones(const struct seed *seed, struct table *table) {
    struct zones *zones = zones_new(1 << 20, seed, table);
    check(zones && zones_add(zones, APEX, sizeof APEX) == ZONE_WELL, "there is memory");
    change_zone(zones, FIRST_MARK);
    return zones;
}

/* What a reader who has looked at the zone once finds changed when it looks on, if anything. */
static struct {
    struct zones *zones; /* NULL: nothing */
    uint64_t mark;
} in_between;

void change_in_between(void) {
    struct zones *zones = in_between.zones;
    if (!zones)
        return;
    in_between.zones = NULL;
    change_zone(zones, in_between.mark);
}

/* Whether a message asks the zone for what it answers, and of which host. */
static bool is_of_zone(const uint8_t *packet, size_t size, unsigned *host) {
    size_t end = name_end(packet, size);
    struct question question;
    if (!end || !read_question(packet, size, end, &question) || question.rtype != 16 ||
        end - 12 < sizeof APEX + 6 || memcmp(packet + end - sizeof APEX, "\4ZONE", sizeof APEX))
        return false;
    char asked[16] = {0}, label[16];
    size_t length = packet[12];
    if (end != 13 + length + sizeof APEX || length > 8)
        return false;
    for (size_t i = 0; i < length; i++)
        asked[i] = (char)(packet[13 + i] >= 'A' && packet[13 + i] <= 'Z' ? packet[13 + i] | 0x20
                                                                        : packet[13 + i]);
    *host = (unsigned)strtoul(asked + 4, NULL, 10);
    snprintf(label, sizeof label, "host%u", *host);
    return *host < HOSTS && strlen(label) == length && !memcmp(asked, label, length);
}

/* An answer of the zone is of one mark: that of its record. */
static uint64_t check_zone_answer(
    const uint8_t *answer, size_t size, unsigned host, size_t record_at) {
    size_t end = record_at + 13 + MARK;
    check(size == end || size == end + 11, "it has one record, and what EDNS asks for");
    uint64_t mark = mark_of(answer, end);
    check((answer[3] & 15) == (is_there(host, mark) ? 0 : 3), "names are there together");
    check(answer[is_there(host, mark) ? 7 : 9] == 1, "the record is in its section");
    return mark;
}

/* --- packets --------------------------------------------------------------------------------- */

static struct {
    uint8_t octets[MESSAGE_MAX];
    size_t size;
} *seeds;
static size_t seed_count;

static void read_seeds(int count, char **paths) {
    seeds = calloc(FILES_MAX, sizeof *seeds);
    check(seeds != NULL, "there is memory");
    for (int i = 0; i < count && seed_count < FILES_MAX; i++) {
        FILE *file = fopen(paths[i], "rb");
        check(file != NULL, paths[i]);
        seeds[seed_count].size = fread(seeds[seed_count].octets, 1, MESSAGE_MAX, file);
        fclose(file);
        seed_count++;
    }
}

static size_t make_message(uint8_t *packet, uint64_t *state) {
    static const char *HEALTH = "\6health\7kudurru\10internal\0\0\1\0\1";
    size_t size;
    switch (chance(state) % 8) {
    case 0: /* as it is in a file */
    case 1:
        if (seed_count) {
            size_t i = chance(state) % seed_count;
            memcpy(packet, seeds[i].octets, seeds[i].size);
            size = seeds[i].size;
            break;
        } /* fall through */
    case 2: /* chance */
        size = chance(state) % 600;
        if (chance(state) % 16 == 0)
            size = chance(state) % (MESSAGE_MAX + 1);
        for (size_t at = 0; at < size; at++)
            packet[at] = (uint8_t)(chance(state) % (chance(state) % 4 ? 64 : 256));
        break;
    case 3: /* what is never charged */
        size = make_query(packet, (uint16_t)chance(state), 0, state);
        memcpy(packet + 12, HEALTH, 29);
        size = 41;
        break;
    case 4: /* what the zone answers */
        size = make_zone_query(packet, (uint16_t)chance(state), chance(state) % HOSTS, state);
        if (chance(state) % 3)
            break;
        memcpy(packet + size, "\0\0\51\20\0\0\0\200\0\0\0", 11);
        packet[11] = 1;
        size += 11;
        break;
    default:
        size = make_query(packet, (uint16_t)chance(state), (unsigned)chance(state) % NAMES, state);
        if (chance(state) % 3 == 0) { /* with EDNS */
            memcpy(packet + size, "\0\0\51\20\0\0\0\200\0\0\0", 11);
            packet[11] = 1;
            size += 11;
        }
        if (chance(state) % 4 == 0 && packet[11]) { /* and a cookie */
            uint8_t length = chance(state) % 2 ? 8 : 16 + (uint8_t)(chance(state) % 26);
            packet[size - 1] = length + 4;
            memcpy(packet + size, (uint8_t[]){0, 10, 0, length}, 4);
            for (size_t at = 0; at < length; at++)
                packet[size + 4 + at] = at == 8 ? 1 : (uint8_t)(chance(state) % 3);
            size += 4u + length;
        }
    }
    for (uint64_t changes = chance(state) % 4 ? 0 : chance(state) % 8; changes && size; changes--)
        packet[chance(state) % size] = (uint8_t)chance(state);
    if (size && chance(state) % 32 == 0)
        size = chance(state) % size;
    return size;
}

static void set_keys(struct table *table, uint64_t *state) {
    struct cookie_keys keys = {.day = (int64_t)time(NULL) / 86400};
    for (int i = 0; i < COOKIE_DAYS; i++)
        keys.keys[i] = (struct seed){{chance(state), chance(state)}};
    table_set_cookie_keys(table, &keys);
}

struct sums {
    uint64_t answered, slipped, missed;
    uint64_t told; /* of repeats, what they stand for */
};

/* Take what is left to Python; what has a name may be remembered. */
static void take_misses(
    struct worker *worker, struct table *table, struct sums *sums, uint64_t *state,
    int64_t now_us) {
    uint8_t record[sizeof(struct miss) + MESSAGE_MAX + 1];
    struct queue *urgent = worker_urgent(worker), *misses = worker_misses(worker);
    for (size_t size; (size = queue_next(urgent)) || (size = queue_next(misses));) {
        bool is_urgent = queue_next(urgent);
        check(size <= sizeof record, "a miss is no longer than a message");
        queue_take(is_urgent ? urgent : misses, record, size);
        struct miss head;
        memcpy(&head, record, sizeof head);
        const uint8_t *packet = record + sizeof head;
        check(is_urgent == is_health_query(packet, size - sizeof head), "each in its queue");
        if (head.is_slip)
            continue; /* counted by the limiter */
        sums->missed++;
        size_t client_size;
        const uint8_t *client = origin_client(worker, head.origin, &client_size);
        uint8_t client_class = chance(state) % 2 ? class_by_address(client, client_size) : 0;
        if (client_class)
            table_learn_class(
                table, table_generation(table), 0, client, client_size, client_class);
        unsigned host;
        if (chance(state) % 2 && !is_of_zone(packet, size - sizeof head, &host))
            store(table, table_generation(table), packet, size - sizeof head,
                  chance(state) % 8 ? chance(state) % 40 : chance(state) % 4200, client_class,
                  now_us);
    }
    struct queue *repeats = worker_repeats(worker);
    for (size_t size; (size = queue_next(repeats));) {
        queue_take(repeats, record, size);
        struct repeat head;
        memcpy(&head, record, sizeof head);
        check(head.weight == table_sample(table), "each stands for its share");
        sums->told += head.weight;
    }
}

/* Answer messages as the thread does, but for the socket. The answer to message i, of sizes[i]
 * octets, is written over it; sizes[i] is 0 when there is none. */
static void answer_messages(
    struct worker *worker, unsigned number, uint8_t (*messages)[MESSAGE_MAX], size_t *sizes,
    uint8_t (*clients)[16], int64_t now_us) {
    uint64_t state = (uint64_t)now_us; /* some are not sent */
    for (unsigned i = 0; i < number; i++) {
        memcpy(slot(worker, i), messages[i], sizes[i]);
        memcpy(&worker->addresses[i].sin6_addr, clients[i], 16);
        worker->sizes[i] = sizes[i];
    }
    struct batch batch = {.worker = worker, .number = number, .now_us = now_us};
    answer(&batch);
    for (unsigned i = 0; i < number; i++) {
        sizes[i] = worker->sizes[i];
        memcpy(messages[i], slot(worker, i), sizes[i]);
        check(sizes[i] || worker->places[i] == NOWHERE, "what is not answered is no hit");
        count_hit(worker, worker->places[i], chance(&state) % 8);
    }
}

static void check_answer(
    const struct table *table, const uint8_t *asked, size_t asked_size, const uint8_t *answer,
    size_t size, const uint8_t *client, uint64_t zone_mark) {
    check(size >= 12 && size <= MESSAGE_MAX, "an answer has a header, and no more than a slot");
    check(!memcmp(asked, answer, 2), "an answer has the ID of its query");
    check(answer[2] & 0x80, "an answer is a response");
    size_t end = name_end(asked, asked_size);
    check(end && !memcmp(asked + 12, answer + 12, end - 12), "the name is as it was asked");
    unsigned host;
    if (is_slip(answer, size))
        return;
    if (is_of_zone(asked, asked_size, &host)) {
        check(check_zone_answer(answer, size, host, end + 4) == zone_mark, "the zone is of now");
        return;
    }
    uint64_t mark = mark_of(answer, size);
    if (mark > table_generation(table)) {
        check(answer[2] & 4, "an answer is of before, or of what is not there in the zone");
        return;
    }
    uint8_t other = answer[size - MARK - 1], client_class = answer[size - MARK - 2];
    check(mark >= table_since(table, slot_of(asked, end)), "nothing old of what changed");
    check(mark >= table_since(table, other), "nothing old of anything that changed");
    check(!client_class || client_class == class_by_address(client, 16), "an answer is for its class");
}

/* Ask for one message as Python does. Query and room are as large as they say, so that sanitizers see
 * what is read or written beside them. Whether there was an answer. */
static bool ask_alone(
    struct table *table, unsigned reader, const uint8_t *asked, size_t asked_size,
    const uint8_t *client, int64_t now_us, uint64_t zone_mark, uint64_t *state) {
    size_t room = chance(state) % 4 ? STREAM_MESSAGE_MAX : chance(state) % 100;
    uint8_t *packet = malloc(asked_size + !asked_size), *answer = malloc(room + !room);
    check(packet && answer, "there is memory");
    memcpy(packet, asked, asked_size);
    struct asker asker;
    struct repeated repeated;
    bool is_named = chance(state) % 4 == 0;
    asker_init(&asker, table, 0, client, 16, is_named);
    asker.now_us = now_us;
    table_enter(table, reader);
    size_t size = repeat_message(&asker, packet, asked_size, answer, room, &repeated);
    table_leave(table, reader);
    check(size <= room, "an answer fits into its room");
    if (size) {
        check(repeated.place == 7, "an answer is counted at its place");
        check(!is_named || !repeated.client_class, "who says a name has no class");
        check_answer(table, asked, asked_size, answer, size, client, zone_mark);
    }
    free(packet), free(answer);
    return size;
}

static int run_packets(uint64_t state, uint64_t count) {
    struct seed seed = {{chance(&state), chance(&state)}};
    struct table *table = table_new(200, 60000, &seed);
    struct limiter *limiter = new_limiter(&seed, 400);
    struct zones *zones = new_zones(&seed, table);
    uint64_t zone_mark = FIRST_MARK;
    struct worker_options options = {
        .fd = -1, .zones = zones, .is_ipv6 = true, .hears_repeats = true,
        .misses_size = QUEUE, .urgent_size = QUEUE / 4, .repeats_size = QUEUE};
    struct worker *worker = worker_new(&options, table, limiter, eventfd(0, EFD_NONBLOCK));
    check(worker != NULL, "a worker is made");
    set_keys(table, &state);
    uint32_t one_in = 1 + (uint32_t)(chance(&state) % 20);
    table_set_sample(table, one_in);
    static uint8_t messages[BATCH][MESSAGE_MAX], before[BATCH][MESSAGE_MAX];
    static uint8_t clients[BATCH][16];
    size_t sizes[BATCH], sizes_before[BATCH];
    struct sums sums = {0};
    unsigned reader = table_register(table);
    uint64_t alone = 0, changed = 0;
    int64_t now_us = 1000000;
    for (uint64_t done = 0; done < count;) {
        bool is_in_between = chance(&state) % 16 == 0;
        unsigned number = is_in_between ? 1 : 1 + chance(&state) % BATCH;
        bool is_one_client = chance(&state) % 2;
        for (unsigned i = 0; i < number; i++) {
            sizes[i] = is_in_between
                           ? make_zone_query(messages[i], 0, chance(&state) % HOSTS, &state)
                           : make_message(messages[i], &state);
            sizes_before[i] = sizes[i];
            memcpy(before[i], messages[i], sizes[i]);
            memset(clients[i], 0, 16);
            clients[i][0] = is_one_client ? 0x20 : (uint8_t)(9 + chance(&state) % 24);
            clients[i][7] = is_one_client ? 0 : (uint8_t)chance(&state);
            clients[i][15] = is_one_client ? 0 : (uint8_t)(chance(&state) % 8);
            if (chance(&state) % 8 == 0)
                memcpy(clients[i], "\0\0\0\0\0\0\0\0\0\0\xff\xff\xc0\0\2", 15);
        }
        now_us += (int64_t)(chance(&state) % 40000);
        if (is_in_between)
            in_between.zones = zones, in_between.mark = zone_mark + 1;
        answer_messages(worker, number, messages, sizes, clients, now_us);
        if (is_in_between && !in_between.zones)
            zone_mark++, changed++;
        in_between.zones = NULL;
        for (unsigned i = 0; i < number; i++) {
            if (!sizes[i])
                continue;
            check_answer(
                table, before[i], sizes_before[i], messages[i], sizes[i], clients[i], zone_mark);
            if (is_slip(messages[i], sizes[i]))
                sums.slipped++;
            else
                sums.answered++;
        }
        for (unsigned i = 0; i < number; i += 8)
            alone += ask_alone(table, reader, before[i], sizes_before[i], clients[i], now_us,
                               zone_mark, &state);
        take_misses(worker, table, &sums, &state, now_us);
        if (chance(&state) % 100 == 0) { /* others may have what is not for everybody */
            struct network *networks = calloc(2, sizeof *networks);
            networks[0] = (struct network){.octets = {32}, .bits = 3, .is_ipv6 = true};
            networks[1] =
                (struct network){.octets = {192, 0, 2}, .bits = (uint8_t)(chance(&state) % 33)};
            table_admit(table, networks, chance(&state) % 3, chance(&state) % 4 == 0);
        }
        if (chance(&state) % 100 == 0) { /* one slot, or two */
            const uint8_t slots[] = {chance(&state) % USED_SLOTS, chance(&state) % USED_SLOTS};
            table_invalidate(table, slots, 1 + chance(&state) % 2);
        }
        if (chance(&state) % 50 == 0)
            change_zone(zones, ++zone_mark);
        if (chance(&state) % 8 == 0) /* as much as changes take out, or there is no room some day */
            zones_sweep(zones, chance(&state) % 100);
        done += number;
    }
    struct limiter_statistics limited = limiter_statistics(limiter);
    uint64_t hits = worker_hits(worker, 7), received = worker_counter(worker, RECEIVED);
    uint64_t unsent = worker_counter(worker, UNSENT), zone_hits = 0;
    for (unsigned rcode = 0; rcode < ZONE_RCODES; rcode++)
        for (unsigned rtype = 0; rtype < ZONE_TYPES; rtype++)
            zone_hits += worker_zone_hits(worker, rcode, rtype);
    check(hits && zone_hits, "answers come of the table and of the zone");
    check(alone, "some that are asked for alone do too");
    check(changed, "the zone changes while it is asked");
    check(hits + zone_hits + unsent == sums.answered, "what was answered is counted");
    uint64_t stood_for = sums.told + worker_counter(worker, UNTOLD) * one_in;
    check(stood_for < sums.answered + one_in && sums.answered < stood_for + one_in,
          "what is told of stands for all that was answered");
    while (zones_sweep(zones, 1000))
        continue;
    check(zones_statistics(zones).bytes < 10000, "what was taken out is freed");
    check(received == sums.answered + sums.missed + limited.slipped + limited.dropped +
                          worker_counter(worker, MALFORMED) + worker_counter(worker, BUSY),
          "each message is counted once");
    struct table_statistics held = table_statistics(table);
    check(held.entries <= 200 && held.bytes <= 60000, "the table is bounded");
    check(limited.buckets <= 1500, "the buckets are bounded");
    printf("packets: %llu received, %llu repeated, %llu of the zone, %llu missed, %llu slipped, "
           "%llu dropped\n",
           (unsigned long long)received, (unsigned long long)hits, (unsigned long long)zone_hits,
           (unsigned long long)sums.missed, (unsigned long long)limited.slipped,
           (unsigned long long)limited.dropped);
    check(sums.answered && sums.missed && sums.slipped && limited.dropped, "all ways were taken");
    worker_free(worker);
    limiter_free(limiter);
    zones_free(zones);
    table_free(table);
    free(seeds);
    return 0;
}

/* --- threads --------------------------------------------------------------------------------- */

#define WORKERS 2
#define CLIENTS 2
#define NOT_HERE 5 /* RCODE of what Python answers of the zone */

struct stress {
    struct table *table;
    struct limiter *limiter;
    struct worker *workers[WORKERS];
    int fds[WORKERS];
    struct sockaddr_in addresses[WORKERS];
    uint64_t count; /* queries of each client */
    atomic_bool is_over;
    _Atomic uint64_t changes[USED_SLOTS]; /* generation of the last one that is over */
    struct zones *zones;
    _Atomic uint64_t zone_changes; /* mark of the last one that is over */
    _Atomic uint64_t answers, hits, zone_answers;
    int wake_fd;
    uint64_t state;
};

struct client {
    struct stress *stress;
    uint64_t state;
    pthread_t thread;
};

/* Ask one after the other. An answer is never of a time before the last change that was over when
 * it was asked for. */
static void *ask(void *context) {
    struct client *client = context;
    struct stress *stress = client->stress;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    check(fd >= 0, "a client has a socket");
    for (uint64_t done = 0; done < stress->count; done++) {
        uint8_t packet[MESSAGE_MAX], answer[MESSAGE_MAX];
        bool is_zone = chance(&client->state) % 2;
        unsigned host = (unsigned)chance(&client->state) % (is_zone ? HOSTS : NAMES);
        size_t size = (is_zone ? make_zone_query : make_query)(
            packet, (uint16_t)done, host, &client->state);
        uint64_t zone_before = atomic_load(&stress->zone_changes);
        uint64_t before[SLOTS] = {0};
        for (unsigned slot = 0; slot < USED_SLOTS; slot++)
            before[slot] = atomic_load(&stress->changes[slot]);
        struct sockaddr_in *to = &stress->addresses[chance(&client->state) % WORKERS];
        if (sendto(fd, packet, size, 0, (struct sockaddr *)to, sizeof *to) < 0)
            continue;
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        /* The limiter may have dropped it: so we do not wait for long. */
        while (poll(&ready, 1, 20) == 1) {
            ssize_t got = recv(fd, answer, sizeof answer, 0);
            check(got >= 12, "an answer has a header");
            if (memcmp(answer, packet, 2))
                continue; /* a late one */
            if (is_zone && (answer[3] & 15) != NOT_HERE && !is_slip(answer, (size_t)got)) {
                check(check_zone_answer(answer, (size_t)got, host, size) >= zone_before,
                      "nothing old of a zone that changed");
                atomic_fetch_add(&stress->zone_answers, 1);
            } else if (!is_zone && !is_slip(answer, (size_t)got)) {
                uint64_t mark = mark_of(answer, (size_t)got);
                check(mark >= before[ALL], "nothing old after a change of all");
                check(mark >= before[slot_of(packet, name_end(packet, size))] &&
                          mark >= before[answer[got - MARK - 1]],
                      "nothing old after a change");
                atomic_fetch_add(&stress->hits, 1);
            }
            atomic_fetch_add(&stress->answers, 1);
            break;
        }
    }
    close(fd);
    return NULL;
}

/* Do what Python does: answer what the workers do not know. */
static void serve_misses(struct stress *stress, struct worker *worker) {
    uint8_t record[sizeof(struct miss) + MESSAGE_MAX + 1];
    for (size_t size; (size = queue_next(worker_misses(worker)));) { /* nobody asks for health */
        queue_take(worker_misses(worker), record, size);
        struct miss head;
        memcpy(&head, record, sizeof head);
        uint8_t *packet = record + sizeof head;
        size -= sizeof head;
        uint64_t generation = table_generation(stress->table);
        size_t client_size;
        const uint8_t *client = origin_client(worker, head.origin, &client_size);
        uint8_t client_class = chance(&stress->state) % 2 ? class_by_address(client, client_size) : 0;
        if (client_class)
            table_learn_class(
                stress->table, generation, 0, client, client_size, client_class);
        unsigned host;
        bool is_zone = is_of_zone(packet, size, &host);
        if (is_zone)
            packet[3] |= NOT_HERE;
        else if (!head.is_slip)
            store(stress->table, generation, packet, size, chance(&stress->state) % 100,
                  client_class, (int64_t)1 << 60);
        packet[2] |= 0x80;
        for (int i = 0; i < MARK && size < MESSAGE_MAX; i++)
            packet[size++] = (uint8_t)(generation >> 8 * i);
        struct datagram answer = {.origin = head.origin, .octets = packet,
                                  .origin_size = head.origin_size, .size = size};
        struct sent sent = worker_send(worker, &answer, 1);
        check(sent.sent + sent.refused + sent.full == 1, "an answer becomes something");
    }
    for (size_t size; (size = queue_next(worker_repeats(worker)));)
        queue_take(worker_repeats(worker), record, size);
}

static void *play_python(void *context) {
    struct stress *stress = context;
    while (!atomic_load(&stress->is_over)) {
        struct pollfd ready = {.fd = stress->wake_fd, .events = POLLIN};
        poll(&ready, 1, 100);
        uint64_t woken;
        check(read(stress->wake_fd, &woken, sizeof woken) > 0 || errno == EAGAIN, "it wakes");
        for (int i = 0; i < WORKERS; i++)
            serve_misses(stress, stress->workers[i]);
    }
    return NULL;
}

/* Change and count all the time, from a third side. */
static void *change(void *context) {
    struct stress *stress = context;
    uint64_t state = stress->state + 1;
    for (uint64_t round = 0; !atomic_load(&stress->is_over); round++) {
        const uint8_t slots[] = {chance(&state) % USED_SLOTS, chance(&state) % USED_SLOTS};
        table_invalidate(stress->table, slots, 2);
        for (int i = 0; i < 2; i++)
            atomic_store(&stress->changes[slots[i]], table_since(stress->table, slots[i]));
        atomic_store(&stress->changes[LATEST], table_generation(stress->table));
        change_zone(stress->zones, FIRST_MARK + round + 1);
        atomic_store(&stress->zone_changes, FIRST_MARK + round + 1);
        zones_sweep(stress->zones, 50);
        uint8_t client[4] = {192, 0, 2, (uint8_t)chance(&state)};
        limiter_take(stress->limiter, client, 4, 1 + chance(&state) % 9, (int64_t)round);
        limiter_slips(stress->limiter, client, 4);
        for (int i = 0; i < WORKERS; i++)
            worker_settle(stress->workers[i]);
        table_statistics(stress->table);
        table_admit(stress->table, NULL, 0, round % 4 != 0);
        table_set_sample(stress->table, 1 + (uint32_t)(round % 3));
        set_keys(stress->table, &state);
        limiter_statistics(stress->limiter);
        usleep(chance(&state) % 4000);
    }
    return NULL;
}

static int run_threads(uint64_t state, uint64_t count) {
    struct seed seed = {{chance(&state), chance(&state)}};
    static struct stress stress;
    stress.table = table_new(NAMES / 2, 40000, &seed);
    stress.limiter = new_limiter(&seed, 1 << 30);
    stress.zones = new_zones(&seed, stress.table);
    stress.wake_fd = eventfd(0, EFD_NONBLOCK);
    stress.count = count / CLIENTS;
    stress.state = state;
    for (int i = 0; i < WORKERS; i++) {
        stress.fds[i] = socket(AF_INET, SOCK_DGRAM, 0);
        struct sockaddr_in *address = &stress.addresses[i];
        *address = (struct sockaddr_in){
            .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t size = sizeof *address;
        check(!bind(stress.fds[i], (struct sockaddr *)address, size) &&
                  !getsockname(stress.fds[i], (struct sockaddr *)address, &size),
              "a port is free");
        struct worker_options options = {
            .fd = stress.fds[i], .zones = stress.zones, .hears_repeats = true,
            .misses_size = QUEUE, .urgent_size = QUEUE / 4, .repeats_size = QUEUE};
        stress.workers[i] = worker_new(&options, stress.table, stress.limiter, stress.wake_fd);
        check(stress.workers[i] && !worker_start(stress.workers[i]), "a worker starts");
    }
    pthread_t python, changer;
    struct client clients[CLIENTS];
    pthread_create(&python, NULL, play_python, &stress);
    pthread_create(&changer, NULL, change, &stress);
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = (struct client){.stress = &stress, .state = chance(&state)};
        pthread_create(&clients[i].thread, NULL, ask, &clients[i]);
    }
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(clients[i].thread, NULL);
    uint64_t received = 0, hits = 0;
    for (int i = 0; i < WORKERS; i++)
        worker_stop(stress.workers[i]);
    atomic_store(&stress.is_over, true);
    pthread_join(python, NULL), pthread_join(changer, NULL);
    for (int i = 0; i < WORKERS; i++) {
        received += worker_counter(stress.workers[i], RECEIVED);
        hits += worker_hits(stress.workers[i], 7);
        worker_free(stress.workers[i]);
        close(stress.fds[i]);
    }
    printf("threads: %llu received, %llu repeated, %llu of the zone, %llu answered, "
           "%llu changes\n",
           (unsigned long long)received, (unsigned long long)hits,
           (unsigned long long)atomic_load(&stress.zone_answers),
           (unsigned long long)atomic_load(&stress.answers),
           (unsigned long long)atomic_load(&stress.changes[LATEST]));
    check(hits && received > hits, "workers answered, and left something to Python");
    check(atomic_load(&stress.zone_answers), "workers answered of the zone");
    limiter_free(stress.limiter);
    zones_free(stress.zones);
    table_free(stress.table);
    close(stress.wake_fd);
    return 0;
}

/* --- requests over HTTP/2 -------------------------------------------------------------------- */

#define ARRIVED_MAX 2048

static size_t put_string(uint8_t *block, size_t size, uint64_t *state) {
    static const char path[] = "/dns-query?dns=AAABAAABAAAAAAAAA3d3dwdleGFtcGxlA2NvbQAAAQAB";
    size_t length = chance(state) % 8 ? chance(state) % 60 : sizeof path - 1 - chance(state) % 5;
    bool is_path = length >= 60 - 5;
    size_t at = size;
    block[at++] = (uint8_t)(length | (!is_path && chance(state) % 2 ? 0x80 : 0));
    for (size_t i = 0; i < length; i++)
        block[at++] = is_path ? (uint8_t)path[i] : (uint8_t)chance(state);
    return at;
}

/* A header block whose fields are mostly whole: its size. */
static size_t make_block(uint8_t *block, uint64_t *state) {
    size_t size = 0;
    for (unsigned left = chance(state) % 8; left; left--) {
        unsigned index = chance(state) % 70;
        switch (chance(state) % 3) {
        case 0:
            block[size++] = (uint8_t)(0x80 | index);
            continue;
        case 1:
            block[size++] = (uint8_t)(0x40 | (index % 63));
            break;
        case 2:
            index %= 15;
            block[size++] = (uint8_t)index;
        }
        if (!(block[size - 1] & 0x3f))
            size = put_string(block, size, state);
        size = put_string(block, size, state);
    }
    if (size && chance(state) % 4 == 0)
        block[chance(state) % size] = (uint8_t)chance(state);
    return size;
}

static void check_table(const struct hpack *table) {
    size_t used = 0;
    for (unsigned i = 0; i < table->count; i++) {
        check(table->entries[i].at == used, "entries follow each other");
        used += table->entries[i].name_size + table->entries[i].value_size;
    }
    check(used == table->used, "octets of a table are its entries'");
    check(used + table->count * HPACK_OVERHEAD <= table->size_max, "a table has its size");
}

/* Responses to answers of any octets. */
static void respond_to_chance(uint64_t *state) {
    size_t size = HEADER_SIZE + chance(state) % 100, fields_size = chance(state) % 129;
    uint8_t fields[HTTP2_FIELDS_MAX] = {0}, *octets = malloc(HTTP2_HEAD_MAX + size);
    check(octets, "there is memory");
    for (size_t i = 0; i < size; i++)
        octets[HTTP2_HEAD_MAX + i] = chance(state) % 3 ? 0 : (uint8_t)chance(state);
    const uint8_t *begins = http2_respond(
        octets + HTTP2_HEAD_MAX, size, 1, fields, fields_size, chance(state) & 1);
    check(begins >= octets, "a response has room");
    free(octets);
}

static int run_requests(uint64_t state, uint64_t number) {
    static struct hpack tables[2];
    unsigned current = 0;
    uint64_t read = 0, whole = 0, changed = 0;
    http2_init();
    for (uint64_t i = 0; i < number; i++) {
        uint8_t made[ARRIVED_MAX], *arrived;
        struct http2_request request;
        if (i % 100 == 0) {
            memset(tables, 0, sizeof tables);
            tables[current].size_max = chance(&state) % 3 ? HPACK_SIZE : chance(&state) % 500;
        }
        size_t block = make_block(made + 9, &state), size = 9 + block;
        const uint8_t head[] = {0, (uint8_t)(block >> 8), (uint8_t)block, 1,
                                (uint8_t)(4 | (chance(&state) & 0x21)), 0, 0, 0, 1};
        const uint8_t body[] = {0, 0, 12, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0};
        memcpy(made, head, sizeof head);
        memcpy(made + size, body, sizeof body);
        size += chance(&state) % 2 ? sizeof body : 0;
        size -= chance(&state) % 8 ? 0 : chance(&state) % size;
        arrived = malloc(size ? size : 1);
        check(arrived, "there is memory");
        memcpy(arrived, made, size);
        size_t used = http2_read(&tables[current], &tables[!current], arrived, size, &request);
        check_table(&tables[current]);
        check(used <= size, "no more is read than has arrived");
        if (used) {
            size_t message_size = 0;
            const uint8_t *message = http2_message(&request, chance(&state) & 1, &message_size);
            check(request.size <= size, "a request has arrived");
            for (size_t octet = 0; message && octet < message_size; octet++)
                whole += message[octet] & 1;
            read++;
            if (request.is_changed)
                current = !current, changed++;
        }
        free(arrived);
        respond_to_chance(&state);
    }
    printf("%llu requests: %llu read, %llu octets, %llu changes of the table\n",
           (unsigned long long)number, (unsigned long long)read, (unsigned long long)whole,
           (unsigned long long)changed);
    check(!number || (read > number / 20 && changed && whole), "requests are read");
    return 0;
}

/* --- answers --------------------------------------------------------------------------------- */

#define PEERS 5

/* What a system that fails by chance has got of one batch. NULL: the real one is called. */
static _Thread_local struct system {
    uint64_t state;
    const struct mmsghdr *messages; /* as they were given; each begins with its number */
    unsigned number, arrived[BATCH], faults_in;
    unsigned trains, joined, refusals; /* refusals: of answers that were alone */
    bool has_said_eio, has_said_full;  /* EIO of a train */
} *failing;

static const struct cmsghdr *cut_of(struct msghdr *message) {
    struct cmsghdr *head = CMSG_FIRSTHDR(message);
    while (head && !(head->cmsg_level == 17 && head->cmsg_type == 103))
        head = CMSG_NXTHDR(message, head);
    return head;
}

static void check_arrival(struct system *system, struct msghdr *train, const struct iovec *part) {
    uint32_t number;
    memcpy(&number, part->iov_base, sizeof number);
    check(number < system->number, "only what was given is sent");
    const struct msghdr *given = &system->messages[number].msg_hdr;
    check(part->iov_base == given->msg_iov->iov_base && part->iov_len == given->msg_iov->iov_len,
          "an answer is whole");
    check(train->msg_namelen == given->msg_namelen &&
              !memcmp(train->msg_name, given->msg_name, given->msg_namelen),
          "it goes to who asked");
    check(train->msg_controllen >= given->msg_controllen &&
              !memcmp(train->msg_control ? train->msg_control : "",
                      given->msg_control ? given->msg_control : "", given->msg_controllen),
          "it comes from where it was asked");
    check(++system->arrived[number] == 1, "an answer is sent once");
}

static void arrive(struct system *system, struct msghdr *train) {
    const struct cmsghdr *cut = cut_of(train);
    uint16_t size = 0;
    size_t octets = 0;
    if (cut)
        memcpy(&size, CMSG_DATA(cut), sizeof size);
    check(!cut == (train->msg_iovlen == 1) && train->msg_iovlen <= 64, "a train says how it is cut");
    for (size_t i = 0; i < train->msg_iovlen; i++) {
        check(!cut || train->msg_iov[i].iov_len == size, "a train has parts of one length");
        octets += train->msg_iov[i].iov_len;
        check_arrival(system, train, &train->msg_iov[i]);
    }
    check(octets <= 65507, "a train fits a packet");
    system->trains++;
    system->joined += cut ? (unsigned)train->msg_iovlen : 0;
}

int sendmmsg_or_fail(int fd, struct mmsghdr *messages, unsigned number, int flags) {
    static const int FAULTS[] = {EINTR, EAGAIN, ENOBUFS, EIO, EINVAL, EMSGSIZE, EPERM};
    struct system *system = failing;
    if (!system)
        return sendmmsg(fd, messages, number, flags);
    for (unsigned i = 0; i < number; i++) {
        bool is_train = messages[i].msg_hdr.msg_iovlen > 1;
        int fault = FAULTS[chance(&system->state) % 7];
        if (chance(&system->state) % system->faults_in == 0) {
            if (i)
                return (int)i;
            bool is_full = fault == EAGAIN || fault == ENOBUFS;
            system->has_said_full |= is_full;
            system->has_said_eio |= is_train && fault == EIO;
            system->refusals += !is_train && !is_full && fault != EINTR;
            errno = fault;
            return -1;
        }
        arrive(system, &messages[i].msg_hdr);
    }
    return (int)number;
}

struct answers {
    struct sockaddr_in6 peers[PEERS];
    _Alignas(struct cmsghdr) uint8_t controls[2][CMSG_SPACE(sizeof(struct in6_pktinfo))];
    uint8_t octets[BATCH][MESSAGE_MAX];
    struct iovec parts[BATCH];
    struct mmsghdr messages[BATCH];
};

/* To few clients, of few lengths: so that some are alike and some are not. */
static unsigned make_answers(struct answers *answers, uint64_t *state) {
    static const size_t LENGTHS[] = {12, 50, 51, 1232, MESSAGE_MAX};
    unsigned number = 1 + chance(state) % BATCH, peers = 1 + chance(state) % PEERS;
    unsigned lengths = 1 + chance(state) % 5;
    bool is_ipv6 = chance(state) % 2, may_have_control = chance(state) % 2;
    for (unsigned i = 0; i < number; i++) {
        unsigned peer = chance(state) % peers;
        uint8_t *address = (uint8_t *)&answers->peers[peer];
        memset(address, 0, sizeof answers->peers[peer]);
        address[0] = is_ipv6 ? AF_INET6 : AF_INET, address[is_ipv6 ? 20 : 5] = (uint8_t)(peer / 2);
        address[3] = (uint8_t)(peer % 2);
        struct cmsghdr control = {.cmsg_len = CMSG_LEN(12), .cmsg_level = IPPROTO_IP};
        bool has_control = may_have_control && chance(state) % 8;
        uint8_t *asked = answers->controls[chance(state) % 2]; /* an address of ours */
        memcpy(asked, &control, sizeof control);
        asked[sizeof control] = asked == answers->controls[1];
        memcpy(answers->octets[i], &(uint32_t){i}, sizeof(uint32_t));
        answers->parts[i] = (struct iovec){
            answers->octets[i], LENGTHS[(chance(state) % lengths + peer) % 5]};
        answers->messages[i].msg_hdr = (struct msghdr){
            .msg_name = address, .msg_namelen = is_ipv6 ? 28 : 16,
            .msg_iov = &answers->parts[i], .msg_iovlen = 1,
            .msg_control = has_control ? asked : NULL,
            .msg_controllen = has_control ? CMSG_SPACE(12) : 0};
    }
    return number;
}

static int run_answers(uint64_t state, uint64_t count) {
    static struct answers answers;
    uint64_t trains = 0, joined = 0, done = 0;
    unsigned stopped = 0;
    while (done < count) {
        unsigned number = make_answers(&answers, &state), arrived = 0;
        struct system system = {
            .state = chance(&state) | 1, .messages = answers.messages, .number = number,
            .faults_in = chance(&state) % 2 ? 9 : 1 << 30};
        struct sender sender = {.fd = -1}; /* where a shortened answer cannot go */
        bool went[BATCH], may_join = chance(&state) % 8;
        atomic_init(&sender.is_joining, may_join);
        failing = &system;
        struct sent sent = send_all(&sender, answers.messages, number, went);
        failing = NULL;
        for (unsigned i = 0; i < number; i++) {
            check(went[i] == system.arrived[i], "what went is known");
            arrived += system.arrived[i];
        }
        check(sent.sent == arrived && sent.sent + sent.refused + sent.full == number,
              "each answer becomes something, and is counted as that");
        check(!sent.full == !system.has_said_full && sent.refused <= system.refusals,
              "it is counted as what the system said");
        check(sender.is_joining == (may_join && !system.has_said_eio), "a system that cannot is heard");
        check(may_join || !system.joined, "nothing is joined unasked");
        if (system.has_said_eio) {
            system = (struct system){
                .state = 1, .messages = answers.messages, .number = number, .faults_in = 1 << 30};
            failing = &system;
            send_all(&sender, answers.messages, number, went);
            failing = NULL;
            check(system.trains == number, "the next batch goes apart");
            stopped++;
        }
        done += number, trains += system.trains, joined += system.joined;
    }
    printf("%llu answers: %llu joined, %llu pieces, %u times EIO\n", (unsigned long long)done,
           (unsigned long long)joined, (unsigned long long)trains, stopped);
    check(!count || (joined > done / 4 && stopped), "answers are joined");
    return 0;
}

/* Who asks for one name in all classes follows short chains. */
static void spread_classes(void) {
    enum { BUCKETS = 1 << 12 };
    bool is_used[BUCKETS] = {false};
    unsigned used = 0;
    for (unsigned i = 0; i <= CLASSES_MAX; i++) {
        bool *bucket = &is_used[hash_for_class(0, (uint8_t)i) % BUCKETS];
        used += !*bucket;
        *bucket = true;
    }
    check(used > CLASSES_MAX * 9 / 10, "answers for classes lie in buckets of their own");
}

/* The setting `listeners.sockets` goes to 1024, and each has a thread for regulars beside it. */
static void register_threads(void) {
    struct seed seed = {{1, 2}};
    struct table *table = table_new(1, 1, &seed);
    check(table, "there is memory");
    for (int i = 0; i < 2 * 1024; i++)
        check(table_register(table), "a thread can read the table");
    table_free(table);
}

int main(int count, char **given) {
    if (count >= 4) {
        uint64_t seed = strtoull(given[2], NULL, 10) * 2 + 1, number = strtoull(given[3], NULL, 10);
        if (!strcmp(given[1], "threads"))
            return run_threads(seed, number);
        if (!strcmp(given[1], "answers"))
            return run_answers(seed, number);
        if (!strcmp(given[1], "requests"))
            return run_requests(seed, number);
        if (!strcmp(given[1], "packets")) {
            read_seeds(count - 4, given + 4);
            spread_classes();
            register_threads();
            return run_packets(seed, number);
        }
    }
    fprintf(stderr, "usage: harness packets SEED COUNT FILE... | harness threads SEED COUNT |"
                    " harness answers SEED COUNT | harness requests SEED COUNT\n");
    return 2;
}
