"""Binding of listeners: all sockets of all listeners are up, or none is.

A group of sockets on one address (SO_REUSEPORT) would let a second server join it unseen, and half
of the queries would go there. So the first bind is a plain one, which fails when anybody has the
address, and resolves port 0; only then the group takes its place.
"""

import contextlib
import errno
import socket
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from kudurru.domain.errors import Busy, Cause, Invalid, KudurruError
from kudurru.domain.notation import parse_socket_address

HAS_GROUPS = hasattr(socket, "SO_REUSEPORT")
"""Whether several sockets may share an address; where they may not, each listener has one."""

BACKLOG = 1024  # connections that wait for accept; the system may cut it (net.core.somaxconn)
RECEIVE_BUFFER = 1 << 20  # octets asked for, so that a burst of queries waits instead of falling

IP_MTU_DISCOVER, IP_PMTUDISC_PROBE = 10, 3
"""linux/in.h. Nothing of ours is fragmented (RFC 9715 section 3.1, RFC 9000 section 14), and nobody
can make it so by telling of a small path: what is sent has at most 1,232 octets."""

FREEBIND = {
    socket.AF_INET: (socket.IPPROTO_IP, 15),  # IP_FREEBIND, linux/in.h
    socket.AF_INET6: (socket.IPPROTO_IPV6, 78),  # IPV6_FREEBIND, linux/in6.h
}

CARRIERS = {
    **dict.fromkeys(("tcp", "tls", "https"), "tcp"),
    **dict.fromkeys(("udp", "quic", "h3"), "udp"),
}
"""What a protocol of a listener goes over."""


class Listener(msgspec.Struct, frozen=True):
    """Where to listen: a protocol of CARRIERS, and "192.0.2.1:53" or "[2001:db8::1]:53"; port 0 is
    any."""

    proto: str
    address: str
    freebind: bool = False
    """Also while no interface of this machine has the address."""


class Bound(msgspec.Struct, frozen=True):
    """A listener that is up: its sockets, and the address with the port it got."""

    listener: Listener
    address: str
    sockets: tuple[socket.socket, ...]


def bind_all(listeners: Sequence[Listener], per_listener: int = 1) -> list[Bound]:
    """Bind, and for TCP listen, on every listener with `per_listener` sockets each.

    Raises: Invalid for an address that does not parse or is not this machine's; Busy when another
    process holds one, named where the system tells. Nothing is left bound then.
    """
    with contextlib.ExitStack() as undo:
        bound = [_bind(listener, per_listener, undo) for listener in listeners]
        undo.pop_all()
        return bound


def beside(sock: socket.socket) -> socket.socket:
    """Another UDP socket on the address of one, in a group with it. Raises OSError."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    with contextlib.ExitStack() as undo:
        host, port = sock.getsockname()[:2]
        freebind = bool(sys.platform == "linux" and sock.getsockopt(*FREEBIND[sock.family]))
        other = _open("udp", host, port, undo, is_shared=True, freebind=freebind)
        undo.pop_all()
        return other


def has_address(host: str) -> bool:
    """Whether an interface of this machine has this address now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((host, 0))
    except OSError as fault:
        return fault.errno != errno.EADDRNOTAVAIL
    return True


def address_of(sock: socket.socket) -> str:
    return join_address(*sock.getsockname()[:2])


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Host and port of an address in text. Raises Invalid."""
    try:
        found = parse_socket_address(address)
    except ValueError as fault:
        raise Invalid(f"listener {address!r}", [Cause("address", str(fault))]) from None
    return found.host, found.port


def _bind(listener: Listener, count: int, undo: contextlib.ExitStack) -> Bound:
    host, port = split_address(listener.address)
    carrier = CARRIERS[listener.proto]
    if not HAS_GROUPS:
        count = 1
    open_ = partial(_open, carrier, host, freebind=listener.freebind)
    try:
        with contextlib.ExitStack() as undo_probe:
            sockets = [open_(port, undo_probe, is_shared=False)]
            port = sockets[0].getsockname()[1]
            if count == 1:
                undo.push(undo_probe.pop_all())
        if count > 1:
            sockets = [open_(port, undo, is_shared=True) for _ in range(count)]
        if carrier == "tcp":
            for sock in sockets:
                sock.listen(BACKLOG)
    except OSError as fault:
        raise _explained(fault, listener.proto, host, port) from fault
    return Bound(listener, join_address(host, port), tuple(sockets))


def _open(
    proto: str,
    host: str,
    port: int,
    undo: contextlib.ExitStack,
    *,
    is_shared: bool,
    freebind: bool,
) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio switches Nagle's algorithm off: an answer never waits for the
    # acknowledgement of the one before.
    kind = (socket.SOCK_DGRAM, socket.IPPROTO_UDP)
    if proto == "tcp":
        kind = (socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock = undo.enter_context(socket.socket(family, *kind))
    sock.setblocking(False)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # 0.0.0.0 serves IPv4
    if proto == "tcp":
        # Else connections of a server that has just stopped would hold the port (TIME_WAIT).
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    else:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        if family == socket.AF_INET and sys.platform == "linux":
            with contextlib.suppress(OSError):  # a kernel that knows no such option
                sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
    if is_shared:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if freebind and sys.platform == "linux":
        sock.setsockopt(*FREEBIND[family], 1)
    sock.bind((host, port))
    return sock


def _explained(fault: OSError, proto: str, host: str, port: int) -> KudurruError:
    where = f"{proto} {join_address(host, port)}"
    if fault.errno == errno.EADDRINUSE:
        holder = _holder(CARRIERS[proto], port) or "another process"
        return Busy(f"{where} is taken by {holder}; stop it, or listen on another port")
    hints = {
        errno.EACCES: "this user may not bind it; ports below 1024 need CAP_NET_BIND_SERVICE",
        errno.EADDRNOTAVAIL: "no interface of this machine has this address; "
        "listeners.freebind listens there all the same, on Linux",
        errno.EAFNOSUPPORT: "this machine has no IPv6; leave this listener out",
    }
    message = hints.get(fault.errno or 0, fault.strerror or str(fault))
    return Invalid(f"listener {where}", [Cause("address", message)])


def _holder(proto: str, port: int) -> str | None:
    """Who has a port, "named (process 812)", where /proc shows it to this user."""
    inodes = set(_inodes(proto, port))
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            target = str(link.readlink())
            if target.startswith("socket:[") and target[8:-1] in inodes:
                process = link.parent.parent
                command = (process / "comm").read_text().strip()
                return f"{command} (process {process.name})"
    return None


def _inodes(proto: str, port: int) -> Iterator[str]:
    for table in (f"/proc/net/{proto}", f"/proc/net/{proto}6"):
        with contextlib.suppress(OSError), Path(table).open() as rows:
            next(rows)
            for row in rows:
                columns = row.split()
                if int(columns[1].rpartition(":")[2], 16) == port:
                    yield columns[9]
