"""Catalog zones (RFC 9432): what is read out of one, and what follows from it."""

from collections.abc import Sequence

import pytest

from kudurru.domain.commands import Apply, Command, Delete
from kudurru.domain.dns import names, record_types, records
from kudurru.domain.dns.names import Name
from kudurru.domain.kinds.zone import DNSZoneSpec
from kudurru.domain.objects import Key
from kudurru.domain.reconcile import catalogs
from kudurru.domain.reconcile.catalogs import BrokenCatalog, Listed, Member, Present
from kudurru.domain.zone_import import group_by_owner
from tests.objects import zone

APEX = names.from_text("cat.example.")


def members(*lines: str) -> dict[str, Member]:
    found = []
    for line in lines:
        owner, rtype, data = line.split(None, 2)
        number = record_types.type_from_text(rtype)
        name = names.from_text(owner, APEX)
        found.append((name, number, 0, records.rdata_from_text(number, data, APEX)))
    read = catalogs.read_catalog(APEX, group_by_owner(found).values())
    return {names.to_text(key): member for key, member in read.items()}


V2 = 'version TXT "2"'


def test_members_are_read_with_their_groups_and_where_they_move_to() -> None:
    found = members(
        "@ NS invalid.",
        V2,
        "m1.zones PTR One.Example.",
        'group.m1.zones TXT "inner"',
        "m2.zones PTR two.example.",
        "coo.M2.zones PTR New.cat.example.",
        'other.m1.zones TXT "a property that we do not know"',
        "ext.m2.ext.zones PTR nobody.example.",
        'm3.zones TXT "no member"',
        "elsewhere PTR nobody.example.",
    )
    assert found == {
        "one.example.": Member("m1", names.from_text("One.Example."), ("inner",)),
        "two.example.": Member(
            "m2", names.from_text("two.example."), (), names.from_text("new.cat.example.")
        ),
    }


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["m1.zones PTR a."], "version 2"),
        (['version TXT "1"', "m1.zones PTR a."], "version 2"),
        (['version TXT "2" "3"', "m1.zones PTR a."], "version 2"),
        ([V2, 'version TXT "3"'], "version 2"),
        ([V2, "m1.zones PTR a.", "m1.zones PTR b."], "2 PTR records, not one"),
        ([V2, "m1.zones PTR a.", "m2.zones PTR A."], "lists [aA]. twice"),
    ],
)
def test_a_broken_catalog_is_not_followed(lines: Sequence[str], why: str) -> None:
    with pytest.raises(BrokenCatalog, match=why):
        members(*lines)


def test_a_catalog_without_members_is_whole() -> None:
    assert members(V2) == {}


# --- consuming -------------------------------------------------------------------------------


def a_catalog(**catalog: object) -> DNSZoneSpec:
    spec = zone(
        "cat.example",
        type="Secondary",
        secondary={"primaries": [{"address": "192.0.2.1", "keyRef": "k"}]},
        catalog=catalog,
    ).spec
    assert isinstance(spec, DNSZoneSpec)
    return spec


def consumed(
    spec: DNSZoneSpec,
    *listed: Member,
    present: Sequence[Present] = (),
    moving: dict[Name, Name] | None = None,
) -> tuple[list[str], list[str]]:
    """Commands in short, and problems."""
    found = catalogs.consume(
        "cat", APEX, spec, {names.key(m.zone): m for m in listed}, present, moving or {}
    )
    return [short(command) for command in found.commands], found.problems


def short(command: Command) -> str:
    if isinstance(command, Delete):
        return f"delete {command.key.rpartition('/')[2]}"
    assert isinstance(command, Apply)
    assert isinstance(command.manifest.spec, DNSZoneSpec)
    assert command.manifest.spec.secondary is not None
    first = command.manifest.spec.secondary.primaries[0].address
    return f"apply {command.manifest.meta.name} from {first}{' by force' * command.force}"


def member(text: str, unique: str = "m1", **more: object) -> Member:
    return Member(unique, names.from_text(text), **more)  # type: ignore[arg-type]


def there(text: str, manager: str = "catalog:cat", unique: str = "m1", name: str = "") -> Present:
    key = Key(f"DNSZone//{name or text.rstrip('.').lower()}")
    return Present(key, names.key(names.from_text(text)), manager, unique)


def test_a_member_becomes_a_secondary_that_is_fetched_where_the_catalog_came_from() -> None:
    assert consumed(a_catalog(), member("One.example.")) == (
        ["apply one.example from 192.0.2.1"], []
    )  # fmt: skip


def test_members_are_fetched_where_the_catalog_or_their_group_says() -> None:
    def of(address: str) -> dict:
        return {"primaries": [{"address": address}]}

    spec = a_catalog(
        secondary=of("192.0.2.2"), groups=[{"name": "inner", "secondary": of("192.0.2.3")}]
    )
    found, _ = consumed(
        spec,
        member("a.", "1"),
        member("b.", "2", groups=("unknown", "inner")),
        member("c.", "3", groups=("unknown",)),
    )
    assert found == ["apply a from 192.0.2.2", "apply b from 192.0.2.3", "apply c from 192.0.2.2"]


def test_a_zone_that_is_not_listed_any_more_goes() -> None:
    found, problems = consumed(a_catalog(), present=[there("a."), there("b.", "kudurru")])
    assert (found, problems) == (["delete a"], [])


def test_a_zone_under_another_label_is_made_anew() -> None:
    found, _ = consumed(a_catalog(), member("a.", "m2"), present=[there("a.")])
    assert found == ["delete a", "apply a from 192.0.2.1"]


def test_a_zone_that_somebody_else_has_is_left_alone_and_said() -> None:
    found, problems = consumed(
        a_catalog(), member("a."), member("b.", "2"), present=[there("a.", "kudurru")]
    )
    assert found == ["apply b from 192.0.2.1"]
    assert problems == ["a. is there already and managed by 'kudurru'"]


def test_an_object_that_has_the_name_of_a_member_is_in_the_way() -> None:
    found, problems = consumed(
        a_catalog(), member("a."), present=[there("b.", "kudurru", name="a")]
    )
    assert found == []
    assert problems == ["a. has no place: DNSZone a is of zone b."]


def test_a_catalog_does_not_list_itself() -> None:
    found, problems = consumed(a_catalog(), member("cat.example."))
    assert (found, problems) == ([], ["it lists itself"])


def test_a_zone_moves_between_catalogs_when_both_say_so() -> None:
    of_other = there("a.", "catalog:old")
    zone_key = names.from_text("a.")
    assert consumed(a_catalog(), member("a."), present=[of_other])[0] == []
    moving = {zone_key: names.key(APEX)}
    found, problems = consumed(a_catalog(), member("a."), present=[of_other], moving=moving)
    assert (found, problems) == (["apply a from 192.0.2.1 by force"], [])
    found, _ = consumed(a_catalog(), member("a.", "m9"), present=[of_other], moving=moving)
    assert found == ["delete a", "apply a from 192.0.2.1 by force"]
    # The catalog that it left says nothing about it.
    left = member("a.", moves_to=names.from_text("new.example."))
    assert consumed(a_catalog(), left, present=[there("a.", "catalog:new")]) == ([], [])


# --- producing -------------------------------------------------------------------------------


def test_a_catalog_lists_zones_with_their_groups_and_reads_back() -> None:
    listed = [
        Listed("uid-1", "one.example.", group='in "quotes"'),
        Listed("uid-2", "two.example", moves_to="new.example"),
    ]
    gone = Key("DNSRecordSet/default/uid-0.cat")
    commands = catalogs.produce("cat", "cat.example", listed, [gone])
    assert isinstance(commands[0], Delete)
    records_of = [
        (e.dns_name, e.record_type, *e.targets)
        for c in commands[1:]
        if isinstance(c, Apply)
        for e in c.manifest.spec.endpoints  # type: ignore[attr-defined]
    ]
    read = members(*(f"{owner} {rtype} {target}" for owner, rtype, target in records_of))
    assert read == {
        "one.example.": Member("uid-1", names.from_text("one.example."), ('in "quotes"',)),
        "two.example.": Member(
            "uid-2", names.from_text("two.example."), (), names.from_text("new.example.")
        ),
    }
