/* Answers of the table to what arrives over connections, for Python: `Repeats`. */
#include "module.h"

#include <stdlib.h>

#define TAKEN_MAX 256 /* queries at a time */
#define ANSWERS_MAX (ANSWERS_MIN + 2 + STREAM_MESSAGE_MAX)

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

bool tell_of(
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

PyType_Spec repeats_spec = {
    .name = "kudurru.adapters.dns._engine.Repeats",
    .basicsize = sizeof(RepeatsObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = repeats_slots,
};
