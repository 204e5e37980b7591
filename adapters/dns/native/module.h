/* What the files of the binding share: module.c has the module, module_<type>.c each type.
 *
 * The GIL is held throughout, but where a thread is waited for: no call here takes long. */
#ifndef KUDURRU_MODULE_H
#define KUDURRU_MODULE_H

#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "core.h"
#include "zone.h"

extern PyType_Spec table_spec, buckets_spec, zones_spec, workers_spec, repeats_spec, http2_spec;

/* Types that others are made of. */
typedef struct {
    PyTypeObject *table, *buckets, *zones, *repeats;
} State;

typedef struct {
    PyObject_HEAD
    struct table *table;
    unsigned reader; /* the thread that holds the GIL */
} TableObject;

typedef struct {
    PyObject_HEAD
    struct limiter *limiter;
} BucketsObject;

typedef struct {
    PyObject_HEAD
    PyObject *table; /* kept alive: its readers are ours */
    struct zones *zones;
} ZonesObject;

typedef struct {
    PyObject_HEAD
    TableObject *table;
    uint8_t scope;
    struct sampling sampling;
    uint8_t *answers;
    unsigned long long hits[PLACES];
} RepeatsObject;

/* Arguments: false with an exception. The buffers are released. */
bool read_seed(Py_buffer *given, struct seed *seed);
/* 16 octets, the least significant first in each word. */
bool read_key(Py_buffer *given, struct seed *key);
/* The network (octets, bits) of a sequence. */
bool read_network(PyObject *given, Py_ssize_t i, struct network *network);
bool is_client(Py_ssize_t size); /* octets of an address */

PyObject *alloc_of(PyTypeObject *type);
void dealloc_of(PyObject *self);
PyObject *octets_object(const uint8_t *octets, size_t size);

/* Octets of answers that `take` gives at most: it stops behind ANSWERS_MIN, with a whole one. */
#define ANSWERS_MIN (64 << 10)

/* A query that was answered. */
struct taken {
    const uint8_t *packet;
    size_t size;
    uint8_t client_class;
};

/* What a query log wants to hear: (client, message without its ID, class, weight). */
bool tell_of(
    RepeatsObject *self, PyObject *list, const uint8_t *client, Py_ssize_t client_size,
    const struct taken *taken);

#endif
