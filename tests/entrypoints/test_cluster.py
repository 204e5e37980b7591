"""A node and its cluster: what comes from there, what goes there, and who may."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kudurru.adapters.clock import SystemClock
from kudurru.adapters.kubernetes.client import MERGE_PATCH
from kudurru.adapters.kubernetes.fakes.network import Request, Response
from kudurru.adapters.kubernetes.informer import Informer
from kudurru.domain import mirror
from kudurru.domain.commands import ABSENT, Apply, Delete
from kudurru.domain.errors import Busy, Conflict, Invalid, KudurruError, LogDamaged, ManagedBy
from kudurru.domain.events import (
    MIRROR_INTENDED,
    MIRROR_RESTORED,
    MIRROR_WRITTEN,
    OBJECT_APPLIED,
    OBJECT_DELETED,
    OBJECT_STATUS,
)
from kudurru.domain.kinds.meta import MANAGED_BY
from kudurru.domain.kinds.validation import parse_manifest
from kudurru.domain.objects import key_of
from kudurru.domain.ports import Notice
from kudurru.entrypoints import cluster_feed
from kudurru.entrypoints.history import who_of
from kudurru.entrypoints.wiring import Change
from tests.adapters.kubernetes.test_endpoints import SLICES, endpoint_slice
from tests.blackbox.program import kudurru, records, serve_arguments, zone
from tests.clusters import ALICE, PATIENCE_S, Kube, Member, in_cluster, path_of, until


def a_zone(name: str = "lab.example") -> dict[str, Any]:
    return zone(name)


def a_set(name: str, target: str, zone_name: str = "lab.example") -> dict[str, Any]:
    document = records(name, zone_name, (f"{name}.{zone_name}", "A", target))
    document["metadata"]["namespace"] = "default"
    return document


def test_what_is_applied_in_the_cluster_is_in_the_log_with_its_field_manager() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            made = await kube.apply(a_zone(), "kubectl-client-side-apply")
            await kube.apply(a_set("www", "192.0.2.1"), "gitops")
            await until(lambda: member.names("lab.example"))
            (first, second) = member.events(OBJECT_APPLIED)
            assert member.actors(OBJECT_APPLIED) == [
                "kubernetes:kubectl-client-side-apply",
                "kubernetes:gitops",
            ]
            assert first.manager == "kubectl-client-side-apply"
            stored = member.node.objects.find(first.key)
            assert stored is not None
            assert stored.body.uid == made["metadata"]["uid"]
            origin = msgspec.json.decode(first.body or b"")["origin"]
            assert origin["fieldManager"] == "kubectl-client-side-apply"
            assert int(origin["resourceVersion"]) >= int(made["metadata"]["resourceVersion"])
            await kube.delete(a_set("www", ""))
            await until(lambda: member.events(OBJECT_DELETED))
            assert not member.node.objects.find(second.key)

    in_cluster(case)


def test_the_leader_gives_serials_and_writes_them_into_the_cluster() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await kube.apply(a_zone())
            serial = await until(lambda: member.serial("lab.example"))

            def shown() -> Any:
                return kube.api.objects("dnszones")["lab.example"].get("status", {}).get("serial")

            await until(lambda: shown() == serial)
            await kube.apply(a_set("www", "192.0.2.1"))
            await until(lambda: shown() not in (None, serial))
            assert shown() == member.serial("lab.example")
        assert not [a for a in member.actors(OBJECT_STATUS) if a != "system"]

    in_cluster(case)


def changes(member: Member, *commands: Any, **how: Any) -> Any:
    return member.writer.submit(Change(commands=commands, who=ALICE, **how))


def an_apply(document: dict[str, Any], manager: str = "kudurru", **how: Any) -> Apply:
    manifest = parse_manifest(dict(document), what="test", default_namespace="default")
    return Apply(manifest=manifest, manager=manager, **how)


KEY = key_of("DNSRecordSet", "default", "www")


def test_a_change_made_here_is_carried_out_in_the_cluster_and_recorded_in_three_steps() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            done = await changes(member, an_apply(a_zone()), an_apply(a_set("www", "192.0.2.1")))
            assert [one.verb for one in done.outcomes] == ["created", "created"]
            there = kube.api.objects("dnsrecordsets")["default/www"]
            assert there["metadata"]["annotations"][MANAGED_BY] == "kudurru"
            assert member.names("lab.example")  # acknowledged is applied
            (intended,) = member.events(MIRROR_INTENDED)
            (written,) = member.events(MIRROR_WRITTEN)
            assert intended.seq < written.seq
            said = msgspec.json.decode(written.body or b"", type=mirror.Written)
            assert said.intent == intended.seq
            assert said.versions[1] == mirror.Version(
                key=KEY,
                uid=there["metadata"]["uid"],
                resource_version=there["metadata"]["resourceVersion"],
            )
            applied = [e for e in member.events(OBJECT_APPLIED) if e.key == KEY]
            assert [who_of(event).actor for event in (intended, *applied)] == [ALICE.actor] * 2
            # The echo is no event: what comes next is of somebody else.
            await kube.apply(a_zone("other.example"))
            await until(lambda: member.serial("other.example"))
            assert [e for e in member.events(OBJECT_APPLIED) if e.key == KEY] == applied
            again = await changes(member, an_apply(a_set("www", "192.0.2.1")))
            assert ([one.verb for one in again.outcomes], again.seq) == (["unchanged"], 0)
            gone = await changes(member, Delete(key=KEY, manager="kudurru"))
            assert [one.verb for one in gone.outcomes] == ["deleted"]
            assert "default/www" not in kube.api.objects("dnsrecordsets")

    in_cluster(case)


def test_a_change_that_the_cluster_or_our_rules_refuse_changes_nothing() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await changes(member, an_apply(a_zone()), an_apply(a_set("www", "192.0.2.1"), "ops"))
            before = kube.api.objects("dnsrecordsets"), member.events(OBJECT_APPLIED)
            with pytest.raises(ManagedBy, match="ops"):
                await changes(member, an_apply(a_set("www", "192.0.2.2")))
            outside = a_set("x", "192.0.2.2")
            outside["spec"]["endpoints"][0]["dnsName"] = "x.elsewhere.example"
            with pytest.raises(Invalid, match="outside the zone"):
                await changes(member, an_apply(outside))
            stale = an_apply(a_set("www", "192.0.2.2"), "ops", expected="17")
            with pytest.raises(Conflict):
                await changes(member, stale)
            tried = await changes(member, an_apply(a_set("new", "192.0.2.3")), dry_run=True)
            assert [one.verb for one in tried.outcomes] == ["created"]
            assert (kube.api.objects("dnsrecordsets"), member.events(OBJECT_APPLIED)) == before
            forced = await changes(member, an_apply(a_set("www", "192.0.2.2"), force=True))
            assert [one.verb for one in forced.outcomes] == ["configured"]
            version = member.node.objects.find(KEY).resource_version  # type: ignore[union-attr]
            await changes(member, an_apply(a_set("www", "192.0.2.3"), expected=version))

    in_cluster(case)


@pytest.mark.parametrize("is_done", [True, False])
def test_a_change_whose_answer_was_lost_is_settled_by_reading_its_objects(is_done: bool) -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await changes(member, an_apply(a_zone()))
            lost = Lost(kube, is_done)
            with pytest.raises(KudurruError):
                await changes(member, an_apply(a_set("www", "192.0.2.1")))
            assert lost.was_hit
            assert member.events(MIRROR_INTENDED)[-1].seq > member.events(MIRROR_WRITTEN)[-1].seq
        # The process ends here, and does not know.
        later = Member(kube, member.log)
        lost.mend()
        async with later.running():
            await until(lambda: len(later.events(MIRROR_WRITTEN)) == 2)
            intended, written = later.events(MIRROR_INTENDED)[-1], later.events(MIRROR_WRITTEN)[-1]
            said = msgspec.json.decode(written.body or b"", type=mirror.Written)
            assert (said.intent, said.is_settled) == (intended.seq, True)
            assert bool(later.node.objects.find(KEY)) == is_done
            if is_done:
                (applied,) = (e for e in later.events(OBJECT_APPLIED) if e.key == KEY)
                assert who_of(applied).actor == ALICE.actor

    in_cluster(case)


class Meanwhile:
    """Somebody does something to the cluster just before, or just after, it carries out the first
    real write of a record set, and before its answer is here."""

    def __init__(self, kube: Kube, act: Callable[[], Awaitable[Any]], *, before: bool) -> None:
        self.was_hit = False
        self._act = act
        self._before = before
        self._handle = kube.server._handler
        kube.server._handler = self._answer

    async def _answer(self, request: Request) -> Response:
        is_write = request.method in ("PATCH", "DELETE") and "dnsrecordsets" in request.target
        if self.was_hit or not is_write or "dryRun" in request.target:
            return await self._handle(request)
        self.was_hit = True
        if self._before:
            await self._act()
            return await self._handle(request)
        answer = await self._handle(request)
        await self._act()
        return answer


def told(member: Member, key: str = KEY) -> list[tuple[str, str]]:
    """Of an object: who, and the address that it had then ("" for deleted)."""
    found = []
    for event in member.events(OBJECT_APPLIED, OBJECT_DELETED):
        if event.key == key:
            body = msgspec.json.decode(event.body or b"")
            address = body["spec"]["endpoints"][0]["targets"][0] if "spec" in body else ""
            found.append((who_of(event).actor, address))
    return found


GITOPS = "kubernetes:gitops"


def test_what_somebody_writes_right_after_us_is_in_the_log_as_his() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await changes(member, an_apply(a_zone()))
            meanwhile = Meanwhile(
                kube,
                lambda: kube.apply(a_set("www", "192.0.2.7"), "gitops", force="true"),
                before=False,
            )
            await changes(member, an_apply(a_set("www", "192.0.2.1")))
            assert meanwhile.was_hit
            await until(lambda: len(told(member)) == 2)
            assert told(member) == [(ALICE.actor, "192.0.2.1"), (GITOPS, "192.0.2.7")]
            said = msgspec.json.decode(
                member.events(MIRROR_WRITTEN)[-1].body or b"", type=mirror.Written
            )
            there = kube.api.objects("dnsrecordsets")["default/www"]["metadata"]
            # Ours, and not his. A Lease or a status may have had one in between.
            assert int(said.versions[0].resource_version) < int(there["resourceVersion"])

    in_cluster(case)


def test_what_somebody_makes_right_after_our_deletion_is_his() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await changes(member, an_apply(a_zone()), an_apply(a_set("www", "192.0.2.1")))
            Meanwhile(kube, lambda: kube.apply(a_set("www", "192.0.2.7"), "gitops"), before=False)
            gone = await changes(member, Delete(key=KEY, manager="kudurru"))
            assert [one.verb for one in gone.outcomes] == ["deleted"]
            await until(lambda: len(told(member)) == 3)
            assert told(member)[1:] == [(ALICE.actor, ""), (GITOPS, "192.0.2.7")]

    in_cluster(case)


def test_a_deletion_that_waits_for_finalizers_is_none_yet() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await changes(member, an_apply(a_zone()), an_apply(a_set("www", "192.0.2.1")))
            path = path_of(a_set("www", ""))

            async def held_by(finalizers: list[str]) -> None:
                body = {"metadata": {"finalizers": finalizers}}
                await kube.people.request("PATCH", path, body, content_type=MERGE_PATCH)

            await held_by(["example.com/hold"])
            for dry_run in (False, True):
                with pytest.raises(Busy, match=r"its finalizers: example\.com/hold"):
                    await changes(member, Delete(key=KEY, manager="kudurru"), dry_run=dry_run)
            await until(lambda: heard(member) == version_there(kube))
            assert member.names("lab.example")
            assert not member.events(OBJECT_DELETED)
            await held_by([])
            await until(lambda: member.events(OBJECT_DELETED))
            assert not member.names("lab.example")

    in_cluster(case)


def version_there(kube: Kube) -> str:
    return str(kube.api.objects("dnsrecordsets")["default/www"]["metadata"]["resourceVersion"])


def test_what_our_write_found_there_is_in_the_log_before_it_as_his_who_wrote_it() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await changes(member, an_apply(a_zone()), an_apply(a_set("www", "192.0.2.1")))
            his = lambda: kube.apply(a_set("www", "192.0.2.7"), "gitops", force="true")  # noqa: E731
            Meanwhile(kube, his, before=True)
            await changes(member, an_apply(a_set("www", "192.0.2.2"), force=True))
            assert told(member)[1:] == [(GITOPS, "192.0.2.7"), (ALICE.actor, "192.0.2.2")]
            await kube.apply(a_zone("other.example"))
            await until(lambda: member.serial("other.example"))
            assert len(told(member)) == 3  # what was heard of it meanwhile is no event

    in_cluster(case)


def test_an_object_that_somebody_makes_first_is_his_and_no_part_of_a_change_that_fails() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await changes(member, an_apply(a_zone()))
            his = a_set("www", "192.0.2.7")
            his["metadata"]["annotations"] = {MANAGED_BY: "ops"}
            Meanwhile(kube, lambda: kube.apply(his, "gitops"), before=True)
            with pytest.raises(ManagedBy, match="ops"):
                await changes(member, an_apply(a_set("www", "192.0.2.1")))
            await until(lambda: told(member))
            assert told(member) == [(GITOPS, "192.0.2.7")]
            said = msgspec.json.decode(
                member.events(MIRROR_WRITTEN)[-1].body or b"", type=mirror.Written
            )
            assert (said.versions, bool(said.refused)) == ([], True)

    in_cluster(case)


def test_what_somebody_made_of_a_change_whose_answer_was_lost_is_his() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await changes(member, an_apply(a_zone()))
            lost = Lost(kube, is_done=True)
            with pytest.raises(KudurruError):
                await changes(member, an_apply(a_set("www", "192.0.2.1")))
        lost.mend()
        await kube.apply(a_set("www", "192.0.2.7"), "gitops", force="true")
        later = Member(kube, member.log)
        async with later.running():
            await until(lambda: told(later))
            assert told(later) == [(GITOPS, "192.0.2.7")]

    in_cluster(case)


class Unheard:
    """What the log would be told by the informers waits, so that the log is behind them."""

    def __init__(self, member: Member) -> None:
        self._feed = member.cluster.feed

    def __enter__(self) -> None:
        self._feed.hold([KEY])

    def __exit__(self, *_: object) -> None:
        self._feed.release([KEY])


def test_a_change_held_to_a_version_that_is_not_the_newest_is_refused_before_the_log_has_it() -> (
    None
):
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await changes(member, an_apply(a_zone()), an_apply(a_set("www", "192.0.2.1")))
            read = member.node.objects.find(KEY)
            assert read is not None
            with Unheard(member):
                await kube.apply(a_set("www", "192.0.2.7"), "gitops", force="true")
                newest = kube.api.objects("dnsrecordsets")["default/www"]
                version = newest["metadata"]["resourceVersion"]
                await until(lambda: heard(member) == version)
                before = len(member.events())
                expected = {"expected": read.resource_version}
                with pytest.raises(Conflict):
                    await changes(
                        member, an_apply(a_set("www", "192.0.2.2"), force=True, **expected)
                    )
                with pytest.raises(Conflict):
                    await changes(member, Delete(key=KEY, force=True, **expected))
                assert kube.api.objects("dnsrecordsets")["default/www"] == newest
                assert len(member.events()) == before
            await until(lambda: told(member)[-1] == (GITOPS, "192.0.2.7"))

    in_cluster(case)


def version_of(kube: Kube) -> str:
    return str(kube.api.objects("dnszones")["lab.example"]["metadata"]["resourceVersion"])


def test_what_is_remembered_of_changes_ends_when_they_are_heard_of() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube, namespaces=["default"])
        async with member.running():
            await changes(member, an_apply(a_zone()))
            for number in range(20):
                await kube.apply(a_set(f"theirs-{number}", "192.0.2.1"))
                await changes(member, an_apply(a_set(f"ours-{number}", "192.0.2.1")))
                await changes(
                    member, Delete(key=key_of("DNSRecordSet", "default", f"ours-{number}"))
                )
            elsewhere = a_set("elsewhere", "192.0.2.1")
            elsewhere["metadata"]["namespace"] = "not-followed"
            await changes(member, an_apply(elsewhere))
            await until(lambda: len(member.names("lab.example")) == 21)
            await until(lambda: not member.cluster.feed._recorded)

    in_cluster(case)


def test_what_was_made_here_and_deleted_there_unheard_of_is_gone_with_the_next_list() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await changes(member, an_apply(a_zone()))
            await until(lambda: not member.cluster.feed._recorded)

            def nothing_of_sets(lines: list[bytes]) -> list[bytes]:
                return [line for line in lines if b"DNSRecordSet" not in line]

            kube.api.events_of_watches = nothing_of_sets
            await changes(member, an_apply(a_set("www", "192.0.2.1")))
            await kube.delete(a_set("www", ""))
            assert member.names("lab.example")
            kube.api.events_of_watches = None
            kube.api.interfere = expired
            kube.api.end_watches()
            await until(lambda: not member.names("lab.example"))
            assert told(member)[-1] == ("kubernetes", "")
            assert not member.cluster.feed._recorded

    in_cluster(case)


def test_what_is_remembered_of_changes_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_feed, "RECORDED_MAX", 3)

    async def case(kube: Kube) -> None:
        feed = Member(kube).cluster.feed
        for number in range(5):
            feed.wrote(key_of("DNSRecordSet", "default", f"w{number}"), "7")
        assert [key[-2:] for key in feed._recorded] == ["w2", "w3", "w4"]

    in_cluster(case)


def heard(member: Member, key: str = KEY) -> str:
    found = member.cluster.feed.find(key)
    return found.version if found is not None else ""


def test_an_object_that_is_to_be_made_only_where_there_is_none_is_so_in_the_cluster_too() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await changes(member, an_apply(a_zone()))
            with Unheard(member):
                await kube.apply(a_set("www", "192.0.2.7"), "gitops")
                theirs = kube.api.objects("dnsrecordsets")
                before = len(member.events())
                with pytest.raises(Conflict, match="expected not to"):
                    await changes(member, an_apply(a_set("www", "192.0.2.7"), expected=ABSENT))
                assert (kube.api.objects("dnsrecordsets"), len(member.events())) == (theirs, before)
            Meanwhile(kube, lambda: kube.apply(a_set("new", "192.0.2.7"), "gitops"), before=True)
            with pytest.raises(Conflict, match="expected not to"):
                await changes(member, an_apply(a_set("new", "192.0.2.7"), expected=ABSENT))
            key = key_of("DNSRecordSet", "default", "new")
            await until(lambda: told(member, key))
            assert told(member, key) == [(GITOPS, "192.0.2.7")]

    in_cluster(case)


def test_a_zone_is_changed_at_the_version_that_was_read_though_its_status_came_since() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        key = key_of("DNSZone", "", "lab.example")
        async with member.running():
            await changes(member, an_apply(a_zone()))
            for ttl in (60, 120):
                await until(lambda: status_of(kube).get("serial") == member.serial("lab.example"))
                await until(lambda: heard(member, key) == version_of(kube))
                read = member.node.objects.find(key)
                assert read is not None
                wanted = a_zone()
                wanted["spec"]["defaultTTL"] = ttl
                await changes(member, an_apply(wanted, expected=read.resource_version))

    in_cluster(case)


class Lost:
    """From the first real write of a record set on the server answers nothing that is of use."""

    def __init__(self, kube: Kube, is_done: bool) -> None:
        self.was_hit = False
        self._kube = kube
        self._is_done = is_done
        self._handle = kube.server._handler
        kube.server._handler = self._answer

    async def _answer(self, request: Request) -> Response:
        is_write = request.method == "PATCH" and "dnsrecordsets" in request.target
        if not self.was_hit and not (is_write and "dryRun" not in request.target):
            return await self._handle(request)
        if not self.was_hit and self._is_done:
            await self._handle(request)
        self.was_hit = True
        return Response(500, b"lost")

    def mend(self) -> None:
        self._kube.server._handler = self._handle


def test_a_node_that_comes_back_takes_up_what_it_missed_once_deletes_too() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        await kube.apply(a_zone())
        for name in ("www", "mail", "old"):
            await kube.apply(a_set(name, "192.0.2.1"))
        async with member.running():
            await until(lambda: len(member.names("lab.example")) == 3)
        await kube.delete(a_set("old", ""))
        await kube.apply(a_set("mail", "192.0.2.2"))
        await kube.apply(a_set("new", "192.0.2.3"))
        kube.api.compact()
        before = len(member.log.read() and member.events(OBJECT_APPLIED, OBJECT_DELETED))
        later = Member(kube, member.log)
        assert len(later.names("lab.example")) == 3  # from the log, before anything is asked
        async with later.running():
            names = [e.key.rpartition("/")[2] for e in later.events(OBJECT_APPLIED, OBJECT_DELETED)]
            assert sorted(names[before:]) == ["mail", "new", "old"]
        again = Member(kube, member.log)
        async with again.running():
            assert len(again.events(OBJECT_APPLIED, OBJECT_DELETED)) == before + 3

    in_cluster(case)


def test_the_log_of_another_cluster_is_refused_and_one_with_objects_of_its_own() -> None:
    async def case(kube: Kube) -> None:
        member = Member(kube)
        async with member.running():
            pass
        other = Kube()
        other.api.seed("namespaces", "", "kube-system")  # another uid
        try:
            with pytest.raises(Invalid, match="this log is of the cluster"):
                async with Member(other, member.log).running():
                    raise AssertionError("it runs")
            with pytest.raises(Invalid, match="this log is of the cluster"):
                Member(other, member.log, cluster_id=other.uid)
        finally:
            await other.close()
        own = Member(kube, owner="log")
        own.node.commit(Change(commands=(an_apply(a_zone()),), who=ALICE))
        with pytest.raises(Invalid, match="has objects of its own"):
            Member(kube, own.log)

    in_cluster(case)


def test_without_an_answer_a_node_with_a_log_is_ready_after_a_while_and_one_without_never() -> None:
    async def case(kube: Kube) -> None:
        await kube.apply(a_zone())
        member = Member(kube)
        async with member.running():
            assert member.cluster.why_not() == []
        kube.server.down()
        soon = timedelta(milliseconds=50)
        later, empty = Member(kube, member.log, startup_timeout=soon), Member(kube, name="node-2")
        async with later.running(synced=False), empty.running(synced=False):
            assert later.cluster.has_log
            assert not empty.cluster.has_log
            assert later.names("lab.example") == []
            assert later.node.zones.find("lab.example")
            await until(lambda: not later.cluster.why_not())
            assert "ServingFromSnapshot" in later.cluster.warnings()[0]
            assert "NotSynced" in empty.cluster.why_not()[0]
            kube.server.up()
            await until(lambda: not later.cluster.warnings() and not empty.cluster.why_not())

    in_cluster(case)


def test_a_cluster_whose_uid_may_not_be_read_is_followed_and_said_to_be_unknown() -> None:
    async def case(kube: Kube) -> None:
        kube.api.forbidden = {("get", "namespaces")}
        await kube.apply(a_zone())
        member = Member(kube)
        async with member.running():
            assert member.node.zones.find("lab.example")
            assert "its uid is not known" in " ".join(member.cluster.warnings())
        kube.api.forbidden.clear()
        again = Member(kube, member.log)
        async with again.running():
            assert "its uid is not known" not in " ".join(again.cluster.warnings())
            assert again.cluster.facts.cluster == kube.uid

    in_cluster(case)


def test_what_is_old_is_as_old_as_the_last_answer() -> None:
    async def case(kube: Kube) -> None:
        member = Member(kube)
        async with member.running():
            await kube.apply(a_zone())
            await until(lambda: member.node.zones.find("lab.example"))
        kube.server.down()
        later = Member(kube, member.log)
        newest_us = member.events()[-1].ts
        age_s = (later.node.clock.now_us() - newest_us) / 1e6
        assert later.cluster.age_s() >= age_s
        later.client.transport.heard()
        since_us = later.client.transport.last_contact_us
        assert later.cluster.age_s() <= (later.node.clock.now_us() - since_us) / 1e6
        names = {sample.name for sample in later.cluster.samples()}
        assert {"store_snapshot_serving", "store_snapshot_age_seconds"} <= names

    in_cluster(case)


def test_a_cluster_that_was_set_back_is_noticed_after_a_restart() -> None:
    async def case(kube: Kube) -> None:
        await kube.apply(a_zone())
        backup = kube.api.backup()
        member = Member(kube)
        async with member.running():
            await kube.apply(a_set("www", "192.0.2.1"))
            await until(lambda: member.names("lab.example"))
            await member.cluster.feed.note()
        kube.api.rolled_back(*backup)
        later = Member(kube, member.log)
        async with later.running():
            await until(lambda: later.events(MIRROR_RESTORED) and not later.names("lab.example"))
            assert "went back from version" in " ".join(later.cluster.warnings())

    in_cluster(case)


def sets_restored(member: Member) -> list[mirror.Restored]:
    bodies = [event.body for event in member.events(MIRROR_RESTORED) if event.body]
    facts = [msgspec.json.decode(body, type=mirror.Restored) for body in bodies]
    return [fact for fact in facts if fact.kind == "DNSRecordSet"]


async def grown(kube: Kube, times: int) -> Any:
    """Twelve record sets, each of a version more; a backup, and the cluster goes on from there. A
    lease that is renewed all the time does not bridge what is between two versions."""
    kube.api._version += 100_000
    for i in range(12):
        await kube.apply(a_set(f"n{i:02}", f"192.0.2.{times}"), force="true")
    return kube.api.backup()


def by_twos(member: Member) -> Informer[Any]:
    """Lists take pages of two objects, so that facts are recorded before a list is whole."""
    for part in member.cluster.feed._parts:
        part.informer._page = 2
    (found,) = (p for p in member.cluster.feed._parts if p.kind.name == "DNSRecordSet")
    return found.informer


def test_a_cluster_that_was_set_back_while_nobody_looked_is_one_fact() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        await kube.apply(a_zone())
        backup = await grown(kube, 1)
        await grown(kube, 2)
        member = Member(kube)
        async with member.running():
            await until(lambda: b"192.0.2.2" in spec_of(member, "n11"))
            await member.cluster.feed.note()
        kube.api.rolled_back(*backup)
        later = Member(kube, member.log)
        by_twos(later)
        async with later.running():
            await until(lambda: sets_restored(later))
            await until(lambda: b"192.0.2.1" in spec_of(later, "n11"))
            (fact,) = sets_restored(later)
            assert int(fact.seen) > 200_000 > int(fact.now)

    in_cluster(case)


def test_a_cluster_that_is_set_back_again_while_it_is_listed_is_told_so_and_no_more() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        await kube.apply(a_zone())
        backups = [await grown(kube, times) for times in (1, 2)]
        await grown(kube, 3)
        member = Member(kube)
        informer, pages = by_twos(member), 0

        def interfere(verb: str, plural: str, name: str) -> Response | None:
            """After two pages of record sets the server is not there, and then an older one."""
            nonlocal pages
            pages += verb == "list" and plural == "dnsrecordsets"
            if pages < 4 or not backups:
                return None
            kube.api.rolled_back(*backups.pop())
            return Response(500, b"")

        async with member.running():
            await until(lambda: b"192.0.2.3" in spec_of(member, "n11"))
            kube.server.down()
            kube.api.rolled_back(*backups.pop())
            kube.api.interfere = interfere
            kube.server.up()
            await until(lambda: b"192.0.2.1" in spec_of(member, "n11"))
            facts = sets_restored(member)  # one, where the first was not recorded yet
            assert int(facts[0].seen) > 300_000
            assert int(facts[-1].now) < 200_000
            await until(lambda: informer.is_synced)
            assert member.cluster.feed._versions["DNSRecordSet"] <= int(informer.as_of)
            await member.cluster.feed.note()
        again = Member(kube, member.log)
        async with again.running():
            assert len(sets_restored(again)) == len(facts)

    in_cluster(case)


def test_a_cluster_that_was_set_back_is_noticed_by_the_next_list() -> None:
    async def case(kube: Kube) -> None:
        await kube.apply(a_zone())
        await kube.apply(a_set("www", "192.0.2.1"))
        backup = kube.api.backup()
        member = Member(kube)
        async with member.running():
            await kube.apply(a_set("www", "192.0.2.2"))
            await kube.apply(a_set("new", "192.0.2.3"))
            await until(lambda: len(member.names("lab.example")) == 2)
            kube.server.down()
            kube.api.rolled_back(*backup)
            for i in range(5):
                kube.free_lease(f"other-{i}")  # so that its versions went on
            # As the versions that the watches would go on from are not there, it says 410.
            kube.api.interfere = expired
            kube.server.up()
            await until(lambda: member.events(MIRROR_RESTORED))
            kube.api.interfere = None
            await until(lambda: len(member.names("lab.example")) == 1)
            await until(lambda: b"192.0.2.1" in spec_of(member))

    in_cluster(case)


def test_of_a_cluster_that_is_set_back_again_and_again_the_last_time_is_told() -> None:
    async def case(kube: Kube) -> None:
        await kube.apply(a_zone())
        for i in range(3):
            await kube.apply(a_set(f"n{i}", "192.0.2.1"))
        member = Member(kube)

        async def set_back(times: int) -> None:
            def has_newest() -> bool:
                return b".100.%d" % times in spec_of(member, "n2")

            backup = kube.api.backup()
            for i in range(3):
                await kube.apply(a_set(f"n{i}", f"198.51.100.{times}"))
            await until(has_newest)
            kube.server.down()
            kube.api.rolled_back(*backup)
            kube.server.up()
            await until(lambda: not has_newest())
            sets = [e for e in member.events(MIRROR_RESTORED) if b"DNSRecordSet" in e.body]
            assert len(sets) == times, "one fact for each time, whatever is in the list"

        async with member.running():
            for times in (1, 2, 3):
                await set_back(times)
            told = [text for text in member.cluster.warnings() if "went back" in text]
            assert len([text for text in told if "DNSRecordSet" in text]) == 1

    in_cluster(case)


def spec_of(member: Member, name: str = "www") -> bytes:
    stored = member.node.objects.find(key_of("DNSRecordSet", "default", name))
    return bytes(stored.body.spec) if stored is not None else b""


def expired(verb: str, plural: str, name: str) -> Response | None:
    """The answer to a watch whose version is forgotten."""
    is_ours = verb == "watch" and plural == "dnsrecordsets"
    return Response(410, b"{}") if is_ours else None


def test_objects_that_cannot_be_read_are_told_and_the_log_keeps_what_it_has() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await kube.apply(a_zone())
            await kube.apply(a_set("www", "192.0.2.1"))
            await until(lambda: member.names("lab.example"))
            broken = a_set("www", "not an address")
            await kube.apply(broken)
            await until(lambda: member.cluster.feed.broken)
            assert "cannot be read" in " ".join(member.cluster.warnings())
            assert member.names("lab.example")
            await kube.apply(a_set("www", "192.0.2.2"))
            await until(lambda: not member.cluster.feed.broken)

    in_cluster(case)


def test_definitions_that_are_not_installed_take_no_zone_away() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        await kube.apply(a_zone())
        async with member.running():
            await until(lambda: member.node.zones.find("lab.example"))
        kube.api.absent = {"dnszones", "policies"}
        later = Member(kube, member.log)
        async with later.running():
            assert later.node.zones.find("lab.example")
            told = "dnszones.kudurru.io is not installed"
            await until(lambda: told in " ".join(later.cluster.warnings()))

    in_cluster(case)


def test_one_of_two_nodes_gives_serials_and_both_have_them() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        one, two = Member(kube, name="node-1"), Member(kube, name="node-2")
        async with one.running(), two.running():
            await kube.apply(a_zone())
            for i in range(3):
                await kube.apply(a_set("www", f"192.0.2.{i}"))
                await until(lambda: one.names("lab.example") and two.names("lab.example"))
            await until(lambda: one.serial("lab.example"))
            await until(lambda: one.serial("lab.example") == two.serial("lab.example"))
            leaders = [member.runner.status().is_leader for member in (one, two)]
            assert sorted(leaders) == [False, True]
            follower = (one, two)[leaders.index(False)]
            stamped = follower.actors(OBJECT_STATUS)
            assert stamped
            assert set(stamped) == {"kubernetes:kudurru-controller"}

    in_cluster(case)


class Ahead(SystemClock):
    """A clock that is wrong by so much."""

    def __init__(self, off_us: int) -> None:
        self._off_us = off_us

    def now_us(self) -> int:
        return super().now_us() + self._off_us


@pytest.mark.parametrize("hours", [-1, 1])
def test_two_nodes_whose_clocks_are_an_hour_apart_are_in_step_and_serials_only_rise(
    hours: int,
) -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        one = Member(kube, name="node-1", clock=Ahead(hours * 3_600_000_000))
        two = Member(kube, name="node-2")
        serials: list[int] = []

        async def both_have(target: str) -> None:
            await until(lambda: target.encode() in spec_of(one) and target.encode() in spec_of(two))
            await until(lambda: two.serial("lab.example") not in (None, *serials))
            await until(lambda: status_of(kube).get("serial") == two.serial("lab.example"))
            serials.append(two.serial("lab.example") or 0)

        async with two.running():
            async with one.running():
                await until(lambda: one.runner.status().is_leader or two.runner.status().is_leader)
                await kube.apply(a_zone())
                for member, target in ((one, "192.0.2.1"), (two, "192.0.2.2"), (one, "192.0.2.3")):
                    await changes(member, an_apply(a_set("www", target)))
                    await both_have(target)
                await until(lambda: one.serial("lab.example") == two.serial("lab.example"))
                assert [row[1] for row in told(one)] == [row[1] for row in told(two)]
            # The other goes on alone, by a clock that is an hour away from this one's.
            await until(lambda: two.runner.status().is_leader)
            await changes(two, an_apply(a_set("www", "192.0.2.4")))
            await until(lambda: two.serial("lab.example") not in serials)
            serials.append(two.serial("lab.example") or 0)
        assert serials == sorted(set(serials))
        for member in (one, two):
            times = [event.ts for event in member.events()]
            assert times == sorted(times)

    in_cluster(case)


def test_a_follower_takes_a_serial_with_the_records_that_it_is_of() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        leader = Member(kube)
        async with leader.running():
            await kube.apply(a_zone())
            await until(lambda: leader.serial("lab.example"))
            await kube.apply(a_set("www", "192.0.2.1"))
            await until(lambda: leader.names("lab.example"))
            await until(lambda: status_of(kube).get("recordCount") == 2)
        await kube.delete(a_set("www", ""))
        follower = Member(kube, name="node-2")
        follower.cluster.feed.early_tries = 1_000_000
        kube.api.forbidden = {("update", "leases")}  # it never leads
        async with follower.running():
            assert follower.serial("lab.example") is None
            assert follower.node.zones.served  # it is served all the same
            await kube.apply(a_set("www", "192.0.2.1"))
            await until(lambda: follower.serial("lab.example") == status_of(kube)["serial"])
            assert follower.names("lab.example")

    in_cluster(case)


def test_who_leads_is_told_with_the_address_that_the_slices_of_the_service_have() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        body = endpoint_slice("kudurru-x", {"node-1": "192.0.2.1"})
        await kube.people.request("POST", SLICES, body)
        one = Member(kube, name="node-1")
        async with one.running():
            await until(lambda: one.runner.status().is_leader)
            other = Member(kube, name="node-2", service="kudurru")
            async with other.running():
                elector = other.elector
                async with asyncio.timeout(30):
                    while await elector.leader() != "node-1 (192.0.2.1:8080)":
                        await asyncio.sleep(0.01)
            assert await one.elector.leader() == "node-1"

    in_cluster(case)


def test_a_status_that_somebody_else_wrote_is_written_over() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await kube.apply(a_zone())
            serial = await until(lambda: member.serial("lab.example"))
            await until(lambda: status_of(kube).get("serial") == serial)
            there = kube.api.objects("dnszones")["lab.example"]
            there["status"] = {**there["status"], "serial": 17}
            await kube.people.request("PUT", f"{path_of(a_zone())}/status", there)
            await until(lambda: status_of(kube).get("serial") == serial)
            assert member.serial("lab.example") == serial

    in_cluster(case)


def status_of(kube: Kube) -> dict[str, Any]:
    found: dict[str, Any] = kube.api.objects("dnszones")["lab.example"].get("status") or {}
    return found


def changes_write_what_differs(number: int, patience_s: float) -> None:
    """Changes, one after the other: each is a version of the zone, whose serial the status has to
    name, and nothing else is written there."""

    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            await kube.apply(a_zone())
            await until(lambda: member.serial("lab.example"))
            await until(lambda: status_of(kube).get("serial") == member.serial("lab.example"))
            del kube.api.calls[:]
            for i in range(number):
                before = member.serial("lab.example")
                await kube.apply(a_set("www", f"192.0.{i >> 8}.{i & 255}"))
                await until(lambda before=before: member.serial("lab.example") != before)
                await until(lambda: status_of(kube).get("serial") == member.serial("lab.example"))
                await kube.apply(a_set("www", f"192.0.{i >> 8}.{i & 255}"))  # changes nothing
        written = [call for call in kube.api.calls if call[0] in ("update", "patch")]
        ours = [plural for _, plural, _ in written if plural not in ("leases", "dnsrecordsets")]
        assert ours == ["dnszones"] * number

    in_cluster(case, patience_s)


def test_changes_write_exactly_the_statuses_that_differ() -> None:
    changes_write_what_differs(100, PATIENCE_S)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_thousand_changes_write_exactly_the_statuses_that_differ() -> None:
    changes_write_what_differs(2_000, 800)


def test_notices_are_events_beside_their_objects() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        async with member.running():
            made = await kube.apply(a_zone())
            sink = member.late.sink(logging.getLogger("test"))
            uid = made["metadata"]["uid"]
            key = key_of("DNSZone", "", "lab.example")
            await until(lambda: member.runner.status().is_leader)
            sink.post(Notice(key=key, uid=uid, type="Normal", reason="Test", message="a serial"))
            await until(lambda: kube.api.objects("events"))
            (event,) = kube.api.objects("events").values()
            assert event["involvedObject"]["uid"] == uid

    in_cluster(case)


def test_the_objects_of_a_log_are_copied_and_set_back_and_those_of_others_are_left_alone() -> None:
    async def case(kube: Kube) -> None:
        await kube.apply(a_set("theirs", "192.0.2.9"))
        member = Member(kube, owner="log")
        async with member.running():
            await changes(
                member,
                an_apply(a_zone()),
                an_apply(a_set("www", "192.0.2.1")),
                an_apply(a_set("theirs", "192.0.2.1")),
            )

            def there(name: str) -> Any:
                found = kube.api.objects("dnsrecordsets").get(f"default/{name}")
                return found and found["spec"]["endpoints"][0]["targets"][0]

            await until(lambda: there("www") == "192.0.2.1")
            manager = kube.api.objects("dnszones")["lab.example"]["metadata"]["annotations"]
            assert manager[MANAGED_BY] == f"mirror:{member.log.log_id}"
            await kube.apply(a_set("www", "192.0.2.7"), "kubectl", force="true")
            await until(lambda: there("www") == "192.0.2.1")
            await until(lambda: member.cluster.copies.foreign)
            assert there("theirs") == "192.0.2.9"
            await changes(member, Delete(key=KEY, manager="kudurru"))
            await until(lambda: there("www") is None)
            await until(lambda: status_of(kube).get("serial") == member.serial("lab.example"))
            await kube.delete(a_zone())
            await until(lambda: "lab.example" in kube.api.objects("dnszones"))
            await until(lambda: member.events(MIRROR_WRITTEN))
        assert {who_of(e).actor for e in member.events(OBJECT_APPLIED)} == {ALICE.actor}

    in_cluster(case)


def test_a_large_change_that_the_log_took_is_copied_too() -> None:
    names = [f"host-{number}" for number in range(30)]

    async def case(kube: Kube) -> None:
        member = Member(kube, owner="log")
        async with member.running():
            sets = [an_apply(a_set(name, "192.0.2.1")) for name in names]
            await changes(member, an_apply(a_zone()), *sets)
            await until(lambda: len(kube.api.objects("dnsrecordsets")) == len(names))
            await until(lambda: kube.api.objects("dnszones"))
            del kube.api.calls[:]
            await changes(member, an_apply(a_set("host-0", "192.0.2.2")))
            await until(lambda: said_there(kube, "host-0") == "192.0.2.2")
            seen = [call for call in kube.api.calls if call[1] == "dnsrecordsets"]
            assert [verb for verb, _, _ in seen] == ["get", "patch"]  # and no look afterwards
            await changes(member, Delete(key=key_of("DNSZone", "", "lab.example")))
            await until(lambda: not kube.api.objects("dnszones"))
            keys = [key_of("DNSRecordSet", "default", name) for name in names]
            await changes(member, *(Delete(key=key) for key in keys))
            await until(lambda: not kube.api.objects("dnsrecordsets"))

    in_cluster(case)


def said_there(kube: Kube, name: str) -> str:
    found = kube.api.objects("dnsrecordsets")[f"default/{name}"]
    return str(found["spec"]["endpoints"][0]["targets"][0])


def test_a_node_whose_log_is_damaged_answers_on_and_follows_nothing() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        await kube.apply(a_zone())
        member = Member(kube)
        async with member.running():
            await until(lambda: member.serial("lab.example"))
        later = Member(kube, member.log)
        later.node.why_not_writable = LogDamaged("chain", 1, "the head is another")
        asked = len(kube.api.calls)
        async with later.running(synced=False):
            await until(lambda: later.runner.status().runnables[0].state == "running")
            assert later.serial("lab.example")
            assert {name for _, name, _ in kube.api.calls[asked:]} <= {"leases"}

    in_cluster(case)


def test_demo_objects_are_not_added_to_a_cluster(tmp_path: Path) -> None:
    done = kudurru(*serve_arguments(tmp_path / "data", "--demo", "--kubernetes", "cluster"))
    assert done.code != 0
    assert "--demo: objects are the cluster's" in done.err
