"""Which of our addresses a datagram was sent to, so that its answer leaves from there.

A client drops what comes from elsewhere, and a socket on all addresses would choose by the routing
table. Known gap: outside Linux only for IPv6.
"""

import socket
import sys

IP_PKTINFO = 8  # linux/in.h; the socket module has no name for it before Python 3.14
ANCILLARY = 64  # octets, room for one packet info of either family

Control = list[tuple[int, int, bytes]]


def ask_for_packet_info(sock: socket.socket) -> bool:
    """Have a socket on all addresses say which one each datagram was sent to. Whether it will."""
    if sock.getsockname()[0] == "::":
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        return True
    if sock.getsockname()[0] == "0.0.0.0" and sys.platform == "linux":  # noqa: S104 compared
        sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
        return True
    return False


def reply_info(control: Control) -> Control:
    """What was received, for the answer: without the interface, for the way back is the routing
    table's."""
    return [
        (level, kind, data[:16] + bytes(4) if level == socket.IPPROTO_IPV6 else bytes(4) + data[4:])
        for level, kind, data in control
    ]
