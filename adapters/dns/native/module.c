/* The core for Python (`kudurru.adapters.dns._engine`, see _engine.pyi), in the stable ABI: one
 * build serves every later CPython.
 *
 * The GIL is held throughout, but where a thread is waited for: no call here takes long. */
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "core.h"
#include "zone.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static bool read_seed(Py_buffer *given, struct seed *seed) {
    bool is_right = given->len == sizeof *seed;
    if (is_right)
        memcpy(seed, given->buf, sizeof *seed);
    else
        PyErr_SetString(PyExc_ValueError, "a seed has 16 octets");
    PyBuffer_Release(given);
    return is_right;
}

/* 16 octets, the least significant first in each word. */
static bool read_key(Py_buffer *given, struct seed *key) {
    uint8_t octets[16] = {0};
    bool is_right = given->len == sizeof octets;
    if (is_right)
        memcpy(octets, given->buf, sizeof octets);
    else
        PyErr_SetString(PyExc_ValueError, "a key has 16 octets");
    PyBuffer_Release(given);
    *key = (struct seed){0};
    for (int i = 0; i < 16; i++)
        key->words[i / 8] |= (uint64_t)octets[i] << 8 * (i % 8);
    return is_right;
}

static void dealloc_of(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_object(self);
    Py_DECREF(type);
}

static PyObject *alloc_of(PyTypeObject *type) {
    allocfunc alloc_object = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return alloc_object(type, 0);
}

/* --- Table ----------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    struct table *table;
    unsigned reader; /* the thread that holds the GIL */
} TableObject;

static PyObject *table_make(PyTypeObject *type, PyObject *args, PyObject *named) {
    Py_ssize_t entries_max, bytes_max;
    Py_buffer given;
    struct seed seed;
    static char *names[] = {"entries_max", "bytes_max", "seed", NULL};
    if (!PyArg_ParseTupleAndKeywords(
            args, named, "nny*", names, &entries_max, &bytes_max, &given))
        return NULL;
    if (!read_seed(&given, &seed))
        return NULL;
    if (entries_max < 1 || entries_max > INT32_MAX || bytes_max < 1) {
        PyErr_SetString(PyExc_ValueError, "a table holds at least one answer");
        return NULL;
    }
    TableObject *self = (TableObject *)alloc_of(type);
    if (!self)
        return NULL;
    self->table = table_new((size_t)entries_max, (size_t)bytes_max, &seed);
    if (!self->table) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->reader = table_register(self->table);
    return (PyObject *)self;
}

static void table_dealloc(PyObject *self) {
    table_free(((TableObject *)self)->table);
    dealloc_of(self);
}

/* The answer without its ID, its question in lower case, as the table has it; false where the
 * question is not the one that was asked. */
static bool stored_form(
    const Py_buffer *packet, const Py_buffer *wire, size_t end, uint8_t *octets) {
    if ((size_t)wire->len < end ||
        memcmp((uint8_t *)wire->buf + HEADER_SIZE, (uint8_t *)packet->buf + HEADER_SIZE,
               end - HEADER_SIZE) != 0)
        return false;
    memcpy(octets, (uint8_t *)wire->buf + 2, (size_t)wire->len - 2);
    for (size_t at = HEADER_SIZE - 2; at < end - 2; at++)
        if (octets[at] >= 'A' && octets[at] <= 'Z')
            octets[at] |= 0x20;
    return true;
}

#define TTLS_MAX 512

/* Offsets in a message become places in a wire without its ID. */
static bool read_ttls(PyObject *given, size_t wire_size, uint16_t *ttls_at, size_t *count) {
    Py_ssize_t number = PySequence_Size(given);
    if (number < 0)
        return false;
    if (number > TTLS_MAX) {
        PyErr_SetString(PyExc_ValueError, "that are more TTLs than a message has");
        return false;
    }
    for (Py_ssize_t i = 0; i < number; i++) {
        PyObject *one = PySequence_GetItem(given, i);
        long at = one ? PyLong_AsLong(one) : -1;
        Py_XDECREF(one);
        if (PyErr_Occurred())
            return false;
        if (at < HEADER_SIZE || (size_t)at + 4 > wire_size) {
            PyErr_SetString(PyExc_ValueError, "a TTL that is not in the message");
            return false;
        }
        ttls_at[i] = (uint16_t)(at - 2);
    }
    *count = (size_t)number;
    return true;
}

static bool keep(
    TableObject *self, unsigned char scope, unsigned long long generation, const Py_buffer *packet,
    const Py_buffer *wire, unsigned char client_class, struct answer *answer) {
    uint8_t key[KEY_MAX];
    if (packet->len < HEADER_SIZE || wire->len < HEADER_SIZE || wire->len > STREAM_MESSAGE_MAX ||
        answer->place >= PLACES)
        return false;
    size_t cookie_at, size = message_key(scope, packet->buf, (size_t)packet->len, key, &cookie_at);
    if (!size || (answer->cookie_at && !cookie_at))
        return false;
    key_for_class(key, client_class);
    uint8_t *octets = malloc((size_t)wire->len);
    bool is_kept = false;
    if (octets && stored_form(packet, wire, name_end(packet->buf, (size_t)packet->len), octets)) {
        answer->wire = octets;
        answer->wire_size = (size_t)wire->len - 2;
        is_kept = table_store(self->table, generation, key, size, answer);
    }
    free(octets);
    return is_kept;
}

static PyObject *table_py_store(PyObject *object, PyObject *args, PyObject *named) {
    unsigned char scope;
    unsigned long long generation;
    Py_buffer packet, wire;
    unsigned short place;
    int is_restricted = 0;
    long long until_us = 0, stored_us = 0;
    unsigned int aged_s = 0;
    unsigned short cookie_at = 0;
    unsigned char client_class = 0;
    const char *slots;
    Py_ssize_t slot_count;
    PyObject *ttls = NULL;
    static char *names[] = {"",          "",       "",        "",          "",  "",
                            "is_restricted", "until_us", "stored_us", "aged_s", "ttls_at",
                            "cookie_at", "client_class", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, named, "bKy*y*Hy#|pLLIOHb", names, &scope, &generation,
                                     &packet, &wire, &place, &slots, &slot_count, &is_restricted,
                                     &until_us, &stored_us, &aged_s, &ttls, &cookie_at,
                                     &client_class))
        return NULL;
    uint16_t ttls_at[TTLS_MAX];
    struct answer answer = {.place = place, .is_restricted = is_restricted, .until_us = until_us,
                            .stored_us = stored_us, .aged_s = aged_s, .ttls_at = ttls_at};
    bool is_read = !ttls || read_ttls(ttls, (size_t)wire.len, ttls_at, &answer.ttl_count);
    if (is_read && cookie_at) {
        is_read = cookie_at >= HEADER_SIZE && cookie_at + COOKIE_SIZE <= wire.len;
        if (!is_read)
            PyErr_SetString(PyExc_ValueError, "a cookie that is not in the message");
        answer.cookie_at = (uint16_t)(cookie_at - 2);
    }
    if (is_read && client_class > CLASSES_MAX) {
        PyErr_SetString(PyExc_ValueError, "there are not so many classes");
        is_read = false;
    }
    if (is_read && slot_count > ANSWER_SLOTS_MAX) {
        PyErr_SetString(PyExc_ValueError, "an answer has not so many slots");
        is_read = false;
    }
    if (is_read) {
        memcpy(answer.slots, slots, (size_t)slot_count);
        answer.slot_count = (uint8_t)slot_count;
    }
    bool is_kept = is_read && keep((TableObject *)object, scope, generation, &packet, &wire,
                                   client_class, &answer);
    PyBuffer_Release(&packet);
    PyBuffer_Release(&wire);
    return is_read ? PyBool_FromLong(is_kept) : NULL;
}

/* A network of (octets, bits); false with an exception. */
static bool read_network(PyObject *given, Py_ssize_t i, struct network *network) {
    PyObject *one = PySequence_GetItem(given, i);
    char *octets;
    Py_ssize_t size, bits;
    bool is_read = one && PyArg_ParseTuple(one, "y#n", &octets, &size, &bits);
    if (is_read && ((size != 4 && size != 16) || bits < 0 || bits > size * 8)) {
        PyErr_SetString(PyExc_ValueError, "a network that no address is in");
        is_read = false;
    }
    if (is_read) {
        *network = (struct network){.bits = (uint8_t)bits, .is_ipv6 = size == 16};
        memcpy(network->octets, octets, (size_t)size);
    }
    Py_XDECREF(one);
    return is_read;
}

static PyObject *table_py_admit(PyObject *self, PyObject *args) {
    PyObject *given;
    int is_everybody;
    if (!PyArg_ParseTuple(args, "Op", &given, &is_everybody))
        return NULL;
    Py_ssize_t number = PySequence_Size(given);
    if (number < 0)
        return NULL;
    struct network *networks = calloc((size_t)number + 1, sizeof *networks);
    if (!networks)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < number; i++)
        if (!read_network(given, i, &networks[i])) {
            free(networks);
            return NULL;
        }
    table_admit(((TableObject *)self)->table, networks, (size_t)number, is_everybody);
    Py_RETURN_NONE;
}

static PyObject *table_py_sample(PyObject *self, PyObject *args) {
    unsigned one_in;
    if (!PyArg_ParseTuple(args, "I", &one_in))
        return NULL;
    if (!one_in) {
        PyErr_SetString(PyExc_ValueError, "one in 0 is none");
        return NULL;
    }
    table_set_sample(((TableObject *)self)->table, one_in);
    Py_RETURN_NONE;
}

static PyObject *table_py_learn_class(PyObject *self, PyObject *args) {
    unsigned char scope, client_class;
    unsigned long long generation;
    char *client;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "bKy#b", &scope, &generation, &client, &size, &client_class))
        return NULL;
    if ((size != 4 && size != 16) || !client_class || client_class > CLASSES_MAX) {
        PyErr_SetString(PyExc_ValueError, "no address has that size, or no class that number");
        return NULL;
    }
    table_learn_class(((TableObject *)self)->table, generation, scope, (uint8_t *)client,
                      (size_t)size, client_class);
    Py_RETURN_NONE;
}

static PyObject *table_py_set_cookie_keys(PyObject *self, PyObject *args) {
    long long day;
    Py_buffer given[COOKIE_DAYS];
    struct cookie_keys keys;
    if (!PyArg_ParseTuple(args, "Ly*y*y*", &day, &given[0], &given[1], &given[2]))
        return NULL;
    keys.day = day;
    bool is_read = true;
    for (int i = 0; i < COOKIE_DAYS; i++) /* each is released */
        is_read = read_key(&given[i], &keys.keys[i]) && is_read;
    if (!is_read)
        return NULL;
    table_set_cookie_keys(((TableObject *)self)->table, &keys);
    Py_RETURN_NONE;
}

static PyObject *table_py_cookie(PyObject *self, PyObject *args) {
    char *option, *client;
    Py_ssize_t size, client_size;
    long long now_s;
    struct cookie_keys keys;
    uint8_t cookie[COOKIE_SIZE];
    if (!PyArg_ParseTuple(args, "y#y#L", &option, &size, &client, &client_size, &now_s))
        return NULL;
    if ((size != 8 && (size < 16 || size > COOKIE_MAX)) ||
        (client_size != 4 && client_size != 16)) {
        PyErr_SetString(PyExc_ValueError, "no cookie, or no address, has that size");
        return NULL;
    }
    if (table_cookie_keys(((TableObject *)self)->table, &keys) &&
        cookie_answer(&keys, (uint8_t *)option, (size_t)size, (uint8_t *)client,
                      (size_t)client_size, now_s, cookie))
        return PyBytes_FromStringAndSize((char *)cookie, sizeof cookie);
    Py_RETURN_NONE;
}

static PyObject *table_py_generation(PyObject *self, PyObject *Py_UNUSED(args)) {
    return PyLong_FromUnsignedLongLong(table_generation(((TableObject *)self)->table));
}

static PyObject *table_py_since(PyObject *self, PyObject *args) {
    unsigned char slot;
    if (!PyArg_ParseTuple(args, "b", &slot))
        return NULL;
    return PyLong_FromUnsignedLongLong(table_since(((TableObject *)self)->table, slot));
}

static PyObject *table_py_invalidate(PyObject *self, PyObject *args) {
    const char *slots;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(args, "y#", &slots, &count))
        return NULL;
    table_invalidate(((TableObject *)self)->table, (const uint8_t *)slots, (size_t)count);
    Py_RETURN_NONE;
}

static PyObject *table_py_statistics(PyObject *self, PyObject *Py_UNUSED(args)) {
    struct table_statistics seen = table_statistics(((TableObject *)self)->table);
    return Py_BuildValue("KKK", (unsigned long long)seen.entries, (unsigned long long)seen.bytes,
                         (unsigned long long)seen.in_limbo);
}

static PyMethodDef table_methods[] = {
    {"store", (PyCFunction)(void (*)(void))table_py_store, METH_VARARGS | METH_KEYWORDS, NULL},
    {"admit", table_py_admit, METH_VARARGS, NULL},
    {"sample", table_py_sample, METH_VARARGS, NULL},
    {"learn_class", table_py_learn_class, METH_VARARGS, NULL},
    {"set_cookie_keys", table_py_set_cookie_keys, METH_VARARGS, NULL},
    {"cookie", table_py_cookie, METH_VARARGS, NULL},
    {"generation", table_py_generation, METH_NOARGS, NULL},
    {"since", table_py_since, METH_VARARGS, NULL},
    {"invalidate", table_py_invalidate, METH_VARARGS, NULL},
    {"statistics", table_py_statistics, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot table_slots[] = {
    {Py_tp_new, table_make},
    {Py_tp_dealloc, table_dealloc},
    {Py_tp_methods, table_methods},
    {0, NULL},
};

static PyType_Spec table_spec = {
    .name = "kudurru.adapters.dns._engine.Table",
    .basicsize = sizeof(TableObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = table_slots,
};

/* --- Buckets --------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    struct limiter *limiter;
} BucketsObject;

static PyObject *buckets_make(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(named)) {
    Py_buffer given;
    struct seed seed;
    if (!PyArg_ParseTuple(args, "y*", &given) || !read_seed(&given, &seed))
        return NULL;
    BucketsObject *self = (BucketsObject *)alloc_of(type);
    if (!self)
        return NULL;
    self->limiter = limiter_new(&seed);
    if (!self->limiter) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void buckets_dealloc(PyObject *self) {
    limiter_free(((BucketsObject *)self)->limiter);
    dealloc_of(self);
}

static struct family_rules *rules_of(struct family_rules *rules, Py_ssize_t size) {
    if (size == 4 || size == 16)
        return &rules[size == 16];
    PyErr_SetString(PyExc_ValueError, "an address has 4 or 16 octets");
    return NULL;
}

/* Adds levels: (octets of an address, bits, limit), smallest networks first. */
static bool read_levels(PyObject *levels, struct family_rules *rules) {
    Py_ssize_t number = PySequence_Size(levels);
    for (Py_ssize_t i = 0; i < number; i++) {
        PyObject *one = PySequence_GetItem(levels, i);
        Py_ssize_t size, bits;
        unsigned long long limit;
        bool is_read = one && PyArg_ParseTuple(one, "nnK", &size, &bits, &limit);
        Py_XDECREF(one);
        struct family_rules *family = is_read ? rules_of(rules, size) : NULL;
        if (!family)
            return false;
        if (bits < 0 || bits > size * 8 || family->level_count == LEVELS_MAX || limit < 1 ||
            limit > INT64_MAX) {
            PyErr_SetString(PyExc_ValueError, "a level that no address has, or without a limit");
            return false;
        }
        family->levels[family->level_count++] =
            (struct level){.bits = (uint8_t)bits, .limit = limit};
    }
    return number >= 0;
}

/* Adds exempt networks: (octets of the network, bits). */
static bool read_exempt(PyObject *exempt, struct family_rules *rules) {
    Py_ssize_t number = PySequence_Size(exempt);
    for (Py_ssize_t i = 0; i < number; i++) {
        struct network network;
        if (!read_network(exempt, i, &network))
            return false;
        struct family_rules *family = &rules[network.is_ipv6];
        struct network *more =
            realloc(family->exempt, (family->exempt_count + 1) * sizeof *more);
        if (!more) {
            PyErr_NoMemory();
            return false;
        }
        family->exempt = more;
        more[family->exempt_count++] = network;
    }
    return number >= 0;
}

static PyObject *buckets_configure(PyObject *object, PyObject *args, PyObject *named) {
    int is_enabled, slip;
    Py_ssize_t buckets_max;
    PyObject *levels, *exempt;
    static char *names[] = {"is_enabled", "slip", "buckets_max", "levels", "exempt", NULL};
    if (!PyArg_ParseTupleAndKeywords(
            args, named, "pinOO", names, &is_enabled, &slip, &buckets_max, &levels, &exempt))
        return NULL;
    if (slip < 0 || slip > 100 || buckets_max < 1) {
        PyErr_SetString(PyExc_ValueError, "slip is a percentage, and there is a bucket at least");
        return NULL;
    }
    struct family_rules *rules = calloc(2, sizeof *rules);
    if (!rules)
        return PyErr_NoMemory();
    bool is_read = read_levels(levels, rules) && read_exempt(exempt, rules);
    if (is_read)
        limiter_configure(((BucketsObject *)object)->limiter, is_enabled, (unsigned)slip,
                          (size_t)buckets_max, &rules[0], &rules[1]);
    else
        free(rules[0].exempt), free(rules[1].exempt);
    free(rules);
    if (!is_read)
        return NULL;
    Py_RETURN_NONE;
}

static bool is_client(Py_ssize_t size) {
    if (size == 4 || size == 16)
        return true;
    PyErr_SetString(PyExc_ValueError, "an address has 4 or 16 octets");
    return false;
}

static PyObject *buckets_take(PyObject *self, PyObject *args) {
    char *client;
    Py_ssize_t size;
    unsigned long long count;
    long long now_us;
    if (!PyArg_ParseTuple(args, "y#KL", &client, &size, &count, &now_us) || !is_client(size))
        return NULL;
    return PyLong_FromUnsignedLongLong(limiter_take(
        ((BucketsObject *)self)->limiter, (uint8_t *)client, (size_t)size, count, now_us));
}

static PyObject *buckets_slips(PyObject *self, PyObject *args) {
    char *client;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "y#", &client, &size) || !is_client(size))
        return NULL;
    return PyBool_FromLong(
        limiter_slips(((BucketsObject *)self)->limiter, (uint8_t *)client, (size_t)size));
}

static PyObject *buckets_counts(PyObject *self, PyObject *Py_UNUSED(args)) {
    struct limiter_statistics seen = limiter_statistics(((BucketsObject *)self)->limiter);
    return Py_BuildValue("KKK", (unsigned long long)seen.slipped,
                         (unsigned long long)seen.dropped, (unsigned long long)seen.buckets);
}

static PyMethodDef buckets_methods[] = {
    {"configure", (PyCFunction)(void (*)(void))buckets_configure, METH_VARARGS | METH_KEYWORDS,
     NULL},
    {"take", buckets_take, METH_VARARGS, NULL},
    {"slips", buckets_slips, METH_VARARGS, NULL},
    {"counts", buckets_counts, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot buckets_slots[] = {
    {Py_tp_new, buckets_make},
    {Py_tp_dealloc, buckets_dealloc},
    {Py_tp_methods, buckets_methods},
    {0, NULL},
};

static PyType_Spec buckets_spec = {
    .name = "kudurru.adapters.dns._engine.Buckets",
    .basicsize = sizeof(BucketsObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = buckets_slots,
};

/* --- Zones ----------------------------------------------------------------------------------- */

typedef struct {
    PyTypeObject *table, *buckets, *zones, *repeats;
} State;

typedef struct {
    PyObject_HEAD
    PyObject *table; /* kept alive: its readers are ours */
    struct zones *zones;
} ZonesObject;

static PyObject *zones_make(PyTypeObject *type, PyObject *args, PyObject *named) {
    PyObject *table;
    Py_ssize_t bytes_max;
    Py_buffer given;
    struct seed seed;
    static char *names[] = {"table", "bytes_max", "seed", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, named, "Ony*", names, &table, &bytes_max, &given) ||
        !read_seed(&given, &seed))
        return NULL;
    State *state = PyType_GetModuleState(type);
    if (!state)
        return NULL;
    if (!PyObject_TypeCheck(table, state->table) || bytes_max < 0) {
        PyErr_SetString(PyExc_TypeError, "a Table, and how many octets the zones may have");
        return NULL;
    }
    ZonesObject *self = (ZonesObject *)alloc_of(type);
    if (!self)
        return NULL;
    Py_INCREF(table);
    self->table = table;
    self->zones = zones_new((size_t)bytes_max, &seed, ((TableObject *)table)->table);
    if (!self->zones) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void zones_dealloc(PyObject *self) {
    zones_free(((ZonesObject *)self)->zones);
    Py_XDECREF(((ZonesObject *)self)->table);
    dealloc_of(self);
}

static PyObject *zones_py_close(PyObject *self, PyObject *Py_UNUSED(args)) {
    zones_close(((ZonesObject *)self)->zones);
    Py_RETURN_NONE;
}

static PyObject *zones_py_open(PyObject *self, PyObject *Py_UNUSED(args)) {
    zones_open(((ZonesObject *)self)->zones);
    Py_RETURN_NONE;
}

/* False where there is no room. */
static PyObject *became(enum zone_fault fault) {
    if (fault != ZONE_REFUSED)
        return PyBool_FromLong(fault == ZONE_WELL);
    PyErr_SetString(PyExc_ValueError, "a name, a zone or an image that makes no sense here, or at this time");
    return NULL;
}

static PyObject *zones_py_add(PyObject *self, PyObject *args) {
    char *apex;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "y#", &apex, &size))
        return NULL;
    enum zone_fault fault =
        zones_add(((ZonesObject *)self)->zones, (uint8_t *)apex, (size_t)size);
    if (fault == ZONE_FULL)
        return PyErr_NoMemory();
    return became(fault);
}

static PyObject *zones_py_drop(PyObject *self, PyObject *args) {
    char *apex;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "y#", &apex, &size))
        return NULL;
    return became(zones_drop(((ZonesObject *)self)->zones, (uint8_t *)apex, (size_t)size));
}

static bool read_places(PyObject *given, uint16_t *places, size_t *count) {
    Py_ssize_t number = PySequence_Size(given);
    if (number > POINTERS_MAX)
        PyErr_SetString(PyExc_ValueError, "those are more pointers than a SOA record has");
    for (Py_ssize_t i = 0; i < number && !PyErr_Occurred(); i++) {
        PyObject *one = PySequence_GetItem(given, i);
        unsigned long at = one ? PyLong_AsUnsignedLong(one) : 0;
        Py_XDECREF(one);
        places[i] = at < UINT16_MAX ? (uint16_t)at : UINT16_MAX;
    }
    *count = number > 0 ? (size_t)number : 0;
    return !PyErr_Occurred();
}

static PyObject *zones_py_speak(PyObject *self, PyObject *args) {
    char *apex, *soa;
    Py_ssize_t apex_size, soa_size;
    PyObject *given;
    uint16_t places[POINTERS_MAX];
    size_t count;
    if (!PyArg_ParseTuple(args, "y#y#O", &apex, &apex_size, &soa, &soa_size, &given) ||
        !read_places(given, places, &count))
        return NULL;
    return became(zones_speak(((ZonesObject *)self)->zones, (uint8_t *)apex, (size_t)apex_size,
                              (uint8_t *)soa, (size_t)soa_size, places, count));
}

static PyObject *zones_py_put(PyObject *self, PyObject *args) {
    char *name, *image;
    Py_ssize_t name_size, apex_size, image_size;
    int is_unusual;
    if (!PyArg_ParseTuple(
            args, "y#ny#p", &name, &name_size, &apex_size, &image, &image_size, &is_unusual))
        return NULL;
    return became(zones_put(((ZonesObject *)self)->zones, (uint8_t *)name, (size_t)name_size,
                            (size_t)apex_size, (uint8_t *)image, (size_t)image_size, is_unusual));
}

static PyObject *zones_py_remove(PyObject *self, PyObject *args) {
    char *name;
    Py_ssize_t name_size, apex_size;
    if (!PyArg_ParseTuple(args, "y#n", &name, &name_size, &apex_size))
        return NULL;
    return became(zones_remove(((ZonesObject *)self)->zones, (uint8_t *)name, (size_t)name_size,
                               (size_t)apex_size));
}

static PyObject *zones_py_sweep(PyObject *self, PyObject *args) {
    Py_ssize_t limit;
    if (!PyArg_ParseTuple(args, "n", &limit))
        return NULL;
    return PyBool_FromLong(
        zones_sweep(((ZonesObject *)self)->zones, limit > 0 ? (size_t)limit : 0));
}

/* The answer to a message, a copy of it with room behind; NULL without an exception where it is
 * left to Python. */
static PyObject *found_in(ZonesObject *self, const uint8_t *packet, size_t size) {
    uint8_t key[KEY_MAX], answer[MESSAGE_MAX];
    struct question question;
    struct path path;
    struct found found;
    size_t end = size < HEADER_SIZE ? 0 : name_end(packet, size);
    uint64_t version = zones_version(self->zones);
    size_t cookie_at;
    if (!version || !end || !message_key(0, packet, size, key, &cookie_at) ||
        !read_question(packet, size, end, &question) || is_health_query(packet, size) ||
        !zones_locate(self->zones, key + HEADER_SIZE, &path) ||
        !zones_find(self->zones, version, &path, question.rtype, &found) ||
        !fits(&found, &question))
        return NULL;
    memcpy(answer, packet, size);
    size_t answer_size = write_answer(&found, &question, answer);
    return PyBytes_FromStringAndSize((char *)answer, (Py_ssize_t)answer_size);
}

static PyObject *zones_py_find(PyObject *object, PyObject *args) {
    ZonesObject *self = (ZonesObject *)object;
    TableObject *table = (TableObject *)self->table;
    char *packet;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "y#", &packet, &size))
        return NULL;
    table_enter(table->table, table->reader);
    PyObject *answer = found_in(self, (uint8_t *)packet, (size_t)size);
    table_leave(table->table, table->reader);
    if (answer || PyErr_Occurred())
        return answer;
    Py_RETURN_NONE;
}

static PyObject *zones_py_statistics(PyObject *self, PyObject *Py_UNUSED(args)) {
    struct zones_statistics seen = zones_statistics(((ZonesObject *)self)->zones);
    return Py_BuildValue("KKK", (unsigned long long)seen.zones, (unsigned long long)seen.names,
                         (unsigned long long)seen.bytes);
}

static PyMethodDef zones_methods[] = {
    {"close", zones_py_close, METH_NOARGS, NULL},
    {"open", zones_py_open, METH_NOARGS, NULL},
    {"add", zones_py_add, METH_VARARGS, NULL},
    {"drop", zones_py_drop, METH_VARARGS, NULL},
    {"speak", zones_py_speak, METH_VARARGS, NULL},
    {"put", zones_py_put, METH_VARARGS, NULL},
    {"remove", zones_py_remove, METH_VARARGS, NULL},
    {"sweep", zones_py_sweep, METH_VARARGS, NULL},
    {"find", zones_py_find, METH_VARARGS, NULL},
    {"statistics", zones_py_statistics, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot zones_slots[] = {
    {Py_tp_new, zones_make},
    {Py_tp_dealloc, zones_dealloc},
    {Py_tp_methods, zones_methods},
    {0, NULL},
};

static PyType_Spec zones_spec = {
    .name = "kudurru.adapters.dns._engine.Zones",
    .basicsize = sizeof(ZonesObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = zones_slots,
};

/* --- Workers --------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *table, *buckets, *zones; /* kept alive: the threads use them */
    struct worker **workers;
    Py_ssize_t count;
    int wake_fd;
} WorkersObject;

static bool add_worker(
    WorkersObject *self, PyObject *sock, struct worker_options options, struct limiter *limiter) {
    int is_ipv6, has_info;
    if (!PyArg_ParseTuple(sock, "ipp", &options.fd, &is_ipv6, &has_info))
        return false;
    options.is_ipv6 = is_ipv6, options.has_packet_info = has_info;
    struct table *table = ((TableObject *)self->table)->table;
    struct worker *worker = worker_new(&options, table, limiter, self->wake_fd);
    if (!worker) {
        PyErr_SetFromErrno(PyExc_OSError);
        return false;
    }
    self->workers[self->count++] = worker;
    return true;
}

static bool add_workers(
    WorkersObject *self, PyObject *sockets, struct worker_options options,
    struct limiter *limiter) {
    Py_ssize_t number = PySequence_Size(sockets);
    if (number < 0)
        return false;
    self->workers = calloc((size_t)number + 1, sizeof *self->workers);
    if (!self->workers) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < number; i++) {
        PyObject *sock = PySequence_GetItem(sockets, i);
        bool is_added = sock && add_worker(self, sock, options, limiter);
        Py_XDECREF(sock);
        if (!is_added)
            return false;
    }
    return true;
}

static bool is_queue_size(Py_ssize_t size) {
    return size >= 2 * MESSAGE_MAX && !(size & (size - 1));
}

static PyObject *workers_make(PyTypeObject *type, PyObject *args, PyObject *named) {
    PyObject *table, *buckets, *zones, *sockets;
    int hears_repeats, joins_answers = 1;
    unsigned char scope;
    Py_ssize_t misses_size, urgent_size, repeats_size;
    static char *names[] = {"table",         "buckets",     "zones",       "sockets",
                            "scope",         "hears_repeats", "misses_size", "urgent_size",
                            "repeats_size",  "joins_answers", NULL};
    if (!PyArg_ParseTupleAndKeywords(
            args, named, "OOOObpnnn|p", names, &table, &buckets, &zones, &sockets, &scope,
            &hears_repeats, &misses_size, &urgent_size, &repeats_size, &joins_answers))
        return NULL;
    State *state = PyType_GetModuleState(type);
    if (!state)
        return NULL;
    if (!PyObject_TypeCheck(table, state->table) ||
        (buckets != Py_None && !PyObject_TypeCheck(buckets, state->buckets)) ||
        (zones != Py_None && (!PyObject_TypeCheck(zones, state->zones) ||
                              ((ZonesObject *)zones)->table != table))) {
        PyErr_SetString(PyExc_TypeError, "a Table, Buckets or None, and Zones of it or None");
        return NULL;
    }
    if (!is_queue_size(misses_size) || !is_queue_size(urgent_size) ||
        !is_queue_size(repeats_size)) {
        PyErr_SetString(PyExc_ValueError, "queues have a power of two of octets, 8192 at least");
        return NULL;
    }
    WorkersObject *self = (WorkersObject *)alloc_of(type);
    if (!self)
        return NULL;
    Py_INCREF(table);
    self->table = table;
    Py_INCREF(buckets);
    self->buckets = buckets;
    Py_INCREF(zones);
    self->zones = zones;
    self->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    struct limiter *limiter = buckets == Py_None ? NULL : ((BucketsObject *)buckets)->limiter;
    struct worker_options options = {
        .zones = zones == Py_None ? NULL : ((ZonesObject *)zones)->zones,
        .scope = scope,
        .hears_repeats = hears_repeats,
        .joins_answers = joins_answers,
        .misses_size = (size_t)misses_size,
        .urgent_size = (size_t)urgent_size,
        .repeats_size = (size_t)repeats_size,
    };
    if (self->wake_fd < 0)
        PyErr_SetFromErrno(PyExc_OSError);
    if (self->wake_fd < 0 || !add_workers(self, sockets, options, limiter)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void workers_dealloc(PyObject *object) {
    WorkersObject *self = (WorkersObject *)object;
    for (Py_ssize_t i = 0; i < self->count; i++)
        worker_free(self->workers[i]);
    free(self->workers);
    if (self->wake_fd >= 0 && self->table)
        close(self->wake_fd);
    Py_XDECREF(self->table);
    Py_XDECREF(self->buckets);
    Py_XDECREF(self->zones);
    dealloc_of(object);
}

static PyObject *workers_stop(PyObject *object, PyObject *Py_UNUSED(args)) {
    WorkersObject *self = (WorkersObject *)object;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < self->count; i++)
        worker_stop(self->workers[i]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *workers_start(PyObject *object, PyObject *none) {
    WorkersObject *self = (WorkersObject *)object;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        int fault = worker_start(self->workers[i]);
        if (!fault)
            continue;
        Py_XDECREF(workers_stop(object, none));
        errno = fault;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

static PyObject *workers_wake_fd(PyObject *self, PyObject *Py_UNUSED(args)) {
    return PyLong_FromLong(((WorkersObject *)self)->wake_fd);
}

static PyObject *octets_object(const uint8_t *octets, size_t size) {
    return PyBytes_FromStringAndSize((const char *)octets, (Py_ssize_t)size);
}

static PyObject *miss_object(
    WorkersObject *self, Py_ssize_t i, const uint8_t *record, size_t size) {
    struct miss head;
    memcpy(&head, record, sizeof head);
    size_t client_size;
    const uint8_t *client = origin_client(self->workers[i], head.origin, &client_size);
    PyObject *packet = octets_object(record + sizeof head, size - sizeof head);
    PyObject *origin = octets_object(head.origin, head.origin_size);
    PyObject *address = octets_object(client, client_size);
    if (packet && origin && address)
        return Py_BuildValue("nNNNi", i, origin, address, packet, head.is_slip);
    Py_XDECREF(packet), Py_XDECREF(origin), Py_XDECREF(address);
    return NULL;
}

/* Append at most `limit` queries of each worker: then the others have their turn. `list` is NULL
 * when there was no memory for it, and gone with an exception. */
static PyObject *take_misses(
    WorkersObject *self, Py_ssize_t limit, struct queue *(*queue_of)(struct worker *),
    PyObject *list) {
    uint8_t record[sizeof(struct miss) + MESSAGE_MAX + 1];
    for (Py_ssize_t i = 0; list && i < self->count; i++) {
        struct queue *queue = queue_of(self->workers[i]);
        size_t size;
        for (Py_ssize_t left = limit; list && left && (size = queue_next(queue)); left--) {
            queue_take(queue, record, size);
            PyObject *made = miss_object(self, i, record, size);
            if (!made || PyList_Append(list, made))
                Py_CLEAR(list);
            Py_XDECREF(made);
        }
    }
    return list;
}

static PyObject *workers_misses(PyObject *object, PyObject *args) {
    WorkersObject *self = (WorkersObject *)object;
    Py_ssize_t limit;
    if (!PyArg_ParseTuple(args, "n", &limit))
        return NULL;
    PyObject *list = take_misses(self, limit, worker_urgent, PyList_New(0));
    return take_misses(self, limit, worker_misses, list);
}

static PyObject *repeat_object(const struct repeat *head, const uint8_t *octets, size_t size) {
    PyObject *client = octets_object(head->client, head->client_size);
    PyObject *message = octets_object(octets, size);
    int third = head->rcode == REPEATED ? head->client_class : head->rcode;
    if (client && message)
        return Py_BuildValue("NNiI", client, message, third, (unsigned)head->weight);
    Py_XDECREF(client), Py_XDECREF(message);
    return NULL;
}

/* Take what a thread has answered, at most `limit`: repeats, and answers from the zones. False with
 * an exception. */
static bool take_repeats(
    struct queue *queue, Py_ssize_t limit, PyObject *repeats, PyObject *answers) {
    uint8_t record[sizeof(struct miss) + MESSAGE_MAX + 1];
    for (size_t size; limit-- > 0 && (size = queue_next(queue));) {
        queue_take(queue, record, size);
        struct repeat head;
        memcpy(&head, record, sizeof head);
        PyObject *made = repeat_object(&head, record + sizeof head, size - sizeof head);
        PyObject *list = head.rcode == REPEATED ? repeats : answers;
        bool is_added = made && !PyList_Append(list, made);
        Py_XDECREF(made);
        if (!is_added)
            return false;
    }
    return true;
}

static PyObject *workers_repeats(PyObject *object, PyObject *args) {
    WorkersObject *self = (WorkersObject *)object;
    Py_ssize_t limit;
    if (!PyArg_ParseTuple(args, "n", &limit))
        return NULL;
    PyObject *repeats = PyList_New(0), *answers = PyList_New(0);
    bool is_taken = repeats && answers;
    for (Py_ssize_t i = 0; is_taken && i < self->count; i++)
        if (worker_repeats(self->workers[i])->octets)
            is_taken = take_repeats(worker_repeats(self->workers[i]), limit, repeats, answers);
    if (is_taken)
        return Py_BuildValue("NN", repeats, answers);
    Py_XDECREF(repeats), Py_XDECREF(answers);
    return NULL;
}

static bool read_datagram(
    const struct worker *worker, PyObject *answers, Py_ssize_t i, struct datagram *datagram) {
    PyObject *pair = PySequence_GetItem(answers, i); /* the sequence keeps it and its parts */
    char *origin, *octets;
    Py_ssize_t origin_size, size;
    bool is_read = pair && PyArg_ParseTuple(
        pair, "y#y#", &origin, &origin_size, &octets, &size);
    Py_XDECREF(pair);
    if (!is_read)
        return false;
    if (!worker_is_origin(worker, (size_t)origin_size)) {
        PyErr_SetString(PyExc_ValueError, "that is no origin");
        return false;
    }
    *datagram = (struct datagram){.origin = (uint8_t *)origin, .octets = (uint8_t *)octets,
                                  .origin_size = (size_t)origin_size, .size = (size_t)size};
    return true;
}

static PyObject *workers_send(PyObject *object, PyObject *args) {
    WorkersObject *self = (WorkersObject *)object;
    Py_ssize_t i;
    PyObject *answers; /* a tuple: nobody changes it meanwhile */
    if (!PyArg_ParseTuple(args, "nO!", &i, &PyTuple_Type, &answers))
        return NULL;
    Py_ssize_t number = PyTuple_Size(answers);
    if (i < 0 || i >= self->count || number > BATCH) {
        PyErr_SetString(PyExc_ValueError, "no such worker, or too many answers");
        return NULL;
    }
    struct datagram datagrams[BATCH];
    for (Py_ssize_t j = 0; j < number; j++)
        if (!read_datagram(self->workers[i], answers, j, &datagrams[j]))
            return NULL;
    struct sent sent = worker_send(self->workers[i], datagrams, (unsigned)number);
    return Py_BuildValue("III", sent.sent, sent.refused, sent.full);
}

static PyObject *workers_settle(PyObject *object, PyObject *Py_UNUSED(args)) {
    WorkersObject *self = (WorkersObject *)object;
    bool is_settled = true;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < self->count; i++)
        is_settled &= worker_settle(self->workers[i]);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(is_settled);
}

/* Sums of the first `number` places. */
static PyObject *hits_list(const WorkersObject *self, Py_ssize_t number) {
    PyObject *list = PyList_New(0);
    for (Py_ssize_t place = 0; list && place < number; place++) {
        unsigned long long sum = 0;
        for (Py_ssize_t i = 0; i < self->count; i++)
            sum += worker_hits(self->workers[i], (unsigned)place);
        PyObject *one = PyLong_FromUnsignedLongLong(sum);
        if (!one || PyList_Append(list, one))
            Py_CLEAR(list);
        Py_XDECREF(one);
    }
    return list;
}

/* Appended where it is not 0. */
static bool add_hits(PyObject *list, unsigned rtype, unsigned rcode, unsigned long long sum) {
    PyObject *one = sum ? Py_BuildValue("IIK", rtype, rcode, sum) : NULL;
    bool is_added = !sum || (one && !PyList_Append(list, one));
    Py_XDECREF(one);
    return is_added;
}

static PyObject *zone_hits_list(const WorkersObject *self) {
    PyObject *list = PyList_New(0);
    for (unsigned rcode = 0; list && rcode < ZONE_RCODES; rcode++)
        for (unsigned rtype = 0; list && rtype < ZONE_TYPES; rtype++) {
            unsigned long long sum = 0;
            for (Py_ssize_t i = 0; i < self->count; i++)
                sum += worker_zone_hits(self->workers[i], rcode, rtype);
            if (!add_hits(list, rtype, rcode, sum))
                Py_CLEAR(list);
        }
    return list;
}

static PyObject *workers_counters(PyObject *object, PyObject *args) {
    WorkersObject *self = (WorkersObject *)object;
    Py_ssize_t number;
    if (!PyArg_ParseTuple(args, "n", &number))
        return NULL;
    if (number < 0 || number > PLACES) {
        PyErr_SetString(PyExc_ValueError, "there are not so many places");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < self->count; i++)
        worker_settle(self->workers[i]);
    Py_END_ALLOW_THREADS
    PyObject *hits = hits_list(self, number); /* first: a hit is counted after its answer */
    PyObject *zone_hits = hits ? zone_hits_list(self) : NULL;
    if (!zone_hits) {
        Py_XDECREF(hits);
        return NULL;
    }
    unsigned long long sums[COUNTERS] = {0};
    for (Py_ssize_t i = 0; i < self->count; i++)
        for (int which = 0; which < COUNTERS; which++)
            sums[which] += worker_counter(self->workers[i], (enum counter)which);
    return Py_BuildValue("KKKKKKKNN", sums[RECEIVED], sums[ANSWERED], sums[MALFORMED], sums[FULL],
                         sums[BUSY], sums[SEND_ERRORS], sums[UNSENT], hits, zone_hits);
}

static PyObject *workers_untold(PyObject *object, PyObject *Py_UNUSED(args)) {
    WorkersObject *self = (WorkersObject *)object;
    unsigned long long sum = 0;
    for (Py_ssize_t i = 0; i < self->count; i++)
        sum += worker_counter(self->workers[i], UNTOLD);
    return PyLong_FromUnsignedLongLong(sum);
}

static PyObject *recent_list(struct worker *worker) {
    PyObject *clients = PyList_New(0);
    for (unsigned i = 0; clients && i < RECENT; i++) {
        uint32_t client = worker_take_recent(worker, i);
        PyObject *number = client ? PyLong_FromUnsignedLong(client) : NULL;
        if (client && (!number || PyList_Append(clients, number)))
            Py_CLEAR(clients);
        Py_XDECREF(number);
    }
    return clients;
}

static PyObject *workers_take_recent(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    WorkersObject *self = (WorkersObject *)object;
    PyObject *found = PyList_New(0);
    for (Py_ssize_t i = 0; found && i < self->count; i++) {
        unsigned long long received = worker_counter(self->workers[i], RECEIVED);
        PyObject *clients = recent_list(self->workers[i]);
        PyObject *one = clients ? Py_BuildValue("KN", received, clients) : NULL;
        if (!one || PyList_Append(found, one))
            Py_CLEAR(found);
        Py_XDECREF(one);
    }
    return found;
}

static PyObject *workers_take_overflow(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    WorkersObject *self = (WorkersObject *)object;
    bool has_lost = false;
    for (Py_ssize_t i = 0; i < self->count; i++)
        has_lost |= worker_take_overflow(self->workers[i]);
    return PyBool_FromLong(has_lost);
}

static PyMethodDef workers_methods[] = {
    {"start", workers_start, METH_NOARGS, NULL},
    {"stop", workers_stop, METH_NOARGS, NULL},
    {"wake_fd", workers_wake_fd, METH_NOARGS, NULL},
    {"misses", workers_misses, METH_VARARGS, NULL},
    {"repeats", workers_repeats, METH_VARARGS, NULL},
    {"send", workers_send, METH_VARARGS, NULL},
    {"settle", workers_settle, METH_NOARGS, NULL},
    {"counters", workers_counters, METH_VARARGS, NULL},
    {"take_recent", workers_take_recent, METH_NOARGS, NULL},
    {"take_overflow", workers_take_overflow, METH_NOARGS, NULL},
    {"untold", workers_untold, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot workers_slots[] = {
    {Py_tp_new, workers_make},
    {Py_tp_dealloc, workers_dealloc},
    {Py_tp_methods, workers_methods},
    {0, NULL},
};

static PyType_Spec workers_spec = {
    .name = "kudurru.adapters.dns._engine.Workers",
    .basicsize = sizeof(WorkersObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = workers_slots,
};

/* --- Repeats --------------------------------------------------------------------------------- */

/* Octets of answers that `take` gives at most: it stops behind ANSWERS_MIN, with a whole one. */
#define ANSWERS_MIN (64 << 10)
#define TAKEN_MAX 256 /* queries at a time */
#define ANSWERS_MAX (ANSWERS_MIN + 2 + STREAM_MESSAGE_MAX)

typedef struct {
    PyObject_HEAD
    TableObject *table;
    uint8_t scope;
    struct sampling sampling;
    uint8_t *answers;
    unsigned long long hits[PLACES];
} RepeatsObject;

static PyObject *repeats_make(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(named)) {
    State *state = PyType_GetModuleState(type);
    PyObject *table;
    unsigned char scope;
    if (!PyArg_ParseTuple(args, "O!b", state->table, &table, &scope))
        return NULL;
    RepeatsObject *self = (RepeatsObject *)alloc_of(type);
    if (!self)
        return NULL;
    Py_INCREF(table);
    self->table = (TableObject *)table;
    self->scope = scope;
    self->sampling.state = table_hash(self->table->table, &scope, sizeof scope);
    self->answers = malloc(ANSWERS_MAX);
    if (!self->answers) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void repeats_dealloc(PyObject *object) {
    RepeatsObject *self = (RepeatsObject *)object;
    free(self->answers);
    Py_XDECREF((PyObject *)self->table);
    dealloc_of(object);
}

static PyObject *repeats_find(PyObject *object, PyObject *args) {
    RepeatsObject *self = (RepeatsObject *)object;
    struct table *table = self->table->table;
    const char *packet, *client;
    Py_ssize_t size, client_size, room;
    int is_named;
    if (!PyArg_ParseTuple(
            args, "y#y#pn", &packet, &size, &client, &client_size, &is_named, &room) ||
        !is_client(client_size))
        return NULL;
    if (room < 0 || room > STREAM_MESSAGE_MAX)
        room = room < 0 ? 0 : STREAM_MESSAGE_MAX;
    struct asker asker;
    struct repeated repeated;
    asker_init(&asker, table, self->scope, (const uint8_t *)client, (size_t)client_size, is_named);
    table_enter(table, self->table->reader);
    size_t found = repeat_message(
        &asker, (const uint8_t *)packet, (size_t)size, self->answers, (size_t)room, &repeated);
    table_leave(table, self->table->reader);
    if (!found)
        Py_RETURN_NONE;
    self->hits[repeated.place]++;
    return Py_BuildValue("y#i", self->answers, (Py_ssize_t)found, repeated.client_class);
}

/* A query that was answered. */
struct taken {
    const uint8_t *packet;
    size_t size;
    uint8_t client_class;
};

/* What a query log wants to hear: (client, message without its ID, class, weight). */
static bool tell_of(
    RepeatsObject *self, PyObject *list, const uint8_t *client, Py_ssize_t client_size,
    const struct taken *taken) {
    uint32_t weight = sampling_weigh(&self->sampling, table_sample(self->table->table));
    if (!weight)
        return true;
    PyObject *one = Py_BuildValue(
        "y#y#iI", client, client_size, taken->packet + 2, (Py_ssize_t)taken->size - 2,
        taken->client_class, (unsigned)weight);
    bool is_told = one && !PyList_Append(list, one);
    Py_XDECREF(one);
    return is_told;
}

static PyObject *told_of(
    RepeatsObject *self, const Py_buffer *client, const struct taken *taken, Py_ssize_t number) {
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list && i < number; i++)
        if (!tell_of(self, list, client->buf, client->len, &taken[i]))
            Py_CLEAR(list);
    return list;
}

/* Answer messages with two octets of length before each, from `*at` on. How many, and what they
 * were; the octets of the answers are `*written`. */
static Py_ssize_t take_known(
    RepeatsObject *self, struct asker *asker, const Py_buffer *arrived, Py_ssize_t *at,
    Py_ssize_t limit, struct taken *taken, size_t *written) {
    Py_ssize_t number = 0;
    table_enter(asker->table, self->table->reader);
    while (number < limit && *written < ANSWERS_MIN && arrived->len - *at >= 2) {
        const uint8_t *packet = (const uint8_t *)arrived->buf + *at + 2;
        size_t size = (size_t)packet[-2] << 8 | packet[-1];
        uint8_t *answer = self->answers + *written;
        struct repeated repeated;
        if ((size_t)(arrived->len - *at - 2) < size)
            break;
        size_t found =
            repeat_message(asker, packet, size, answer + 2, STREAM_MESSAGE_MAX, &repeated);
        if (!found)
            break;
        answer[0] = (uint8_t)(found >> 8), answer[1] = (uint8_t)found;
        taken[number++] = (struct taken){packet, size, repeated.client_class};
        self->hits[repeated.place]++;
        *written += found + 2;
        *at += (Py_ssize_t)size + 2;
    }
    table_leave(asker->table, self->table->reader);
    return number;
}

static PyObject *repeats_take(PyObject *object, PyObject *args) {
    RepeatsObject *self = (RepeatsObject *)object;
    Py_buffer arrived, client;
    Py_ssize_t at, limit;
    int is_named, is_told;
    if (!PyArg_ParseTuple(args, "y*ny*pnp", &arrived, &at, &client, &is_named, &limit, &is_told))
        return NULL;
    PyObject *found = NULL;
    if (at < 0)
        PyErr_SetString(PyExc_ValueError, "an offset below 0");
    else if (is_client(client.len)) {
        struct asker asker;
        struct taken taken[TAKEN_MAX];
        size_t written = 0;
        asker_init(&asker, self->table->table, self->scope, client.buf, (size_t)client.len,
                   is_named);
        Py_ssize_t number = take_known(self, &asker, &arrived, &at,
                                       limit < TAKEN_MAX ? limit : TAKEN_MAX, taken, &written);
        PyObject *answers = octets_object(self->answers, written);
        PyObject *told = answers ? told_of(self, &client, taken, is_told ? number : 0) : NULL;
        if (told)
            found = Py_BuildValue("nnNN", at, number, answers, told);
        else
            Py_XDECREF(answers);
    }
    PyBuffer_Release(&arrived);
    PyBuffer_Release(&client);
    return found;
}

static PyObject *repeats_hits(PyObject *object, PyObject *Py_UNUSED(args)) {
    RepeatsObject *self = (RepeatsObject *)object;
    PyObject *list = PyList_New(PLACES);
    for (Py_ssize_t i = 0; list && i < PLACES; i++) {
        PyObject *one = PyLong_FromUnsignedLongLong(self->hits[i]);
        if (!one || PyList_SetItem(list, i, one))
            Py_CLEAR(list);
    }
    return list;
}

static PyMethodDef repeats_methods[] = {
    {"find", repeats_find, METH_VARARGS, NULL},
    {"take", repeats_take, METH_VARARGS, NULL},
    {"hits", repeats_hits, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot repeats_slots[] = {
    {Py_tp_new, repeats_make},
    {Py_tp_dealloc, repeats_dealloc},
    {Py_tp_methods, repeats_methods},
    {0, NULL},
};

static PyType_Spec repeats_spec = {
    .name = "kudurru.adapters.dns._engine.Repeats",
    .basicsize = sizeof(RepeatsObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = repeats_slots,
};

/* --- Http2 ----------------------------------------------------------------------------------- */

#define FORMS_MAX 1024 /* that are known: a proxy has many clients; one more, and the oldest goes */
#define FORMS_MIN 8    /* that there is room for at first */
#define CHAINS 256     /* of forms, by their hashes */
#define STREAM_MAX 0x7fffffffu

/* What requests say but for their messages is their key. We keep 128 bits of it: with seeds that
 * nobody knows, nobody finds two keys that have the same. */
struct form {
    uint64_t hash[2];
    PyObject *name; /* what the client calls itself, NULL: nothing */
    uint16_t next;  /* of its chain: its place and one, 0: none */
    uint8_t client[16];
    uint8_t client_size;
    bool is_get;
};

typedef struct {
    PyObject_HEAD
    RepeatsObject *repeats;
    struct hpack tables[2]; /* one of them is the client's now */
    unsigned current;
    struct seed seeds[2];
    struct form *forms; /* with room for a power of two */
    unsigned form_count, oldest;
    uint16_t chains[CHAINS]; /* as `next` */
} Http2Object;

static PyObject *http2_make(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(named)) {
    State *state = PyType_GetModuleState(type);
    PyObject *repeats;
    const char *seeds;
    Py_ssize_t seeds_size;
    if (!PyArg_ParseTuple(args, "O!y#", state->repeats, &repeats, &seeds, &seeds_size))
        return NULL;
    if (seeds_size != sizeof((Http2Object *)NULL)->seeds) {
        PyErr_SetString(PyExc_ValueError, "two seeds have 32 octets");
        return NULL;
    }
    Http2Object *self = (Http2Object *)alloc_of(type);
    if (!self)
        return NULL;
    memcpy(self->seeds, seeds, sizeof self->seeds);
    Py_INCREF(repeats);
    self->repeats = (RepeatsObject *)repeats;
    self->tables[0].size_max = HPACK_SIZE;
    return (PyObject *)self;
}

static void http2_dealloc(PyObject *object) {
    Http2Object *self = (Http2Object *)object;
    while (self->form_count)
        Py_XDECREF(self->forms[--self->form_count].name);
    PyMem_Free(self->forms);
    Py_XDECREF((PyObject *)self->repeats);
    dealloc_of(object);
}

static PyObject *http2_set_table(PyObject *object, PyObject *args) {
    Http2Object *self = (Http2Object *)object;
    struct hpack *table = &self->tables[self->current];
    Py_ssize_t size_max;
    PyObject *entries;
    if (!PyArg_ParseTuple(args, "nO", &size_max, &entries))
        return NULL;
    if (size_max < 0 || size_max > HPACK_SIZE) {
        PyErr_SetString(PyExc_ValueError, "a table has at most 4,096 octets");
        return NULL;
    }
    table->size_max = (uint16_t)size_max;
    table->used = table->count = 0;
    for (Py_ssize_t left = PySequence_Size(entries); left > 0; left--) {
        PyObject *entry = PySequence_GetItem(entries, left - 1);
        const char *name, *value;
        Py_ssize_t name_size, value_size;
        bool is_right = entry && PyArg_ParseTuple(
                                     entry, "y#y#", &name, &name_size, &value, &value_size);
        if (is_right && (name_size > HPACK_SIZE || value_size > HPACK_SIZE)) {
            PyErr_SetString(PyExc_ValueError, "an entry is larger than a table");
            is_right = false;
        }
        if (is_right)
            hpack_add(table, (const uint8_t *)name, (size_t)name_size, (const uint8_t *)value,
                      (size_t)value_size);
        Py_XDECREF(entry);
        if (!is_right)
            return NULL;
    }
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *http2_key_of(PyObject *object, PyObject *args) {
    Http2Object *self = (Http2Object *)object;
    Py_buffer arrived;
    struct http2_request request;
    if (!PyArg_ParseTuple(args, "y*", &arrived))
        return NULL;
    size_t size = http2_read(&self->tables[self->current], &self->tables[!self->current],
                             arrived.buf, (size_t)arrived.len, &request);
    PyBuffer_Release(&arrived);
    return octets_object(request.key, size ? request.key_size : 0);
}

static void hash_key(const Http2Object *self, const void *key, size_t size, uint64_t hash[2]) {
    for (unsigned i = 0; i < 2; i++)
        hash[i] = keyed_hash(&self->seeds[i], key, size);
}

static struct form *form_of(const Http2Object *self, const uint64_t hash[2]) {
    for (unsigned place = self->chains[hash[0] % CHAINS]; place;) {
        struct form *form = &self->forms[place - 1];
        if (form->hash[0] == hash[0] && form->hash[1] == hash[1])
            return form;
        place = form->next;
    }
    return NULL;
}

static void unchain(Http2Object *self, const struct form *form) {
    uint16_t *link = &self->chains[form->hash[0] % CHAINS];
    while (&self->forms[*link - 1] != form)
        link = &self->forms[*link - 1].next;
    *link = form->next;
}

/* A form without a client, in the place of the oldest where there are as many as may be. NULL: no
 * memory. */
static struct form *new_form(Http2Object *self, const uint64_t hash[2]) {
    unsigned count = self->form_count, place = count;
    if (count == FORMS_MAX) {
        place = self->oldest;
        self->oldest = (place + 1) % FORMS_MAX;
        unchain(self, &self->forms[place]);
        Py_XDECREF(self->forms[place].name);
    } else {
        if (!count || (count >= FORMS_MIN && !(count & (count - 1)))) {
            size_t room = count ? 2 * count : FORMS_MIN;
            struct form *forms = PyMem_Realloc(self->forms, room * sizeof *forms);
            if (!forms)
                return NULL;
            self->forms = forms;
        }
        self->form_count++;
    }
    uint16_t *chain = &self->chains[hash[0] % CHAINS];
    struct form *form = &self->forms[place];
    *form = (struct form){.hash = {hash[0], hash[1]}, .next = *chain};
    *chain = (uint16_t)(place + 1);
    return form;
}

static PyObject *http2_learn(PyObject *object, PyObject *args) {
    Http2Object *self = (Http2Object *)object;
    const char *key, *client;
    Py_ssize_t key_size, client_size;
    PyObject *name;
    int is_get;
    uint64_t hash[2];
    if (!PyArg_ParseTuple(
            args, "y#y#Up", &key, &key_size, &client, &client_size, &name, &is_get) ||
        !is_client(client_size))
        return NULL;
    hash_key(self, key, (size_t)key_size, hash);
    struct form *form = form_of(self, hash); /* its answer may not be known yet */
    if (!form && !(form = new_form(self, hash)))
        return PyErr_NoMemory();
    memcpy(form->client, client, (size_t)client_size);
    form->client_size = (uint8_t)client_size;
    form->is_get = is_get;
    PyObject *former = form->name;
    form->name = PyUnicode_GetLength(name) ? Py_NewRef(name) : NULL;
    Py_XDECREF(former);
    Py_RETURN_NONE;
}

/* What the requests that are answered together have in common, and what comes of them. */
struct answering {
    const uint8_t *fields;
    Py_ssize_t fields_size;
    int is_private, is_told;
    PyObject *is_named; /* by a group, what a client calls itself */
    size_t room;    /* for an answer */
    size_t window;  /* for all */
    uint32_t stream;
    size_t at, sent, received;
    bool is_changed; /* the table is another one now */
    const struct form *form; /* of the last one, who is asking */
    struct asker asker;
    PyObject *responses, *told;
};

/* Who asks in this form. False: what went wrong is raised. */
static bool let_ask(
    Http2Object *self, struct answering *answering, const struct form *form) {
    int is_named = 0;
    if (form == answering->form)
        return true;
    if (form->name) {
        PyObject *said = PyObject_CallFunctionObjArgs(answering->is_named, form->name, NULL);
        is_named = said ? PyObject_IsTrue(said) : -1;
        Py_XDECREF(said);
    }
    asker_init(&answering->asker, self->repeats->table->table, self->repeats->scope, form->client,
               form->client_size, is_named > 0);
    answering->form = form;
    return is_named >= 0;
}

/* Answer the request that begins what has arrived. Octets of it; 0: it is not known, -1: what went
 * wrong is raised. */
static Py_ssize_t answer_one(
    Http2Object *self, struct answering *answering, const uint8_t *arrived, size_t size) {
    RepeatsObject *repeats = self->repeats;
    struct table *table = repeats->table->table;
    struct http2_request request;
    struct repeated repeated;
    const struct form *form;
    const uint8_t *packet;
    size_t packet_size, found;
    uint64_t hash[2];
    if (!http2_read(&self->tables[self->current], &self->tables[!self->current], arrived, size,
                    &request) ||
        request.stream <= answering->stream || request.stream > STREAM_MAX ||
        !(request.stream & 1))
        return 0;
    hash_key(self, request.key, request.key_size, hash);
    if (!(form = form_of(self, hash)) ||
        !(packet = http2_message(&request, form->is_get, &packet_size)))
        return 0;
    if (!let_ask(self, answering, form))
        return -1;
    uint8_t *wire = repeats->answers + HTTP2_HEAD_MAX;
    size_t room = answering->room < answering->window ? answering->room : answering->window;
    table_enter(table, repeats->table->reader);
    found = repeat_message(&answering->asker, packet, packet_size, wire, room, &repeated);
    table_leave(table, repeats->table->reader);
    if (!found)
        return 0;
    const uint8_t *response = http2_respond(
        wire, found, request.stream, answering->fields, (size_t)answering->fields_size,
        answering->is_private);
    PyObject *octets = octets_object(response, (size_t)(wire + found - response));
    bool is_done = octets && !PyList_Append(answering->responses, octets);
    Py_XDECREF(octets);
    const struct taken taken = {packet, packet_size, repeated.client_class};
    if (!is_done || (answering->is_told && !tell_of(repeats, answering->told, form->client,
                                                    form->client_size, &taken)))
        return -1;
    repeats->hits[repeated.place]++;
    if (request.is_changed)
        self->current = !self->current, answering->is_changed = true;
    answering->stream = request.stream;
    answering->window -= found;
    answering->sent += found;
    answering->received += request.body_size;
    return (Py_ssize_t)request.size;
}

/* Oldest first. */
static PyObject *http2_table(PyObject *object, PyObject *Py_UNUSED(args)) {
    Http2Object *self = (Http2Object *)object;
    const struct hpack *table = &self->tables[self->current];
    PyObject *list = PyList_New(0);
    for (unsigned i = 0; list && i < table->count; i++) {
        const struct hpack_entry *entry = &table->entries[i];
        const uint8_t *name = table->octets + entry->at;
        PyObject *one = Py_BuildValue("y#y#", name, (Py_ssize_t)entry->name_size,
                                      name + entry->name_size, (Py_ssize_t)entry->value_size);
        if (!one || PyList_Append(list, one))
            Py_CLEAR(list);
        Py_XDECREF(one);
    }
    return list;
}

static PyObject *http2_take(PyObject *object, PyObject *args) {
    Http2Object *self = (Http2Object *)object;
    struct answering answering = {0};
    Py_buffer arrived, fields;
    Py_ssize_t room, window, limit, used = 1;
    if (!PyArg_ParseTuple(
            args, "y*Innny*pOp", &arrived, &answering.stream, &room, &window, &limit, &fields,
            &answering.is_private, &answering.is_named, &answering.is_told))
        return NULL;
    answering.fields = fields.buf;
    answering.fields_size = fields.len;
    answering.room = room < 0 ? 0 : room > HTTP2_ANSWER_MAX ? HTTP2_ANSWER_MAX : (size_t)room;
    answering.window = window < 0 ? 0 : (size_t)window;
    if (fields.len > HTTP2_FIELDS_MAX)
        PyErr_SetString(PyExc_ValueError, "fields of more than 128 octets");
    else if ((answering.responses = PyList_New(0)) && (answering.told = PyList_New(0)))
        while (limit-- > 0 && used > 0 && answering.sent < ANSWERS_MIN) {
            used = answer_one(self, &answering, (const uint8_t *)arrived.buf + answering.at,
                              (size_t)arrived.len - answering.at);
            answering.at += used > 0 ? (size_t)used : 0;
        }
    PyBuffer_Release(&arrived);
    PyBuffer_Release(&fields);
    if (PyErr_Occurred()) {
        Py_XDECREF(answering.responses);
        Py_XDECREF(answering.told);
        return NULL;
    }
    return Py_BuildValue(
        "nInniNN", (Py_ssize_t)answering.at, answering.stream, (Py_ssize_t)answering.sent,
        (Py_ssize_t)answering.received, (int)answering.is_changed, answering.responses,
        answering.told);
}

static PyMethodDef http2_methods[] = {
    {"table", http2_table, METH_NOARGS, NULL},
    {"set_table", http2_set_table, METH_VARARGS, NULL},
    {"key_of", http2_key_of, METH_VARARGS, NULL},
    {"learn", http2_learn, METH_VARARGS, NULL},
    {"take", http2_take, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot http2_slots[] = {
    {Py_tp_new, http2_make},
    {Py_tp_dealloc, http2_dealloc},
    {Py_tp_methods, http2_methods},
    {0, NULL},
};

static PyType_Spec http2_spec = {
    .name = "kudurru.adapters.dns._engine.Http2",
    .basicsize = sizeof(Http2Object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = http2_slots,
};

/* --- module ---------------------------------------------------------------------------------- */

static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec) {
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (type && PyModule_AddType(module, (PyTypeObject *)type))
        Py_CLEAR(type);
    return (PyTypeObject *)type;
}

/* glibc keeps freed blocks of up to 128 octets apart, and joins them all when a large one is freed
 * next: after a zone of a million names that takes a third of a second, with the GIL held. Without
 * that each block is joined as it is freed, so what a turn frees is all that it does. Python has its
 * own allocator for small blocks, and recently freed ones are kept by each thread as before. */
static void free_steadily(void) {
#if defined(__GLIBC__) && defined(M_MXFAST)
    mallopt(M_MXFAST, 0);
#endif
}

static int fill(PyObject *module) {
    free_steadily();
    http2_init();
    State *state = PyModule_GetState(module);
    state->table = add_type(module, &table_spec);
    state->buckets = state->table ? add_type(module, &buckets_spec) : NULL;
    state->zones = state->buckets ? add_type(module, &zones_spec) : NULL;
    PyTypeObject *workers = state->zones ? add_type(module, &workers_spec) : NULL;
    state->repeats = workers ? add_type(module, &repeats_spec) : NULL;
    PyTypeObject *http2 = state->repeats ? add_type(module, &http2_spec) : NULL;
    Py_XDECREF((PyObject *)workers), Py_XDECREF((PyObject *)http2); /* the module has them */
    if (!http2 || PyModule_AddIntMacro(module, BATCH) || PyModule_AddIntMacro(module, PLACES))
        return -1;
    return 0;
}

static int visit_state(PyObject *module, visitproc visit, void *arg) {
    State *state = PyModule_GetState(module);
    Py_VISIT(state->table);
    Py_VISIT(state->buckets);
    Py_VISIT(state->zones);
    Py_VISIT(state->repeats);
    return 0;
}

static int clear_state(PyObject *module) {
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->table);
    Py_CLEAR(state->buckets);
    Py_CLEAR(state->zones);
    Py_CLEAR(state->repeats);
    return 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, fill}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_engine",
    .m_size = sizeof(State),
    .m_slots = module_slots,
    .m_traverse = visit_state,
    .m_clear = clear_state,
};

PyMODINIT_FUNC PyInit__engine(void) { return PyModuleDef_Init(&definition); }
