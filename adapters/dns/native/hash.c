/* SipHash-1-3 (J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF", 2012): keyed, so
 * that nobody who chooses names or addresses can fill one bucket with them. */
#include "core.h"

#include <string.h>

static inline uint64_t rotated(uint64_t word, int bits) {
    return word << bits | word >> (64 - bits);
}

#define SIP_ROUND                                                                                  \
    do {                                                                                           \
        a += b, b = rotated(b, 13) ^ a, a = rotated(a, 32);                                        \
        c += d, d = rotated(d, 16) ^ c;                                                            \
        a += d, d = rotated(d, 21) ^ a;                                                            \
        c += b, b = rotated(b, 17) ^ c, c = rotated(c, 32);                                        \
    } while (0)

uint64_t keyed_hash(const struct seed *seed, const uint8_t *octets, size_t size) {
    uint64_t a = seed->words[0] ^ 0x736f6d6570736575, b = seed->words[1] ^ 0x646f72616e646f6d;
    uint64_t c = seed->words[0] ^ 0x6c7967656e657261, d = seed->words[1] ^ 0x7465646279746573;
    uint64_t word, last = (uint64_t)size << 56;
    size_t at = 0;
    for (; at + 8 <= size; at += 8) {
        memcpy(&word, octets + at, 8); /* in this machine's order: a hash never leaves it */
        d ^= word;
        SIP_ROUND;
        a ^= word;
    }
    for (int shift = 0; at < size; at++, shift += 8)
        last |= (uint64_t)octets[at] << shift;
    d ^= last;
    SIP_ROUND;
    a ^= last;
    c ^= 0xff;
    SIP_ROUND;
    SIP_ROUND;
    SIP_ROUND;
    return a ^ b ^ c ^ d;
}
