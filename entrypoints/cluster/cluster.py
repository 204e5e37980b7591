"""A node's side of the Kubernetes cluster that it works with.

With the cluster as owner of the objects (`kubernetes.owner: cluster`) an informer feeds the log,
changes made here are carried out there, and one node of several, by a Lease, gives serials and
writes statuses. With the log as owner its objects are copied there.

Nothing is read or written before the cluster is known to be the one that the log is of. A node that
has a log of it answers from that at once; one without waits. See docs/decisions/0036.
"""

import asyncio
import logging
import os
import random
import re
import socket
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from kudurru.adapters.kubernetes.access import Access, in_cluster, kubeconfig
from kudurru.adapters.kubernetes.answers import Absent, Forbidden, Refused, Unanswered
from kudurru.adapters.kubernetes.client import Client, Transport
from kudurru.adapters.kubernetes.election import LeaseElector
from kudurru.adapters.kubernetes.endpoints import Endpoint
from kudurru.adapters.kubernetes.events import DROPS, About, EventRecorder
from kudurru.adapters.kubernetes.store import Place
from kudurru.adapters.metrics import Sample
from kudurru.domain.errors import Invalid, KudurruError
from kudurru.domain.kinds.meta import API_VERSION
from kudurru.domain.kinds.registry import DNS_ZONE
from kudurru.domain.objects import key_of, ref_of
from kudurru.domain.ports import Clock, Entropy, Notice, Timers
from kudurru.domain.settings import ExternalDnsSettings, KubernetesSettings
from kudurru.entrypoints.cluster.facts import (
    Facts,
    from_snapshot,
    not_synced,
    refused,
    snapshot_samples,
)
from kudurru.entrypoints.cluster.parts import Ground
from kudurru.entrypoints.waiting import pause
from kudurru.entrypoints.wiring import Node
from kudurru.entrypoints.writer import Writer

log = logging.getLogger("kudurru.kubernetes")

KUBE_SYSTEM = "/api/v1/namespaces/kube-system"
ASK_FIRST_US, ASK_MAX_US = 500_000, 10_000_000
"""Between tries to learn which cluster this is."""
ASK_AGAIN_US, ASK_AGAIN_MAX_US = 10_000_000, 600_000_000
"""The same while it refuses to say."""
SETTLE_TRIES = 3
"""Answers that are errors, 10 s apart, until the feed begins without what came of a change."""
HEADLESS_SERVICE = "KUDURRU_HEADLESS_SERVICE"
"""Variable that names the service in front of the nodes, as SERVICE.NAMESPACE.svc.DOMAIN."""
ROLE = "controller"
"""What nodes compete for."""
BARRIER_S = 10.0
"""A new leader waits so long for what the one before wrote."""
SHOWN_MAX = 3
"""Objects of each kind of trouble that a warning names."""


class _Uid(msgspec.Struct, frozen=True):
    uid: str


class _Namespace(msgspec.Struct, frozen=True):
    metadata: _Uid


def _is_kept_from_us(error: Exception) -> bool:
    """Whether it may not be read. A token that is refused is another matter: it may have been
    rotated a moment ago, and without one nothing else is read either."""
    return isinstance(error, Absent) or (isinstance(error, Forbidden) and error.code == 403)


def _first_of(faults: BaseExceptionGroup[Any]) -> BaseException:
    found: BaseException = faults
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def access_of(settings: KubernetesSettings, environment: Mapping[str, str]) -> Access:
    """As a pod where this is one and no kubeconfig is named, else as kubectl. Raises: Invalid."""
    is_pod = bool(environment.get("KUBERNETES_SERVICE_HOST")) and not settings.kubeconfig
    if is_pod:
        return in_cluster(server=settings.server, environment=environment)
    path = Path(settings.kubeconfig) if settings.kubeconfig else None
    found = kubeconfig(path, context=settings.context or None)
    if settings.server:
        return msgspec.structs.replace(found, server=settings.server.rstrip("/"))
    return found


def place_of(access: Access, environment: Mapping[str, str], node_name: str) -> Place:
    """Where Leases are, and what this process is called in them."""
    name = environment.get("POD_NAME") or node_name or socket.gethostname()
    pod = re.sub(r"[^a-z0-9.-]+", "-", name.lower()).strip("-.") or "node"
    return Place(environment.get("POD_NAMESPACE") or access.namespace, pod)


class Cluster:
    """What runs of it is in `late`."""

    def __init__(self, ground: Ground, *, began_us: int | None = None) -> None:
        """`began_us` is when this node began to wait for the cluster."""
        self._settings, self._node, self._writer = ground.settings, ground.node, ground.writer
        self._clock, self._timers = ground.clock, ground.timers
        self.on_change: Callable[[], None] = lambda: None
        """Told when readiness is another."""
        self.facts = ground.facts
        self.owns = ground.owns
        self._began_us = self._clock.monotonic_us() if began_us is None else began_us
        self._newest_us = self._node.log.head().ts
        self._is_verified = False
        self._is_known = asyncio.Event()
        self._is_suspect = asyncio.Event()
        self._has_waited = False
        self._problem = ""
        self.has_log = self.facts.has_followed

        self.beside = ground.beside()
        client = self.beside.client
        self._client = client.with_guard(self._guard)
        self.feed = ground.feed(client, self._leads)
        self._asking, leading = ground.store(client), ground.store(self._client)
        self._addresses = ground.addresses(client)
        self.leading = _Leading(
            self._asking.elector(ROLE), self.feed.synced, self._catch_up, self._address_of
        )
        """By a Lease, where the cluster owns the objects; else the nodes of the log know who."""
        self.recorder = ground.recorder(self._client, self._leads)
        self.sink = _EventsOf(self.recorder)
        """For notices beside their objects."""
        self.statuses = ground.statuses(leading, self.feed)
        self.copies = ground.copies(leading, self.feed)
        self.endpoints = ground.endpoints(
            self._client, self.recorder, self.feed, lambda: self._is_doubtful
        )
        self._writes = ground.writes(self._asking, self.feed)
        self._listen()

    def _listen(self) -> None:
        self.feed.on_seen = self._seen
        self.feed.on_recovered = self._recovered
        self.feed.on_listed = self._suspect
        if self.owns:
            self._writer.elsewhere = self._writes
            self._writer.may_stamp = self._leads

    async def run(self) -> NoReturn:
        """Follow the cluster. Raises: Invalid when it is not the one of the log."""
        if self._node.why_not_writable is not None:
            log.error("the cluster is not followed: the log cannot be written")
            await asyncio.get_running_loop().create_future()
        waited_us = self._clock.monotonic_us() - self._began_us
        patience_us = round(self._settings.startup_timeout.total_seconds() * 1e6) - waited_us
        timer = self._timers.call_later(max(0, patience_us), self._stop_waiting)
        try:
            await self._bind(await self._identified())
            self.feed.missing.is_unknown = self._is_doubtful
            self.beside.begin()
            if not self._is_doubtful:
                self.beside.trust()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_asking())
                tasks.create_task(self._tell_synced())
                if self.owns:
                    # First: or what was intended here would come from there, as somebody else's.
                    if not self.feed.missing.is_unknown:
                        await self._settle_open()
                        self._is_known.set()
                    tasks.create_task(self._keep_settled())
                await self.feed.run()
        except BaseExceptionGroup as faults:
            if (wrong := faults.subgroup(Invalid)) is not None:
                raise _first_of(wrong) from None  # for the operator, who reads one line
            raise
        finally:
            timer.cancel()
            if self.feed.synced.is_set():
                await self.feed.note()

    async def send_last(self) -> NoReturn:
        """What this leader has to say is sent while the Lease is still its own."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await self.recorder.drain()
        raise AssertionError("nobody sets it")

    async def keep_addresses(self) -> NoReturn:
        """Of the other nodes, where there is a service that knows them."""
        if self._addresses is not None:
            await self._addresses.run()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody sets it")

    async def take_endpoints(self) -> NoReturn:
        if self.endpoints is not None:
            await self.endpoints.run()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody sets it")

    async def close(self) -> None:
        await self.recorder.close()
        await self._asking.close()
        await self._client.transport.close()

    async def until_synced(self) -> None:
        await self.feed.synced.wait()

    # --- what others want to know -------------------------------------------------------

    def why_not(self) -> list[str]:
        """Why no queries should be sent here yet: until what the log has is compared with the
        cluster, and no longer than `kubernetes.startupTimeout`; without a log, for as long as it
        takes."""
        if not self.owns or self.feed.synced.is_set():
            return []
        if self.has_log and self._has_waited:
            return []
        return [not_synced(self._problem)]

    def warnings(self) -> list[str]:
        """What an operator should see to."""
        feed, is_synced = self.feed, self.feed.synced.is_set()
        found = []
        if self.owns and not is_synced:
            found.append(from_snapshot(self.age_s(), self._problem))
        if is_synced and not feed.is_current:
            found.append("Cluster: a watch is not open; changes made there are not seen now")
        if is_synced and not self._is_told:
            found.append(
                "Cluster: its uid is not known, so it may be another than the log's: bind "
                "schemas/rbac/cluster-id.yaml, or set kubernetes.clusterID"
            )
        if held := feed.missing.warning():
            found.append(f"Cluster: {held}")
        return found + [f"Cluster: {text}" for text in self._troubles()]

    def _troubles(self) -> Iterator[str]:
        feed = self.feed
        for plural, why in feed.why_not_read().items():
            yield f"{plural} are not read: {why}"
        yield from self.beside.warnings()
        if self.endpoints is not None:
            yield from self.endpoints.warnings()
        yield from feed.restored.values()
        for key, why in list(feed.broken.items())[:SHOWN_MAX]:
            yield f"{ref_of(key)} cannot be read: {why}"
        for key, why in list(feed.refused.items())[:SHOWN_MAX]:
            yield f"{ref_of(key)} is not taken: {why}"
        for key, owner in list(self.copies.foreign.items())[:SHOWN_MAX]:
            yield f"{ref_of(key)} is not copied: {owner or 'somebody else'} manages it there"

    def age_s(self) -> float:
        """Of what is served: since the log was told anything, or the cluster was heard of."""
        last_us = max(self._newest_us, self._client.transport.last_contact_us)
        return max(0.0, (self._clock.now_us() - last_us) / 1e6)

    def samples(self) -> Iterable[Sample]:
        is_old = self.owns and not self.feed.synced.is_set()
        yield from snapshot_samples(self.age_s() if is_old else None)
        for kind, count in self.feed.reopened().items():
            yield Sample("informer_reopened_total", (kind,), count)
        if self.endpoints is not None:
            yield from self.endpoints.samples()
        for reason in DROPS:
            yield Sample("events_dropped_total", (reason,), self.recorder.dropped[reason])
        yield Sample("cluster_requests_total", (), self._client.transport.requests)
        yield Sample("cluster_synced", (), self.feed.is_current)
        yield Sample("cluster_objects_unreadable", (), len(self.feed.broken))
        yield Sample("cluster_objects_refused", (), len(self.feed.refused))
        yield Sample("cluster_deletions_held", (), self.feed.missing.held)

    # --- which cluster ------------------------------------------------------------------

    async def _identified(self) -> str:
        """The uid of the cluster; what is known of it where that must not be read. Raises: Invalid
        when it is not the one of the log."""
        wait_us = ASK_FIRST_US
        while True:
            try:
                return await self._asked_uid()
            except (Refused, Unanswered) as error:
                if _is_kept_from_us(error):
                    log.warning("the cluster cannot be told from others: %s", error)
                    return self._settings.cluster_id or self.facts.cluster
                self._tell_problem(str(error))
            await pause(self._timers, wait_us)
            wait_us = min(2 * wait_us, ASK_MAX_US)

    async def _asked_uid(self) -> str:
        """Raises: Invalid; what a request does."""
        found = await self._client.get(KUBE_SYSTEM, _Namespace)
        uid = found.metadata.uid
        self.facts.check_cluster(uid)
        if self._settings.cluster_id not in ("", uid):
            raise refused(
                "kubernetes.clusterID",
                f"the API server is that of {uid}: mend kubernetes.clusterID or the access",
            )
        self._is_verified, self._problem = True, ""
        return uid

    def _suspect(self) -> None:
        """Whoever answers now may be another than before."""
        if self._is_verified and self.feed.synced.is_set():
            self.feed.missing.is_asked = not self._settings.cluster_id
            self._is_suspect.set()

    async def _keep_asking(self) -> NoReturn:
        """While it is not known which cluster this is, and whenever that is in doubt. Raises:
        Invalid when it is another one."""
        wait_us = ASK_AGAIN_US
        while True:
            if self._is_verified:
                await self._is_suspect.wait()
                wait_us = ASK_AGAIN_US
            else:
                await pause(self._timers, wait_us)
                wait_us = min(2 * wait_us, ASK_AGAIN_MAX_US)
            self._is_suspect.clear()
            try:
                await self._bind(await self._asked_uid())
            except (Refused, Unanswered) as error:
                log.debug("the cluster cannot be told from others: %s", error)
                self._is_verified = self.feed.missing.is_asked = False
                self.feed.missing.is_unknown = self._is_doubtful
            else:
                if self._is_suspect.is_set():
                    continue  # it was asked before that
                self.feed.missing.identified()
                self.beside.trust()
                self._is_known.set()
            self.feed.look_at_missing()

    @property
    def _is_doubtful(self) -> bool:
        """Whether the log is of a cluster, be it one that never said which, and neither the API
        server nor the admin says that this is it."""
        is_of_one = bool(self.facts.cluster) or self.facts.has_followed
        return is_of_one and not self._is_told

    @property
    def _is_told(self) -> bool:
        return self._is_verified or bool(self._settings.cluster_id)

    def _tell_problem(self, problem: str) -> None:
        if not self._problem:
            log.warning("%s", problem)
        self._problem = problem

    async def _bind(self, cluster: str) -> None:
        while True:
            try:
                await self.facts.bind(cluster)
            except KudurruError as error:
                self._tell_problem(str(error))
                await pause(self._timers, ASK_MAX_US)
            else:
                return

    # --- running ------------------------------------------------------------------------

    def _stop_waiting(self) -> None:
        self._has_waited = True
        if not self.feed.synced.is_set():
            log.warning("the cluster was not read in time; this node answers from its log")
        self.on_change()

    async def _tell_synced(self) -> None:
        await self.feed.synced.wait()
        self.on_change()

    async def _keep_settled(self) -> NoReturn:
        """Not by what another cluster has."""
        await self._is_known.wait()
        await self._writes.keep_settled()

    async def _settle_open(self) -> None:
        """What an earlier process did not hear the end of. Where the API server refuses to tell,
        the feed does not wait for it: it is asked on beside."""
        tries = 0
        while True:
            try:
                await self._writes.settle()
            except KudurruError as error:
                self._tell_problem(str(error))
                tries += isinstance(error.__cause__, Refused)
                if isinstance(error.__cause__, Forbidden) or tries >= SETTLE_TRIES:
                    return
                await pause(self._timers, ASK_MAX_US)
            else:
                return

    async def stamp(self) -> NoReturn:
        """Serials are this node's to give in this term."""
        self._writer.request_stamp()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody sets it")

    async def _catch_up(self) -> None:
        """Before this node leads: have what the leader before wrote of zones, their serials."""
        versions = {}
        page = await self._asking.list(DNS_ZONE.name)
        while True:
            for item in page.items:
                metadata = item["metadata"]
                versions[key_of(DNS_ZONE.name, "", metadata["name"])] = metadata["resourceVersion"]
            if not page.continue_:
                break
            page = await self._asking.list(DNS_ZONE.name, continue_=page.continue_)
        async with asyncio.timeout(BARRIER_S):
            await self.feed.caught_up(versions)

    def _address_of(self, identity: str) -> Endpoint | None:
        return self._addresses.of(identity) if self._addresses is not None else None

    def _leads(self) -> bool:
        return not self.owns or self.leading.is_leader

    def _guard(self) -> None:
        """Raises: NotLeading, for what only the leader writes."""
        if self.owns:
            self.leading.guard()

    def _seen(self, key: Any) -> None:
        if self._leads():
            self.statuses.look(key)
        if not self.owns:
            self.copies.look(key)

    def _recovered(self) -> None:
        self._suspect()
        self.statuses.again()
        self.copies.again()


class _Leading:
    """The elector of a Lease, which this node competes for once it is in step with the cluster.
    Implements `NamesLeader`."""

    def __init__(
        self,
        lease: LeaseElector,
        synced: asyncio.Event,
        catch_up: Callable[[], Any],
        address_of: Callable[[str], Endpoint | None],
    ) -> None:
        self.node_name = ""  # it is known by its pod
        self._address_of = address_of
        self._lease = lease
        self._synced = synced
        self._catch_up = catch_up
        self._is_ready = False

    @property
    def is_leader(self) -> bool:
        return self._is_ready and self._lease.is_leader

    def guard(self) -> None:
        self._lease.guard()

    async def campaign(self) -> None:
        await self._synced.wait()
        await self._lease.campaign()
        try:
            await self._catch_up()
        except (KudurruError, TimeoutError) as error:
            log.warning("this node leads without the newest serials of the one before: %s", error)
        self._is_ready = True

    async def leader(self) -> str | None:
        """Its pod, and its address where that is known."""
        identity = self._lease.leader
        if not identity:
            return None
        address = self._address_of(identity)
        pod = identity.rpartition("_")[0]
        return f"{pod} ({address})" if address is not None else pod

    async def lost(self) -> None:
        await self._lease.lost()
        self._is_ready = False

    async def resign(self) -> None:
        self._is_ready = False
        await self._lease.resign()


class _EventsOf:
    """`EventSink` that puts notices beside their objects in the cluster."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def post(self, notice: Notice) -> None:
        ref = ref_of(notice.key)
        about = About(API_VERSION, ref.kind, ref.namespace, ref.name, notice.uid)
        self._recorder.post(about, notice.type, notice.reason, notice.message)


def open_cluster(
    settings: KubernetesSettings,
    node: Node,
    writer: Writer,
    facts: Facts,
    access: Access,
    node_name: str,
    *,
    clock: Clock,
    timers: Timers,
    entropy: Entropy,
    groups: Callable[[], Container[str]],
    began_us: int,
    external_dns: ExternalDnsSettings | None,
) -> Cluster:
    """As the environment of this process has it."""
    ground = Ground(
        settings=settings,
        node=node,
        writer=writer,
        facts=facts,
        client=Client(transport=Transport(access, clock)),
        place=place_of(access, os.environ, node_name),
        clock=clock,
        timers=timers,
        entropy=entropy,
        chance=random.SystemRandom(),
        groups=groups,
        service=os.environ.get(HEADLESS_SERVICE, "").partition(".")[0],
        external_dns=external_dns or ExternalDnsSettings(),
    )
    return Cluster(ground, began_us=began_us)
