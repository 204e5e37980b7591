/* What a datagram says, as far as the engine cares: where the question ends, and no more than that
 * of what may be repeated. Everything unusual is left to Python. */
#include "core.h"

#include <string.h>

#define QR 0x80 /* of the third octet */
#define OPCODE 0x78
#define TC 0x02
#define RD 0x01
#define OPT_SIZE 11
#define OPT_TYPE 41
#define TSIG_TYPE 250
#define RECORD_FIXED 10 /* type, class, TTL and length */
#define OPTION_HEAD 4
#define COOKIE_OPTION 10
#define KIND_COOKIE 1
#define DNSSEC_OK 0x80

/* health.kudurru.internal. in wire form; class IN follows its type. */
static const uint8_t HEALTH_NAME[] = "\6health\7kudurru\10internal";

static uint8_t lowered(uint8_t octet) {
    return octet >= 'A' && octet <= 'Z' ? octet | 0x20 : octet;
}

static unsigned number_at(const uint8_t *octets) {
    return (unsigned)octets[0] << 8 | octets[1];
}

size_t name_end(const uint8_t *packet, size_t size) {
    size_t at = HEADER_SIZE;
    while (at < size && packet[at]) {
        if (packet[at] > LABEL_MAX)
            return 0;
        at += packet[at] + 1u;
        if (at - HEADER_SIZE >= NAME_MAX_SIZE)
            return 0;
    }
    return at < size ? at + 1 : 0;
}

/* Whether the only record behind one question, which is at `at`, is an OPT record. */
static bool has_opt(const uint8_t *packet, size_t size, size_t at) {
    return size >= at + OPT_SIZE && number_at(packet + 4) == 1 && !number_at(packet + 6) &&
           !number_at(packet + 8) && number_at(packet + 10) == 1 && !packet[at] &&
           number_at(packet + at + 1) == OPT_TYPE;
}

/* Where the cookie of a message is, whose question's name ends at `end`; 0: it has none, or more than
 * that. It goes to the end of the message. */
static size_t lone_cookie(const uint8_t *packet, size_t size, size_t end) {
    const size_t opt = end + 4, data = opt + OPT_SIZE + OPTION_HEAD;
    if (size < data || !has_opt(packet, size, opt) ||
        number_at(packet + opt + 9) != size - data + OPTION_HEAD ||
        number_at(packet + opt + OPT_SIZE) != COOKIE_OPTION ||
        number_at(packet + opt + OPT_SIZE + 2) != size - data)
        return 0;
    size_t length = size - data;
    return length == 8 || (length >= 16 && length <= COOKIE_MAX) ? data : 0;
}

size_t message_key(
    uint8_t scope, const uint8_t *packet, size_t size, uint8_t *key, size_t *cookie_at) {
    size_t end = name_end(packet, size);
    *cookie_at = 0;
    if (!end || size > KEY_MAX)
        return 0;
    bool is_extended = has_opt(packet, size, end + 4); /* before its options are left out */
    *cookie_at = lone_cookie(packet, size, end);
    if (*cookie_at)
        size = *cookie_at - OPTION_HEAD - 2; /* without the options and their size */
    key[0] = scope;
    key[1] = *cookie_at ? KIND_COOKIE : 0;
    memcpy(key + 2, packet + 2, HEADER_SIZE - 2);
    /* Lengths of labels are at most 63, which no letter is. */
    for (size_t at = HEADER_SIZE; at < end; at++)
        key[at] = lowered(packet[at]);
    memcpy(key + end, packet + end, size - end);
    if (is_extended) {
        unsigned taken = number_at(packet + end + 7);
        taken = taken < UDP_PLAIN_MAX ? UDP_PLAIN_MAX : taken;
        taken = taken > UDP_EDNS_MAX ? UDP_EDNS_MAX : taken;
        key[end + 7] = (uint8_t)(taken >> 8), key[end + 8] = (uint8_t)taken;
    }
    return size;
}

void key_for_class(uint8_t *key, uint8_t client_class) {
    key[1] = (uint8_t)((key[1] & KIND_COOKIE) | client_class << 1);
}

uint8_t class_in_key(const uint8_t *key) { return key[1] >> 1; }
uint8_t kind_in_key(const uint8_t *key) { return key[1] & KIND_COOKIE; }

enum slip slip_in_place(uint8_t *packet, size_t *size) {
    if (*size < HEADER_SIZE || packet[2] & QR)
        return SLIP_NOTHING;
    size_t end = name_end(packet, *size) + 4; /* of the question */
    if (packet[2] & OPCODE || number_at(packet + 4) != 1 || number_at(packet + 6) ||
        number_at(packet + 8) || end == 4 || end > *size)
        return SLIP_ELSEWHERE;
    uint8_t *opt = packet + end;
    switch (number_at(packet + 10)) {
    case 0:
        if (*size != end)
            return SLIP_ELSEWHERE;
        break;
    case 1:
        if (*size != end + OPT_SIZE || opt[0] || number_at(opt + 1) != OPT_TYPE ||
            number_at(opt + 9))
            return SLIP_ELSEWHERE;
        opt[3] = UDP_EDNS_MAX >> 8, opt[4] = UDP_EDNS_MAX & 0xff;
        opt[5] = opt[6] = 0; /* extended RCODE and version */
        opt[7] &= DNSSEC_OK, opt[8] = 0;
        break;
    default:
        return SLIP_ELSEWHERE;
    }
    packet[2] = QR | TC | (packet[2] & RD);
    packet[3] = 0;
    return SLIP_HERE;
}

/* Offset behind the record at `at`, the type of which is at `type_at`; 0: it is not whole. */
static size_t record_end(const uint8_t *packet, size_t size, size_t at, size_t *type_at) {
    while (at < size && packet[at] && packet[at] <= LABEL_MAX)
        at += packet[at] + 1u;
    if (at >= size)
        return 0;
    *type_at = at + (packet[at] ? 2 : 1);
    if (*type_at + RECORD_FIXED > size)
        return 0;
    at = *type_at + RECORD_FIXED + number_at(packet + *type_at + 8);
    return at > size ? 0 : at;
}

size_t shortened(const uint8_t *packet, size_t size, uint8_t *shorter) {
    size_t question_end = size < HEADER_SIZE ? 0 : name_end(packet, size);
    if (!question_end || question_end + 4 > size || number_at(packet + 4) != 1)
        return 0;
    question_end += 4;
    memcpy(shorter, packet, question_end);
    shorter[2] |= TC;
    memset(shorter + 6, 0, HEADER_SIZE - 6);
    unsigned records =
        number_at(packet + 6) + number_at(packet + 8) + number_at(packet + 10);
    size_t at = question_end, end, type_at;
    for (; records; records--, at = end) {
        end = record_end(packet, size, at, &type_at);
        if (!end || number_at(packet + type_at) == TSIG_TYPE)
            return 0;
        if (number_at(packet + type_at) != OPT_TYPE || shorter[11])
            continue;
        if (question_end + end - at > SHORT_MAX)
            return 0;
        memcpy(shorter + question_end, packet + at, end - at);
        question_end += end - at;
        shorter[11] = 1;
    }
    return question_end < size ? question_end : 0;
}

bool is_health_query(const uint8_t *packet, size_t size) {
    const size_t type_at = HEADER_SIZE + sizeof HEALTH_NAME;
    if (size < type_at + 4 || packet[2] & (QR | OPCODE) || number_at(packet + 4) != 1 ||
        number_at(packet + type_at + 2) != 1)
        return false;
    for (size_t i = 0; i < sizeof HEALTH_NAME; i++)
        if (lowered(packet[HEADER_SIZE + i]) != HEALTH_NAME[i])
            return false;
    return true;
}
