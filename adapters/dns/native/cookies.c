/* DNS cookies, judged as domain/dns/cookies.py does (RFC 7873, RFC 9018): here for answers from the
 * table, whose keys and answers know nothing of them. */
#include "core.h"

#include <string.h>

#define CLIENT_PART 8
#define HEAD_SIZE 8 /* version, three octets that are reserved, the time */
#define VERSION 1
#define DAY_S 86400

/* RFC 9018 section 4.3. */
#define AGE_MAX_S 3600
#define AHEAD_MAX_S 300
#define RENEW_AFTER_S 1800

static const struct seed *key_at(const struct cookie_keys *keys, int64_t at_s) {
    int64_t i = at_s / DAY_S - keys->day + 1;
    return i < 0 || i >= COOKIE_DAYS ? NULL : &keys->keys[i];
}

/* RFC 9018 section 4.4: what stands behind the head. */
static void hash_of(
    const struct seed *key, const uint8_t *own, const uint8_t *head, const uint8_t *client,
    size_t client_size, uint8_t *hash) {
    uint8_t input[CLIENT_PART + HEAD_SIZE + 16];
    memcpy(input, own, CLIENT_PART);
    memcpy(input + CLIENT_PART, head, HEAD_SIZE);
    memcpy(input + CLIENT_PART + HEAD_SIZE, client, client_size);
    uint64_t word = siphash_2_4(key, input, CLIENT_PART + HEAD_SIZE + client_size);
    for (int i = 0; i < 8; i++)
        hash[i] = (uint8_t)(word >> 8 * i);
}

/* In a time that tells nothing of where they differ. */
static bool are_equal(const uint8_t *one, const uint8_t *other, size_t size) {
    uint8_t differs = 0;
    for (size_t i = 0; i < size; i++)
        differs |= one[i] ^ other[i];
    return !differs;
}

bool cookie_answer(
    const struct cookie_keys *keys, const uint8_t *option, size_t size, const uint8_t *client,
    size_t client_size, int64_t now_s, uint8_t *cookie) {
    const uint8_t *head = option + CLIENT_PART;
    uint8_t hash[8];
    if (size == COOKIE_SIZE && head[0] == VERSION) {
        uint32_t stamp =
            (uint32_t)head[4] << 24 | (uint32_t)head[5] << 16 | (uint32_t)head[6] << 8 | head[7];
        int32_t age_s = (int32_t)((uint32_t)now_s - stamp); /* RFC 1982 */
        if (age_s >= -AHEAD_MAX_S && age_s <= AGE_MAX_S) {
            const struct seed *key = key_at(keys, now_s - age_s);
            if (!key)
                return false;
            hash_of(key, option, head, client, client_size, hash);
            if (age_s <= RENEW_AFTER_S && are_equal(hash, head + HEAD_SIZE, sizeof hash)) {
                memcpy(cookie, option, COOKIE_SIZE);
                return true;
            }
        }
    }
    const struct seed *key = key_at(keys, now_s);
    if (!key)
        return false;
    memcpy(cookie, option, CLIENT_PART);
    uint8_t *fresh = cookie + CLIENT_PART;
    memset(fresh, 0, HEAD_SIZE);
    fresh[0] = VERSION;
    for (int i = 0; i < 4; i++)
        fresh[4 + i] = (uint8_t)((uint64_t)now_s >> 8 * (3 - i));
    hash_of(key, cookie, fresh, client, client_size, fresh + HEAD_SIZE);
    return true;
}
