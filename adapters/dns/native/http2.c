/* Requests over HTTP/2 as far as they may be known: what a client said in a frame of headers, and
 * maybe one of data. Everything unusual, and all that would be refused, is left to Python.
 *
 * HPACK (RFC 7541) is read as a whole, since what a block means hangs on the blocks before it. */
#include "core.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FRAME_HEAD 9
#define DATA 0
#define HEADERS 1
#define END_STREAM 0x1
#define END_HEADERS 0x4
#define PRIORITY 0x20
#define AA 0x04 /* of the third octet of a message */
#define PRIORITY_SIZE 5
#define STREAM_MAX 0x7fffffffu

#define DATA_MAX 16384 /* octets of a frame that we take */
#define BLOCK_MAX 1024 /* octets of a header block: more than a query has */
#define FIELDS_MAX 64
#define TEXT_MAX 2048 /* octets of a name or a value: a block's, by the shortest codes */

/* --- Huffman's code (RFC 7541 appendix B), which is canonical: its lengths say it all ------------ */

#define SYMBOLS 257
#define EOS 256
#define CODE_MIN 5
#define CODE_MAX 30
#define SHORT 8 /* bits of codes that are looked up */

static const uint8_t LENGTHS[SYMBOLS] = {
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28,  6, 10, 10, 12, 13,  6,  8, 11, 10, 10,  8, 11,  8,  6,  6,  6,
     5,  5,  5,  6,  6,  6,  6,  6,  6,  6,  7,  8, 15,  6, 12, 10, 13,  6,  7,  7,  7,  7,  7,  7,
     7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  8,  7,  8, 13, 19, 13, 14,  6,
    15,  5,  6,  5,  6,  5,  6,  6,  6,  5,  7,  7,  6,  6,  6,  5,  6,  7,  6,  5,  5,  6,  7,  7,
     7,  7,  7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21,
    23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24,
    21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
};

static struct {
    uint32_t first[CODE_MAX + 1]; /* code of that length */
    uint16_t count[CODE_MAX + 1], at[CODE_MAX + 1]; /* how many, and the place of the first */
    uint16_t symbols[SYMBOLS];                      /* by their codes */
    struct {
        uint8_t symbol, length; /* 0: the code is longer */
    } shorts[1 << SHORT];
} code;

void http2_init(void) {
    uint32_t next = 0;
    uint16_t place = 0;
    memset(&code, 0, sizeof code);
    for (unsigned length = 1; length <= CODE_MAX; length++) {
        next <<= 1;
        code.first[length] = next;
        code.at[length] = place;
        for (unsigned symbol = 0; symbol < SYMBOLS; symbol++) {
            if (LENGTHS[symbol] != length)
                continue;
            code.symbols[place++] = (uint16_t)symbol;
            code.count[length]++;
            for (unsigned rest = 0; length <= SHORT && rest < 1u << (SHORT - length); rest++) {
                unsigned octet = next << (SHORT - length) | rest;
                code.shorts[octet].symbol = (uint8_t)symbol;
                code.shorts[octet].length = (uint8_t)length;
            }
            next++;
        }
    }
}

/* The symbol that `bits` (the next ones, first at the top) begin with, and its length; EOS: none. */
static unsigned symbol_of(uint32_t bits, unsigned *length) {
    unsigned top = bits >> (32 - SHORT);
    *length = code.shorts[top].length;
    if (*length)
        return code.shorts[top].symbol;
    for (*length = SHORT + 1; *length <= CODE_MAX; ++*length) {
        uint32_t over = (bits >> (32 - *length)) - code.first[*length];
        if (over < code.count[*length])
            return code.symbols[code.at[*length] + over];
    }
    return EOS;
}

/* Section 5.2: padding is shorter than an octet, and the beginning of EOS, which is ones. */
static bool decode_huffman(
    const uint8_t *from, size_t size, uint8_t *text, size_t room, size_t *written) {
    uint64_t bits = 0; /* at the top */
    unsigned left = 0, length;
    *written = 0;
    for (size_t at = 0; at < size || left >= CODE_MIN;) {
        while (left <= 56 && at < size) {
            bits |= (uint64_t)from[at++] << (56 - left);
            left += 8;
        }
        unsigned symbol = symbol_of((uint32_t)(bits >> 32), &length);
        if (symbol == EOS || length > left)
            break;
        if (*written == room)
            return false;
        text[(*written)++] = (uint8_t)symbol;
        bits <<= length;
        left -= length;
    }
    return left < 8 && bits >> (63 - left) >> 1 == ((uint64_t)1 << left) - 1;
}

/* --- the table of HPACK (sections 2.3 and 4) ----------------------------------------------------- */

#define STATIC 61

struct field {
    const uint8_t *name, *value;
    size_t name_size, value_size;
};

#define FIELD(name, value) \
    {(const uint8_t *)(name), (const uint8_t *)(value), sizeof(name) - 1, sizeof(value) - 1}

static const struct field STATIC_TABLE[STATIC] = {
    FIELD(":authority", ""),
    FIELD(":method", "GET"),
    FIELD(":method", "POST"),
    FIELD(":path", "/"),
    FIELD(":path", "/index.html"),
    FIELD(":scheme", "http"),
    FIELD(":scheme", "https"),
    FIELD(":status", "200"),
    FIELD(":status", "204"),
    FIELD(":status", "206"),
    FIELD(":status", "304"),
    FIELD(":status", "400"),
    FIELD(":status", "404"),
    FIELD(":status", "500"),
    FIELD("accept-charset", ""),
    FIELD("accept-encoding", "gzip, deflate"),
    FIELD("accept-language", ""),
    FIELD("accept-ranges", ""),
    FIELD("accept", ""),
    FIELD("access-control-allow-origin", ""),
    FIELD("age", ""),
    FIELD("allow", ""),
    FIELD("authorization", ""),
    FIELD("cache-control", ""),
    FIELD("content-disposition", ""),
    FIELD("content-encoding", ""),
    FIELD("content-language", ""),
    FIELD("content-length", ""),
    FIELD("content-location", ""),
    FIELD("content-range", ""),
    FIELD("content-type", ""),
    FIELD("cookie", ""),
    FIELD("date", ""),
    FIELD("etag", ""),
    FIELD("expect", ""),
    FIELD("expires", ""),
    FIELD("from", ""),
    FIELD("host", ""),
    FIELD("if-match", ""),
    FIELD("if-modified-since", ""),
    FIELD("if-none-match", ""),
    FIELD("if-range", ""),
    FIELD("if-unmodified-since", ""),
    FIELD("last-modified", ""),
    FIELD("link", ""),
    FIELD("location", ""),
    FIELD("max-forwards", ""),
    FIELD("proxy-authenticate", ""),
    FIELD("proxy-authorization", ""),
    FIELD("range", ""),
    FIELD("referer", ""),
    FIELD("refresh", ""),
    FIELD("retry-after", ""),
    FIELD("server", ""),
    FIELD("set-cookie", ""),
    FIELD("strict-transport-security", ""),
    FIELD("transfer-encoding", ""),
    FIELD("user-agent", ""),
    FIELD("vary", ""),
    FIELD("via", ""),
    FIELD("www-authenticate", ""),
};

static void drop_oldest(struct hpack *table, unsigned count) {
    size_t octets = count < table->count ? table->entries[count].at : table->used;
    table->count = (uint16_t)(table->count - count);
    table->used = (uint16_t)(table->used - octets);
    memmove(table->octets, table->octets + octets, table->used);
    memmove(table->entries, table->entries + count, table->count * sizeof *table->entries);
    for (unsigned i = 0; i < table->count; i++)
        table->entries[i].at = (uint16_t)(table->entries[i].at - octets);
}

void hpack_add(
    struct hpack *table, const uint8_t *name, size_t name_size, const uint8_t *value,
    size_t value_size) {
    size_t size = name_size + value_size, taken = table->used + table->count * HPACK_OVERHEAD;
    unsigned dropped = 0;
    if (size + HPACK_OVERHEAD > table->size_max) {
        drop_oldest(table, table->count);
        return;
    }
    while (taken + size + HPACK_OVERHEAD > table->size_max) {
        const struct hpack_entry *entry = &table->entries[dropped++];
        taken -= entry->name_size + entry->value_size + HPACK_OVERHEAD;
    }
    if (dropped)
        drop_oldest(table, dropped);
    table->entries[table->count++] =
        (struct hpack_entry){table->used, (uint16_t)name_size, (uint16_t)value_size};
    memcpy(table->octets + table->used, name, name_size);
    memcpy(table->octets + table->used + name_size, value, value_size);
    table->used = (uint16_t)(table->used + size);
}

static bool field_at(const struct hpack *table, size_t index, struct field *field) {
    if (!index || index > STATIC + (size_t)table->count)
        return false;
    if (index <= STATIC) {
        *field = STATIC_TABLE[index - 1];
        return true;
    }
    const struct hpack_entry *entry = &table->entries[table->count + STATIC - index];
    field->name = table->octets + entry->at;
    field->value = field->name + entry->name_size;
    field->name_size = entry->name_size;
    field->value_size = entry->value_size;
    return true;
}

/* --- header blocks (sections 5 and 6) ------------------------------------------------------------ */

struct reader {
    const uint8_t *octets;
    size_t size, at;
};

static bool read_integer(struct reader *from, unsigned bits, size_t *value) {
    const unsigned most = (1u << bits) - 1;
    if (from->at >= from->size)
        return false;
    *value = from->octets[from->at++] & most;
    if (*value < most)
        return true;
    for (unsigned shift = 0; shift <= 14 && from->at < from->size; shift += 7) {
        uint8_t octet = from->octets[from->at++];
        *value += (size_t)(octet & 0x7f) << shift;
        if (!(octet & 0x80))
            return true;
    }
    return false; /* that large is no part of a block */
}

static bool read_string(struct reader *from, uint8_t *text, size_t *size) {
    size_t length;
    bool is_short = from->at < from->size && from->octets[from->at] & 0x80;
    if (!read_integer(from, 7, &length) || length > from->size - from->at)
        return false;
    const uint8_t *octets = from->octets + from->at;
    from->at += length;
    if (is_short)
        return decode_huffman(octets, length, text, TEXT_MAX, size);
    if (length > TEXT_MAX)
        return false;
    memcpy(text, octets, length);
    *size = length;
    return true;
}

/* What a block is read into. */
struct reading {
    struct reader from;
    struct hpack *table;       /* as it was */
    struct hpack *changed;     /* as the block leaves it */
    bool is_changed;
    uint8_t name[TEXT_MAX], value[TEXT_MAX];
};

/* The next field. It lives until the next one is read. */
static bool read_field(struct reading *reading, struct field *field) {
    struct reader *from = &reading->from;
    const struct hpack *table = reading->is_changed ? reading->changed : reading->table;
    const uint8_t first = from->octets[from->at];
    size_t index;
    if (first & 0x80)
        return read_integer(from, 7, &index) && field_at(table, index, field);
    bool is_added = first & 0x40;
    if (!is_added && first & 0x20)
        return false; /* another size of the table */
    if (!read_integer(from, is_added ? 6 : 4, &index))
        return false;
    if (index) {
        if (!field_at(table, index, field))
            return false;
        if (is_added) { /* the entry may have to go for the new one */
            if (field->name_size > TEXT_MAX)
                return false;
            memcpy(reading->name, field->name, field->name_size);
            field->name = reading->name;
        }
    } else if (read_string(from, reading->name, &field->name_size))
        field->name = reading->name;
    else
        return false;
    if (!read_string(from, reading->value, &field->value_size))
        return false;
    field->value = reading->value;
    if (is_added) {
        if (!reading->is_changed)
            *reading->changed = *reading->table;
        reading->is_changed = true;
        hpack_add(
            reading->changed, field->name, field->name_size, field->value, field->value_size);
    }
    return true;
}

/* --- what a request says ------------------------------------------------------------------------- */

#define CUT_PATH 0xffff /* in the place of the size of a value */
#define CUT_LENGTH 0xfffe
#define LENGTH_DIGITS 5

static int sextet_of(uint8_t letter) {
    if (letter >= 'A' && letter <= 'Z')
        return letter - 'A';
    if (letter >= 'a' && letter <= 'z')
        return letter - 'a' + 26;
    if (letter >= '0' && letter <= '9')
        return letter - '0' + 52;
    return letter == '-' ? 62 : letter == '_' ? 63 : -1;
}

/* Base64url without padding (RFC 8484 section 6). False: it is not, or has bits too many. */
static bool decode_message(const uint8_t *text, size_t size, struct http2_request *request) {
    uint32_t bits = 0;
    unsigned left = 0;
    size_t written = 0;
    if (size % 4 == 1 || size / 4 * 3 + 3 > sizeof request->message)
        return false;
    for (size_t i = 0; i < size; i++) {
        int sextet = sextet_of(text[i]);
        if (sextet < 0)
            return false;
        bits = bits << 6 | (unsigned)sextet;
        left += 6;
        if (left >= 8) {
            left -= 8;
            request->message[written++] = (uint8_t)(bits >> left);
        }
    }
    request->packet = request->message;
    request->packet_size = written;
    return !(bits & ((1u << left) - 1));
}

static bool append(struct http2_request *request, const uint8_t *octets, size_t size) {
    if (size > sizeof request->key - request->key_size)
        return false;
    if (size)
        memcpy(request->key + request->key_size, octets, size);
    request->key_size += size;
    return true;
}

static bool append_sized(
    struct http2_request *request, const uint8_t *octets, size_t size, unsigned said) {
    const uint8_t head[] = {(uint8_t)(said >> 8), (uint8_t)said};
    return append(request, head, sizeof head) && append(request, octets, size);
}

static bool is_named(const struct field *field, const char *name) {
    size_t size = strlen(name);
    return field->name_size == size && !memcmp(field->name, name, size);
}

/* Octets of a path before the message that it ends with; 0: it has none. */
static size_t before_message(const struct field *path) {
    static const char parameter[] = "?dns=";
    const uint8_t *mark = memchr(path->value, '?', path->value_size);
    size_t size = sizeof parameter - 1, before = mark ? (size_t)(mark - path->value) + size : 0;
    return mark && before <= path->value_size && !memcmp(mark, parameter, size) ? before : 0;
}

static bool read_length(const struct field *field, uint32_t *length) {
    *length = 0;
    for (size_t i = 0; i < field->value_size; i++) {
        if (field->value[i] < '0' || field->value[i] > '9')
            return false;
        *length = *length * 10 + (field->value[i] - '0');
    }
    return field->value_size && field->value_size <= LENGTH_DIGITS;
}

/* Note a field in the key: all of it but the message, and how long a body is to be. */
static bool note_field(struct http2_request *request, const struct field *field) {
    if (!append_sized(request, field->name, field->name_size, (unsigned)field->name_size))
        return false;
    size_t before;
    if (is_named(field, ":path") && (before = before_message(field))) {
        if (request->packet)
            return false;
        return append_sized(request, field->value, before, CUT_PATH) &&
               decode_message(field->value + before, field->value_size - before, request);
    }
    if (is_named(field, "content-length")) {
        if (request->has_length)
            return false;
        request->has_length = true;
        return read_length(field, &request->length) &&
               append_sized(request, NULL, 0, CUT_LENGTH);
    }
    return append_sized(request, field->value, field->value_size, (unsigned)field->value_size);
}

/* The table is `changed` then where `is_changed`. */
static bool read_block(
    struct hpack *table, struct hpack *changed, const uint8_t *block, size_t size,
    struct http2_request *request) {
    struct reading reading;
    reading.from = (struct reader){block, size, 0};
    reading.table = table;
    reading.changed = changed;
    reading.is_changed = false;
    request->key_size = request->packet_size = 0;
    request->packet = NULL;
    request->has_length = false;
    if (size > BLOCK_MAX)
        return false;
    for (unsigned fields = 0; reading.from.at < size; fields++) {
        struct field field;
        if (fields == FIELDS_MAX || !read_field(&reading, &field) || !note_field(request, &field))
            return false;
    }
    request->is_changed = reading.is_changed;
    return true;
}

/* --- frames (RFC 9113 sections 4 and 6) ---------------------------------------------------------- */

struct frame {
    size_t size; /* of what follows its head */
    uint8_t kind, flags;
    uint32_t stream;
};

static uint32_t number_at(const uint8_t *octets) {
    return (uint32_t)octets[0] << 24 | (uint32_t)octets[1] << 16 | (uint32_t)octets[2] << 8 |
           octets[3];
}

static bool frame_at(const uint8_t *arrived, size_t size, size_t at, struct frame *frame) {
    if (size - at < FRAME_HEAD)
        return false;
    const uint8_t *head = arrived + at;
    frame->size = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
    frame->kind = head[3];
    frame->flags = head[4];
    frame->stream = number_at(head + 5);
    return size - at - FRAME_HEAD >= frame->size;
}

/* Where the block of a HEADERS frame is that has all of it. 0: there is none, or an unusual one. */
static size_t block_at(const uint8_t *arrived, const struct frame *frame) {
    if (frame->kind != HEADERS || (frame->flags & ~(END_STREAM | PRIORITY)) != END_HEADERS)
        return 0;
    if (!(frame->flags & PRIORITY))
        return FRAME_HEAD;
    if (frame->size < PRIORITY_SIZE)
        return 0;
    /* Who depends on himself is refused. */
    return (number_at(arrived + FRAME_HEAD) & STREAM_MAX) == frame->stream
               ? 0
               : FRAME_HEAD + PRIORITY_SIZE;
}

size_t http2_read(
    struct hpack *table, struct hpack *changed, const uint8_t *arrived, size_t size,
    struct http2_request *request) {
    struct frame head, body;
    size_t at;
    if (!frame_at(arrived, size, 0, &head) || !(at = block_at(arrived, &head)))
        return 0;
    size_t end = FRAME_HEAD + head.size;
    if (!read_block(table, changed, arrived + at, end - at, request))
        return 0;
    request->stream = head.stream;
    request->has_body = !(head.flags & END_STREAM);
    request->body = NULL;
    request->body_size = 0;
    request->size = 0;
    if (!request->has_body)
        request->size = end;
    else if (
        frame_at(arrived, size, end, &body) && body.kind == DATA && body.flags == END_STREAM &&
        body.stream == head.stream && body.size <= DATA_MAX) {
        request->body = arrived + end + FRAME_HEAD;
        request->body_size = body.size;
        request->size = end + FRAME_HEAD + body.size;
    }
    return end;
}

const uint8_t *http2_message(const struct http2_request *request, bool is_get, size_t *size) {
    if (!request->size || is_get == request->has_body ||
        (request->has_length && request->length != request->body_size))
        return NULL;
    *size = is_get ? request->packet_size : request->body_size;
    return is_get ? request->packet : request->body;
}

/* --- responses ----------------------------------------------------------------------------------- */

/* Literals that are not to be indexed, with names of the static table. */
#define CACHE_CONTROL "\x0f\x09"
#define CONTENT_LENGTH "\x0f\x0d"
#define NXDOMAIN 3
#define TC 0x02
#define RCODE 0x0f

static unsigned short_at(const uint8_t *octets) { return (unsigned)octets[0] << 8 | octets[1]; }

/* Offset behind a name, which a pointer may end; 0: it is not whole. */
static size_t after_name(const uint8_t *wire, size_t size, size_t at) {
    while (at < size && wire[at]) {
        if (wire[at] >= 0xc0)
            return at + 2;
        at += wire[at] + 1u;
    }
    return at < size ? at + 1 : 0;
}

/* As `domain.dns.messages.freshness_s` has it. */
static bool freshness_s(const uint8_t *wire, size_t size, uint32_t *seconds) {
    unsigned rcode = wire[3] & RCODE;
    unsigned questions = short_at(wire + 4), records = short_at(wire + 6) + short_at(wire + 8);
    size_t at = HEADER_SIZE;
    if ((rcode && rcode != NXDOMAIN) || wire[2] & TC || !records)
        return false;
    while (questions--) {
        if (!(at = after_name(wire, size, at)))
            return false;
        at += 4;
    }
    *seconds = UINT32_MAX;
    while (records--) {
        at = after_name(wire, size, at);
        if (!at || at + 10 > size)
            return false;
        uint32_t ttl = number_at(wire + at + 4);
        *seconds = ttl < *seconds ? ttl : *seconds;
        at += 10 + short_at(wire + at + 8);
    }
    return true;
}

static size_t put_head(
    uint8_t *out, size_t size, uint8_t kind, uint8_t flags, uint32_t stream) {
    const uint8_t head[FRAME_HEAD] = {
        (uint8_t)(size >> 16), (uint8_t)(size >> 8), (uint8_t)size, kind, flags,
        (uint8_t)(stream >> 24), (uint8_t)(stream >> 16), (uint8_t)(stream >> 8), (uint8_t)stream};
    memcpy(out, head, sizeof head);
    return sizeof head;
}

uint8_t *http2_respond(
    uint8_t *wire, size_t size, uint32_t stream, const uint8_t *fields, size_t fields_size,
    bool is_private) {
    uint8_t head[HTTP2_HEAD_MAX];
    char text[64];
    size_t at = FRAME_HEAD;
    uint32_t seconds;
    memcpy(head + at, fields, fields_size);
    at += fields_size;
    int length = snprintf(text, sizeof text, "%zu", size);
    memcpy(head + at, CONTENT_LENGTH, 2);
    head[at + 2] = (uint8_t)length;
    memcpy(head + at + 3, text, (size_t)length);
    at += 3 + (size_t)length;
    if (!freshness_s(wire, size, &seconds))
        length = snprintf(text, sizeof text, "no-store");
    else
        length = snprintf(text, sizeof text, "%smax-age=%" PRIu32,
                          is_private && !(wire[2] & AA) ? "private, " : "", seconds);
    memcpy(head + at, CACHE_CONTROL, 2);
    head[at + 2] = (uint8_t)length;
    memcpy(head + at + 3, text, (size_t)length);
    at += 3 + (size_t)length;
    put_head(head, at - FRAME_HEAD, HEADERS, END_HEADERS, stream);
    at += put_head(head + at, size, DATA, END_STREAM, stream);
    memcpy(wire - at, head, at);
    return wire - at;
}
