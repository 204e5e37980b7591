/* The table of answers for Python: `Table`. */
#include "module.h"

#include <stdlib.h>
#include <string.h>

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

PyType_Spec table_spec = {
    .name = "kudurru.adapters.dns._engine.Table",
    .basicsize = sizeof(TableObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = table_slots,
};
