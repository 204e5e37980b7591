"""Field managers: names that fit, conflicts that are understood, fields that change hands."""

import pytest

from kudurru.adapters.kubernetes.answers import refusal
from kudurru.adapters.kubernetes.managers import field_manager, other_manager, taken_over


@pytest.mark.parametrize("manager", ["alice", "update:key.", "x" * 128, "with space"])
def test_a_name_that_fits_is_kept(manager: str) -> None:
    assert field_manager(manager) == manager


@pytest.mark.parametrize("manager", ["x" * 129, "x" * 1024, "tab\there", "größe/測試", "\x07"])
def test_a_name_that_does_not_is_one_that_can_be_read_and_is_its_own(manager: str) -> None:
    found = field_manager(manager)
    assert len(found) <= 128
    assert found.isascii()
    assert found.isprintable()
    assert found[0] == (manager[0] if manager[0].isascii() and manager[0].isprintable() else "_")
    assert found != field_manager(manager + "y")
    assert found == field_manager(manager)


@pytest.mark.parametrize(
    "text",
    [
        'conflict with "kubectl"',
        'conflict with "kubectl" using v1',
        'conflict with "kubectl" with subresource "status" using v1 at 2026-11-30T00:00:00Z',
        'conflicts with "kubectl"',
        '"kubectl" using kudurru.io/v1alpha1 at 2026-11-30T00:00:00Z',
        "kubectl",
    ],
)
def test_a_conflict_names_the_other_manager_in_whatever_form(text: str) -> None:
    cause = f'{{"reason":"FieldManagerConflict","message":{_quoted(text)},"field":".spec"}}'
    body = f'{{"code":409,"reason":"Conflict","message":"no","details":{{"causes":[{cause}]}}}}'
    assert other_manager(refusal("PATCH", "/x", 409, body.encode())) == "kubectl"


def _quoted(text: str) -> str:
    escaped = text.replace('"', '\\"')
    return f'"{escaped}"'


def test_a_conflict_about_a_version_names_nobody() -> None:
    assert other_manager(refusal("PATCH", "/x", 409, b'{"code":409,"reason":"Conflict"}')) == ""


def entry(manager: str, operation: str, fields: object, part: str = "") -> dict[str, object]:
    found = {"manager": manager, "operation": operation, "fieldsV1": fields}
    return found | ({"subresource": part} if part else {})


def test_a_take_over_leaves_the_status_to_its_owner() -> None:
    status = entry("controller", "Update", {"f:status": {}}, "status")
    managed = [
        entry("alice", "Apply", {"f:spec": {"f:a": {}, "f:b": {}}}),
        status,
        entry("kubectl", "Update", {"f:spec": {"f:c": {}}, "f:metadata": {"f:labels": {}}}),
    ]
    fields = {"f:spec": {"f:a": {}, "f:b": {}, "f:c": {}}, "f:metadata": {"f:labels": {}}}
    after = taken_over(managed, "bob")
    assert after == [entry("bob", "Apply", fields), status]
    assert taken_over(after, "bob") == after
    assert taken_over([status], "bob") == [status]
