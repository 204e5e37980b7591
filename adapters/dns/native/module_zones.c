/* The zones that the engine answers from, for Python: `Zones`. */
#include "module.h"

#include <string.h>

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

PyType_Spec zones_spec = {
    .name = "kudurru.adapters.dns._engine.Zones",
    .basicsize = sizeof(ZonesObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = zones_slots,
};
