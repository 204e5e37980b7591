/* The core for Python (`kudurru.adapters.dns._engine`, see _engine.pyi), in the stable ABI: one
 * build serves every later CPython. */
#include "module.h"

#include <malloc.h>
#include <string.h>

bool read_seed(Py_buffer *given, struct seed *seed) {
    bool is_right = given->len == sizeof *seed;
    if (is_right)
        memcpy(seed, given->buf, sizeof *seed);
    else
        PyErr_SetString(PyExc_ValueError, "a seed has 16 octets");
    PyBuffer_Release(given);
    return is_right;
}

bool read_key(Py_buffer *given, struct seed *key) {
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

bool read_network(PyObject *given, Py_ssize_t i, struct network *network) {
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

bool is_client(Py_ssize_t size) {
    if (size == 4 || size == 16)
        return true;
    PyErr_SetString(PyExc_ValueError, "an address has 4 or 16 octets");
    return false;
}

PyObject *alloc_of(PyTypeObject *type) {
    allocfunc alloc_object = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return alloc_object(type, 0);
}

void dealloc_of(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_object(self);
    Py_DECREF(type);
}

PyObject *octets_object(const uint8_t *octets, size_t size) {
    return PyBytes_FromStringAndSize((const char *)octets, (Py_ssize_t)size);
}

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
