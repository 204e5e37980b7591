"""What tests of objects share: manifests in a line, and a present to decide against."""

from collections.abc import Iterable, Sequence
from typing import Any

from kudurru.domain.commands import Apply, Command, Delete
from kudurru.domain.events import Event
from kudurru.domain.kinds.meta import API_VERSION
from kudurru.domain.kinds.validation import Manifest, parse_manifest
from kudurru.domain.object_store import Batch, Outcome, StoredObject, evolve, resource_version
from kudurru.domain.objects import Key, key_of

EPOCH = 1
NOON_US = 1_760_000_000_000_000  # 2025-10-09T08:53:20Z

Document = dict[str, Any]


def document(kind: str, name: str, spec: Any, **metadata: Any) -> Document:
    meta = {"name": name, **metadata}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": meta, "spec": spec}


def manifest(kind: str, name: str, spec: Any, **metadata: Any) -> Manifest:
    return parse(document(kind, name, spec, **metadata))


def parse(value: Any) -> Manifest:
    return parse_manifest(value, what="test", default_namespace="default")


def zone(name: str = "example.org", *, metadata: Document | None = None, **spec: Any) -> Manifest:
    return manifest("DNSZone", name, {"zoneName": f"{name}.", **spec}, **(metadata or {}))


def endpoint(name: str, rtype: str, *targets: str, **fields: Any) -> Document:
    return {"dnsName": name, "recordType": rtype, "targets": list(targets), **fields}


def record_set(
    name: str, *endpoints: Document, zone: str = "example.org", **metadata: Any
) -> Manifest:
    spec = {"zoneRef": {"name": zone}, "endpoints": list(endpoints)}
    return manifest("DNSRecordSet", name, spec, **metadata)


def www(*targets: str, **metadata: Any) -> Manifest:
    """The record set `www`, with addresses of www.example.org."""
    wanted = targets or ("192.0.2.1",)
    return record_set("www", endpoint("www.example.org", "A", *wanted), **metadata)


ZONE_KEY = key_of("DNSZone", "", "example.org")
WWW_KEY = key_of("DNSRecordSet", "default", "www")


def put(manifest: Manifest, manager: str = "kudurru", **how: Any) -> Apply:
    return Apply(manifest=manifest, manager=manager, **how)


def drop(key: Key, **how: Any) -> Delete:
    return Delete(key=key, **how)


class Present:
    """Implements `domain.object_store.ObjectState`: what a log says that took in every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._objects: dict[Key, StoredObject | None] = {}
        self._versions: dict[Key, int] = {}

    def find(self, key: Key) -> StoredObject | None:
        return self._objects.get(key)

    def version(self, key: Key) -> int:
        return self._versions.get(key, 0)

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            self.events.append(event)
            assert event.ver == self.version(event.key) + 1, "the stream has a gap"
            self._versions[event.key] = event.ver
            version = resource_version(EPOCH, len(self.events))
            self._objects[event.key] = evolve(self.find(event.key), event, version)


class Rulebook:
    """Decides one batch after another against a present, as a log's one writer does."""

    def __init__(self) -> None:
        self.present = Present()
        self.now_us = NOON_US
        self._uids = 0

    def batch(self) -> Batch:
        return Batch(self.present, now_us=self.now_us, epoch=EPOCH, new_uid=self._new_uid)

    def _new_uid(self) -> str:
        self._uids += 1
        return f"uid-{self._uids}"

    def do(self, *commands: Command) -> list[Outcome]:
        """All commands, or none. Raises what the first refused one does."""
        batch = self.batch()
        events: list[Event] = []
        outcomes = []
        for command in commands:
            led_to, outcome = batch.decide(command)
            events += led_to
            outcomes.append(outcome)
        self.present.take(events)
        return outcomes

    def get(self, key: Key) -> StoredObject:
        found = self.present.find(key)
        assert found is not None
        return found

    def types_since(self, count: int) -> Sequence[str]:
        return [event.type for event in self.present.events[count:]]
