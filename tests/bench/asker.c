/* Asks a DNS server over UDP, at a fraction of what answering costs. Six ways:
 *
 *   asker full   ADDRESS PORT SECONDS SOCKETS WINDOW < NAMES
 *       as fast as answers come, WINDOW questions under way on each socket
 *   asker paced  ADDRESS PORT SECONDS RATE < NAMES
 *       RATE questions a second, whatever comes back, and how long answers took
 *   asker pour   ADDRESS PORT SECONDS SOCKETS < NAMES
 *       as fast as it can, and the kernel drops what comes back: who asked counts at the server
 *   asker checked ADDRESS PORT COUNT STATE < NAMES
 *       COUNT questions of names at random. STATE is a file of two arrays of 32 bit numbers: the
 *       version of each name that a change has begun with, and the one that was acknowledged. Each
 *       answer has to be of a version between what was acknowledged when it was asked and what had
 *       begun when it came: an even one is in the address, an odd one is that there is no such name.
 *   asker flood  ADDRESS PORT SECONDS RATE INTERFACE MAC ZONE
 *       names at random below ZONE from addresses in 198.18.0.0/15 that nobody has (RFC 2544), one
 *       frame with TRAIN datagrams of one of them at a time, which the kernel takes apart (UDP
 *       segmentation), so that sending costs far less than receiving
 *   asker echo ADDRESS
 *       is asked: sends every question back as an answer, on a port that it prints first
 *
 * NAMES are lines with a name first. Ends with a line of figures as JSON. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef VIRTIO_NET_HDR_GSO_UDP_L4 /* Linux 6.2; headers may be older */
#define VIRTIO_NET_HDR_GSO_UDP_L4 5
#endif

#define BATCH 64
#define QUERY_MAX 300
#define ANSWER_MAX 512
#define SOCKETS_MAX 64
#define LOST_MS 1000   /* an answer that takes longer is none */
#define IDS 65536
#define TRAIN 32
#define BURST_NS 5000000
#define HEADER 12
#define RECEIVE_BUFFER (1 << 22)
#define CHECKED_SOCKETS 4
#define CHECKED_WINDOW 64
#define WRONG_SHOWN 5

static void need(bool holds, const char *what) {
    if (holds)
        return;
    perror(what);
    exit(2);
}

static int64_t now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* xorshift64* */
static uint64_t chance_state = 0x9e3779b97f4a7c15;

static uint64_t chance(void) {
    chance_state ^= chance_state >> 12;
    chance_state ^= chance_state << 25;
    chance_state ^= chance_state >> 27;
    return chance_state * 0x2545f4914f6cdd1d;
}

/* --- questions ------------------------------------------------------------------------------- */

struct query {
    uint16_t size;
    uint8_t octets[QUERY_MAX];
};

static struct query *queries;
static size_t query_count;

/* A question for the A records of a name, ID 0. */
static size_t write_query(uint8_t *octets, const char *name) {
    static const uint8_t HEAD[HEADER] = {0, 0, 1, 0, 0, 1};
    memcpy(octets, HEAD, HEADER);
    size_t at = HEADER;
    while (*name) {
        size_t length = strcspn(name, ".");
        octets[at] = (uint8_t)length;
        memcpy(octets + at + 1, name, length);
        at += 1 + length;
        name += length + (name[length] == '.');
    }
    memcpy(octets + at, "\0\0\1\0\1", 5);
    return at + 5;
}

static void read_names(void) {
    char line[256];
    size_t room = 0;
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, " \t\n")] = 0;
        if (query_count == room) {
            room = room ? room * 2 : 1024;
            queries = realloc(queries, room * sizeof *queries);
            need(queries != NULL, "memory for names");
        }
        queries[query_count].size = (uint16_t)write_query(queries[query_count].octets, line);
        query_count++;
    }
    errno = EINVAL;
    need(query_count > 0, "names on standard input");
}

static void set_id(uint8_t *octets, unsigned id) {
    octets[0] = (uint8_t)(id >> 8), octets[1] = (uint8_t)id;
}

static unsigned id_of(const uint8_t *octets) { return (unsigned)octets[0] << 8 | octets[1]; }

/* --- sockets --------------------------------------------------------------------------------- */

static int connected(const char *address, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    need(inet_pton(AF_INET, address, &to.sin_addr) == 1, "an IPv4 address");
    int fd = socket(AF_INET, SOCK_DGRAM, 0), size = RECEIVE_BUFFER, on = 1;
    need(fd >= 0 && !connect(fd, (struct sockaddr *)&to, sizeof to), "a socket");
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size))
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
    return fd;
}

/* Room for a batch, in both directions. */
static struct mmsghdr messages[BATCH];
static struct iovec parts[BATCH];
static uint8_t received[BATCH][ANSWER_MAX];
static _Alignas(struct cmsghdr) uint8_t controls[BATCH][CMSG_SPACE(sizeof(struct timespec))];

static int receive(int fd, bool with_times) {
    for (unsigned i = 0; i < BATCH; i++) {
        parts[i] = (struct iovec){received[i], ANSWER_MAX};
        messages[i].msg_hdr = (struct msghdr){
            .msg_iov = &parts[i],
            .msg_iovlen = 1,
            .msg_control = with_times ? controls[i] : NULL,
            .msg_controllen = with_times ? sizeof controls[i] : 0,
        };
    }
    int got = recvmmsg(fd, messages, BATCH, MSG_DONTWAIT, NULL);
    return got > 0 ? got : 0;
}

/* When message i came in, which is before it was read. */
static int64_t came_ns(unsigned i) {
    struct cmsghdr *head = CMSG_FIRSTHDR(&messages[i].msg_hdr);
    if (!head || head->cmsg_type != SCM_TIMESTAMPNS)
        return now_ns(CLOCK_REALTIME);
    struct timespec at;
    memcpy(&at, CMSG_DATA(head), sizeof at);
    return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
}

/* Send `number` of them, all of one size, at the price of one: the kernel takes them apart where the
 * server takes them in. */
static unsigned send_train(int fd, struct query **sent, unsigned number) {
    union {
        struct cmsghdr head;
        uint8_t room[CMSG_SPACE(sizeof(uint16_t))];
    } control = {.head = {CMSG_LEN(sizeof(uint16_t)), SOL_UDP, UDP_SEGMENT}};
    for (unsigned i = 0; i < number; i++)
        parts[i] = (struct iovec){sent[i]->octets, sent[i]->size};
    memcpy(CMSG_DATA(&control.head), &sent[0]->size, sizeof(uint16_t));
    struct msghdr train = {.msg_iov = parts, .msg_iovlen = number,
                           .msg_control = &control, .msg_controllen = sizeof control.room};
    return sendmsg(fd, &train, 0) > 0 ? number : 0;
}

/* Send `number` of `sent`, with their IDs; how many went. */
static unsigned send_queries(int fd, struct query **sent, unsigned number) {
    unsigned same = 1;
    while (same < number && sent[same]->size == sent[0]->size)
        same++;
    if (same == number && number > 1)
        return send_train(fd, sent, number);
    for (unsigned i = 0; i < number; i++) {
        parts[i] = (struct iovec){sent[i]->octets, sent[i]->size};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
    }
    int went = sendmmsg(fd, messages, number, 0);
    return went > 0 ? (unsigned)went : 0;
}

/* --- as fast as answers come ----------------------------------------------------------------- */

static int full(const char *address, int port, double seconds, unsigned sockets, int window) {
    static struct pollfd waiting[SOCKETS_MAX];
    static int under_way[SOCKETS_MAX];
    uint64_t answered = 0, lost = 0;
    size_t next = 0;
    for (unsigned s = 0; s < sockets; s++)
        waiting[s] = (struct pollfd){.fd = connected(address, port), .events = POLLIN};
    int64_t began = now_ns(CLOCK_MONOTONIC), now = began;
    while ((now = now_ns(CLOCK_MONOTONIC)) < began + (int64_t)(seconds * 1e9)) {
        bool has_moved = false;
        for (unsigned s = 0; s < sockets; s++) {
            int got = receive(waiting[s].fd, false);
            answered += (unsigned)got, under_way[s] -= got;
            /* Half a window at a time: one by one costs both sides a call for each. */
            if (window - under_way[s] < (window + 1) / 2)
                continue;
            struct query *some[BATCH];
            unsigned number = 0;
            while (number < BATCH && (int)number < window - under_way[s]) {
                some[number++] = &queries[next];
                next = next + 1 == query_count ? 0 : next + 1;
            }
            unsigned went = send_queries(waiting[s].fd, some, number);
            under_way[s] += (int)went;
            has_moved |= went > 0;
        }
        if (!has_moved && !poll(waiting, sockets, LOST_MS))
            for (unsigned s = 0; s < sockets; s++)
                lost += (unsigned)under_way[s], under_way[s] = 0;
    }
    printf("{\"seconds\": %.3f, \"answered\": %llu, \"lost\": %llu, \"cpu_s\": %.3f}\n",
           (double)(now - began) / 1e9, (unsigned long long)answered, (unsigned long long)lost,
           (double)now_ns(CLOCK_PROCESS_CPUTIME_ID) / 1e9);
    return 0;
}

/* --- more than is answered ------------------------------------------------------------------- */

static int pour(const char *address, int port, double seconds, unsigned sockets) {
    struct sock_filter drop_all[] = {{.code = BPF_RET | BPF_K, .k = 0}};
    struct sock_fprog filter = {.len = 1, .filter = drop_all};
    int fds[SOCKETS_MAX];
    uint64_t sent = 0, refused = 0;
    size_t next = 0;
    for (unsigned s = 0; s < sockets; s++) {
        fds[s] = connected(address, port);
        need(!setsockopt(fds[s], SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter), "a filter");
    }
    int64_t began = now_ns(CLOCK_MONOTONIC), now = began;
    while ((now = now_ns(CLOCK_MONOTONIC)) < began + (int64_t)(seconds * 1e9))
        for (unsigned s = 0; s < sockets; s++) {
            struct query *some[BATCH];
            for (unsigned i = 0; i < BATCH; i++) {
                some[i] = &queries[next];
                next = next + 1 == query_count ? 0 : next + 1;
            }
            unsigned went = send_queries(fds[s], some, BATCH);
            sent += went, refused += BATCH - went;
        }
    printf("{\"seconds\": %.3f, \"sent\": %llu, \"refused\": %llu, \"cpu_s\": %.3f}\n",
           (double)(now - began) / 1e9, (unsigned long long)sent, (unsigned long long)refused,
           (double)now_ns(CLOCK_PROCESS_CPUTIME_ID) / 1e9);
    return 0;
}

/* --- so many a second ------------------------------------------------------------------------ */

static int compare(const void *one, const void *other) {
    int32_t a = *(const int32_t *)one, b = *(const int32_t *)other;
    return (a > b) - (a < b);
}

static struct {
    int64_t sent_ns[IDS]; /* 0: not asked, or answered */
    int32_t *took_us;
    uint64_t answered, repeated, room;
} pace;

static void take_paced(int fd) {
    for (int got; (got = receive(fd, true)) > 0;)
        for (int i = 0; i < got; i++) {
            unsigned id = id_of(received[i]);
            if (!pace.sent_ns[id]) {
                pace.repeated++;
                continue;
            }
            int64_t took_ns = came_ns((unsigned)i) - pace.sent_ns[id];
            pace.sent_ns[id] = 0;
            if (took_ns < LOST_MS * 1000000ll && pace.answered < pace.room)
                pace.took_us[pace.answered++] = (int32_t)(took_ns / 1000);
        }
}

static double part_ms(double part) {
    if (!pace.answered)
        return -1;
    uint64_t at = (uint64_t)(part * (double)pace.answered);
    return pace.took_us[at < pace.answered ? at : pace.answered - 1] / 1e3;
}

static int paced(const char *address, int port, double seconds, double rate) {
    struct pollfd waiting = {.fd = connected(address, port), .events = POLLIN};
    uint64_t total = (uint64_t)(seconds * rate), sent = 0;
    pace.room = total;
    pace.took_us = calloc(total + 1, sizeof *pace.took_us);
    need(pace.took_us != NULL, "memory");
    prctl(PR_SET_TIMERSLACK, 1000ul);
    int64_t began = now_ns(CLOCK_MONOTONIC), last = began;
    while (sent < total || now_ns(CLOCK_MONOTONIC) < last + LOST_MS * 1000000ll) {
        int64_t now = now_ns(CLOCK_MONOTONIC);
        uint64_t due = (uint64_t)((double)(now - began) / 1e9 * rate) + 1;
        if (due > total)
            due = total;
        while (sent < due) {
            struct query *some[BATCH];
            unsigned number = 0;
            int64_t at = now_ns(CLOCK_REALTIME);
            for (; number < BATCH && sent < due; number++, sent++) {
                some[number] = &queries[sent % query_count];
                unsigned id = (unsigned)(sent % IDS);
                /* One name may be asked twice in a batch only where there are few of them. */
                set_id(some[number]->octets, id);
                pace.sent_ns[id] = at;
                if (query_count < BATCH) {
                    number++, sent++;
                    break;
                }
            }
            send_queries(waiting.fd, some, number);
            last = now_ns(CLOCK_MONOTONIC);
            take_paced(waiting.fd);
        }
        int64_t next = began + (int64_t)((double)sent / rate * 1e9);
        int64_t left = next - now_ns(CLOCK_MONOTONIC);
        if (sent == total)
            left = 10000000;
        struct timespec pause = {left / 1000000000, left % 1000000000};
        if (left > 0)
            ppoll(&waiting, 1, &pause, NULL);
        take_paced(waiting.fd);
    }
    qsort(pace.took_us, pace.answered, sizeof *pace.took_us, compare);
    printf("{\"seconds\": %.3f, \"sent\": %llu, \"answered\": %llu, \"p50_ms\": %.3f, "
           "\"p99_ms\": %.3f, \"max_ms\": %.3f, \"cpu_s\": %.3f}\n",
           (double)(last - began) / 1e9, (unsigned long long)sent, (unsigned long long)pace.answered,
           part_ms(0.5), part_ms(0.99), part_ms(1), (double)now_ns(CLOCK_PROCESS_CPUTIME_ID) / 1e9);
    return 0;
}

/* --- each answer is one that the log's state permits ------------------------------------------ */

static struct {
    uint32_t name, at_least;
    bool is_open;
} asked[CHECKED_SOCKETS][IDS];

/* The version that an answer is of: 0 where it can be of any odd one, -1 where it is of none. */
static int64_t version_in(const uint8_t *answer, unsigned size, const struct query *query) {
    if (size < query->size || memcmp(answer + HEADER, query->octets + HEADER, query->size - HEADER))
        return -1;
    unsigned rcode = answer[3] & 15, answers = (unsigned)answer[6] << 8 | answer[7];
    if (rcode == 3 && !answers)
        return 0;
    if (rcode || answers != 1 || size < query->size + 16u)
        return -1;
    const uint8_t *address = answer + query->size + 12;
    return (int64_t)address[0] << 24 | address[1] << 16 | address[2] << 8 | address[3];
}

static bool is_permitted(int64_t version, uint32_t at_least, uint32_t at_most) {
    if (version)
        return version % 2 == 0 && version >= at_least && version <= at_most;
    return at_most > at_least || at_least % 2; /* of two that follow each other one is odd */
}

static int checked(const char *address, int port, uint64_t count, const char *path) {
    size_t size = query_count * sizeof(uint32_t);
    int file = open(path, O_RDONLY);
    need(file >= 0, path);
    const _Atomic uint32_t *begun = mmap(NULL, 2 * size, PROT_READ, MAP_SHARED, file, 0);
    need(begun != MAP_FAILED, path);
    const _Atomic uint32_t *acknowledged = begun + query_count;
    struct pollfd waiting[CHECKED_SOCKETS];
    uint64_t sent = 0, answered = 0, lost = 0, wrong = 0, changing = 0;
    unsigned next_id[CHECKED_SOCKETS] = {0}, under_way[CHECKED_SOCKETS] = {0};
    for (unsigned s = 0; s < CHECKED_SOCKETS; s++)
        waiting[s] = (struct pollfd){.fd = connected(address, port), .events = POLLIN};
    int64_t began = now_ns(CLOCK_MONOTONIC);
    while (answered + lost < count) {
        bool has_moved = false;
        for (unsigned s = 0; s < CHECKED_SOCKETS; s++) {
            int got = receive(waiting[s].fd, false);
            for (int i = 0; i < got; i++) {
                unsigned id = id_of(received[i]);
                if (!asked[s][id].is_open)
                    continue; /* it came too late, and was counted as lost */
                asked[s][id].is_open = false;
                under_way[s]--, answered++;
                uint32_t name = asked[s][id].name, at_most = atomic_load(&begun[name]);
                int64_t version = version_in(received[i], messages[i].msg_len, &queries[name]);
                changing += at_most != asked[s][id].at_least;
                if (is_permitted(version, asked[s][id].at_least, at_most))
                    continue;
                if (wrong++ < WRONG_SHOWN)
                    fprintf(stderr, "name %u: version %lld, rcode %d, not between %u and %u\n", name,
                            (long long)version, received[i][3] & 15, asked[s][id].at_least, at_most);
            }
            has_moved |= got > 0;
            if (under_way[s] > CHECKED_WINDOW / 2 || sent >= count)
                continue;
            static struct query copies[BATCH];
            struct query *some[BATCH];
            unsigned number = 0;
            for (; number < CHECKED_WINDOW - under_way[s] && sent < count; number++, sent++) {
                uint32_t name = (uint32_t)(chance() % query_count);
                unsigned id = next_id[s]++ % IDS;
                copies[number] = queries[name];
                set_id(copies[number].octets, id);
                some[number] = &copies[number];
                asked[s][id].name = name, asked[s][id].is_open = true;
                asked[s][id].at_least = atomic_load(&acknowledged[name]);
            }
            unsigned went = send_queries(waiting[s].fd, some, number);
            under_way[s] += went;
            for (; went < number; went++, sent--)
                asked[s][id_of(copies[went].octets)].is_open = false;
            has_moved = true;
        }
        if (!has_moved && !poll(waiting, CHECKED_SOCKETS, LOST_MS))
            for (unsigned s = 0; s < CHECKED_SOCKETS; s++) {
                lost += under_way[s], under_way[s] = 0;
                for (unsigned id = 0; id < IDS; id++)
                    asked[s][id].is_open = false;
            }
    }
    printf("{\"seconds\": %.3f, \"answered\": %llu, \"lost\": %llu, \"wrong\": %llu, "
           "\"changing\": %llu}\n",
           (double)(now_ns(CLOCK_MONOTONIC) - began) / 1e9, (unsigned long long)answered,
           (unsigned long long)lost, (unsigned long long)wrong, (unsigned long long)changing);
    return wrong != 0;
}

/* --- a flood --------------------------------------------------------------------------------- */

static uint16_t folded(uint32_t sum) {
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

static uint32_t summed(const void *octets, size_t size) {
    uint32_t sum = 0;
    for (size_t i = 0; i < size; i += 2) {
        uint16_t word;
        memcpy(&word, (const uint8_t *)octets + i, 2);
        sum += word;
    }
    return sum;
}

#define LABEL 12 /* letters at random */

struct frame {
    struct virtio_net_hdr offload;
    struct ether_header link;
    struct iphdr ip;
    struct udphdr udp;
    uint8_t payload[TRAIN * 128];
} __attribute__((packed));

/* All of a train are of one size, which `offload` says. */
static size_t make_train(struct frame *frame, size_t query_size) {
    for (unsigned i = 0; i < TRAIN; i++) {
        uint8_t *query = frame->payload + i * query_size;
        uint64_t letters = chance();
        set_id(query, (unsigned)(letters >> 48));
        for (unsigned j = 0; j < LABEL; j++, letters >>= 4)
            query[HEADER + 1 + j] = (uint8_t)('a' + (letters & 15));
    }
    uint64_t some = chance();
    frame->ip.saddr = htonl(0xc6120000u | (uint32_t)(some & 0x1ffff));
    frame->ip.check = 0;
    frame->ip.check = (uint16_t)~folded(summed(&frame->ip, sizeof frame->ip));
    frame->udp.source = htons((uint16_t)(1024 + (some >> 32) % 60000));
    /* The sum of the pseudo header; the kernel does the rest, or knows that it need not. */
    uint32_t pseudo = summed(&frame->ip.saddr, 8) + htons(IPPROTO_UDP) + frame->udp.len;
    frame->udp.check = folded(pseudo);
    return sizeof *frame - sizeof frame->payload + TRAIN * query_size;
}

static void begin_frame(struct frame *frame, const char *address, int port, const uint8_t *mac,
                        const char *zone, size_t *query_size) {
    char name[128];
    snprintf(name, sizeof name, "%0*d.%s", LABEL, 0, zone);
    *query_size = write_query(frame->payload, name);
    need(*query_size <= 128, "a shorter zone");
    for (unsigned i = 1; i < TRAIN; i++)
        memcpy(frame->payload + i * *query_size, frame->payload, *query_size);
    size_t carried = TRAIN * *query_size;
    frame->offload = (struct virtio_net_hdr){
        .flags = VIRTIO_NET_HDR_F_NEEDS_CSUM,
        .gso_type = VIRTIO_NET_HDR_GSO_UDP_L4,
        .hdr_len = sizeof frame->link + sizeof frame->ip + sizeof frame->udp,
        .gso_size = (uint16_t)*query_size,
        .csum_start = sizeof frame->link + sizeof frame->ip,
        .csum_offset = offsetof(struct udphdr, check),
    };
    memcpy(frame->link.ether_dhost, mac, ETH_ALEN);
    memcpy(frame->link.ether_shost, "\2\0\0\0\0\1", ETH_ALEN);
    frame->link.ether_type = htons(ETHERTYPE_IP);
    frame->ip = (struct iphdr){
        .version = 4,
        .ihl = 5,
        .ttl = 64,
        .protocol = IPPROTO_UDP,
        .tot_len = htons((uint16_t)(sizeof frame->ip + sizeof frame->udp + carried)),
    };
    need(inet_pton(AF_INET, address, &frame->ip.daddr) == 1, "an IPv4 address");
    frame->udp.dest = htons((uint16_t)port);
    frame->udp.len = htons((uint16_t)(sizeof frame->udp + carried));
}

static int flood(const char *address, int port, double seconds, double rate, const char *interface,
                 const char *mac_text, const char *zone) {
    static struct frame frame;
    unsigned octets[ETH_ALEN];
    uint8_t mac[ETH_ALEN];
    errno = EINVAL;
    need(sscanf(mac_text, "%x:%x:%x:%x:%x:%x", octets, octets + 1, octets + 2, octets + 3,
                octets + 4, octets + 5) == ETH_ALEN, "an address of Ethernet");
    for (unsigned i = 0; i < ETH_ALEN; i++)
        mac[i] = (uint8_t)octets[i];
    int fd = socket(AF_PACKET, SOCK_RAW, 0), on = 1;
    need(fd >= 0 && !setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on), "a raw socket");
    struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP),
                             .sll_ifindex = (int)if_nametoindex(interface)};
    need(!bind(fd, (struct sockaddr *)&to, sizeof to), interface);
    size_t query_size;
    begin_frame(&frame, address, port, mac, zone, &query_size);
    uint64_t sent = 0, refused = 0;
    int64_t began = now_ns(CLOCK_MONOTONIC), now = began;
    double due = (double)began / 1e9 * rate; /* datagrams since the clock's beginning */
    while ((now = now_ns(CLOCK_MONOTONIC)) < began + (int64_t)(seconds * 1e9)) {
        /* What was missed while others had the processor is not made up for: a cable would not. */
        if (due < (double)(now - BURST_NS) / 1e9 * rate)
            due = (double)(now - BURST_NS) / 1e9 * rate;
        if (due > (double)now / 1e9 * rate) {
            struct timespec pause = {.tv_nsec = 100000};
            nanosleep(&pause, NULL);
            continue;
        }
        size_t size = make_train(&frame, query_size);
        if (send(fd, &frame, size, 0) == (ssize_t)size)
            sent += TRAIN;
        else
            need(errno == ENOBUFS, "sending"), refused++;
        due += TRAIN;
    }
    printf("{\"seconds\": %.3f, \"sent\": %llu, \"refused\": %llu, \"cpu_s\": %.3f}\n",
           (double)(now - began) / 1e9, (unsigned long long)sent, (unsigned long long)refused,
           (double)now_ns(CLOCK_PROCESS_CPUTIME_ID) / 1e9);
    return 0;
}

/* --- the floor: what answering without a server takes ------------------------------------------- */

static _Noreturn void echo(const char *address) {
    struct sockaddr_in here = {.sin_family = AF_INET}, from;
    socklen_t size = sizeof here;
    need(inet_pton(AF_INET, address, &here.sin_addr) == 1, "an IPv4 address");
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    need(fd >= 0 && !bind(fd, (struct sockaddr *)&here, size) &&
             !getsockname(fd, (struct sockaddr *)&here, &size), "a socket");
    printf("%d\n", ntohs(here.sin_port));
    fflush(stdout);
    uint8_t octets[ANSWER_MAX];
    for (;;) {
        socklen_t room = sizeof from;
        ssize_t got = recvfrom(fd, octets, sizeof octets, 0, (struct sockaddr *)&from, &room);
        if (got < HEADER)
            continue;
        octets[2] |= 0x80; /* QR */
        sendto(fd, octets, (size_t)got, 0, (struct sockaddr *)&from, room);
    }
}

int main(int count, char **given) {
    if (count == 3 && !strcmp(given[1], "echo"))
        echo(given[2]);
    if (count == 9 && !strcmp(given[1], "flood"))
        return flood(given[2], atoi(given[3]), atof(given[4]), atof(given[5]), given[6], given[7],
                     given[8]);
    if (count < 6) {
        fprintf(stderr, "asker full|pour|paced|checked|flood|echo ...: see the top of asker.c\n");
        return 2;
    }
    read_names();
    const char *address = given[2];
    int port = atoi(given[3]);
    if (count == 7 && !strcmp(given[1], "full"))
        return full(address, port, atof(given[4]), (unsigned)atoi(given[5]), atoi(given[6]));
    if (count == 6 && !strcmp(given[1], "pour"))
        return pour(address, port, atof(given[4]), (unsigned)atoi(given[5]));
    if (count == 6 && !strcmp(given[1], "paced"))
        return paced(address, port, atof(given[4]), atof(given[5]));
    if (count == 6 && !strcmp(given[1], "checked"))
        return checked(address, port, strtoull(given[4], NULL, 10), given[5]);
    fprintf(stderr, "asker: not so many arguments\n");
    return 2;
}
