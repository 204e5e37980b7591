/* The threads on UDP sockets for Python: `Workers`. */
#include "module.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

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

PyType_Spec workers_spec = {
    .name = "kudurru.adapters.dns._engine.Workers",
    .basicsize = sizeof(WorkersObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = workers_slots,
};
