"""A node that comes back to its cluster, to another, or to one that was set back."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from kudurru.adapters.kubernetes.fakes.network import Response
from kudurru.adapters.kubernetes.informer import Informer
from kudurru.domain import mirror
from kudurru.domain.errors import Invalid
from kudurru.domain.events import (
    MIRROR_RESTORED,
    OBJECT_APPLIED,
    OBJECT_DELETED,
)
from kudurru.entrypoints.wiring import Change
from tests.clusters import (
    ALICE,
    Kube,
    Member,
    a_set,
    a_zone,
    an_apply,
    expired,
    in_cluster,
    spec_of,
    until,
)


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
