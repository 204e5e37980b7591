"""Keeps catalog zones (RFC 9432): what one that was transferred lists is here, and what is here is
in the one that is made here. Reconciles from the views whenever zones change.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, NoReturn

from kudurru.domain.commands import Command, Delete, UpdateStatus
from kudurru.domain.dns import names
from kudurru.domain.dns.names import Name
from kudurru.domain.errors import Conflict, KudurruError
from kudurru.domain.events import CONTENT_TYPES, Recorded, Who
from kudurru.domain.kinds.registry import DNS_ZONE
from kudurru.domain.object_store import StoredObject
from kudurru.domain.objects import Key, ref_of
from kudurru.domain.reconcile import catalogs as rules
from kudurru.domain.reconcile.catalogs import BrokenCatalog, Listed, Member, Present, manager_of
from kudurru.domain.reconcile.secondaries import with_condition
from kudurru.domain.selectors import parse_selector
from kudurru.entrypoints.steps import unhurried
from kudurru.entrypoints.wiring import Change, Node
from kudurru.entrypoints.writer import Writer
from kudurru.projections.transferred import held
from kudurru.projections.zone_state import ZoneState

log = logging.getLogger("kudurru.catalogs")

RETRY_S = 5.0
"""After a change that could not be written."""

FOLLOWED = "CatalogFollowed"
"""The condition of a catalog that says whether its members are here."""


class Catalogs:
    """`heard` is told of events, `run` is one task."""

    def __init__(self, node: Node, writer: Writer) -> None:
        self._node = node
        self._writer = writer
        self._wake = asyncio.Event()
        self._known = frozenset[str]()  # names of the catalogs at the last look
        self._may_be_left = True  # members whose catalog went

    async def run(self) -> NoReturn:
        """Until it is cancelled. On a log that several nodes share, only the leader works."""
        self._may_be_left = True
        self._wake.set()  # others led meanwhile
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                async with self._writer.applying:
                    changes = await self._changes()
                for change in changes:
                    await self._writer.submit(change)
            except Conflict:
                self._wake.set()  # somebody was faster: look again
                await asyncio.sleep(0)
            except KudurruError as error:
                log.warning("catalogs wait for %.0f s: %s", RETRY_S, error)
                await asyncio.sleep(RETRY_S)
                self._wake.set()
            except Exception:
                # A fault of ours must not end the server.
                log.exception("catalogs could not be followed; please report it")
                await asyncio.sleep(RETRY_S)

    def heard(self, recorded: Iterable[Recorded]) -> None:
        """Events were taken in: zones came, went, changed their labels or were transferred."""
        for event in recorded:
            ref = ref_of(event.key)
            is_new = event.type in CONTENT_TYPES or ref.name in self._known
            if ref.kind == DNS_ZONE.name and is_new:
                self._wake.set()
                return

    # --- deciding -----------------------------------------------------------------------

    async def _changes(self) -> list[Change]:
        """What is to be written now."""
        marked = [s for s in self._node.zones.states() if s.spec.catalog is not None]
        if not marked and not self._may_be_left:
            return []
        # One that is not served, since another DNSZone has its name, is there all the same.
        found = [self._left_over(marked)]
        self._may_be_left = bool(marked)
        catalogs = [state for state in marked if state.zone is not None]
        self._known = frozenset(state.name for state in catalogs)
        members = {s.name: self._members(s) for s in catalogs if s.spec.type == "Secondary"}
        for state in catalogs:
            if state.spec.type == "Primary":
                found.append(await self._produce(state))
            else:
                found.append(await self._consume(state, members))
        return [change for change in found if change is not None]

    def _members(self, state: ZoneState) -> dict[Name, Member] | str | None:
        """What a catalog lists; why it is not followed; None while it is not here."""
        zone = state.zone
        if zone is None or zone.stamped_soa is None:
            return None
        owners = ((Name(zone.cased.get(k, k)), held(zone, Name(k))) for k in zone.nodes)
        try:
            return rules.read_catalog(state.apex, owners)
        except BrokenCatalog as error:
            return str(error)

    async def _consume(
        self, state: ZoneState, members: dict[str, dict[Name, Member] | str | None]
    ) -> Change | None:
        listed = members[state.name]
        if listed is None:
            return None
        if isinstance(listed, str):
            return await self._change(state, [], [f"it is not followed: {listed}"])
        moving = {
            zone: member.moves_to
            for name, others in members.items()
            if name != state.name and isinstance(others, dict)
            for zone, member in others.items()
            if member.moves_to is not None
        }
        found = rules.consume(state.name, state.apex, state.spec, listed, self._present(), moving)
        return await self._change(state, found.commands, found.problems)

    def _present(self) -> list[Present]:
        found = []
        for state in sorted(self._node.zones.states(), key=lambda s: s.zone is None):
            stored = self._node.objects.find(state.key)
            if stored is not None:
                unique = stored.body.annotations.get(rules.MEMBER, "")
                found.append(Present(state.key, state.apex, stored.manager, unique))
        return found

    async def _produce(self, state: ZoneState) -> Change | None:
        assert state.spec.catalog is not None
        matches = parse_selector(state.spec.catalog.selector or "")
        listed = []
        for other in sorted(self._node.zones.states(), key=lambda s: s.name):
            stored = self._node.objects.find(other.key)
            is_listed = other.zone is not None and other.spec.type == "Primary"
            if stored is None or not is_listed or other.spec.catalog is not None:
                continue
            if matches(stored.body.labels):
                listed.append(_listed(stored, other))
        problems = []
        if len(listed) > rules.MEMBERS_MAX:
            problems = [f"{len(listed)} zones match; {rules.MEMBERS_MAX} are listed"]
        ours = self._ours(state)
        commands = rules.produce(
            state.name, state.spec.zone_name, listed[: rules.MEMBERS_MAX], ours
        )
        return await self._change(state, commands, problems)

    def _ours(self, state: ZoneState) -> list[Key]:
        """Record sets of a catalog that were made here."""
        manager = manager_of(state.name)
        stored = (self._node.objects.find(key) for key in sorted(state.record_sets()))
        return [one.key for one in stored if one is not None and one.manager == manager]

    def _left_over(self, catalogs: Iterable[ZoneState]) -> Change | None:
        """Members go with their catalog, and record sets with their selector."""
        consumers = {s.name: s for s in catalogs if s.spec.type == "Secondary"}
        commands: list[Command] = list(self._left_behind(consumers))
        if not commands:
            return None
        who = Who(actor="system", source="catalog", reason="the catalog is gone")
        return Change(commands=tuple(commands), who=who)

    def _left_behind(self, consumers: dict[str, ZoneState]) -> list[Command]:
        found: list[Command] = []
        for state in self._node.zones.states():
            stored = self._node.objects.find(state.key)
            if stored is None or not stored.manager.startswith("catalog:"):
                continue
            if stored.manager.removeprefix("catalog:") not in consumers:
                found.append(Delete(key=state.key, manager=stored.manager))
        return found

    # --- writing ------------------------------------------------------------------------

    async def _change(
        self, state: ZoneState, commands: list[Command], problems: list[str]
    ) -> Change | None:
        stored = self._node.objects.find(state.key)
        assert stored is not None
        who = Who(actor=manager_of(state.name), source="catalog", reason=_serial_of(state))
        # A look is cheaper than a change that is none, and what is in the way shows in the status.
        probe = Change(commands=tuple(commands), who=who)
        steps = self._node.decide_steps([probe], self._node.clock.now_us())
        decided = (await unhurried(steps))[0]
        if isinstance(decided, KudurruError):
            commands, problems = [], [*problems, str(decided)]
        elif not decided.events:
            commands = []
        status = self._status(stored, problems)
        if status is not None:
            expected = stored.resource_version
            commands = [*commands, UpdateStatus(key=stored.key, status=status, expected=expected)]
        if not commands:
            return None
        return Change(commands=tuple(commands), who=who)

    def _status(self, stored: StoredObject, problems: list[str]) -> dict[str, Any] | None:
        """The status with what hinders the catalog, None where it says so already."""
        message = "; ".join(problems[:10]) + (" ..." if len(problems) > 10 else "")
        now_s = self._node.clock.now_us() // 1_000_000
        said = ("False", "Invalid") if problems else ("True", "AsExpected")
        status = with_condition(
            stored.status, (FOLLOWED, *said, message), now_s, generation=stored.body.generation
        )
        return None if status == stored.status else status


def _listed(stored: StoredObject, state: ZoneState) -> Listed:
    notes = stored.body.annotations
    return Listed(
        stored.body.uid,
        names.to_text(state.apex),
        notes.get(rules.CATALOG_GROUP, ""),
        notes.get(rules.CATALOG_MOVES_TO, ""),
    )


def _serial_of(state: ZoneState) -> str:
    return f"serial {state.zone.serial}" if state.zone is not None else ""
