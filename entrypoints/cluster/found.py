"""An object as the cluster has it, and what is compared of it."""

import hashlib
from typing import Any

import msgspec

from kudurru.adapters.kubernetes.store import shown
from kudurru.domain import mirror
from kudurru.domain.codec import canonical, in_profile
from kudurru.domain.errors import Invalid
from kudurru.domain.kinds.meta import MANAGED_BY
from kudurru.domain.kinds.registry import Kind
from kudurru.domain.kinds.validation import Manifest, parse_manifest
from kudurru.domain.object_store import StoredObject, annotations_after
from kudurru.domain.objects import Key
from kudurru.domain.reconcile.conditions import ACCEPTED, parts


class Content(msgspec.Struct, frozen=True):
    """What an object says, until it is recorded."""

    manifest: Manifest
    status: dict[str, Any] | None
    writer: str  # field manager of the newest write to it
    status_writer: str


class Found(msgspec.Struct):
    """An object in the cluster. Of ten thousand only this is kept."""

    key: Key
    uid: str
    version: str
    manager: str  # in its annotation; "" for none
    owner: str  # that the log gives it
    made: bytes  # digest of what people write
    said: bytes  # digest of its status
    content: Content | None
    as_of: int = 0  # version of the list or the event that it was told by
    tries: int = 0  # to have its status recorded


def found_in(kind: Kind, document: dict[str, Any]) -> Found:
    """An object as the API server has it. Raises: ValueError when it is none of ours."""
    metadata = document["metadata"]
    managed = metadata.get("managedFields") or []
    try:
        plain = shown(kind.name, document)
        manifest = parse_manifest(plain, what="object", default_namespace="")
    except Invalid as error:
        raise ValueError(str(error)) from None
    writer, status_writer = _newest(managed, ""), _newest(managed, "status")
    status = document.get("status")
    if not isinstance(status, dict) or not in_profile(status):
        status = None
    manager = manifest.meta.annotations.get(MANAGED_BY, "")
    if manager and (fault := mirror.manager_fault(manager)):
        raise ValueError(f"annotation {MANAGED_BY}: {fault}")
    owner = manager or ("" if mirror.manager_fault(writer) else writer)
    return Found(
        manifest.key,
        manifest.meta.uid,
        manifest.meta.resource_version,
        manager,
        owner or "kubernetes",
        made_digest(manifest),
        said_digest(status),
        Content(manifest, status, writer, status_writer),
    )


def of_all_nodes(status: dict[str, Any] | None) -> dict[str, Any] | None:
    """Without what the leader says of a version that is not taken: it goes when one is."""
    said = parts(status, "conditions")
    if status is None or all(one.get("type") != ACCEPTED for one in said):
        return status
    return status | {"conditions": [one for one in said if one.get("type") != ACCEPTED]}


def made_digest(manifest: Manifest) -> bytes:
    """Of what people write: spec, labels, and annotations but for those that the store sets."""
    meta = manifest.meta
    annotations = annotations_after(meta.annotations, {})
    return _digest(canonical([manifest.spec, meta.labels, annotations]))


def stored_digest(stored: StoredObject) -> bytes:
    """The same, of an object of the log."""
    body = stored.body
    return _digest(canonical([body.spec, body.labels, body.annotations]))


def said_digest(status: dict[str, Any] | None) -> bytes:
    return _digest(canonical(status or {}))


def _digest(octets: bytes) -> bytes:
    return hashlib.blake2b(octets, digest_size=16).digest()


def _newest(managed: list[dict[str, Any]], part: str) -> str:
    """Who wrote last, of an object or a subresource."""
    entries = [entry for entry in managed if entry.get("subresource", "") == part]
    newest = max(entries, key=lambda entry: entry.get("time", ""), default={})
    return str(newest.get("manager", ""))
