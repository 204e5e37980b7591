"""Imports without files: what a reader makes of texts."""

from collections.abc import Callable
from typing import Any

import msgspec

from kudurru.domain.imports.model import Imported, Importing, Source, Zones
from kudurru.domain.imports.objects import imported


def import_texts(
    product: str,
    read: Callable[..., None],
    *texts: tuple[str, str],
    zones: Zones | None = None,
    **options: Any,
) -> Imported:
    """Of files, by name and text."""
    importing = Importing(product, product)
    read(importing, [Source(name, text.encode()) for name, text in texts], **options)
    return imported(importing, namespace="default", zones=zones or {})


def specs(found: Imported, kind: str) -> dict[str, Any]:
    """By name, as builtins."""
    return {
        manifest.meta.name: msgspec.to_builtins(manifest.spec)
        for manifest in found.manifests
        if manifest.kind.name == kind
    }


def records(found: Imported) -> set[tuple[str, str, str]]:
    """(owner, type, target) of record sets."""
    return {
        (endpoint["dnsName"], endpoint["recordType"], target)
        for spec in specs(found, "DNSRecordSet").values()
        for endpoint in spec["endpoints"]
        for target in endpoint["targets"]
    }


def rewrites(found: Imported, policy: str) -> set[tuple[str, str, str]]:
    """(name, type, target) of a policy."""
    return {
        (rewrite["name"], rewrite.get("type", "A"), target)
        for rewrite in specs(found, "Policy")[policy]["rewrites"]
        for target in rewrite["targets"]
    }


def left_out(found: Imported) -> list[str]:
    return [str(left) for left in found.left_out]
