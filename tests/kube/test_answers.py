"""What a real API server answers to conditional writes: what our client takes for granted, and what
a fake must answer too."""

from typing import Any

import pytest

from tests.kube.assets import VERSION
from tests.kube.server import ApiServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

MAPS = "/api/v1/namespaces/default/configmaps"
OTHER_UID = "00000000-0000-0000-0000-000000000000"


def config_map(name: str, data: str, **metadata: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, **metadata},
        "data": {"of": data},
    }


def apply(server: ApiServer, name: str, data: str, **metadata: str) -> tuple[int, dict[str, Any]]:
    """A server-side apply."""
    path = f"{MAPS}/{name}?fieldManager=kudurru"
    return server.call("PATCH", path, config_map(name, data, **metadata), form=APPLY)


APPLY = "application/apply-patch+yaml"


def made(server: ApiServer, name: str) -> dict[str, Any]:
    status, found = apply(server, name, "a")
    assert status == 201
    return found["metadata"]


def test_it_is_the_version_that_we_are_for(server: ApiServer) -> None:
    assert server.call("GET", "/version")[1]["gitVersion"] == f"v{VERSION}"


def test_who_is_bound_to_nothing_may_do_nothing(server: ApiServer) -> None:
    status, found = server.call("GET", MAPS, user="nobody")
    assert (status, found["reason"]) == (403, "Forbidden")


def test_an_apply_of_the_same_keeps_the_version_and_another_moves_it(server: ApiServer) -> None:
    before = made(server, "same")
    status, found = apply(server, "same", "a")
    assert (status, found["metadata"]["resourceVersion"]) == (200, before["resourceVersion"])
    status, found = apply(server, "same", "b")
    assert status == 200
    assert found["metadata"]["resourceVersion"] != before["resourceVersion"]


def test_a_stale_version_is_a_conflict(server: ApiServer) -> None:
    before = made(server, "stale")
    apply(server, "stale", "b")
    status, found = apply(server, "stale", "c", resourceVersion=before["resourceVersion"])
    assert (status, found["reason"]) == (409, "Conflict")


def test_a_version_alone_does_not_keep_an_absent_object_from_being_made(server: ApiServer) -> None:
    assert apply(server, "absent", "a", resourceVersion="1")[0] == 201


def test_an_uid_does(server: ApiServer) -> None:
    assert apply(server, "gone", "a", uid=OTHER_UID)[0] == 409
    assert server.call("GET", f"{MAPS}/gone")[0] == 404


def test_another_uid_of_a_present_object_is_invalid(server: ApiServer) -> None:
    made(server, "present")
    status, found = apply(server, "present", "b", uid=OTHER_UID)
    assert (status, found["reason"]) == (422, "Invalid")


def test_a_delete_holds_to_its_preconditions(server: ApiServer) -> None:
    before = made(server, "kept")
    wrong = {"preconditions": {"uid": OTHER_UID}}
    assert server.call("DELETE", f"{MAPS}/kept", wrong)[0] == 409
    right = {"preconditions": {"uid": before["uid"], "resourceVersion": before["resourceVersion"]}}
    assert server.call("DELETE", f"{MAPS}/kept", right)[0] == 200
    assert server.call("DELETE", f"{MAPS}/kept", right)[0] == 404
