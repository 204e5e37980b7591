"""A node whose cluster forbids something, or lacks a definition, says so as long as that lasts."""

import logging

import pytest

from kudurru.adapters.kubernetes.election import PREFIX
from kudurru.adapters.kubernetes.fakes.network import Response
from kudurru.adapters.kubernetes.rbac import LEASE
from kudurru.domain.objects import key_of
from kudurru.domain.ports import Notice
from kudurru.entrypoints.cluster.cluster import ROLE
from tests.clusters import Kube, Member, in_cluster, until

KEY = key_of("DNSZone", "", "lab.example")


def test_a_verb_that_is_missing_is_a_warning_of_the_node() -> None:
    async def case(kube: Kube) -> None:
        kube.api.forbidden |= {("watch", "policies"), ("create", "events")}
        member = Member(kube)
        async with member.running(synced=False):
            warnings = await until(
                lambda: (
                    [w for w in member.cluster.warnings() if "lacks the verb" in w][1:]
                    and member.cluster.warnings()
                )
            )
            told = "\n".join(warnings)
            assert "Cluster: Forbidden: the feature events lacks the verb create on events" in told
            assert "the feature objects lacks the verb watch on policies.kudurru.io" in told
            assert "bind schemas/rbac/objects.yaml, or leave the feature out" in told

    in_cluster(case)


@pytest.mark.parametrize("owner", ["cluster", "log"])
def test_what_is_not_installed_is_a_warning_and_what_is_in_order_none(owner: str) -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        kube.api.absent.add("blocklists")
        member = Member(kube, owner=owner)
        async with member.running():
            found = await until(lambda: [w for w in member.cluster.warnings() if "lists" in w])
            told = (
                "Cluster: NotInstalled: blocklists.kudurru.io is not installed: "
                "`kudurru crds install` of this release brings it"
            )
            assert found == [told]
            assert member.cluster.warnings() == found

    in_cluster(case)


def test_what_a_leader_has_to_say_is_sent_before_it_gives_the_lease_back() -> None:
    async def case(kube: Kube) -> None:
        kube.free_lease()
        member = Member(kube)
        tries = 0

        def busy(verb: str, plural: str, name: str) -> Response | None:
            nonlocal tries
            tries += plural == "events"
            return Response(503) if plural == "events" and tries == 1 else None

        async with member.running():
            await until(lambda: member.runner.status().is_leader)
            kube.api.interfere = busy
            sink = member.late.sink(logging.getLogger("test"))
            for reason in ("First", "Second"):
                sink.post(Notice(key=KEY, uid="1234", type="Normal", reason=reason, message="said"))
                await until(lambda: tries)  # the second waits behind the first
        told = [event["reason"] for event in kube.api.objects("events").values()]
        assert told == ["Second"]

    in_cluster(case)


def test_the_lease_that_the_manifests_name_is_the_one_that_nodes_compete_for() -> None:
    assert f"{PREFIX}{ROLE}" == LEASE
