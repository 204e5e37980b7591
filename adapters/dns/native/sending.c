/* Answers on their way out: those of one length to one client go as one piece of work.
 *
 * The kernel takes a train of equal datagrams through its stack once, and cuts it where it leaves, or
 * at the socket that it reaches (UDP_SEGMENT, udp(7)). What arrives is the same. Who asks a lot from
 * one port, as a load balancer does, costs a third less. */
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#ifdef SENDMMSG /* tests have one that fails */
int SENDMMSG(int fd, struct mmsghdr *messages, unsigned number, int flags);
#else
#define SENDMMSG sendmmsg
#endif
#ifndef SOL_UDP
#define SOL_UDP 17
#endif
#define SEGMENT 103      /* UDP_SEGMENT of linux/udp.h, which old headers lack */
#define TRAIN_MAX 65000u /* octets: with its headers a train is a packet of IP before it is cut */
#define ROOM CMSG_SPACE(sizeof(uint16_t))
#define PLACES_FOR_TRAINS (2 * BATCH)
#define PLACES_SHIFT 57 /* the highest bits of a product hang on all of its factor */
#define NO_TRAIN 0xff

_Static_assert(PLACES_FOR_TRAINS == 1 << (64 - PLACES_SHIFT), "each place can be meant");
_Static_assert(BATCH <= 64, "old kernels cut a train in 64 at most (UDP_MAX_SEGMENTS)");

/* --- trains ---------------------------------------------------------------------------------- */

struct trains {
    unsigned count;
    unsigned lengths[BATCH];       /* of each train, in messages */
    unsigned begins[BATCH];        /* of each train, in `members` and `parts` */
    unsigned members[BATCH];       /* messages, train after train */
    struct iovec parts[BATCH];     /* what they say */
    struct mmsghdr heads[BATCH];   /* of each train */
    _Alignas(struct cmsghdr) uint8_t controls[BATCH][CONTROL_MAX + ROOM];
};

/* Whether two messages can be of one train. */
static bool are_alike(const struct msghdr *one, const struct msghdr *other) {
    return one->msg_iov->iov_len == other->msg_iov->iov_len &&
           one->msg_namelen == other->msg_namelen &&
           one->msg_controllen == other->msg_controllen &&
           !memcmp(one->msg_name, other->msg_name, one->msg_namelen) &&
           (!one->msg_controllen ||
            !memcmp(one->msg_control, other->msg_control, one->msg_controllen));
}

/* The same for messages that are alike, and mostly another for others. */
static unsigned place_of(const struct msghdr *message) {
    uint64_t begin, end; /* family, port and IPv4 address; the end of an IPv6 address */
    const uint8_t *name = message->msg_name;
    memcpy(&begin, name, sizeof begin);
    memcpy(&end, name + message->msg_namelen - sizeof end, sizeof end);
    uint64_t mixed = (begin ^ end << 7 ^ message->msg_iov->iov_len) * 0x9e3779b97f4a7c15u;
    return (unsigned)(mixed >> PLACES_SHIFT);
}

/* The train of each message, and the length of each train. */
static void assign(
    struct trains *trains, const struct mmsghdr *messages, unsigned number, uint8_t *train_of) {
    uint8_t places[PLACES_FOR_TRAINS];
    unsigned firsts[BATCH];
    memset(places, NO_TRAIN, sizeof places);
    trains->count = 0;
    for (unsigned i = 0; i < number; i++) {
        const struct msghdr *message = &messages[i].msg_hdr;
        unsigned place = place_of(message);
        while (places[place] != NO_TRAIN &&
               !are_alike(message, &messages[firsts[places[place]]].msg_hdr))
            place = (place + 1) % PLACES_FOR_TRAINS;
        uint8_t train = places[place];
        if (train == NO_TRAIN ||
            (trains->lengths[train] + 1) * message->msg_iov->iov_len > TRAIN_MAX) {
            train = places[place] = (uint8_t)trains->count++;
            firsts[train] = i;
            trains->lengths[train] = 0;
        }
        train_of[i] = train;
        trains->lengths[train]++;
    }
}

static void write_head(struct trains *trains, unsigned train, const struct msghdr *first) {
    struct msghdr *head = &trains->heads[train].msg_hdr;
    *head = *first;
    head->msg_iov = &trains->parts[trains->begins[train]];
    head->msg_iovlen = trains->lengths[train];
    if (trains->lengths[train] == 1)
        return;
    uint8_t *control = trains->controls[train];
    size_t before = first->msg_controllen;
    if (before)
        memcpy(control, first->msg_control, before);
    uint16_t size = (uint16_t)first->msg_iov->iov_len;
    struct cmsghdr cut = {
        .cmsg_len = CMSG_LEN(sizeof size), .cmsg_level = SOL_UDP, .cmsg_type = SEGMENT};
    memset(control + before, 0, ROOM);
    memcpy(control + before, &cut, sizeof cut);
    memcpy(control + before + CMSG_LEN(0), &size, sizeof size);
    head->msg_control = control;
    head->msg_controllen = before + ROOM;
}

/* Join what is alike; false: nothing is. */
static bool join(struct trains *trains, const struct mmsghdr *messages, unsigned number) {
    uint8_t train_of[BATCH];
    unsigned ends[BATCH], begin = 0;
    assign(trains, messages, number, train_of);
    if (trains->count == number)
        return false;
    for (unsigned train = 0; train < trains->count; train++) {
        ends[train] = trains->begins[train] = begin;
        begin += trains->lengths[train];
    }
    for (unsigned i = 0; i < number; i++) {
        unsigned at = ends[train_of[i]]++;
        trains->members[at] = i;
        trains->parts[at] = *messages[i].msg_hdr.msg_iov;
    }
    for (unsigned train = 0; train < trains->count; train++)
        write_head(trains, train, &messages[trains->members[trains->begins[train]]].msg_hdr);
    return true;
}

/* --- sending --------------------------------------------------------------------------------- */

/* What is longer than its interface takes, and must not go in pieces, is to be had over TCP. */
static bool send_shortened(int fd, const struct msghdr *message) {
    uint8_t octets[SHORT_MAX];
    struct iovec part = {.iov_base = octets};
    struct msghdr shorter = *message;
    part.iov_len = shortened(message->msg_iov->iov_base, message->msg_iov->iov_len, octets);
    shorter.msg_iov = &part;
    return part.iov_len && sendmsg(fd, &shorter, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

static bool is_full(int fault) { return fault == EAGAIN || fault == ENOBUFS; }

/* Each message for itself. */
static struct sent send_apart(int fd, struct mmsghdr *messages, unsigned number, bool *went) {
    struct sent sent = {0};
    for (unsigned done; (done = sent.sent + sent.refused) < number;) {
        int now = SENDMMSG(fd, messages + done, number - done, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (now > 0) {
            memset(went + done, true, (unsigned)now * sizeof *went);
            sent.sent += (unsigned)now;
        } else if (is_full(errno)) {
            sent.full = number - done;
            break;
        } else if (errno == EMSGSIZE && send_shortened(fd, &messages[done].msg_hdr)) {
            went[done] = true;
            sent.sent++;
        } else if (errno != EINTR) {
            sent.refused++; /* no route, port 0: the next one may do */
        }
    }
    return sent;
}

/* The messages of a train that did not go as one. */
static struct sent take_apart(
    int fd, const struct trains *trains, unsigned train, const struct mmsghdr *messages,
    bool *went) {
    struct mmsghdr apart[BATCH];
    bool gone[BATCH] = {false};
    unsigned length = trains->lengths[train];
    const unsigned *members = trains->members + trains->begins[train];
    for (unsigned i = 0; i < length; i++)
        apart[i] = messages[members[i]];
    struct sent sent = send_apart(fd, apart, length, gone);
    for (unsigned i = 0; i < length; i++)
        went[members[i]] = gone[i];
    return sent;
}

static struct sent send_trains(
    struct sender *sender, struct trains *trains, const struct mmsghdr *messages, bool *went) {
    struct sent sent = {0};
    for (unsigned done = 0; done < trains->count;) {
        int now = SENDMMSG(
            sender->fd, trains->heads + done, trains->count - done, MSG_DONTWAIT | MSG_NOSIGNAL);
        int fault = now > 0 ? 0 : errno;
        for (int i = 0; i < now; i++, done++) {
            const unsigned *members = trains->members + trains->begins[done];
            for (unsigned j = 0; j < trains->lengths[done]; j++)
                went[members[j]] = true;
            sent.sent += trains->lengths[done];
        }
        if (!fault || fault == EINTR)
            continue;
        if (is_full(fault)) {
            for (; done < trains->count; done++)
                sent.full += trains->lengths[done];
            break;
        }
        if (trains->lengths[done] > 1 && fault == EIO)
            atomic_store(&sender->is_joining, false); /* its interface cannot, or IPsec is in between */
        struct sent some = take_apart(sender->fd, trains, done++, messages, went);
        sent.sent += some.sent, sent.refused += some.refused, sent.full += some.full;
    }
    return sent;
}

void sender_init(struct sender *sender, int fd, bool may_join) {
    int now;
    socklen_t size = sizeof now;
    /* A kernel without it would send a train as one long datagram. */
    bool is_known = !getsockopt(fd, SOL_UDP, SEGMENT, &now, &size);
    sender->fd = fd;
    atomic_init(&sender->is_joining, may_join && is_known);
}

struct sent send_all(
    struct sender *sender, struct mmsghdr *messages, unsigned number, bool *went) {
    struct trains trains;
    memset(went, 0, number * sizeof *went);
    if (number > 1 && atomic_load_explicit(&sender->is_joining, memory_order_relaxed) &&
        join(&trains, messages, number))
        return send_trains(sender, &trains, messages, went);
    return send_apart(sender->fd, messages, number, went);
}
