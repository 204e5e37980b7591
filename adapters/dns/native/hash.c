/* SipHash (J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF", 2012): keyed, so
 * that nobody who chooses names or addresses can fill one bucket with them. */
#include "core.h"

static inline uint64_t rotated(uint64_t word, int bits) {
    return word << bits | word >> (64 - bits);
}

/* Least significant octet first. Written so, compilers make one load of it. */
static inline uint64_t word_at(const uint8_t *octets) {
    return (uint64_t)octets[0] | (uint64_t)octets[1] << 8 | (uint64_t)octets[2] << 16 |
           (uint64_t)octets[3] << 24 | (uint64_t)octets[4] << 32 | (uint64_t)octets[5] << 40 |
           (uint64_t)octets[6] << 48 | (uint64_t)octets[7] << 56;
}

/* The last ones, fewer than 8. */
static inline uint64_t rest_at(const uint8_t *octets, size_t size) {
    uint64_t word = 0;
    for (size_t i = 0; i < size; i++)
        word |= (uint64_t)octets[i] << 8 * i;
    return word;
}

#define SIP_ROUND                                                                                  \
    do {                                                                                           \
        a += b, b = rotated(b, 13) ^ a, a = rotated(a, 32);                                        \
        c += d, d = rotated(d, 16) ^ c;                                                            \
        a += d, d = rotated(d, 21) ^ a;                                                            \
        c += b, b = rotated(b, 17) ^ c, c = rotated(c, 32);                                        \
    } while (0)

/* The numbers of rounds are constants of the callers. */
static inline __attribute__((always_inline)) uint64_t sip_hash(
    const struct seed *seed, const uint8_t *octets, size_t size, int per_word, int at_end) {
    uint64_t a = seed->words[0] ^ 0x736f6d6570736575, b = seed->words[1] ^ 0x646f72616e646f6d;
    uint64_t c = seed->words[0] ^ 0x6c7967656e657261, d = seed->words[1] ^ 0x7465646279746573;
    size_t at = 0;
    for (; at + 8 <= size; at += 8) {
        uint64_t word = word_at(octets + at);
        d ^= word;
        for (int i = 0; i < per_word; i++)
            SIP_ROUND;
        a ^= word;
    }
    uint64_t last = (uint64_t)size << 56 | rest_at(octets + at, size - at);
    d ^= last;
    for (int i = 0; i < per_word; i++)
        SIP_ROUND;
    a ^= last;
    c ^= 0xff;
    for (int i = 0; i < at_end; i++)
        SIP_ROUND;
    return a ^ b ^ c ^ d;
}

uint64_t keyed_hash(const struct seed *seed, const uint8_t *octets, size_t size) {
    return sip_hash(seed, octets, size, 1, 3);
}

uint64_t siphash_2_4(const struct seed *seed, const uint8_t *octets, size_t size) {
    return sip_hash(seed, octets, size, 2, 4);
}
