/* Of which queries the query log is told: as `Sampler` of domain/query_log.py has it. */
#include "core.h"

/* SplitMix64: what comes next is not to be foreseen by who does not know the state. */
static uint32_t below(struct sampling *sampling, uint32_t limit) {
    uint64_t mixed = sampling->state += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)(((mixed >> 32) * limit) >> 32);
}

/* The first stretch, or one after another setting. */
static void begin(struct sampling *sampling, uint32_t one_in) {
    sampling->one_in = one_in;
    sampling->left = sampling->place = below(sampling, one_in);
}

uint32_t sampling_weigh(struct sampling *sampling, uint32_t one_in) {
    if (one_in == 1)
        return 1;
    if (sampling->one_in != one_in)
        begin(sampling, one_in);
    if (sampling->left) {
        sampling->left--;
        return 0;
    }
    uint32_t place = below(sampling, one_in);
    sampling->left = one_in - 1 - sampling->place + place;
    sampling->place = place;
    return one_in;
}
