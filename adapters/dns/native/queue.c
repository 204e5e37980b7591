/* Octets from one thread to another: a ring that one writes and one reads, without locks. */
#include "core.h"

#include <stdlib.h>
#include <string.h>

bool queue_init(struct queue *queue, size_t size) {
    queue->octets = malloc(size);
    queue->size = size;
    atomic_init(&queue->head, 0);
    atomic_init(&queue->tail, 0);
    return queue->octets != NULL;
}

void queue_free(struct queue *queue) {
    free(queue->octets);
    queue->octets = NULL;
}

static void write_at(struct queue *queue, uint64_t at, const void *octets, size_t size) {
    size_t start = at & (queue->size - 1), first = queue->size - start;
    if (first > size)
        first = size;
    memcpy(queue->octets + start, octets, first);
    memcpy(queue->octets, (const uint8_t *)octets + first, size - first);
}

static void read_at(const struct queue *queue, uint64_t at, void *octets, size_t size) {
    size_t start = at & (queue->size - 1), first = queue->size - start;
    if (first > size)
        first = size;
    memcpy(octets, queue->octets + start, first);
    memcpy((uint8_t *)octets + first, queue->octets, size - first);
}

enum put queue_put(
    struct queue *queue,
    const void *head,
    size_t head_size,
    const void *body,
    size_t body_size) {
    uint32_t size = (uint32_t)(head_size + body_size);
    uint64_t tail = atomic_load_explicit(&queue->tail, memory_order_relaxed);
    uint64_t used = tail - atomic_load_explicit(&queue->head, memory_order_acquire);
    if (used + sizeof size + size > queue->size)
        return NO_ROOM;
    write_at(queue, tail, &size, sizeof size);
    write_at(queue, tail + sizeof size, head, head_size);
    write_at(queue, tail + sizeof size + head_size, body, body_size);
    atomic_store(&queue->tail, tail + sizeof size + size);
    /* Looked at after the store, in one order for all: either the reader sees the record before it
     * goes to sleep, or we see that it has taken all others. */
    return atomic_load(&queue->head) == tail ? FIRST : PUT;
}

size_t queue_next(const struct queue *queue) {
    uint64_t head = atomic_load_explicit(&queue->head, memory_order_relaxed);
    if (head == atomic_load(&queue->tail))
        return 0;
    uint32_t size;
    read_at(queue, head, &size, sizeof size);
    return size;
}

void queue_take(struct queue *queue, void *record, size_t size) {
    uint64_t head = atomic_load_explicit(&queue->head, memory_order_relaxed);
    read_at(queue, head + sizeof(uint32_t), record, size);
    atomic_store(&queue->head, head + sizeof(uint32_t) + size);
}
