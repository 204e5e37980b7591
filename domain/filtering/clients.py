"""Who asks, and which client groups that makes.

A group names clients by network, address, MAC, client ID, the interface identifier of their IPv6
address, or the listener they come in by; a client is in every group that names it. The index costs
one look-up per prefix length in use and one per kind of identity, however many clients there are.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import NamedTuple

import msgspec

from kudurru.domain.kinds.clientgroup import Client, ClientGroupSpec
from kudurru.domain.lists.verdicts import Asker

_MAPPED = bytes(10) + b"\xff\xff"  # IPv4 among IPv6 (RFC 4291 section 2.5.5.2)
_IDENTIFIER = (1 << 64) - 1  # the lower half of an IPv6 address
_BITS = {4: 32, 16: 128}

ADDRESSES_MAX = 16_384
"""Addresses whose octets are remembered: parsing one costs more than all that is done with it."""

Groups = frozenset[str]
"""Names of client groups, `namespace/name`."""


class Caller(msgspec.Struct, frozen=True, gc=False):
    """Who a query came from. Make it with `caller_from`."""

    address: bytes  # 4 or 16 octets; IPv4-mapped IPv6 is IPv4
    mac: bytes = b""  # 6 octets; empty: not known
    client_id: str = ""  # lower case
    listener: str = ""  # "udp", or "udp/192.0.2.1:53"

    @property
    def text(self) -> str:
        """Its address."""
        return str(ip_address(self.address))


def caller_from(
    address: str, *, mac: bytes = b"", client_id: str = "", listener: str = ""
) -> Caller:
    """Raises ValueError for a text that is no address."""
    return Caller(packed_address(address), mac, client_id.lower(), listener)


@lru_cache(ADDRESSES_MAX)
def packed_address(text: str) -> bytes:
    """4 or 16 octets of an address, without its zone. Raises ValueError."""
    packed = ip_address(text.partition("%")[0]).packed
    return packed[12:] if packed.startswith(_MAPPED) and len(packed) == 16 else packed


def mac_from_text(text: str) -> bytes:
    """Octets of `aa:bb:cc:dd:ee:ff` or `aa-bb-…`. Raises ValueError."""
    return bytes.fromhex(text.replace(":", "").replace("-", ""))


class NetworkPlace(NamedTuple):
    """A network, as the address of its size shifted right."""

    size: int  # octets of its addresses
    shift: int
    prefix: int


Place = NetworkPlace | tuple[str, bytes | str | int]
"""What a group names clients by."""


def places_of(spec: ClientGroupSpec) -> tuple[Place, ...]:
    return tuple(map(_place, spec.clients))


class ClientIndex:
    """Groups by what they name. Built once, then only read."""

    def __init__(self, groups: Mapping[str, Sequence[Place]]) -> None:
        found: dict[Place, set[str]] = defaultdict(set)
        for name, places in groups.items():
            for place in places:
                found[place].add(name)
        self._networks: dict[int, list[tuple[int, dict[int, Groups]]]] = {4: [], 16: []}
        self._named: dict[Place, Groups] = {}
        networks: dict[tuple[int, int], dict[int, Groups]] = defaultdict(dict)
        for place, names in found.items():
            if isinstance(place, NetworkPlace):
                networks[place.size, place.shift][place.prefix] = frozenset(names)
            else:
                self._named[place] = frozenset(names)
        for (size, shift), prefixes in sorted(networks.items()):
            self._networks[size].append((shift, prefixes))
        self._has_suffixes = any(place[0] == "suffix" for place in self._named)
        self.names_macs = any(place[0] == "mac" for place in self._named)
        """Whether groups change when the neighbours do."""

    def names_id(self, client_id: str) -> bool:
        """Whether a group names it. A client of any other is in the groups of its address."""
        return ("id", client_id.lower()) in self._named

    def groups_of(self, caller: Caller) -> Groups:
        found: set[str] = set()
        address = int.from_bytes(caller.address, "big")
        for shift, prefixes in self._networks[len(caller.address)]:
            found |= prefixes.get(address >> shift, frozenset())
        for place in self._identities(caller, address):
            found |= self._named.get(place, frozenset())
        return frozenset(found)

    def _identities(self, caller: Caller, address: int) -> Iterator[Place]:
        if caller.mac:
            yield "mac", caller.mac
        if caller.client_id:
            yield "id", caller.client_id
        if caller.listener:
            proto, slash, at = caller.listener.partition("/")
            yield "listener", proto
            if slash:
                yield "listener", at
                yield "listener", caller.listener
        if self._has_suffixes and len(caller.address) == 16:
            yield "suffix", address & _IDENTIFIER


def asker_of(caller: Caller, groups: Groups) -> Asker:
    """The caller as rules with `$client` know it: by address, client ID, MAC, listener, and the
    groups with and without their namespace."""
    known = {caller.client_id, caller.listener, caller.mac.hex(":")}
    known |= groups | {group.partition("/")[2] for group in groups}
    return Asker(ip_address(caller.address), frozenset(known - {""}))


def _place(client: Client) -> Place:
    if client.mac is not None:
        return "mac", mac_from_text(client.mac)
    if client.client_id is not None:
        return "id", client.client_id.lower()
    if client.ip_suffix is not None:
        return "suffix", int(IPv6Address(client.ip_suffix)) & _IDENTIFIER
    if client.listener is not None:
        return "listener", client.listener
    if client.ip is not None:
        packed = packed_address(client.ip)
        return NetworkPlace(len(packed), 0, int.from_bytes(packed, "big"))
    assert client.cidr is not None, "validation lets no client through that names nothing"
    network = ip_network(client.cidr, strict=False)
    packed, length = network.network_address.packed, network.prefixlen
    if len(packed) == 16 and packed.startswith(_MAPPED) and length >= 96:
        packed, length = packed[12:], length - 96
    shift = _BITS[len(packed)] - length
    return NetworkPlace(len(packed), shift, int.from_bytes(packed, "big") >> shift)
