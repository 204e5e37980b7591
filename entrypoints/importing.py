"""Imports from other products: files in, objects out. See decisions/0069."""

from collections.abc import Sequence
from pathlib import Path

from kudurru.adapters.import_files import is_database, read_sources, read_tables, unpacked
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.imports import adguard, blocky, dnsmasq, hosts, pihole
from kudurru.domain.imports.model import Imported, Importing, Reader, Source, Zones
from kudurru.domain.imports.objects import imported

TITLES = {
    "hosts": "hosts files",
    "dnsmasq": "dnsmasq",
    "pihole": "Pi-hole",
    "adguard": "AdGuard Home",
    "blocky": "blocky",
}
"""Products by the word for them."""


def _read_pihole(importing: Importing, sources: list[Source]) -> None:
    found = unpacked(sources, pihole.WANTED)
    pihole.read(
        importing, found, lambda s: read_tables(s, pihole.COLUMNS) if is_database(s) else None
    )


_READERS: dict[str, Reader] = {
    "hosts": hosts.read,
    "dnsmasq": dnsmasq.read,
    "pihole": _read_pihole,
    "adguard": adguard.read,
    "blocky": blocky.read,
}


def import_files(
    product: str, paths: Sequence[Path], *, prefix: str, namespace: str, zones: Zones
) -> Imported:
    """What an import of these files is. Raises Invalid with every fault."""
    importing = Importing(product, prefix)
    sources: list[Source] = read_sources(paths)
    _READERS[product](importing, sources)
    found = imported(importing, namespace=namespace, zones=zones)
    if not found.manifests and not found.settings:
        given = ", ".join(map(str, paths))
        raise Invalid(given, [Cause("", "nothing in it that can be imported" + _why(found))])
    return found


def _why(found: Imported) -> str:
    return f"; left out: {found.left_out[0]}" if found.left_out else ""
