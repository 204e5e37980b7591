"""Which addresses this node may be sent to by those who are not its admins.

Who may name a URL must not reach through us what only this machine or its network reaches: the
services of this host, of the cloud that it runs in, of the people around it.
"""

from ipaddress import IPv4Address, IPv6Address, ip_network

Address = IPv4Address | IPv6Address

_METADATA = frozenset({
    IPv4Address("168.63.129.16"),  # Azure
    IPv4Address("100.100.100.200"),  # Alibaba
    IPv4Address("192.0.0.192"),  # Oracle
    IPv6Address("fd00:ec2::254"),  # AWS
    IPv6Address("fd20:ce::254"),  # Google
})  # fmt: skip
"""Of clouds, beside 169.254.169.254, which is link-local."""

_SHARED = ip_network("100.64.0.0/10")  # RFC 6598: private to a provider
_NAT64 = ip_network("64:ff9b::/96")  # RFC 6052
_SIX_TO_FOUR = ip_network("2002::/16")  # RFC 3056


THIS_MACHINE = "this machine itself"


def why_refused(
    address: Address, *, allow_private: bool, off: str = "lists.allowPrivate is off"
) -> str | None:
    """Why an address may not be connected to, as the end of a sentence; None: it may. `off` says
    which setting would allow private ones."""
    address = _meant(address)
    if address in _METADATA:
        return "a metadata service"
    if address.is_loopback or address.is_unspecified:
        return THIS_MACHINE
    if address.is_link_local:
        return "link-local"
    if address.is_multicast or address == IPv4Address("255.255.255.255"):
        return "multicast"
    if address.is_reserved:
        return "reserved"
    if address.is_private or address in _SHARED or getattr(address, "is_site_local", False):
        return None if allow_private else f"private, and {off}"
    return None


def _meant(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, where it does; none has a scope."""
    if isinstance(address, IPv4Address):
        return address
    address = IPv6Address(int(address))  # one with a scope equals none without
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    if address in _SIX_TO_FOUR:
        return IPv4Address(int(address) >> 80 & 0xFFFFFFFF)
    return address
