"""Answers from outside that lead inside: DNS rebinding.

A page on the internet whose name resolves to an address of the home network can talk to the
devices there as if it came from them. So a public name has no private address here. The
unspecified addresses are let through: upstreams that filter answer with them.
"""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from kudurru.domain.dns.record_types import AAAA, A
from kudurru.domain.dns.responses import SERVICES, Message, hints_of

PRIVATE = tuple(
    map(
        ip_network,
        (
            *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"),
            *("127.0.0.0/8", "169.254.0.0/16", "::1/128", "fc00::/7", "fe80::/10"),
        ),
    )
)
"""Networks that are nobody's on the internet."""

_NAT64 = ip_network("64:ff9b::/96")
"""Translators may lead to the IPv4 address that is in these, whatever RFC 6052 section 3.1 says."""


def is_private(address: IPv4Address | IPv6Address) -> bool:
    meant: IPv4Address | IPv6Address = address
    if isinstance(address, IPv6Address):
        meant = address.ipv4_mapped or address
        if address in _NAT64:
            meant = IPv4Address(int(address) & 0xFFFF_FFFF)
    return any(meant in network for network in PRIVATE)


def leads_inside(message: Message) -> bool:
    """Whether an answer holds a private address, also beside what was asked, or a hint of one."""
    body = message.body
    has_hints = False
    for at in message.ttls_at:
        rtype = body[at - 4] << 8 | body[at - 3]
        if rtype == A:
            octets = body[at + 6 : at + 10]
        elif rtype == AAAA:
            octets = body[at + 6 : at + 22]
        else:
            has_hints = has_hints or rtype in SERVICES
            continue
        if _may_be_private(octets) and is_private(ip_address(octets)):
            return True
    return has_hints and any(
        _may_be_private(octets) and is_private(ip_address(octets)) for octets in hints_of(message)
    )


_SECOND_OCTETS = {
    10: range(256), 127: range(256), 172: range(16, 32), 192: range(168, 169),
    169: range(254, 255), 100: range(64, 128),
}  # fmt: skip
"""Of the IPv4 networks above, by first octet."""


def _may_be_private(octets: bytes) -> bool:
    """A look at two octets, which clears nearly all addresses."""
    if len(octets) == 4:
        return octets[1] in _SECOND_OCTETS.get(octets[0], ())
    return octets[0] in (0, 0xFC, 0xFD, 0xFE)  # ::1, mapped and NAT64, fc00::/7, fe80::/10
