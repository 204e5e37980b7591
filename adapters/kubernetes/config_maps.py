"""Texts in ConfigMaps: read when they are wanted, and followed by an informer for each namespace.

The informer asks for versions only; a text is read from the API server by who wants it. So a
namespace full of large ConfigMaps costs neither memory nor traffic.
"""

import asyncio
import base64
import binascii
import random
from collections.abc import Callable, Collection
from typing import Any, NoReturn

import msgspec

from kudurru.adapters.kubernetes.answers import Absent, Forbidden, Refused, Unanswered
from kudurru.adapters.kubernetes.client import Client
from kudurru.adapters.kubernetes.informer import Handler, Informer, Source
from kudurru.domain.errors import NotFound, StorageFailed
from kudurru.domain.ports import SharedTexts

PAGE = 50
"""Asked for at once: kubectl puts up to 256 KiB of their texts into an annotation of each."""
NAMESPACES_MAX = 8
"""Followed at a time, each by a connection. Of others a change is found when a text is due."""

Changed = Callable[[str, str], None]


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str


class _ConfigMap(msgspec.Struct, frozen=True, rename="camel"):
    metadata: _Metadata
    data: dict[str, str] | None = None
    binary_data: dict[str, str] | None = None


class KubernetesConfigMaps:
    """Implements `ConfigMaps`. `run` it in a task."""

    def __init__(self, client: Client, chance: random.Random) -> None:
        self._client = client
        self._chance = chance
        self._wanted: set[str] = set()
        self._changed: Changed = _nobody
        self._informers: dict[str, asyncio.Task[None]] = {}
        self._more = asyncio.Event()

    def follow(self, namespaces: Collection[str], changed: Changed) -> None:
        wanted = set(sorted(namespaces)[:NAMESPACES_MAX])
        self._changed = changed
        if wanted != self._wanted:
            self._wanted = wanted
            self._more.set()

    async def read(self, namespace: str, name: str) -> SharedTexts:
        try:
            found = await self._client.get(f"{_collection(namespace)}/{name}", _ConfigMap)
        except Absent as error:
            raise NotFound(f"there is no ConfigMap {namespace}/{name}") from error
        except Forbidden as error:
            fault = (
                f"the verb get on configmaps is missing in the namespace {namespace}: bind "
                "schemas/rbac/internal.yaml there"
            )
            raise StorageFailed(fault) from error
        except (Refused, Unanswered) as error:
            raise StorageFailed(str(error)) from error
        texts = {key: text.encode() for key, text in (found.data or {}).items()}
        try:
            for key, text in (found.binary_data or {}).items():
                texts[key] = base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise StorageFailed(f"ConfigMap {namespace}/{name}: {error}") from error
        return SharedTexts(found.metadata.resource_version, texts)

    async def run(self) -> NoReturn:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._more.clear()
                for namespace in self._informers.keys() - self._wanted:
                    self._informers.pop(namespace).cancel()
                for namespace in sorted(self._wanted - self._informers.keys()):
                    run = self._informer(namespace).run()
                    self._informers[namespace] = tasks.create_task(run, name=f"maps: {namespace}")
                await self._more.wait()

    def _informer(self, namespace: str) -> Informer[None]:
        told = _Told(lambda name: self._changed(namespace, name))
        source = Source(_collection(namespace), page=PAGE)
        client = self._client.with_metadata_only()
        return Informer(client, source, _nothing, told, chance=self._chance)


class _Told(Handler[None]):
    def __init__(self, changed: Callable[[str], None]) -> None:
        self._changed = changed

    def put(self, key: str, new: None, old: None) -> None:  # noqa: ARG002
        self._changed(key.partition("/")[2])

    def gone(self, key: str, last: None, version: str) -> None:  # noqa: ARG002
        self._changed(key.partition("/")[2])


def _nobody(namespace: str, name: str) -> None:
    """Is told while nobody wants to know."""


def _nothing(_: dict[str, Any]) -> None:
    """Of an object its version is enough."""


def _collection(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"
