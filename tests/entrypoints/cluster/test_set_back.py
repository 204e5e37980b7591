"""A cluster that is set back to a backup twice, while its objects are listed."""

from typing import Any

import msgspec

from kudurru.adapters.kubernetes.fakes.network import Response
from kudurru.domain import mirror
from kudurru.domain.events import MIRROR_RESTORED
from kudurru.domain.objects import key_of
from tests.blackbox.program import records, zone
from tests.clusters import Kube, Member, in_cluster, until

FAR = 100_000
"""Between versions of one time and the next: what goes on meanwhile does not bridge it."""


def sets_restored(member: Member) -> list[mirror.Restored]:
    bodies = [event.body for event in member.events(MIRROR_RESTORED) if event.body]
    facts = [msgspec.json.decode(body, type=mirror.Restored) for body in bodies]
    return [fact for fact in facts if fact.kind == "DNSRecordSet"]


async def grown(kube: Kube, times: int) -> Any:
    """Twelve record sets, each changed once more; a backup of that."""
    kube.api._version += FAR
    for i in range(12):
        document = records(f"n{i:02}", "lab.example", (f"n{i:02}.lab.example", "A", address(times)))
        document["metadata"]["namespace"] = "default"
        await kube.apply(document, force="true")
    return kube.api.backup()


def address(times: int) -> str:
    return f"192.0.2.{times}"


def has(member: Member, name: str, times: int) -> bool:
    stored = member.node.objects.find(key_of("DNSRecordSet", "default", name))
    return stored is not None and address(times).encode() in bytes(stored.body.spec)


def test_a_second_set_back_is_noticed_though_versions_went_past_those_of_the_list_before() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        await kube.apply(zone("lab.example"))
        backups = [await grown(kube, times) for times in (1, 2)]
        await grown(kube, 3)
        member, pages = Member(kube), 0
        for part in member.cluster.feed._parts:
            part.informer._page = 2

        def interfere(verb: str, plural: str, name: str) -> Response | None:
            """After two pages of record sets the server is not there, and then an older one that
            went on."""
            nonlocal pages
            pages += verb == "list" and plural == "dnsrecordsets"
            if pages < 4 or not backups:
                return None
            kube.api.rolled_back(*backups.pop())
            kube.api._version += 3 * FAR
            return Response(500, b"")

        async with member.running():
            await until(lambda: has(member, "n11", 3))
            kube.server.down()
            kube.api.rolled_back(*backups.pop())
            kube.api.interfere = interfere
            kube.server.up()
            await until(lambda: has(member, "n11", 1))
            facts = sets_restored(member)  # one, where the first was not recorded yet
            assert int(facts[0].seen) > 3 * FAR
            assert int(facts[-1].now) < 2 * FAR
            await member.cluster.feed.note()
        again = Member(kube, member.log)
        async with again.running():
            assert len(sets_restored(again)) == len(facts) <= 2

    in_cluster(case)


def test_a_first_list_that_begins_again_is_one_set_back_though_nothing_of_it_is_recorded() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        await kube.apply(zone("lab.example"))
        backup = await grown(kube, 1)
        await grown(kube, 2)
        member = Member(kube)
        async with member.running():
            await until(lambda: has(member, "n11", 2))
            await member.cluster.feed.note()
        kube.api.rolled_back(*backup)
        again, pages = Member(kube, member.log), 0
        feed = again.cluster.feed
        for part in feed._parts:
            part.informer._page = 2

        def interfere(verb: str, plural: str, name: str) -> Response | None:
            nonlocal pages
            is_page = verb == "list" and plural == "dnsrecordsets"
            pages += is_page
            return Response(500, b"") if is_page and pages == 2 else None

        kube.api.interfere = interfere
        held = [key_of("DNSRecordSet", "default", f"n{i:02}") for i in range(12)]
        feed.hold(held)
        async with again.running(synced=False):
            await until(lambda: len(sets_restored(again)) == 1)
            await until(lambda: all(part.has_read for part in feed._parts))
            feed.release(held)
            await until(lambda: has(again, "n11", 1) and feed.synced.is_set())
            assert len(sets_restored(again)) == 1

    in_cluster(case)
