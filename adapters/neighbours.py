"""Hardware addresses of hosts on our links, from the kernel's neighbour tables.

IPv4 neighbours stand in /proc/net/arp. Those of IPv6 are asked for over rtnetlink (rtnetlink(7),
RTM_GETNEIGH), which needs no rights. Systems that have neither know no neighbours. `refresh` reads
and swaps the whole table; look-ups take what is there.
"""

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from kudurru.domain.filtering.clients import mac_from_text

REFRESH_S = 30.0
"""A client that came meanwhile is known by its address only."""

NEIGHBOURS_MAX = 65_536
TIMEOUT_S = 2.0

ARP = Path("/proc/net/arp")
_COMPLETE = 0x2  # ATF_COM: the entry has an address
_MAC_SIZE = 6

_RTM_NEWNEIGH, _RTM_GETNEIGH = 28, 30
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLM_F_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_ROOT | NLM_F_MATCH
_NDA_DST, _NDA_LLADDR = 1, 2
_NUD_USABLE = 0x02 | 0x04 | 0x08 | 0x10 | 0x80  # reachable, stale, delay, probe, permanent

_MESSAGE = struct.Struct("=IHHII")  # nlmsghdr
_NEIGHBOUR = struct.Struct("=BxxxiHBB")  # ndmsg
_ATTRIBUTE = struct.Struct("=HH")  # rtattr


class NeighbourTable:
    """Implements `domain.ports.Neighbours`."""

    def __init__(self, arp: Path = ARP) -> None:
        self._arp = arp
        self._known: dict[bytes, bytes] = {}

    def mac_of(self, address: bytes) -> bytes:
        return self._known.get(address, b"")

    def refresh(self) -> None:
        """Read the tables anew. What cannot be read is empty. In any thread."""
        known: dict[bytes, bytes] = {}
        for source in (read_arp(self._arp), read_ipv6()):
            try:
                for address, mac in source:
                    if len(known) == NEIGHBOURS_MAX:
                        break
                    known[address] = mac
            except OSError:
                continue
        self._known = known

    def __len__(self) -> int:
        return len(self._known)


def read_arp(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """(address, MAC) of /proc/net/arp (proc(5)). Raises OSError."""
    with path.open() as lines:
        next(lines, "")  # the heading
        for line in lines:
            words = line.split()
            try:
                is_complete = int(words[2], 16) & _COMPLETE
                address, mac = socket.inet_aton(words[0]), mac_from_text(words[3])
            except (IndexError, ValueError, OSError):
                continue  # a form that is newer than we
            if is_complete and len(mac) == _MAC_SIZE and any(mac):
                yield address, mac


def read_ipv6() -> Iterator[tuple[bytes, bytes]]:
    """(address, MAC) of the kernel's IPv6 neighbours. Raises OSError."""
    family = getattr(socket, "AF_NETLINK", None)
    if family is None:
        return
    with socket.socket(family, socket.SOCK_RAW, 0) as sock:  # NETLINK_ROUTE
        sock.settimeout(TIMEOUT_S)
        sock.bind((0, 0))
        body = _NEIGHBOUR.pack(socket.AF_INET6, 0, 0, 0, 0)
        size = _MESSAGE.size + len(body)
        sock.sendall(_MESSAGE.pack(size, _RTM_GETNEIGH, _NLM_F_DUMP, 1, 0) + body)
        while True:
            for kind, payload in messages(sock.recv(1 << 16)):
                if kind in (_NLMSG_DONE, _NLMSG_ERROR):
                    return
                if kind == _RTM_NEWNEIGH:
                    yield from _neighbour(payload)


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(type, payload) of the netlink messages in a datagram (netlink(7))."""
    at = 0
    while at + _MESSAGE.size <= len(data):
        size, kind, _, _, _ = _MESSAGE.unpack_from(data, at)
        if size < _MESSAGE.size:
            return
        yield kind, data[at + _MESSAGE.size : at + size]
        at += -(-size // 4) * 4


def _neighbour(payload: bytes) -> Iterator[tuple[bytes, bytes]]:
    if len(payload) < _NEIGHBOUR.size:
        return
    family, _, state, _, _ = _NEIGHBOUR.unpack_from(payload)
    if family != socket.AF_INET6 or not state & _NUD_USABLE:
        return
    found: dict[int, bytes] = {}
    at = _NEIGHBOUR.size
    while at + _ATTRIBUTE.size <= len(payload):
        size, kind = _ATTRIBUTE.unpack_from(payload, at)
        if size < _ATTRIBUTE.size:
            break
        found[kind] = payload[at + _ATTRIBUTE.size : at + size]
        at += -(-size // 4) * 4
    address, mac = found.get(_NDA_DST, b""), found.get(_NDA_LLADDR, b"")
    if len(address) == 16 and len(mac) == _MAC_SIZE and any(mac):
        yield address, mac
