"""Definitions that are missing, or of another version, and objects that a definition lets pass and
that cannot be read: each is named, and what is in order goes on."""

import asyncio
import copy
import random
from typing import Any

import pytest

from kudurru.adapters.kubernetes import definitions
from kudurru.adapters.kubernetes.crds import crds
from kudurru.adapters.kubernetes.definitions import lacking
from kudurru.adapters.kubernetes.diagnosis import Diagnosis
from kudurru.adapters.kubernetes.informer import Handler, Informer, Source
from kudurru.adapters.kubernetes.store import PREFIX, shown
from kudurru.domain.errors import Invalid
from kudurru.domain.kinds.validation import Manifest, parse_manifest
from tests.kube.connections import connected
from tests.kube.server import ApiServer
from tests.objects import document

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PATIENCE_S = 60.0

Object = dict[str, Any]


def test_what_the_manifests_install_lacks_nothing(installed: ApiServer) -> None:
    async def main() -> None:
        async with connected(installed) as client:
            assert await lacking(client) == []

    asyncio.run(main())


def test_what_is_not_there_is_told_from_what_is_of_another_version(
    installed: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = "lacking.example"
    monkeypatch.setattr(definitions, "GROUP", group)

    async def main() -> None:
        async with connected(installed) as client:
            assert {one.reason for one in await lacking(client)} == {"NotInstalled"}
            assert installed.call("POST", DEFINITIONS, moved("DNSZone", group, "v2"))[0] == 201
            lists = moved("BlockList", group, "v1alpha1")
            del lists["spec"]["versions"][0]["subresources"]
            assert installed.call("POST", DEFINITIONS, lists)[0] == 201
            async with asyncio.timeout(PATIENCE_S):
                while len({one.reason for one in await lacking(client)}) < 3:
                    await asyncio.sleep(0.05)
            found = {one.kind: one for one in await lacking(client)}
            assert {kind: one.reason for kind, one in found.items()} == {
                "DNSZone": "OtherVersion",
                "DNSRecordSet": "NotInstalled",
                "BlockList": "NoStatus",
                "ClientGroup": "NotInstalled",
                "Policy": "NotInstalled",
            }
            assert "is served as v2 and this program speaks v1alpha1" in found["DNSZone"].message

    asyncio.run(main())


def moved(kind: str, group: str, version: str) -> Object:
    """The definition of a kind, in another group and version."""
    definition = copy.deepcopy(next(one for one in crds() if one["spec"]["names"]["kind"] == kind))
    definition["metadata"]["name"] = f"{definition['spec']['names']['plural']}.{group}"
    definition["spec"]["group"] = group
    definition["spec"]["versions"][0]["name"] = version
    return definition


class Reported(Handler[Manifest]):
    def __init__(self, diagnosis: Diagnosis) -> None:
        self._diagnosis = diagnosis

    def put(self, key: str, new: Manifest, old: Manifest | None) -> None:
        self._diagnosis.readable(f"DNSRecordSet {key}")

    def gone(self, key: str, last: Manifest | None, version: str) -> None:
        self._diagnosis.readable(f"DNSRecordSet {key}")

    def broken(self, key: str, why: str) -> None:
        self._diagnosis.unreadable(f"DNSRecordSet {key}", why)


def converted(found: Object) -> Manifest:
    try:
        return parse_manifest(shown("DNSRecordSet", found), what="object", default_namespace="")
    except Invalid as error:
        raise ValueError("; ".join(map(str, error.causes))) from error


def test_an_object_that_cannot_be_read_is_named_and_kept_out_until_it_can(
    installed: ApiServer,
) -> None:
    collection = f"{PREFIX}/namespaces/default/dnsrecordsets"

    def record_set(name: str, target: str) -> Object:
        endpoint = {"dnsName": name, "recordType": "A", "targets": [target]}
        return document(
            "DNSRecordSet", name, {"zoneRef": {"name": "unread"}, "endpoints": [endpoint]}
        )

    def write(name: str, target: str) -> None:
        status, _ = installed.call(
            "PATCH",
            f"{collection}/{name}?fieldManager=people&force=true",
            record_set(name, target),
            form="application/apply-patch+yaml",
        )
        assert status in (200, 201)

    async def main() -> None:
        async with connected(installed) as client:
            diagnosis = Diagnosis(client, "default")
            found = Informer(
                client,
                Source(collection),
                converted,
                Reported(diagnosis),
                chance=random.Random(),
            )
            write("good", "192.0.2.1")
            write("bad", "not-an-address")
            running = asyncio.ensure_future(found.run())
            async with asyncio.timeout(PATIENCE_S):
                await found.synced()
                assert list(found.copy) == ["default/good"]
                (warning,) = diagnosis.warnings()
                assert "DNSRecordSet default/bad is kept out" in warning
                assert "not-an-address" in warning
                write("good", "nor-this")
                await found.changed(lambda: len(diagnosis.warnings()) == 2)
                kept = found.copy["default/good"].spec
                assert kept.endpoints[0].targets == ["192.0.2.1"]  # type: ignore[attr-defined]  # of this kind
                write("good", "192.0.2.2")
                write("bad", "192.0.2.3")
                await found.changed(lambda: diagnosis.warnings() == [])
            assert sorted(found.copy) == ["default/bad", "default/good"]
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            for name in ("good", "bad"):
                assert installed.call("DELETE", f"{collection}/{name}")[0] == 200

    asyncio.run(main())
