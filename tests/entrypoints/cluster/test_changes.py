"""Changes made here are carried out in the cluster, whoever else writes there."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from kudurru.adapters.kubernetes.client import MERGE_PATCH
from kudurru.adapters.kubernetes.fakes.network import Request, Response
from kudurru.domain import mirror
from kudurru.domain.commands import ABSENT, Delete
from kudurru.domain.errors import Busy, Conflict, Invalid, KudurruError, ManagedBy
from kudurru.domain.events import (
    MIRROR_INTENDED,
    MIRROR_WRITTEN,
    OBJECT_APPLIED,
    OBJECT_DELETED,
)
from kudurru.domain.kinds.meta import MANAGED_BY
from kudurru.domain.objects import key_of
from kudurru.entrypoints.history import who_of
from tests.clusters import (
    ALICE,
    KEY,
    Kube,
    Lost,
    Member,
    a_set,
    a_zone,
    an_apply,
    changes,
    expired,
    heard,
    in_cluster,
    path_of,
    status_of,
    told,
    until,
    version_of,
)


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
    monkeypatch.setattr("kudurru.entrypoints.cluster.feed.RECORDED_MAX", 3)

    async def case(kube: Kube) -> None:
        feed = Member(kube).cluster.feed
        for number in range(5):
            feed.wrote(key_of("DNSRecordSet", "default", f"w{number}"), "7")
        assert [key[-2:] for key in feed._recorded] == ["w2", "w3", "w4"]

    in_cluster(case)


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
