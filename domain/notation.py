"""How people write durations, sizes, addresses and networks, and how we write them back.

Every parser raises ValueError with a message that shows the right form.
"""

import re
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import msgspec

Network = IPv4Network | IPv6Network

_UNITS_US = {
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1000,
}
_WEEK_US = 7 * _UNITS_US["d"]  # read, and never written: 14d says as much as 2w
DURATION_PATTERN = r"(?:0|(?:[0-9]{1,15}(?:ms|[smhdw]))+)"
_DURATION = re.compile(DURATION_PATTERN)
_DURATION_PART = re.compile(r"([0-9]+)(ms|[smhdw])")

_SIZES = {"TiB": 1 << 40, "GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
SIZE_PATTERN = r"[0-9]{1,15} ?(?:[KMGT]i)?B|[0-9]{1,15}"
_SIZE = re.compile(r"([0-9]{1,15}) ?((?:[KMGT]i)?B)?")


def parse_duration(text: str) -> timedelta:
    """`30s`, `1h30m`, `1800ms`, `400d`, `2w`, `0`; at most 100 years."""
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is no duration; write it as 30s, 1h30m, 1800ms or 400d")
    total = sum(int(n) * _UNITS_US.get(unit, _WEEK_US) for n, unit in _DURATION_PART.findall(text))
    if total > 36_525 * _UNITS_US["d"]:
        raise ValueError(f"{text!r} is longer than 100 years")
    return timedelta(microseconds=total)


def duration_text(value: timedelta) -> str:
    """In the largest unit that leaves nothing over: `1800ms`, `90m`. Parts of a ms are cut."""
    total_us = value // timedelta(microseconds=1)
    for unit, size in _UNITS_US.items():
        if total_us and total_us % size == 0:
            return f"{total_us // size}{unit}"
    return f"{total_us // 1000}ms" if total_us else "0s"


def parse_size(text: str) -> int:
    """Bytes of `64 MiB`, `1GiB`, `512 B` or a bare number."""
    found = _SIZE.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is no size; write it as 64 MiB, 1 GiB or a number of bytes")
    return int(found[1]) * _SIZES[found[2] or "B"]


def size_text(value: int) -> str:
    for unit, size in _SIZES.items():
        if value >= size and value % size == 0:
            return f"{value // size} {unit}"
    return f"{value} B"


class SocketAddress(msgspec.Struct, frozen=True, order=True):
    """An IP address and a port; port 0 lets the system choose."""

    host: str  # canonical text, IPv6 without brackets
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_SOCKET_ADDRESS = re.compile(r"(?:\[([^\[\]]+)\]|([^:\[\]]+)):([0-9]{1,5})")


def parse_socket_address(text: str) -> SocketAddress:
    """`127.0.0.1:5300` or `[::1]:5300`. No names: a listener binds addresses."""
    found = _SOCKET_ADDRESS.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is no address with a port; write 127.0.0.1:5300 or [::1]:5300")
    if int(found[3]) > 65535:
        raise ValueError(f"port {found[3]} in {text!r} is above 65535")
    host = parse_address(found[1] or found[2])
    if (host.version == 6) != bool(found[1]):
        raise ValueError(f"{text!r}: brackets belong around IPv6 addresses, as in [::1]:5300")
    return SocketAddress(str(host), int(found[3]))


def parse_address(text: str) -> IPv4Address | IPv6Address:
    """An IP address without a zone index."""
    try:
        found = ip_address(text)
    except ValueError:
        raise ValueError(f"{text!r} is no IP address; write 192.0.2.1 or 2001:db8::1") from None
    if isinstance(found, IPv6Address) and found.scope_id:
        raise ValueError(f"{text!r}: leave the zone index %{found.scope_id} out")
    return found


def parse_network(text: str) -> Network:
    """`192.0.2.0/24`, `2001:db8::/32`, or one address. Bits beyond the prefix must be zero."""
    try:
        return ip_network(text)
    except ValueError as error:
        if "host bits" in str(error):
            meant = ip_network(text, strict=False)
            raise ValueError(f"{text!r} has bits beyond its prefix; write {meant}") from None
        raise ValueError(f"{text!r} is no network; write 192.0.2.0/24 or 2001:db8::/32") from None


def time_text(ts_us: int) -> str:
    """RFC 3339, UTC, whole seconds, of microseconds since 1970."""
    moment = datetime.fromtimestamp(ts_us / 1_000_000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
