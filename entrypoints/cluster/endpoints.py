"""DNSEndpoint objects of a cluster as record sets, written by the node that leads.

What is to be done follows from what is there: which objects the API server has, and which record
sets of theirs the log has. So a restart writes nothing, and a change of a zone, or of a record set
that was in the way, is looked at as one of the object is. See docs/decisions/0050.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from kudurru.adapters.kubernetes.answers import Absent, cut
from kudurru.adapters.kubernetes.client import MERGE_PATCH, Client
from kudurru.adapters.kubernetes.events import About, EventRecorder
from kudurru.adapters.kubernetes.informer import Handler, Informer, Source
from kudurru.adapters.metrics import Sample
from kudurru.domain.commands import Delete
from kudurru.domain.errors import Invalid, KudurruError, MassChange
from kudurru.domain.events import OBJECT_APPLIED, OBJECT_DELETED, Recorded, Who
from kudurru.domain.kinds.registry import DNS_RECORD_SET, DNS_ZONE
from kudurru.domain.kinds.stored import read_record_set
from kudurru.domain.mass_change import Losses, records_of
from kudurru.domain.object_store import CONTROLLER
from kudurru.domain.objects import Key
from kudurru.domain.ports import Clock, Timers
from kudurru.domain.settings import ExternalDnsSettings
from kudurru.entrypoints.cluster.facts import actor
from kudurru.entrypoints.cluster.keys import Keys, Waiting
from kudurru.entrypoints.waiting import pause
from kudurru.entrypoints.wiring import Change, Node
from kudurru.entrypoints.writer import Writer
from kudurru.projections.dns_endpoints import (
    Declared,
    Unplannable,
    declared,
    manager_of,
    plan,
    source_of,
)
from kudurru.projections.external_dns import Terms
from kudurru.projections.mass_change import check_losses

API_VERSION = "externaldns.k8s.io/v1alpha1"
KIND, PLURAL = "DNSEndpoint", "dnsendpoints"
REASON = "RecordError"

GONE_WAIT_US = 1_000_000
"""Before the record sets of objects that are gone are deleted, all together: one that is made again
keeps its own, and the guard against mass changes sees what goes at once."""
GONE_WINDOW_US = 600_000_000
"""What goes within ten minutes is held against the guard as one, as what a list of the cluster
lacks is: of a definition that is deleted the objects go one by one."""
GONE_AGAIN_US = 60_000_000
"""Between tries to delete what must not be deleted, or could not be."""
GONE_BATCH = 100
"""Deletions of one change: others wait for it."""
DOUBTFUL = (
    "whether it is the cluster of this log cannot be told; bind schemas/rbac/cluster-id.yaml, or "
    "set kubernetes.clusterID"
)
SHOWN_MAX = 3
WHY_MAX = 1_024
"""Octets that are told of why an object is left as it was."""
PER_STEP = 100

log = logging.getLogger("kudurru.kubernetes")


class DnsEndpoints(Handler[Declared]):
    """`run` it while this node leads, any number of times."""

    def __init__(
        self,
        node: Node,
        writer: Writer,
        client: Client,
        recorder: EventRecorder,
        *,
        namespaces: Iterable[str],
        settings: ExternalDnsSettings,
        synced: asyncio.Event,
        is_doubtful: Callable[[], bool],
        clock: Clock,
        timers: Timers,
        chance: random.Random,
    ) -> None:
        """`settings` are for both ways of external-dns; `synced` says when the zones are known, and
        `is_doubtful` whether the cluster may be another one than the log's."""
        self._node = node
        self._writer = writer
        self._client = client
        self._recorder = recorder
        self._namespaces = tuple(namespaces) or ("",)
        self._settings = settings
        self._terms = Terms(domains=tuple(settings.domains), deletes=settings.policy == "sync")
        self._synced = synced
        self._is_doubtful = is_doubtful
        self._clock = clock
        self._timers = timers
        self._chance = chance
        self._losses = Losses(GONE_WINDOW_US)
        self._begin()

    def _begin(self) -> None:
        self._keys = Keys(self._clock, self._timers)
        self._told = Keys(self._clock, self._timers)  # whose status is to be written
        self._carried_out: dict[str, tuple[str, int]] = {}  # uid and generation, by object
        self._look = asyncio.Event()  # whether some are gone
        self._mine: dict[str, set[Key]] = {}  # record sets, by the object that they are of
        self._source: dict[Key, str] = {}  # the other way round
        self._refused: dict[str, str] = {}  # why, by object
        self._broken: dict[str, str] = {}  # the same, of those that cannot be read
        self._in_the_way = Waiting()  # objects that are refused, for record sets of others
        self._withheld = ""
        self._problem = ""
        self._informers = [self._informer(namespace) for namespace in self._namespaces]

    def _informer(self, namespace: str) -> Informer[Declared]:
        within = f"/namespaces/{namespace}" if namespace else ""
        source = Source(f"/apis/{API_VERSION}{within}/{PLURAL}")
        return Informer(self._client, source, declared, self, chance=self._chance)

    async def run(self) -> NoReturn:
        await self._synced.wait()
        self._begin()
        self._writer.listeners.append(self._heard)
        try:
            await self._learn()
            async with asyncio.TaskGroup() as tasks:
                for informer in self._informers:
                    tasks.create_task(informer.run(), name="cluster: DNSEndpoints")
                tasks.create_task(self._keep_removed(), name="cluster: DNSEndpoints, gone")
                # Apart, or records would wait for the pace of requests.
                tasks.create_task(self._told.work(self._tell_observed, 1), name="cluster: observed")
                # One after the other: of two that want a name, one is first.
                await self._keys.work(self._settle, 1)
        finally:
            self._writer.listeners.remove(self._heard)
            self._refused, self._broken, self._withheld = {}, {}, ""
            self._in_the_way = Waiting()
        raise AssertionError("unreachable")

    def warnings(self) -> Iterator[str]:
        refused = self._refused | self._broken
        for name, why in sorted(refused.items())[:SHOWN_MAX]:
            yield f"DNSEndpoint {name} is left as it was: {why}"
        if len(refused) > SHOWN_MAX:
            yield f"{len(refused) - SHOWN_MAX} more DNSEndpoints are left as they were"
        if self._withheld:
            yield f"DNSEndpoints are gone, and their records are kept: {self._withheld}"
        if self._problem:
            yield f"DNSEndpoints are not read: {self._problem}"
        elif any(informer.is_absent for informer in self._informers):
            yield f"{PLURAL} are not installed in the cluster; kubernetes.dnsEndpoints wants them"

    def samples(self) -> Iterator[Sample]:
        there = sum(len(informer.versions) for informer in self._informers)
        refused = len(self._refused | self._broken)
        yield Sample("dnsendpoints", ("refused",), refused)
        yield Sample("dnsendpoints", ("taken",), max(0, there - refused))

    # --- hearing ------------------------------------------------------------------------

    def put(self, key: str, new: Declared, old: Declared | None) -> None:  # noqa: ARG002
        self._broken.pop(key, None)
        self._add(key)
        if self._withheld:
            self._look.set()  # it may have been one of those

    def gone(self, key: str, last: Declared | None, version: str) -> None:  # noqa: ARG002
        self._broken.pop(key, None)
        self._forget_refusal(key)
        self._carried_out.pop(key, None)
        self._look.set()

    def listed(self) -> None:
        self._problem = ""
        self._look.set()

    def recovered(self) -> None:
        self._problem = ""
        self._keys.again()
        self._told.again()
        self._look.set()

    def list_failed(self, error: Exception) -> None:
        self._problem = str(error)

    def broken(self, key: str, why: str) -> None:
        self._note(self._broken, key, why)

    def _heard(self, recorded: Sequence[Recorded]) -> None:
        """What others write may have been in the way of an object, or was of one."""
        is_zone = False
        for event in recorded:
            if event.type not in (OBJECT_APPLIED, OBJECT_DELETED):
                continue
            is_zone |= event.key.startswith(f"{DNS_ZONE.name}/")
            if event.key.startswith(f"{DNS_RECORD_SET.name}/"):
                manager = event.manager if event.type == OBJECT_APPLIED else None
                if manager is not None and self._losses.is_back(event.key):
                    self._look.set()  # with it others may go that were kept
                self._learned(event.key, manager)
                for name in self._in_the_way.of(event.key):
                    self._add(name)
        if is_zone:
            for informer in self._informers:
                for name in informer.copy:
                    self._add(name)

    def _learned(self, key: Key, manager: str | None) -> None:
        before, now = self._source.pop(key, None), source_of(key, manager)
        if before is not None:
            self._mine[before].discard(key)
            if not self._mine[before]:
                del self._mine[before]
        if now is not None:
            self._source[key] = now
            self._mine.setdefault(now, set()).add(key)
        for name in {before, now} - {None}:
            assert name is not None
            self._add(name)

    async def _learn(self) -> None:
        """Which record sets are of DNSEndpoints, from the log."""
        for i, key in enumerate(list(self._node.objects.keys(DNS_RECORD_SET.name)), 1):
            if i % PER_STEP == 0:
                await asyncio.sleep(0)
            stored = self._node.objects.find(key)
            if stored is not None:
                self._learned(key, stored.manager)

    # --- objects that are there -----------------------------------------------------------

    def _add(self, name: str) -> None:
        self._keys.add(_key(name))

    async def _settle(self, key: Key) -> bool:
        """Whether it is done with, for now."""
        name = _name(key)
        await asyncio.sleep(0)  # where there is nothing to do, nothing else has its turn
        found = self._find(name)
        if found is None:
            self._look.set()
            return True
        try:
            await self._carry_out(name, found)
        except Unplannable as error:
            self._refuse(name, found, _said(error), error.in_the_way)
            return True  # until it changes, or its zone, or what is in its way
        except Invalid as error:
            self._refuse(name, found, _said(error))
            return False
        except MassChange as error:
            self._refuse(name, found, f"{error}: externalDNS.allowMassChange")
            return False
        except KudurruError as error:
            self._refuse(name, found, str(error))
            return False
        self._forget_refusal(name)
        return True

    async def _carry_out(self, name: str, found: Declared) -> None:
        """Raises: KudurruError."""
        views = self._node.zones, self._node.objects
        planned = plan(found, self._mine.get(name, frozenset()), *views, self._terms)
        if planned.commands:
            who = msgspec.structs.replace(actor(found.writer), reason=found.title)
            await self._writer.submit(
                Change(
                    commands=tuple(planned.commands),
                    who=who,
                    dry_run=self._settings.dry_run,
                    allow_mass_change=self._settings.allow_mass_change,
                )
            )
        if self._settings.dry_run:
            log.info("%s, a dry run: %d record sets would change", found.title,
                     len(planned.commands))  # fmt: skip
        elif planned.is_here:
            self._carried_out[name] = found.uid, found.generation
            if found.observed != found.generation:
                self._told.add(_key(name))

    async def _tell_observed(self, key: Key) -> bool:
        """Whether it is done with, for now."""
        name = _name(key)
        found = self._find(name)
        if found is None or found.observed == found.generation:
            return True
        if self._carried_out.get(name) != (found.uid, found.generation):
            return True  # it comes again when that is
        path = f"/apis/{API_VERSION}/namespaces/{found.namespace}/{PLURAL}/{found.name}/status"
        patch = {
            "metadata": {"uid": found.uid},  # and of no other that has the name now
            "status": {"observedGeneration": found.generation},
        }
        try:
            await self._client.request(
                "PATCH", f"{path}?fieldManager={CONTROLLER}", patch, content_type=MERGE_PATCH
            )
        except Absent:
            return True
        except KudurruError as error:
            log.debug("the status of %s is not written: %s", found.title, error)
            return False
        return True

    def _find(self, name: str) -> Declared | None:
        for informer in self._informers:
            if (found := informer.copy.get(name)) is not None:
                return found
        return None

    def _refuse(
        self, name: str, found: Declared, why: str, in_the_way: frozenset[Key] = frozenset()
    ) -> None:
        self._in_the_way.put(name, in_the_way)
        if self._note(self._refused, name, why):
            about = About(API_VERSION, KIND, found.namespace, found.name, found.uid)
            self._recorder.post(about, "Warning", REASON, why)

    def _forget_refusal(self, name: str) -> None:
        self._refused.pop(name, None)
        self._in_the_way.put(name, frozenset())

    def _note(self, notes: dict[str, str], name: str, why: str) -> bool:
        """Whether that is new."""
        why = cut(why, WHY_MAX)
        if notes.get(name) == why:
            return False
        log.warning("DNSEndpoint %s is left as it was: %s", name, why)
        notes[name] = why
        return True

    # --- objects that are gone ------------------------------------------------------------

    async def _keep_removed(self) -> NoReturn:
        while True:
            await self._look.wait()
            await pause(self._timers, GONE_WAIT_US)
            self._look.clear()
            gone = sorted(filter(self._is_gone, self._mine))
            if not gone or not self._terms.deletes:
                self._withheld = ""
            elif self._is_doubtful():
                self._withheld = DOUBTFUL
                self._timers.call_later(GONE_AGAIN_US, self._look.set)
            elif not await self._remove(gone):
                self._timers.call_later(GONE_AGAIN_US, self._look.set)

    def _is_gone(self, name: str) -> bool:
        """Whether the API server says so: while its definition is not installed, or its namespace
        is not read, it says nothing."""
        namespace = name.partition("/")[0]
        for informer, within in zip(self._informers, self._namespaces, strict=True):
            if within in ("", namespace):
                is_told = informer.lists > 0 and not informer.is_listing
                is_read = is_told and not informer.is_absent
                return is_read and name not in informer.versions
        return False

    async def _remove(self, gone: list[str]) -> bool:
        """Whether all of their record sets are gone now."""
        commands = [
            Delete(key=key, manager=manager_of(name))
            for name in gone
            for key in sorted(self._mine.get(name, ()))
        ]
        text = f"DNSEndpoints are gone: {', '.join(gone[:SHOWN_MAX])}"
        if len(gone) > SHOWN_MAX:
            text += f" and {len(gone) - SHOWN_MAX} more"
        who = msgspec.structs.replace(actor(""), reason=text)
        settings = self._settings
        try:
            going = await self._sizes(commands)
            if not settings.allow_mass_change:
                self._check_losses(going)
            # All of them are held against the guard at once, and deleted in parts.
            await self._submit(commands, who, is_dry=True, allowed=settings.allow_mass_change)
            if settings.dry_run:
                log.info("%s, a dry run: %d record sets would go", text, len(commands))
                return True
            for start in range(0, len(commands), GONE_BATCH):
                part = commands[start : start + GONE_BATCH]
                await self._submit(part, who)
                now_us = self._clock.monotonic_us()
                for key in (one.key for one in part if one.key in going):
                    self._losses.add(key, *going[key], now_us)
        except KudurruError as error:
            hint = ": externalDNS.allowMassChange" if isinstance(error, MassChange) else ""
            why = f"{error}{hint}"
            if self._withheld != why:
                log.warning("%s, and their records are kept: %s", text, why)
            self._withheld = why
            return False
        self._withheld = ""
        return True

    async def _sizes(self, commands: Sequence[Delete]) -> dict[Key, tuple[str, int]]:
        """Of record sets that are there: the zone, and how many records go with it."""
        found = {}
        for i, command in enumerate(commands, 1):
            if i % PER_STEP == 0:
                await asyncio.sleep(0)
            stored = self._node.objects.find(command.key)
            if stored is not None:
                spec = read_record_set(stored.body.spec)
                count = sum(map(len, records_of([spec], 0).values()))
                found[command.key] = spec.zone_ref.name, count
        return found

    def _check_losses(self, going: Mapping[Key, tuple[str, int]]) -> None:
        """Raises: MassChange."""
        by_zone: Counter[str] = Counter()
        for zone, count in going.values():
            by_zone[zone] += count
        went = self._losses.by_zone(self._clock.monotonic_us())
        check_losses(by_zone, went, self._node.zones)

    async def _submit(
        self, commands: Sequence[Delete], who: Who, *, is_dry: bool = False, allowed: bool = True
    ) -> Any:
        change = Change(
            commands=tuple(commands), who=who, dry_run=is_dry, is_own=is_dry,
            allow_mass_change=allowed,
        )  # fmt: skip
        return await self._writer.submit(change)


def _said(error: Invalid) -> str:
    return "; ".join(str(cause) for cause in error.causes)


def _key(name: str) -> Key:
    return Key(f"{KIND}/{name}")


def _name(key: Key) -> str:
    return key.removeprefix(f"{KIND}/")
