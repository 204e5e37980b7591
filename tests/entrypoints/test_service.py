"""Requests that are refused before anything is decided."""

import pytest

from kudurru.domain.errors import Invalid
from kudurru.domain.events import Who
from kudurru.domain.object_store import resource_version
from kudurru.entrypoints.service import (
    REASON_MAX,
    ChangeRequest,
    ListRequest,
    read_list,
    read_object,
    to_change,
)
from tests.nodes import a_change, memory_node
from tests.objects import put, zone

WHO = Who(actor="test")


def test_a_reason_is_kept_whole_or_refused() -> None:
    kept = to_change(ChangeRequest(reason="x" * REASON_MAX), WHO)
    assert kept.who.reason == "x" * REASON_MAX
    with pytest.raises(Invalid, match=f"{REASON_MAX + 1} characters; at most {REASON_MAX}"):
        to_change(ChangeRequest(reason="x" * (REASON_MAX + 1)), WHO)


def test_a_manager_that_is_reserved_is_refused() -> None:
    with pytest.raises(Invalid, match="reserved"):
        to_change(ChangeRequest(manager="external-dns"), WHO)


def test_a_list_and_its_objects_are_of_one_kind_of_version() -> None:
    node = memory_node()
    node.commit(a_change(put(zone())))
    reply = read_list(node, ListRequest(kind="DNSZone"))
    assert reply.resource_version == resource_version(node.log.epoch, node.position)
    found = read_object(node, zone().key)["metadata"]["resourceVersion"]
    assert reply.items[0]["metadata"]["resourceVersion"] == found == reply.resource_version
