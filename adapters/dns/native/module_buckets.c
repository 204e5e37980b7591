/* The limiter's buckets for Python: `Buckets`. */
#include "module.h"

#include <stdlib.h>

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
    return is_client(size) ? &rules[size == 16] : NULL;
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

PyType_Spec buckets_spec = {
    .name = "kudurru.adapters.dns._engine.Buckets",
    .basicsize = sizeof(BucketsObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = buckets_slots,
};
