"""Much that goes from a cluster at once: what a node lets go, and what it keeps."""

from typing import Any

import pytest

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.kubernetes.fakes.network import Response
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.domain.commands import Apply
from kudurru.domain.kinds.validation import parse_manifest
from kudurru.domain.objects import key_of
from kudurru.entrypoints.cluster.missing import WINDOW_US, Gone, Missing
from kudurru.entrypoints.wiring import Change, Node
from tests.clusters import (
    ALICE,
    Kube,
    Member,
    a_set,
    a_zone,
    filled,
    in_cluster,
    names_of,
    until,
    warned,
)

MANY = 24


@pytest.mark.parametrize("what", ["record sets", "zone"])
def test_a_cluster_that_lacks_most_of_the_log_takes_it_away_when_that_is_allowed(
    what: str,
) -> None:
    async def case(kube: Kube) -> None:
        before = await filled(kube, MANY)
        if what == "zone":
            await kube.delete(a_zone())
        else:
            for number in range(MANY - 1):
                await kube.delete(a_set(f"n{number}", ""))
        member = Member(kube, before.log)
        async with member.running():
            assert names_of(member) == MANY
            gone = 1 if what == "zone" else MANY - 1
            assert f"{gone} of {MANY + 1} objects of this log are not there" in warned(member)
            assert "kubernetes.allowMassChange" in warned(member)
            # What somebody does now is done.
            await kube.delete(a_set(f"n{MANY - 1}", ""))
            await kube.apply(a_set("new", "192.0.2.1"))
            await until(lambda: "DNSRecordSet/default/new" in member.node.objects.all_keys())
            await until(lambda: names_of(member) == MANY)
        again = Member(kube, before.log, allow_mass_change=True)
        async with again.running():
            await until(lambda: names_of(again) == (0 if what == "zone" else 1))
            assert not [one for one in again.cluster.warnings() if "not there" in one]

    in_cluster(case)


@pytest.mark.parametrize("first", ["dnszones", "dnsrecordsets"])
def test_a_list_of_another_cluster_takes_nothing_from_a_node_that_runs(first: str) -> None:
    """The address of the API server leads to another one now, which has more objects. Whichever
    kind is listed first."""

    async def case(kube: Kube) -> None:
        kube.free_lease()
        await kube.apply(a_zone())
        for number in range(MANY):
            await kube.apply(a_set(f"n{number}", "192.0.2.1"))
        other = Kube()
        try:
            for number in range(2 * MANY):
                await other.apply(a_set(f"m{number}", "192.0.2.1", "other.example"))
            listed: set[str] = set()

            def interfere(verb: str, plural: str, name: str) -> Response | None:
                if verb == "list" and plural == first:
                    listed.add(plural)
                is_later = verb in ("list", "watch") and plural != first and not listed
                return Response(500) if is_later else None

            other.api.interfere = interfere
            member = Member(kube)
            async with member.running():
                await until(lambda: names_of(member) == MANY)
                kube.server.down()
                other.api.compact()
                kube.server._handler = other.server._handler
                kube.server.up()
                await until(lambda: f"{MANY + 1} of {MANY + 1} objects of this" in warned(member))
                assert names_of(member) == MANY
        finally:
            await other.close()

    in_cluster(case)


def test_what_a_list_told_before_it_broke_off_lets_no_more_go() -> None:
    """Another cluster again, whose record sets come in pages; the first time not to the end."""

    async def case(kube: Kube) -> None:
        kube.free_lease()
        await kube.apply(a_zone())
        for number in range(MANY):
            await kube.apply(a_set(f"n{number}", "192.0.2.1"))
        other = Kube()
        try:
            for number in range(2 * MANY):
                await other.apply(a_set(f"m{number}", "192.0.2.1", "other.example"))
            member = Member(kube)
            async with member.running():
                await until(lambda: names_of(member) == MANY)
                (sets,) = (
                    part.informer
                    for part in member.cluster.feed._parts
                    if part.kind.plural == "dnsrecordsets"
                )
                sets._page = 10
                lists, broke_off = sets.lists, False

                def interfere(verb: str, plural: str, name: str) -> Response | None:
                    """Once, not the page after four of five."""
                    nonlocal broke_off
                    is_fifth = plural == "dnsrecordsets" and len(sets.versions) == MANY + 40
                    if broke_off or verb != "list" or not (is_fifth and sets.is_listing):
                        return None
                    broke_off = True
                    return Response(410, b"{}")

                other.api.interfere = interfere
                kube.server.down()
                other.api.compact()
                kube.server._handler = other.server._handler
                kube.server.up()
                await until(lambda: broke_off)
                await until(lambda: sets.lists > lists)
                await until(lambda: f"{MANY + 1} of {MANY + 1} objects of this" in warned(member))
                assert names_of(member) == MANY
        finally:
            await other.close()

    in_cluster(case)


SPECS: dict[str, dict[str, Any]] = {
    "BlockList": {"sources": [{"url": "https://lists.example/ads"}]},
    "ClientGroup": {"clients": [{"cidr": "192.0.2.0/24"}]},
    "Policy": {"safeSearch": True},
}


def of_kind(kind: str, number: int) -> dict[str, Any]:
    metadata = {"name": f"n{number}", "namespace": "default"}
    head = {"apiVersion": "kudurru.io/v1alpha1", "kind": kind, "metadata": metadata}
    return head | {"spec": SPECS[kind]}


def test_lists_that_come_one_after_the_other_take_no_more_than_one_may() -> None:
    """Ten of each kind: none of them is much, and together they are all that there is."""

    async def case(kube: Kube) -> None:
        kube.free_lease()
        other = Kube()
        for number in range(10):
            await kube.apply(a_zone(f"z{number}.example"))
            for kind in SPECS:
                await kube.apply(of_kind(kind, number))
        for number in range(60):  # its versions are no older
            await other.apply(a_zone("other.example"), f"m{number}", force="true")
        try:
            member = Member(kube)
            async with member.running():
                before = set(member.node.objects.all_keys())
                assert len(before) == 40
                kube.server.down()
                other.api.compact()
                kube.server._handler = other.server._handler
                kube.server.up()
                await until(lambda: "objects of this log are not there" in warned(member))
                others = member.cluster.feed._parts[1:]
                await until(lambda: not any(part.informer.copy for part in others))
                assert len(before & set(member.node.objects.all_keys())) >= 20
        finally:
            await other.close()

    in_cluster(case)


def thirty_objects() -> Node:
    clock, entropy = SystemClock(), SystemEntropy()
    node = Node(MemoryEventLog(entropy=entropy, clock=clock), clock, entropy)
    node.catch_up()
    for kind in SPECS:
        for number in range(10):
            document = of_kind(kind, number)
            manifest = parse_manifest(document, what="test", default_namespace="default")
            order = Apply(manifest=manifest, manager="kudurru")
            node.commit(Change(commands=(order,), who=ALICE))
    return node


def test_what_is_seen_to_go_while_the_cluster_is_asked_who_it_is_goes_then() -> None:
    node = thirty_objects()
    missing = Missing(node, lambda: 29, allows_much=False, monotonic_us=lambda: 0)
    list(missing.may_go())
    missing.is_asked = True
    keys = [str(key) for key in node.objects.all_keys()]
    for key in keys[:20]:
        assert missing.takes(Gone(key_of(*key.split("/")), "9"))
    assert list(missing.may_go()) == []
    missing.identified()
    assert len(list(missing.may_go())) == 20
    assert missing.warning() == ""


def test_what_went_while_nobody_looked_counts_for_ten_minutes() -> None:
    """And objects that are made again are no loss."""
    node, now_us = thirty_objects(), [0]
    missing = Missing(node, lambda: 0, allows_much=False, monotonic_us=lambda: now_us[0])
    missing.begin(30)

    def missed(kind: str, *numbers: int) -> int:
        for number in numbers:
            key = key_of(kind, "default", f"n{number}")
            missing.takes(Gone(key, "9", by_list=True))
        return len(list(missing.may_go()))

    assert missed("Policy", *range(8)) == 8
    now_us[0] += WINDOW_US // 2
    missing.is_back(key_of("Policy", "default", "n0"))
    assert missed("BlockList", *range(8)) == 8
    now_us[0] += WINDOW_US // 2
    assert missed("ClientGroup", *range(7)) == 7
    assert missed("ClientGroup", 8, 9) == 0
    assert "2 of 30 objects of this log are not there" in missing.warning()


def test_half_of_the_objects_may_go_while_nobody_looks() -> None:
    async def case(kube: Kube) -> None:
        before = await filled(kube, MANY)
        for number in range(MANY // 2):
            await kube.delete(a_set(f"n{number}", ""))
        member = Member(kube, before.log)
        async with member.running():
            await until(lambda: names_of(member) == MANY - MANY // 2)

    in_cluster(case)
