/* Networks that clients may be in. */
#include "core.h"

#include <string.h>

static const uint8_t MAPPED[12] = {[10] = 0xff, [11] = 0xff};

const uint8_t *unmapped(const uint8_t *client, size_t *size) {
    if (*size == 16 && !memcmp(client, MAPPED, sizeof MAPPED)) {
        *size = 4;
        return client + sizeof MAPPED;
    }
    return client;
}

bool is_within(const uint8_t *client, size_t size, const struct network *network) {
    unsigned whole = network->bits / 8, rest = network->bits % 8;
    if (network->is_ipv6 != (size == 16) || memcmp(client, network->octets, whole))
        return false;
    return !rest || !((client[whole] ^ network->octets[whole]) >> (8 - rest));
}
