"""Networks that a peer is looked up in, by its address in text."""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from kudurru.domain.notation import Network

REMEMBERED = 1024  # peers; balancers are few, and a look-up is some microseconds


class Networks:
    def __init__(self, networks: Iterable[Network] = ()) -> None:
        self._networks = tuple(networks)
        self._holds = lru_cache(REMEMBERED)(self._look)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, address: str) -> bool:
        return bool(self._networks) and self._holds(address)

    def _look(self, address: str) -> bool:
        try:
            found = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        return any(found in network for network in self._networks)


def client_text(address: IPv4Address | IPv6Address) -> str:
    """A client's address as somebody else writes it: an IPv4 client is one client, also where it
    is written as one of IPv6 (RFC 4291 section 2.5.5.2)."""
    return str(getattr(address, "ipv4_mapped", None) or address)
