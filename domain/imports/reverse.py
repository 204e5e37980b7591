"""Zones of the names of addresses (RFC 1035 section 3.5, RFC 3596 section 2.5)."""

from ipaddress import ip_network

from kudurru.domain.dns import names
from kudurru.domain.dns.names import Name

ZONES_MAX = 128


def reverse_zones(network: str) -> list[Name]:
    """Those that hold all addresses of a network and no other. Raises ValueError for what is no
    network, and for one that borders of labels do not meet."""
    found = ip_network(network.strip(), strict=False)
    step = 8 if found.version == 4 else 4
    prefix = max(step, -(-found.prefixlen // step) * step)
    if prefix > found.max_prefixlen - step or 1 << (prefix - found.prefixlen) > ZONES_MAX:
        raise ValueError(f"{network}: no zone of names of addresses is as large as that")
    return [
        names.from_text(
            part.network_address.reverse_pointer.split(".", (part.max_prefixlen - prefix) // step)[
                -1
            ]
        )
        for part in found.subnets(new_prefix=prefix)
    ]
