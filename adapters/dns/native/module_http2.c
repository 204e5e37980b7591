/* Requests of DoH over HTTP/2 that are like earlier ones, for Python: `Http2`. */
#include "module.h"

#include <string.h>

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

PyType_Spec http2_spec = {
    .name = "kudurru.adapters.dns._engine.Http2",
    .basicsize = sizeof(Http2Object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = http2_slots,
};
