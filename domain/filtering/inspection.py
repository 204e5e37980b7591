"""What an answer leads to: names and addresses that have to be held against the rules as well.

A tracker behind an alias of the site's own, a host whose address is on a list, and an HTTPS record
whose hints replace the addresses that were blocked: all three are the answer's, not the question's.
An address is held against rules as the name that its text is: `192.0.2.1`, `2001:db8::1`.
"""

from collections.abc import Iterator
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from kudurru.domain.dns import names
from kudurru.domain.dns.messages import HEADER_SIZE
from kudurru.domain.dns.names import BadName, Name
from kudurru.domain.dns.record_types import AAAA, CNAME, HTTPS, SVCB, A
from kudurru.domain.dns.responses import Message, hinted

NAMES_MAX = 256
"""Names and addresses looked at in one answer. More than fit into any that is not an attack on
whoever has to look at them."""

ANSWERS_MAX = 4096
"""Answers that are remembered with what they lead to: those that the cache gives often."""

REMEMBERED_MAX = 1024
"""Octets of an answer that is remembered. Larger ones are seldom, and would be held here beside the
cache's own bound."""

_TTL_TO_RDATA = 6


def leads_to(question: bytes, message: Message) -> tuple[Name, ...]:
    """Keys of what the answer section leads to, in its order, each once. `question` is the one
    that the message's pointers are relative to, in lower case."""
    if len(message.body) > REMEMBERED_MAX:
        return _leads_to(question, message)
    return _remembered(question, message)


def _leads_to(question: bytes, message: Message) -> tuple[Name, ...]:
    packet = bytes(HEADER_SIZE) + question + message.body
    start = HEADER_SIZE + len(question)
    found: dict[Name, None] = {}
    for ttl_at in message.ttls_at[: message.counts[0]]:
        at = start + ttl_at
        rtype = int.from_bytes(packet[at - 4 : at - 2], "big")
        length = int.from_bytes(packet[at + 4 : at + 6], "big")
        for key in _in_record(rtype, packet, at + _TTL_TO_RDATA, length):
            found.setdefault(key)
            if len(found) == NAMES_MAX:
                return tuple(found)
    return tuple(found)


_remembered = lru_cache(ANSWERS_MAX)(_leads_to)


def _in_record(rtype: int, packet: bytes, at: int, length: int) -> Iterator[Name]:
    try:
        if rtype in (A, AAAA):
            yield address_key(packet[at : at + length])
        elif rtype == CNAME:
            yield names.key(names.from_wire(packet, at)[0])
        elif rtype in (SVCB, HTTPS):
            target, after = names.from_wire(packet, at + 2)
            if target != names.ROOT:
                yield names.key(target)
            yield from map(address_key, hinted(packet[after : at + length]))
    except (BadName, ValueError):
        return  # what does not parse leads nowhere


def address_key(packed: bytes) -> Name:
    """The name that stands for an address of 4 or 16 octets in rules. Raises ValueError."""
    address: IPv4Address | IPv6Address = ip_address(packed)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped  # clients connect to that one
    return names.key(names.from_text(str(address)))
