"""Roles, and what a token is limited to."""

from typing import get_args

import msgspec
import pytest

from kudurru.domain.access import RIGHTS, Right, Rights, catalog_fault
from kudurru.domain.kinds.zone import Catalog, DNSZoneSpec, Primary, Secondary
from kudurru.domain.objects import key_of

ZONE_A, ZONE_B = key_of("DNSZone", "", "a"), key_of("DNSZone", "", "b")
SET = key_of("DNSRecordSet", "team", "www")
POLICY = key_of("Policy", "team", "kids")

EVERYBODY = ["info", "objects.read", "history", "explain", "query", "zones.export", "stats"]
OPERATORS = [
    "objects.write", "undo", "restore", "lists.refresh", "blocking", "cache", "mark", "messages",
    "doctor", "settings.read", "audit.verify", "checkpoint", "querylog.read",
]  # fmt: skip


def test_roles_have_the_rights_that_the_table_gives_them() -> None:
    assert RIGHTS["viewer"] == set(EVERYBODY)
    assert RIGHTS["operator"] == {*EVERYBODY, *OPERATORS}
    assert RIGHTS["admin"] == set(get_args(Right))
    assert RIGHTS["bootstrap"] == {"tokens.create"}


@pytest.mark.parametrize(
    "right",
    ["tokens", "settings.write", "restore.all", "cache", "stats", "blocking", "keys", "mark"],
)
def test_a_limited_admin_has_no_right_over_what_is_everybodys(right: Right) -> None:
    assert Rights(role="admin").may(right)
    assert not Rights(role="admin", namespaces=("team",)).may(right)
    assert not Rights(role="admin", zones=("a",)).may(right)


@pytest.mark.parametrize(
    ("rights", "key", "scope", "sees", "writes"),
    [
        ({}, SET, "team/a", True, True),
        ({"namespaces": ("team",)}, SET, "team/a", True, True),
        ({"namespaces": ("other",)}, SET, "team/a", False, False),
        ({"namespaces": ("team",)}, POLICY, "team/", True, True),
        ({"namespaces": ("team",)}, ZONE_A, "/a", True, False),
        ({"zones": ("a",)}, ZONE_A, "/a", True, True),
        ({"zones": ("a",)}, ZONE_B, "/b", False, False),
        ({"zones": ("a",)}, SET, "team/a", True, True),
        ({"zones": ("a",)}, SET, "team/b", False, False),
        ({"zones": ("a",)}, POLICY, "team/", False, False),
        ({"zones": ("a",), "namespaces": ("team",)}, SET, "team/a", True, True),
        ({"zones": ("a",), "namespaces": ("other",)}, SET, "team/a", False, False),
        ({"zones": ("a",), "namespaces": ("other",)}, ZONE_A, "/a", True, True),
    ],
)
def test_a_limit_is_held_against_key_and_scope(
    rights: dict[str, tuple[str, ...]], key: str, scope: str, sees: bool, writes: bool
) -> None:
    limited = Rights(role="operator", **rights)  # type: ignore[arg-type]  # of the table above
    assert limited.may_see(key, scope) is sees  # type: ignore[arg-type]  # made by key_of
    assert (limited.why_not_write(key, scope, scope) == "") is writes  # type: ignore[arg-type]  # made by key_of


def test_a_record_set_that_moves_is_a_write_in_both_zones() -> None:
    limited = Rights(role="operator", zones=("a",))
    assert "outside of what this token is limited to" in limited.why_not_write(
        SET, "team/b", "team/a"
    )
    assert limited.why_not_write(SET, "team/a", "team/b")


@pytest.mark.parametrize(("before", "after"), [(None, "/a"), ("/a", None)])
def test_a_limited_token_makes_and_deletes_no_zone(before: str | None, after: str | None) -> None:
    """Its DNS name would be anything."""
    limited = Rights(role="operator", zones=("a",))
    assert "makes and deletes no zones" in limited.why_not_write(ZONE_A, before, after)
    assert not Rights(role="operator").why_not_write(ZONE_A, before, after)


def test_tokens_and_keys_are_seen_by_admins_only_and_facts_by_who_has_no_limit() -> None:
    token, fact = key_of("APIToken", "", "ci"), key_of("Restore", "", "r1")
    assert [Rights(role=role).may_see(token, "/") for role in ("viewer", "operator", "admin")] == [
        False, False, True,
    ]  # fmt: skip
    assert not Rights(role="admin", zones=("a",)).may_see(token, "/")
    assert Rights(role="viewer").may_see(fact, "/")
    assert not Rights(role="viewer", namespaces=("team",)).may_see(fact, "/")


def test_a_token_of_some_namespaces_exports_no_zone() -> None:
    """Record sets of other namespaces are in it."""
    assert Rights(role="viewer", zones=("a",)).may("zones.export")
    assert not Rights(role="viewer", namespaces=("team",)).may("zones.export")
    assert not Rights(role="admin", namespaces=("team",), zones=("a",)).may("zones.export")


def fetched(address: str) -> Secondary:
    return Secondary(primaries=[Primary(address=address)])


PLAIN = DNSZoneSpec(zone_name="a.example")
LISTS = DNSZoneSpec(zone_name="a.example", catalog=Catalog())
MAKES = DNSZoneSpec(
    zone_name="a.example", type="Secondary", secondary=fetched("192.0.2.1"), catalog=Catalog()
)


@pytest.mark.parametrize(
    ("before", "after", "may"),
    [
        (PLAIN, msgspec.structs.replace(PLAIN, default_ttl=5), True),
        (LISTS, msgspec.structs.replace(LISTS, default_ttl=5), True),
        (PLAIN, msgspec.structs.replace(PLAIN, zone_name="b.example"), True),
        (PLAIN, LISTS, False),
        (None, LISTS, False),
        (LISTS, PLAIN, False),
        (LISTS, None, False),
        (LISTS, msgspec.structs.replace(LISTS, catalog=Catalog(selector="a=b")), False),
        (LISTS, MAKES, False),
        (MAKES, msgspec.structs.replace(MAKES, secondary=fetched("192.0.2.2")), False),
        (MAKES, msgspec.structs.replace(MAKES, zone_name="b.example"), False),
    ],
)
def test_a_limited_token_leaves_catalogs_as_they_are(
    before: DNSZoneSpec | None, after: DNSZoneSpec | None, may: bool
) -> None:
    """They list other zones, or have them made."""
    limited = Rights(role="admin", zones=("a",))
    assert (catalog_fault(limited, before, after) == "") is may
    assert catalog_fault(Rights(role="operator"), before, after) == ""
