"""Many datagrams per system call: Linux recvmmsg(2) and sendmmsg(2) through ctypes.

The library is loaded with PyDLL, which keeps the GIL during a call. With MSG_DONTWAIT the calls
return at once, and a call that let the GIL go would wait behind any busy thread to get it back, a
switch interval each time: measured, 98,000 queries a second fell to 5,700.

A batch is answered in place: an answer is written over its query, and the headers for sending
point at the same slots and peer addresses as those for receiving. So nothing is set up per call
but the lengths.
"""

import ctypes
import errno
import os
import socket
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from kudurru.domain.dns.messages import shortened

BATCH: Final = 64  # datagrams a call: more gains little, and the heads of 64 slots fit the cache
SLOT: Final = 4096  # octets of the longest message taken or sent: EDNS's usual upper bound
# One octet more shows that a datagram was cut. The rest keeps the slots' heads out of one and the
# same set of the processor's cache, where they would all fall at a distance of 4096.
_STRIDE = SLOT + 64

# Per family: octets of a sockaddr, octets of its packet info, offset of the interface index in it
# (struct in_pktinfo, RFC 3542 section 6 in6_pktinfo).
_LAYOUT = {socket.AF_INET: (16, 12, 0), socket.AF_INET6: (28, 20, 16)}
# Per family: offset and length of the address in a sockaddr.
_ADDRESS = {socket.AF_INET: (4, 4), socket.AF_INET6: (8, 16)}


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Msghdr(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_void_p),
        ("namelen", ctypes.c_uint32),
        ("iov", ctypes.c_void_p),
        ("iovlen", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("controllen", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Mmsghdr(ctypes.Structure):
    """A message, and the length of the datagram received."""

    _fields_ = (("message", _Msghdr), ("length", ctypes.c_uint))


def _load() -> Any:  # functions of a C library have no static type
    if sys.platform != "linux":
        return None
    libc = ctypes.PyDLL(None, use_errno=True)
    try:
        recvmmsg, sendmmsg = libc.recvmmsg, libc.sendmmsg
    except AttributeError:
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_uint
    recvmmsg.argtypes = (ctypes.c_int, pointer, number, ctypes.c_int, pointer)
    sendmmsg.argtypes = (ctypes.c_int, pointer, number, ctypes.c_int)
    return libc


_LIBC = _load()

_text = lru_cache(4096)(socket.inet_ntop)


def is_available() -> bool:
    return _LIBC is not None


class Sender:
    """Sends datagrams over connected sockets, many with one call."""

    def __init__(self, size_max: int) -> None:
        """`size_max`: octets of the longest datagram."""
        self._size_max = size_max
        self._starts = range(0, BATCH * size_max, size_max)
        self._octets = (ctypes.c_char * (BATCH * size_max))()
        self._view = memoryview(self._octets).cast("B")
        self._parts = (_Iovec * BATCH)()
        self._headers: Any = (_Mmsghdr * BATCH)()
        for i, start in enumerate(self._starts):
            self._parts[i] = _Iovec(ctypes.addressof(self._octets) + start, 0)
            at = ctypes.addressof(self._parts) + i * ctypes.sizeof(_Iovec)
            self._headers[i].message = _Msghdr(iov=at, iovlen=1)
        self._sizes = memoryview(self._parts).cast("B").cast("L")[1::2]  # size_t on Linux

    def send(self, sock: socket.socket, datagrams: Sequence[bytes]) -> int:
        """Send at most BATCH datagrams; how many the system took before one that it did not.
        Raises OSError where that was the first."""
        view, sizes = self._view, self._sizes
        for i, (start, datagram) in enumerate(zip(self._starts, datagrams, strict=False)):
            view[start : start + len(datagram)] = datagram
            sizes[i] = len(datagram)
        count = min(len(datagrams), BATCH)
        sent: int = _LIBC.sendmmsg(sock.fileno(), self._headers, count, socket.MSG_DONTWAIT)
        if sent < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))  # of the class that the code has
        return sent


class Receiver:
    """Takes datagrams from connected sockets, many with one call."""

    def __init__(self, size_max: int) -> None:
        """`size_max`: octets of the longest datagram; longer ones are cut."""
        self._starts = range(0, BATCH * size_max, size_max)
        self._octets: Any = (ctypes.c_char * (BATCH * size_max))()
        self._parts = (_Iovec * BATCH)()
        self._headers: Any = (_Mmsghdr * BATCH)()
        for i, start in enumerate(self._starts):
            self._parts[i] = _Iovec(ctypes.addressof(self._octets) + start, size_max)
            at = ctypes.addressof(self._parts) + i * ctypes.sizeof(_Iovec)
            self._headers[i].message = _Msghdr(iov=at, iovlen=1)
        words = memoryview(self._headers).cast("B").cast("I")
        self._lengths = words[_Mmsghdr.length.offset // 4 :: ctypes.sizeof(_Mmsghdr) // 4]

    def receive(self, sock: socket.socket) -> list[bytes]:
        """What waits, at most BATCH datagrams. Raises OSError."""
        count: int = _LIBC.recvmmsg(sock.fileno(), self._headers, BATCH, socket.MSG_DONTWAIT, None)
        if count < 0:
            code = ctypes.get_errno()
            if code in (errno.EAGAIN, errno.EINTR):
                return []
            raise OSError(code, os.strerror(code))
        octets = self._octets
        return [
            octets[start : start + length]
            for start, length in zip(self._starts, self._lengths[:count].tolist(), strict=False)
        ]


class Batch:
    """Buffers for one socket, allocated once.

    After `receive() == n`, datagram i < n is `octets[starts[i] : starts[i] + lengths[i]]`. To
    answer it, write at `starts[i]` of `view`, put the length into `sizes[i]`, then `send` the run
    of slots that holds it.
    """

    def __init__(self, sock: socket.socket, *, with_packet_info: bool) -> None:
        """`with_packet_info`: the socket delivers the address that a query was sent to, and its
        answer must leave from there."""
        self._fd = sock.fileno()
        self._family = sock.family
        self._address_size, info_size, index_at = _LAYOUT[sock.family]
        self._addresses: Any = (ctypes.c_char * (BATCH * self._address_size))()
        # Of IPv4, where it is the second of the four words of a sockaddr.
        self._words = memoryview(self._addresses).cast("B").cast("I")[1::4]
        self._control_size = socket.CMSG_SPACE(info_size) if with_packet_info else 0
        # An array of size_t, since control data is aligned like one.
        self._control = (ctypes.c_size_t * (BATCH * self._control_size))()
        self.starts = range(0, BATCH * _STRIDE, _STRIDE)
        # Any: slices of an array of char are bytes, which its type does not say.
        self.octets: Any = (ctypes.c_char * (BATCH * _STRIDE))()
        self.view = memoryview(self.octets).cast("B")

        self._to_take, self._taken_parts = self._headers(SLOT + 1)
        self._to_give, self._given_parts = self._headers(0)
        per_header = ctypes.sizeof(_Mmsghdr) // 4
        words = memoryview(self._to_take).cast("B").cast("I")
        self.lengths = words[_Mmsghdr.length.offset // 4 :: per_header]
        self.sizes = memoryview(self._given_parts).cast("B").cast("L")[1::2]  # size_t on Linux
        if with_packet_info:
            first = (socket.CMSG_LEN(0) + index_at) // 4
            words = memoryview(self._control).cast("B").cast("I")
            self._interfaces = words[first :: self._control_size // 4]
            self._no_interfaces = memoryview(bytes(4 * BATCH)).cast("I")

    def receive(self) -> int:
        """Take what waits, up to BATCH datagrams; 0 when nothing does. Raises OSError."""
        count: int = _LIBC.recvmmsg(self._fd, self._to_take, BATCH, socket.MSG_DONTWAIT, None)
        if count < 0:
            code = ctypes.get_errno()
            if code in (errno.EAGAIN, errno.EINTR):
                return 0
            raise OSError(code, os.strerror(code))
        if self._control_size:
            # The address is kept, the interface is not: the way back is the routing table's.
            self._interfaces[:count] = self._no_interfaces[:count]
        return count

    def send(self, first: int, count: int) -> tuple[int, Sequence[int]]:
        """Send `count` slots from `first` on: how many were sent, and the slots that the system
        refused one by one (no route, port 0). The last ones, as many as are left, found no room."""
        sent, refused = 0, list[int]()
        while (done := sent + len(refused)) < count:
            header = ctypes.byref(self._to_give, (first + done) * ctypes.sizeof(_Mmsghdr))
            now: int = _LIBC.sendmmsg(self._fd, header, count - done, socket.MSG_DONTWAIT)
            if now > 0:
                sent += now
                continue
            code = ctypes.get_errno()
            if code in (errno.EAGAIN, errno.ENOBUFS):
                break
            if code == errno.EMSGSIZE and self._shorten(first + done):
                continue
            if code != errno.EINTR:
                refused.append(first + done)
        return sent, refused

    def _shorten(self, i: int) -> bool:
        """What is longer than its interface takes, and must not go in pieces, is to be had over
        TCP."""
        start = self.starts[i]
        shorter = shortened(self.octets[start : start + self.sizes[i]])
        if shorter is None:
            return False
        self.view[start : start + len(shorter)] = shorter
        self.sizes[i] = len(shorter)
        return True

    def origin(self, i: int) -> bytes:
        """Where datagram i came from, and to: its answer goes the other way."""
        at, words = i * self._address_size, self._control_size
        address: bytes = self._addresses[at : at + self._address_size]
        if not words:
            return address
        return address + bytes(memoryview(self._control).cast("B")[i * words : (i + 1) * words])

    def put(self, i: int, origin: bytes, wire: bytes) -> None:
        """Have slot i hold an answer to what came from an origin of a batch on the same socket."""
        at, start = i * self._address_size, self.starts[i]
        self._addresses[at : at + self._address_size] = origin[: self._address_size]
        if self._control_size:
            at = i * self._control_size
            control = memoryview(self._control).cast("B")
            control[at : at + self._control_size] = origin[self._address_size :]
        self.view[start : start + len(wire)] = wire
        self.sizes[i] = len(wire)

    def client(self, i: int) -> str:
        """Address in text that datagram i came from."""
        at, width = _ADDRESS[self._family]
        at += i * self._address_size
        return _text(self._family, self._addresses[at : at + width])

    def clients(self, count: int) -> list[bytes]:
        """Addresses that the first `count` datagrams came from, 4 or 16 octets each."""
        at, width = _ADDRESS[self._family]
        octets = self._addresses[: count * self._address_size]
        first = octets[at : at + width]
        if width == 4 and (words := self._words[:count].tolist()).count(words[0]) == count:
            return [first] * count  # one resolver, or one bench: most batches of a busy server
        return [octets[i : i + width] for i in range(at, len(octets), self._address_size)]

    def _headers(self, size: int) -> tuple["ctypes.Array[_Mmsghdr]", "ctypes.Array[_Iovec]"]:
        """Headers over the slots, addresses and control data, for `size` octets each."""
        parts = (_Iovec * BATCH)()
        headers = (_Mmsghdr * BATCH)()
        for i in range(BATCH):
            parts[i] = _Iovec(ctypes.addressof(self.octets) + self.starts[i], size)
            headers[i].message = _Msghdr(
                name=ctypes.addressof(self._addresses) + i * self._address_size,
                namelen=self._address_size,
                iov=ctypes.addressof(parts) + i * ctypes.sizeof(_Iovec),
                iovlen=1,
                control=ctypes.addressof(self._control) + i * self._control_size,
                controllen=self._control_size,
            )
        return headers, parts
