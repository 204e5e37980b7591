"""What a real API server answers to conditional writes: what our client takes for granted, and what
the fake answers too."""

import asyncio
import base64
import json
import urllib.request
from typing import Any, Protocol
from urllib.parse import quote

import msgspec
import pytest

from kudurru.adapters.kubernetes.fakes.api import FakeApi
from kudurru.adapters.kubernetes.fakes.network import Request
from kudurru.adapters.memory.clock import ManualClock
from tests.kube.assets import VERSION
from tests.kube.server import ApiServer

MAPS = "/api/v1/namespaces/default/configmaps"
ZONES = "/apis/kudurru.io/v1alpha1/dnszones"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
EVENTS = "/api/v1/namespaces/{}/events"
OTHER_UID = "00000000-0000-0000-0000-000000000000"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"

on_the_real_one = [pytest.mark.slow, pytest.mark.timeout(1200)]


class Server(Protocol):
    def call(
        self, method: str, path: str, body: Any = None, *, form: str = "application/json"
    ) -> tuple[int, Any]: ...

    def compact(self) -> None: ...


class Real:
    def __init__(self, server: ApiServer) -> None:
        self._server = server

    def call(
        self, method: str, path: str, body: Any = None, *, form: str = "application/json"
    ) -> tuple[int, Any]:
        return self._server.call(method, path, body, form=form)

    def compact(self) -> None:
        def ask(path: str, body: dict[str, Any]) -> Any:
            url = f"{self._server.etcd}/v3/kv/{path}"
            with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=30) as answer:
                return json.loads(answer.read())

        key = base64.b64encode(b"/").decode()
        ask("compaction", {"revision": ask("range", {"key": key})["header"]["revision"]})


class Fake:
    def __init__(self) -> None:
        self._api = FakeApi(ManualClock())

    def call(
        self, method: str, path: str, body: Any = None, *, form: str = "application/json"
    ) -> tuple[int, Any]:
        octets = b"" if body is None else msgspec.json.encode(body)
        request = Request(method, path, {"content-type": form}, octets)
        answer = asyncio.run(self._api.handle(request))
        return answer.code, msgspec.json.decode(answer.body)

    def compact(self) -> None:
        self._api.compact()


@pytest.fixture(params=[pytest.param("real", marks=on_the_real_one), "fake"])
def api(request: pytest.FixtureRequest) -> Server:
    return Real(request.getfixturevalue("installed")) if request.param == "real" else Fake()


def config_map(name: str, data: Any, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, **metadata},
        "data": data if isinstance(data, dict) else {"of": data},
    }


def apply(
    api: Server, name: str, data: Any, manager: str = "kudurru", *, force: bool = False,
    **metadata: Any,
) -> tuple[int, dict[str, Any]]:  # fmt: skip
    """A server-side apply."""
    path = f"{MAPS}/{name}?fieldManager={manager}&force={str(force).lower()}"
    return api.call("PATCH", path, config_map(name, data, **metadata), form=APPLY)


def made(api: Server, name: str, data: Any = "a") -> dict[str, Any]:
    status, found = apply(api, name, data)
    assert status == 201
    return found["metadata"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_it_is_the_version_that_we_are_for(installed: ApiServer) -> None:
    assert installed.call("GET", "/version")[1]["gitVersion"] == f"v{VERSION}"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_who_is_bound_to_nothing_may_do_nothing(installed: ApiServer) -> None:
    status, found = installed.call("GET", MAPS, user="nobody")
    assert (status, found["reason"]) == (403, "Forbidden")


def test_an_apply_of_the_same_keeps_the_version_and_another_moves_it(api: Server) -> None:
    before = made(api, "same")
    status, found = apply(api, "same", "a")
    assert (status, found["metadata"]["resourceVersion"]) == (200, before["resourceVersion"])
    status, found = apply(api, "same", "b")
    assert status == 200
    assert found["metadata"]["resourceVersion"] != before["resourceVersion"]


def test_a_stale_version_is_a_conflict(api: Server) -> None:
    before = made(api, "stale")
    apply(api, "stale", "b")
    status, found = apply(api, "stale", "c", resourceVersion=before["resourceVersion"])
    assert (status, found["reason"]) == (409, "Conflict")


def test_a_version_alone_does_not_keep_an_absent_object_from_being_made(api: Server) -> None:
    assert apply(api, "absent", "a", resourceVersion="1")[0] == 201


def test_an_uid_does(api: Server) -> None:
    assert apply(api, "gone", "a", uid=OTHER_UID)[0] == 409
    status, found = api.call("GET", f"{MAPS}/gone")
    assert (status, found["reason"]) == (404, "NotFound")


def test_another_uid_of_a_present_object_is_invalid(api: Server) -> None:
    made(api, "present")
    status, found = apply(api, "present", "b", uid=OTHER_UID)
    assert (status, found["reason"]) == (422, "Invalid")
    assert [cause["field"] for cause in found["details"]["causes"]] == ["metadata.uid"]


def test_a_delete_holds_to_its_preconditions(api: Server) -> None:
    before = made(api, "kept")
    wrong = {"preconditions": {"uid": OTHER_UID}}
    assert api.call("DELETE", f"{MAPS}/kept", wrong)[0] == 409
    right = {"preconditions": {"uid": before["uid"], "resourceVersion": before["resourceVersion"]}}
    assert api.call("DELETE", f"{MAPS}/kept", right)[0] == 200
    assert api.call("DELETE", f"{MAPS}/kept", right)[0] == 404


def test_what_has_finalizers_stays_marked_until_they_are_gone(api: Server) -> None:
    api.call("POST", MAPS, config_map("held", "a", finalizers=["example.com/hold"]))
    for _ in range(2):
        status, found = api.call("DELETE", f"{MAPS}/held")
        assert (status, found["kind"]) == (200, "ConfigMap")
        assert found["metadata"]["deletionTimestamp"]
        assert found["metadata"]["finalizers"] == ["example.com/hold"]
    assert apply(api, "held", "b", force=True)[0] == 200
    freed = {"metadata": {"finalizers": None}}
    assert api.call("PATCH", f"{MAPS}/held", freed, form=MERGE)[0] == 200
    assert api.call("GET", f"{MAPS}/held")[0] == 404


def test_what_is_there_is_not_made_again(api: Server) -> None:
    made(api, "twice")
    status, found = api.call("POST", MAPS, config_map("twice", "b"))
    assert (status, found["reason"]) == (409, "AlreadyExists")
    status, found = api.call("POST", MAPS, config_map("other", "b", resourceVersion="5"))
    assert status >= 400
    assert api.call("GET", f"{MAPS}/other")[0] == 404


def test_a_name_may_be_left_to_the_server(api: Server) -> None:
    path, body = EVENTS.format("default"), event("default", "")
    names = {api.call("POST", path, body)[1]["metadata"]["name"] for _ in range(2)}
    assert len(names) == 2
    assert all(name.startswith("a.") and len(name) == 7 for name in names)


def test_an_update_of_an_older_version_is_a_conflict(api: Server) -> None:
    body = config_map("put", "a") | {"metadata": made(api, "put")}
    assert api.call("PUT", f"{MAPS}/put", body | {"data": {"of": "b"}})[0] == 200
    status, found = api.call("PUT", f"{MAPS}/put", body | {"data": {"of": "c"}})
    assert (status, found["reason"]) == (409, "Conflict")
    assert api.call("PUT", f"{MAPS}/nowhere", config_map("nowhere", "a"))[0] == 404


def test_the_fields_of_another_manager_are_a_conflict_that_names_it(api: Server) -> None:
    made(api, "owned", {"a": "1", "b": "1"})
    status, found = apply(api, "owned", {"a": "2"}, "other")
    assert (status, found["reason"]) == (409, "Conflict")
    (cause,) = found["details"]["causes"]
    assert cause["reason"] == "FieldManagerConflict"
    assert cause["message"].startswith('conflict with "kudurru"')
    assert cause["field"] == ".data.a"
    assert apply(api, "owned", {"a": "1"}, "other")[0] == 200  # the same value is shared


def test_what_a_manager_leaves_out_goes_unless_another_has_it_too(api: Server) -> None:
    made(api, "shared", {"a": "1", "b": "1"})
    apply(api, "shared", {"b": "1"}, "other")
    status, found = apply(api, "shared", {})
    assert (status, found["data"]) == (200, {"b": "1"})


def test_force_takes_the_fields_that_are_sent_and_no_others(api: Server) -> None:
    made(api, "forced", {"a": "1", "b": "1"})
    status, found = apply(api, "forced", {"a": "2"}, "other", force=True)
    assert (status, found["data"]) == (200, {"a": "2", "b": "1"})
    owners = {entry["manager"]: entry["fieldsV1"] for entry in found["metadata"]["managedFields"]}
    assert "f:a" in owners["other"]["f:data"]
    assert "f:a" not in owners["kudurru"]["f:data"]


def test_an_update_owns_what_it_changed(api: Server) -> None:
    made(api, "edited", {"a": "1", "b": "1"})
    path = f"{MAPS}/edited?fieldManager=editor"
    assert api.call("PATCH", path, {"data": {"a": "2"}}, form=MERGE)[0] == 200
    status, found = apply(api, "edited", {"a": "1", "b": "1"})
    assert status == 409
    assert found["details"]["causes"][0]["message"].startswith('conflict with "editor" using v1')


def test_managers_can_be_renamed_by_a_patch_of_the_version_that_was_read(api: Server) -> None:
    made(api, "renamed", {"a": "1", "b": "1"})
    found = api.call("GET", f"{MAPS}/renamed")[1]["metadata"]
    managed = [{**entry, "manager": "other"} for entry in found["managedFields"]]
    patch = {"metadata": {"managedFields": managed, "resourceVersion": "1"}}
    path = f"{MAPS}/renamed?fieldManager=other"
    assert api.call("PATCH", path, patch, form=MERGE)[0] == 409
    patch["metadata"]["resourceVersion"] = found["resourceVersion"]
    assert api.call("PATCH", path, patch, form=MERGE)[0] == 200
    status, found = apply(api, "renamed", {"a": "2"}, "other")
    assert (status, found["data"]) == (200, {"a": "2"})


def zone(name: str, **spec: Any) -> dict[str, Any]:
    spec = {"zoneName": f"{name}.example."} | spec
    kind = {"apiVersion": "kudurru.io/v1alpha1", "kind": "DNSZone"}
    return kind | {"metadata": {"name": name}, "spec": spec}


def test_a_generation_counts_changes_of_the_spec(api: Server) -> None:
    def generation(body: dict[str, Any]) -> int:
        path = f"{ZONES}/counted?fieldManager=kudurru"
        found = api.call("PATCH", path, body, form=APPLY)[1]
        return found["metadata"]["generation"]

    body = zone("counted")
    assert generation(body) == 1
    body["metadata"]["labels"] = {"a": "b"}
    assert generation(body) == 1
    assert generation(body | {"spec": body["spec"] | {"defaultTTL": 600}}) == 2


def test_a_status_is_written_beside_the_rest(api: Server) -> None:
    status, before = api.call("POST", ZONES, zone("status") | {"status": {"serial": 1}})
    assert (status, "status" in before) == (201, False)
    body = before | {"status": {"serial": 2}, "spec": {"zoneName": "other.example."}}
    status, after = api.call("PUT", f"{ZONES}/status/status", body)
    assert (status, after["status"], after["spec"]) == (200, {"serial": 2}, before["spec"])
    assert after["metadata"]["generation"] == 1
    assert api.call("PUT", f"{ZONES}/status/status", body)[0] == 409
    path = f"{ZONES}/status?fieldManager=kudurru"
    status, found = api.call("PATCH", path, zone("status", defaultTTL=60), form=APPLY)
    assert (status, found["status"]) == (200, {"serial": 2})


def test_all_pages_of_a_list_are_of_one_version(api: Server) -> None:
    for name in "abcde":
        api.call("POST", MAPS, config_map(f"paged-{name}", "a", labels={"paged": "yes"}))
    query = f"{MAPS}?labelSelector={quote('paged=yes')}&limit=2"
    status, page = api.call("GET", query)
    seen = [item["metadata"]["name"] for item in page["items"]]
    version = page["metadata"]["resourceVersion"]
    api.call("DELETE", f"{MAPS}/paged-e")
    while token := page["metadata"].get("continue"):
        status, page = api.call("GET", f"{query}&continue={quote(token)}")
        assert (status, page["metadata"]["resourceVersion"]) == (200, version)
        seen += [item["metadata"]["name"] for item in page["items"]]
    assert seen == [f"paged-{name}" for name in "abcde"]


def lease(holder: str, **metadata: Any) -> dict[str, Any]:
    kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15}
    return kind | {"metadata": metadata, "spec": spec}


def test_a_lease_is_made_once_and_renewed_by_its_version(api: Server) -> None:
    status, found = api.call("POST", LEASES, lease("a", name="one"))
    assert status == 201
    assert api.call("POST", LEASES, lease("b", name="one"))[0] == 409
    renewed = lease("a", **found["metadata"])
    renewed["spec"]["leaseTransitions"] = 1
    assert api.call("PUT", f"{LEASES}/one", renewed)[0] == 200
    assert api.call("PUT", f"{LEASES}/one", renewed)[0] == 409


def test_a_lease_that_was_deleted_is_not_made_again_by_a_renewal(api: Server) -> None:
    found = api.call("POST", LEASES, lease("a", name="two"))[1]
    assert api.call("DELETE", f"{LEASES}/two")[0] == 200
    status, _ = api.call("PUT", f"{LEASES}/two", lease("a", **found["metadata"]))
    assert status in (404, 409)
    assert api.call("GET", f"{LEASES}/two")[0] == 404


def event(namespace: str, about: str) -> dict[str, Any]:
    involved = {"kind": "DNSZone", "name": "a", "uid": "b", "apiVersion": "kudurru.io/v1alpha1"}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "a.", "namespace": namespace},
        "involvedObject": involved | ({"namespace": about} if about else {}),
        "reason": "Tried",
        "message": "once",
        "type": "Normal",
        "count": 1,
        "firstTimestamp": "2026-11-30T00:00:00Z",
        "lastTimestamp": "2026-11-30T00:00:00Z",
    }


@pytest.mark.parametrize(
    ("namespace", "about", "expected"),
    [
        ("default", "", 201),
        ("kube-system", "", 422),
        ("kube-public", "", 422),
        ("default", "default", 201),
        ("default", "kube-system", 422),
    ],
)
def test_an_event_is_in_the_namespace_of_what_it_is_about(
    api: Server, namespace: str, about: str, expected: int
) -> None:
    assert api.call("POST", EVENTS.format(namespace), event(namespace, about))[0] == expected


def test_a_repeated_event_is_counted_by_a_merge_patch_and_404_when_it_is_gone(
    api: Server,
) -> None:
    found = api.call("POST", EVENTS.format("default"), event("default", ""))[1]
    path = f"{EVENTS.format('default')}/{found['metadata']['name']}"
    status, found = api.call("PATCH", path, {"count": 2}, form=MERGE)
    assert (status, found["count"], found["reason"]) == (200, 2, "Tried")
    assert api.call("PATCH", path, {"count": 2}, form="text/plain")[0] == 415
    api.call("DELETE", path)
    assert api.call("PATCH", path, {"count": 3}, form=MERGE)[0] == 404


def test_a_kind_that_is_not_installed_is_not_found(api: Server) -> None:
    assert api.call("GET", "/apis/kudurru.io/v1alpha1/nosuchkinds")[0] == 404
