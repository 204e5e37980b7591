/* Answers every datagram without looking at it: the least that UDP costs here.
 *
 *   floor PORT [joined]
 *
 * On 127.0.0.1, with the same system calls and batches as the engine. An answer is its question with
 * QR set, and an A record where there is nothing behind the question: so it is as long as another's.
 * Joined: answers of one length to one client go as one, in the engine's own way. */
#define _GNU_SOURCE
#include "core.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define ROOM 1500
#define HEADER 12

static unsigned char octets[BATCH][ROOM];
static struct sockaddr_in clients[BATCH];
static struct iovec parts[BATCH];
static struct mmsghdr messages[BATCH];
static const unsigned char record[] = "\xc0\x0c\0\1\0\1\0\0\1\x2c\0\4\xc0\0\2\1";

int main(int count, char **given) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0), size = 1 << 20;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons((unsigned short)(count > 1 ? atoi(given[1]) : 0)),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    if (bind(fd, (struct sockaddr *)&address, sizeof address)) {
        perror("floor");
        return 1;
    }
    struct sender sender;
    bool went[BATCH], is_joined = count > 2;
    sender_init(&sender, fd, is_joined);
    for (;;) {
        for (int i = 0; i < BATCH; i++) {
            parts[i] = (struct iovec){octets[i], ROOM - sizeof record};
            messages[i].msg_hdr = (struct msghdr){
                .msg_name = &clients[i],
                .msg_namelen = sizeof clients[i],
                .msg_iov = &parts[i],
                .msg_iovlen = 1,
            };
        }
        int got = recvmmsg(fd, messages, BATCH, MSG_WAITFORONE, NULL);
        for (int i = 0; i < got; i++) {
            unsigned char *packet = octets[i];
            parts[i].iov_len = messages[i].msg_len;
            if (messages[i].msg_len < HEADER)
                continue;
            packet[2] |= 0x84;
            if (packet[11] == 0) { /* no additional record */
                packet[7] = 1;
                memcpy(packet + messages[i].msg_len, record, sizeof record - 1);
                parts[i].iov_len += sizeof record - 1;
            }
        }
        if (got > 0 && is_joined)
            send_all(&sender, messages, (unsigned)got, went);
        else if (got > 0)
            sendmmsg(fd, messages, (unsigned)got, 0);
    }
}
