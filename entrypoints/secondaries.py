"""Keeps secondary zones like their primaries: one runnable for all of them.

What to do when is in `domain.reconcile.secondaries`; this carries it out. It reconciles from the
views, never from what woke it. On a log that several nodes share only the leader transfers, and the
others follow the log.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Any, Literal, NoReturn, Protocol

import msgspec

from kudurru.adapters.refresh_times import RefreshTimes
from kudurru.domain.commands import Command, Delete, UpdateStatus
from kudurru.domain.dns import names, transfer, tsig
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.transfer import (
    BadTransfer,
    Current,
    Differences,
    Inbound,
    Received,
    Version,
    Whole,
)
from kudurru.domain.dns.tsig import FindKey, TsigKey
from kudurru.domain.dns.zone_tree import Zone
from kudurru.domain.errors import Conflict, Invalid, KudurruError, NotFound, Unreachable
from kudurru.domain.events import OBJECT_DELETED, OBJECT_STATUS, Recorded, Who
from kudurru.domain.kinds.registry import DNS_RECORD_SET, DNS_ZONE
from kudurru.domain.kinds.zone import Primary, Secondary
from kudurru.domain.object_store import StoredObject
from kudurru.domain.objects import Key, key_of
from kudurru.domain.ports import Clock, Peer, TransferClient
from kudurru.domain.reconcile import secondaries as rules
from kudurru.domain.reconcile.secondaries import (
    AskSerial,
    Failure,
    Fetch,
    Reason,
    Refresh,
    Schedule,
    Settled,
    manager_of,
)
from kudurru.entrypoints.steps import no_collections, unhurried
from kudurru.entrypoints.wiring import STEPPED_MIN, Change, Node
from kudurru.entrypoints.writer import Writer
from kudurru.projections.transferred import Source, command_steps, is_sound, ours_of
from kudurru.projections.zone_state import ZoneState

log = logging.getLogger("kudurru.secondaries")

REFRESHES_MAX = 16
"""Refreshes under way. A transfer takes as much memory as its zone."""

THREAD_MIN = 4_096
"""Octets of a message that is read in a thread, so that questions are answered meanwhile: so many
now, or of the whole transfer, which the last message puts together."""

RECORD_TRIES = 3
"""A transferred version, or a status, is decided again when the DNSZone changed meanwhile."""

SAVE_S = 1
"""Between two writes of the refresh times: they change with every refresh of every zone."""

REFRESHED_SHARE = 4
"""The log is told that a zone is still right when what it says is older than this part of the
expiry: a node that has nothing but the log serves the zone for most of its time."""

NotifyVerdict = Literal["taken", "refused", "unknown"]
"""What became of a NOTIFY: it leads to a refresh, its sender is no primary of the zone, or the zone
is no secondary here."""


class SecondaryStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counted since the start."""

    refreshes: int = 0
    transfers: dict[str, int] = {}  # by kind: AXFR, IXFR
    failures: dict[str, int] = {}  # by reason
    notifies: dict[str, int] = {}  # by what became of them
    expired: int = 0  # zones now


class _Tracked:
    """A secondary zone that this node keeps."""

    __slots__ = ("busy", "expiring", "is_renewed", "name", "schedule", "spec", "zone")

    def __init__(self, name: str, spec: Secondary, zone: Zone, schedule: Schedule) -> None:
        self.name = name
        self.spec = spec
        self.zone = zone
        self.schedule = schedule
        self.busy: asyncio.Task[None] | None = None  # refreshes it
        self.expiring: asyncio.Task[None] | None = None
        self.is_renewed = False  # a version is being recorded: its time runs anew from then on

    def expires_us(self) -> int | None:
        """When it has to be withheld; None where it is already, or is being."""
        if self.expiring is not None or self.is_renewed or not self.zone.is_available:
            return None
        return self.schedule.expires_us


class _Fault(Exception):
    """Why a primary would not do."""

    def __init__(self, reason: Reason, message: str) -> None:
        self.reason: Reason = reason
        super().__init__(message)


class Secondaries:
    """`chance` gives numbers from 0 to 1; `new_id` unpredictable message IDs."""

    def __init__(
        self,
        node: Node,
        writer: Writer,
        client: TransferClient,
        *,
        chance: Callable[[], float],
        new_id: Callable[[], int],
        find_key: FindKey,
        times: RefreshTimes | None = None,
    ) -> None:
        self._node = node
        self._writer = writer
        self._client = client
        self._clock: Clock = node.clock
        self._chance = chance
        self._new_id = new_id
        self._find_key = find_key
        self._file = times or RefreshTimes(None)
        self._times: dict[str, int] = {}
        self._saved_us: int | None = None
        self._are_times_new = False
        self._tracked: dict[str, _Tracked] = {}
        self._suspect: set[str] = set()
        self._may_have_orphans = True
        self._wake = asyncio.Event()
        self._refreshes = 0
        self._transfers: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._notifies: dict[str, int] = {}

    # --- running ------------------------------------------------------------------------

    async def run(self) -> NoReturn:
        """Until it is cancelled; again, when this node leads again."""
        self._times = await asyncio.to_thread(self._file.load)
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self._wake.clear()
                    self._reconcile()
                    await self._clean_up()
                    now_us = self._clock.monotonic_us()
                    for tracked in self._tracked.values():
                        expires_us = tracked.expires_us()
                        if expires_us is not None and expires_us <= now_us:
                            tracked.expiring = group.create_task(self._expire(tracked))
                    for tracked in self._due(now_us):
                        tracked.busy = group.create_task(self._visit(tracked))
                    await self._save(now_us)
                    await self._sleep(now_us)
        finally:
            self._tracked.clear()
            if self._are_times_new:
                self._file.save(self._times)

    def wake(self) -> None:
        """Look again: zones changed, or time passed."""
        self._wake.set()

    def heard(self, recorded: Iterable[Recorded]) -> None:
        """Events were taken in: zones may have come or gone, or a secondary zone's records were
        changed by a restore or an undo."""
        for event in recorded:
            kind = event.key.partition("/")[0]
            if kind == DNS_ZONE.name and event.type != OBJECT_STATUS:
                self._may_have_orphans |= event.type == OBJECT_DELETED
                self.wake()
            elif kind == DNS_RECORD_SET.name:
                zone = event.scope.partition("/")[2]
                if zone in self._tracked:
                    self._suspect.add(zone)
                    self.wake()

    def _reconcile(self) -> None:
        """Know the secondary zones that there are now."""
        now_us = self._clock.monotonic_us()
        there: dict[str, _Tracked] = {}
        for state in self._node.zones.states():
            if state.zone is None or state.spec.secondary is None:
                continue
            known = self._tracked.get(state.name)
            if known is None or known.zone is not state.zone:
                schedule = self._begin(state, now_us)
                known = _Tracked(state.name, state.spec.secondary, state.zone, schedule)
            elif known.spec != state.spec.secondary:
                known.spec = state.spec.secondary
                known.schedule = rules.notified(
                    known.schedule, 0, now_us, is_busy=known.busy is not None
                )
            there[state.name] = known
        for name in self._times.keys() - there.keys():
            del self._times[name]
            self._are_times_new = True
        self._tracked = there
        for name in self._suspect & there.keys():
            found, tracked = self._node.zones.state(name), there[name]
            if found is not None and not is_sound(found):
                tracked.schedule = rules.notified(
                    tracked.schedule, 0, now_us, is_busy=tracked.busy is not None
                )
        self._suspect.clear()

    def _begin(self, state: ZoneState, now_us: int) -> Schedule:
        ours = ours_of(state)
        if ours is None:
            return rules.begin(None, 0, now_us)
        known = (self._times.get(state.name), rules.refreshed_s(self._status(state.key)))
        last_s = max((s for s in known if s is not None), default=0)
        return rules.begin(ours.soa, self._now_s() - last_s, now_us)

    def _due(self, now_us: int) -> list[_Tracked]:
        """Zones to refresh now, those that wait longest first, as far as there is room."""
        due = [t for t in self._tracked.values() if t.busy is None and t.schedule.next_us <= now_us]
        return sorted(due, key=lambda tracked: tracked.schedule.next_us)[: self._room()]

    def _room(self) -> int:
        return max(0, REFRESHES_MAX - sum(t.busy is not None for t in self._tracked.values()))

    async def _sleep(self, now_us: int) -> None:
        times = [tracked.expires_us() for tracked in self._tracked.values()]
        if self._room():  # else the end of a refresh wakes
            times += [t.schedule.next_us for t in self._tracked.values() if t.busy is None]
        if self._are_times_new and self._saved_us is not None:
            times.append(self._saved_us + SAVE_S * 1_000_000)
        due = [when for when in times if when is not None]
        patience = max(0.0, (min(due) - now_us) / 1_000_000) if due else None
        with contextlib.suppress(TimeoutError):
            # Not wait_for: in Python 3.11 that loses a cancellation that comes with the event.
            async with asyncio.timeout(patience):
                await self._wake.wait()

    async def _save(self, now_us: int) -> None:
        is_due = self._saved_us is None or now_us - self._saved_us >= SAVE_S * 1_000_000
        if self._are_times_new and is_due:
            self._are_times_new = False
            self._saved_us = now_us
            await asyncio.to_thread(self._file.save, dict(self._times))

    async def _clean_up(self) -> None:
        """Record sets that a transfer made go with their zone."""
        if not self._may_have_orphans:
            return
        self._may_have_orphans = False
        orphans: dict[str, list[Key]] = {}
        for zone, keys in self._node.zones.waiting().items():
            if self._node.zones.state(zone) is not None:
                continue
            stored = (self._node.objects.find(key) for key in keys)
            found = [s.key for s in stored if s is not None and s.manager == manager_of(zone)]
            if found:
                orphans[zone] = sorted(found)
        for zone, found in orphans.items():
            deletes = [Delete(key=key, manager=manager_of(zone)) for key in found]
            try:
                await self._submit(zone, deletes, source="", reason="the zone was deleted")
            except KudurruError:
                self._may_have_orphans = True  # it is tried again at the next look

    # --- one zone -----------------------------------------------------------------------

    async def _visit(self, tracked: _Tracked) -> None:
        try:
            await self._refresh(tracked)
        except KudurruError as error:
            # Not a primary's fault: the log does not take the change, and says why by itself.
            log.warning("%s: nothing could be recorded: %s", tracked.name, error)
            self._failed(tracked)
        except Exception:
            # A fault of ours costs this refresh, and not the server.
            log.exception("%s could not be refreshed; please report it", tracked.name)
            self._failed(tracked)
        finally:
            tracked.busy, tracked.is_renewed = None, False
            self.wake()

    async def _expire(self, tracked: _Tracked) -> None:
        log.warning("%s has expired: no primary answered for too long", tracked.name)
        try:
            await self._write_status(tracked, rules.expired)
        except KudurruError as error:
            log.warning("%s: the expiry could not be recorded: %s", tracked.name, error)
        finally:
            self._node.zones.withhold(tracked.name)  # also where the log takes nothing now
            tracked.expiring = None
            self.wake()

    async def _refresh(self, tracked: _Tracked) -> None:
        self._refreshes += 1
        state = self._node.zones.state(tracked.name)
        if state is None or state.zone is not tracked.zone:
            return
        spec = tracked.spec  # which may be another before this is over
        peers = [peer_of(spec, primary) for primary in spec.primaries]
        ours = ours_of(state)
        refresh = Refresh(
            [str(peer) for peer in peers],
            tracked.schedule.first,
            ours.serial if ours else None,
            needs_whole=ours is not None and not is_sound(state),
        )
        while not isinstance(step := refresh.step, Settled):
            primary = spec.primaries[step.primary]
            try:
                key = self._key_of(primary)
                if isinstance(step, AskSerial):
                    refresh.serial_is(await self._serial(state.apex, peers[step.primary], key))
                else:
                    await self._fetch(tracked, step, peers[step.primary], key, ours)
                    refresh.done()
            except (_Fault, Unreachable, BadTransfer) as fault:
                reason = _reason(fault)
                self._failures[reason] = self._failures.get(reason, 0) + 1
                refresh.failed(reason, str(fault))
        await self._settle(tracked, refresh)

    async def _settle(self, tracked: _Tracked, refresh: Refresh) -> None:
        assert isinstance(refresh.step, Settled)
        state = self._node.zones.state(tracked.name)
        if state is None or state.zone is not tracked.zone:
            return  # it went while it was refreshed
        ours, primary = ours_of(state), refresh.step.primary
        if primary is None or ours is None:
            failure = refresh.why_not()
            log.warning("%s: %s", tracked.name, failure.message)
            self._failed(tracked)
            await self._say_troubled(tracked, failure)
            return
        now_us = self._clock.monotonic_us()
        tracked.schedule = rules.refreshed(
            tracked.schedule, ours.soa, primary, now_us, self._chance()
        )
        self._times[tracked.name] = self._now_s()
        self._are_times_new = True
        await self._say_served(tracked, ours)

    def _failed(self, tracked: _Tracked) -> None:
        state = self._node.zones.state(tracked.name)
        ours = ours_of(state) if state is not None else None
        soa = ours.soa if ours is not None else None
        now_us = self._clock.monotonic_us()
        tracked.schedule = rules.failed(tracked.schedule, soa, now_us, self._chance())

    # --- talking to primaries -----------------------------------------------------------

    def _key_of(self, primary: Primary) -> TsigKey | None:
        if primary.key_ref is None:
            return None
        key = self._find_key(_key_name(primary.key_ref))
        if key is None:
            raise _Fault("Refused", f"there is no TSIG key {primary.key_ref!r} here")
        return key

    async def _serial(self, apex: Name, peer: Peer, key: TsigKey | None) -> int:
        """Asked over UDP first, and over a connection where that does not help: Knot, for one,
        tells of catalogs over connections only."""
        if not peer.is_tls:
            with contextlib.suppress(Unreachable, BadTransfer):
                version = await self._ask_soa(apex, peer, key, stream=False)
                if version is not None:
                    return version.serial
        version = await self._ask_soa(apex, peer, key, stream=True)
        if version is None:
            raise BadTransfer("the answer to a SOA question over a connection is truncated")
        return version.serial

    async def _ask_soa(
        self, apex: Name, peer: Peer, key: TsigKey | None, *, stream: bool
    ) -> Version | None:
        id_ = self._new_id()
        query, verifier = self._signed(transfer.soa_query(id_, apex), key)
        octets = await self._client.ask(peer, query, stream=stream)
        return transfer.read_soa_answer(_checked(octets, verifier), id_, apex)

    async def _fetch(
        self, tracked: _Tracked, step: Fetch, peer: Peer, key: TsigKey | None, ours: Version | None
    ) -> None:
        """Transfer, and record what came."""
        received, inbound = await self._receive(tracked, step, peer, key, ours)
        kind = "IXFR" if step.is_incremental else "AXFR"
        self._transfers[kind] = self._transfers.get(kind, 0) + 1
        if isinstance(received, Current):
            return
        what = f"serial {received.version.serial}"
        if ours is not None:
            what = f"serial {ours.serial} to {received.version.serial}"
        kind = "differences" if isinstance(received, Differences) else "whole"
        await self._record(tracked, received, peer, f"{what} ({kind})")
        log.info(
            "%s: %s from %s, %d records in %d octets",
            tracked.name, what, peer, inbound.records, inbound.octets,
        )  # fmt: skip

    async def _receive(
        self, tracked: _Tracked, step: Fetch, peer: Peer, key: TsigKey | None, ours: Version | None
    ) -> tuple[Received, Inbound]:
        apex, id_ = tracked.zone.apex, self._new_id()
        query = transfer.query(id_, apex, ours if step.is_incremental else None)
        query, verifier = self._signed(query, key)
        inbound = Inbound(
            apex,
            id_,
            have=ours.serial if ours is not None else None,
            is_incremental=step.is_incremental,
            verifier=verifier,
        )
        async with contextlib.aclosing(self._client.fetch(peer, query)) as messages:
            async for octets in messages:
                if inbound.octets + len(octets) < THREAD_MIN:
                    received = inbound.feed(octets)
                else:
                    received = await asyncio.to_thread(inbound.feed, octets)
                if received is not None:
                    return received, inbound
        inbound.end()
        raise AssertionError("end() raises")

    def _signed(self, query: bytes, key: TsigKey | None) -> "tuple[bytes, _Verifier | None]":
        if key is None:
            return query, None
        signed, reader = tsig.sign_request(query, key, self._now_s())
        return signed, _Verifier(reader, self._now_s)

    # --- writing ------------------------------------------------------------------------

    async def _record(
        self, tracked: _Tracked, received: Whole | Differences, peer: Peer, reason: str
    ) -> None:
        """One change set: record sets that differ, and the status."""
        node = self._node
        for left in reversed(range(RECORD_TRIES)):
            state = node.zones.state(tracked.name)
            if state is None or state.zone is not tracked.zone:
                return
            source = Source(primary=str(peer), now_s=self._now_s())
            try:
                is_large = isinstance(received, Whole) and len(received.owners) >= STEPPED_MIN
                async with self._writer.applying:
                    steps = command_steps(received, state, node.objects, source)
                    with no_collections() if is_large else contextlib.nullcontext():
                        commands = await unhurried(steps)
                tracked.is_renewed = True
                await self._submit(tracked.name, commands, source=str(peer), reason=reason)
            except Conflict:
                if not left:
                    raise
            except Invalid as error:
                raise BadTransfer(str(error)) from error
            else:
                return

    async def _say_served(self, tracked: _Tracked, ours: Version) -> None:
        """Write that the zone is right where the log says otherwise, or said it long ago."""
        status = self._status(_key(tracked.name))
        last_s = rules.refreshed_s(status) or 0
        is_old = self._now_s() - last_s > rules.expire_s(ours.soa) // REFRESHED_SHARE
        is_withheld = not tracked.zone.is_available
        await self._write_status(tracked, rules.served, force=is_old or is_withheld)

    async def _say_troubled(self, tracked: _Tracked, failure: Failure) -> None:
        def status(before: dict[str, Any] | None, now_s: int, *, generation: int) -> dict[str, Any]:
            return rules.troubled(before, failure, now_s, generation=generation)

        await self._write_status(tracked, status)

    async def _write_status(
        self, tracked: _Tracked, change: "_StatusChange", *, force: bool = False
    ) -> None:
        """Raises what the writer does. A status that says the same is not written."""
        for _ in range(RECORD_TRIES):
            stored = self._stored(_key(tracked.name))
            if stored is None:
                return
            status = change(stored.status, self._now_s(), generation=stored.body.generation)
            if rules.says_the_same(stored.status, status) and not force:
                return
            command = UpdateStatus(key=stored.key, status=status, expected=stored.resource_version)
            # A conflict: somebody changed the zone just now. An expiry must not be lost to that.
            with contextlib.suppress(Conflict):
                await self._submit(tracked.name, [command], source="refresh", reason="")
                return

    async def _submit(
        self, zone: str, commands: Iterable[Command], *, source: str, reason: str
    ) -> None:
        who = Who(actor=manager_of(zone), source=source, reason=reason)
        await self._writer.submit(Change(commands=tuple(commands), who=who))

    # --- NOTIFY -------------------------------------------------------------------------

    def notified(self, apex: Name, client: str, key: Name | None) -> NotifyVerdict:
        """A NOTIFY came (RFC 1996) from an address, signed with `key` where it was. It counts from
        the zone's primaries only, and many of them lead to one refresh."""
        verdict = self._judge(names.key(apex), client, key)
        self._notifies[verdict] = self._notifies.get(verdict, 0) + 1
        return verdict

    def _judge(self, apex: Name, client: str, key: Name | None) -> NotifyVerdict:
        zone = self._node.zones.served.get(apex)
        state = self._node.zones.find(names.to_text(apex)) if zone is not None else None
        if state is None or state.spec.secondary is None:
            return "unknown"
        for i, primary in enumerate(state.spec.secondary.primaries):
            if not _is_same_host(primary.address, client):
                continue
            if primary.key_ref is not None and _key_name(primary.key_ref) != key:
                continue
            tracked = self._tracked.get(state.name)
            if tracked is not None:
                before_us, now_us = tracked.schedule.next_us, self._clock.monotonic_us()
                tracked.schedule = rules.notified(
                    tracked.schedule, i, now_us, is_busy=tracked.busy is not None
                )
                # A look goes through every zone: a flood must not lead to one for each message.
                if tracked.schedule.next_us != before_us:
                    self.wake()
            return "taken"
        return "refused"

    def refresh_now(self, zone: str) -> str:
        """Let a zone be refreshed without waiting for its time; its DNS name. Raises: NotFound."""
        state = self._node.zones.find(zone)
        if state is None or state.zone is None or state.spec.secondary is None:
            raise NotFound(f"there is no secondary zone {zone!r}")
        tracked = self._tracked.get(state.name)
        if tracked is None:
            raise NotFound(f"another node fetches {zone!r}: ask there")
        now_us = self._clock.monotonic_us()
        tracked.schedule = rules.notified(
            tracked.schedule, 0, now_us, is_busy=tracked.busy is not None
        )
        self.wake()
        return names.to_text(state.zone.apex)

    # --- reading ------------------------------------------------------------------------

    def statistics(self) -> SecondaryStatistics:
        return SecondaryStatistics(
            refreshes=self._refreshes,
            transfers=dict(self._transfers),
            failures=dict(self._failures),
            notifies=dict(self._notifies),
            expired=sum(
                not t.zone.is_available and t.zone.stamped_soa is not None
                for t in self._tracked.values()
            ),
        )

    def _stored(self, key: Key) -> StoredObject | None:
        return self._node.objects.find(key)

    def _status(self, key: Key) -> dict[str, Any] | None:
        stored = self._stored(key)
        return stored.status if stored is not None else None

    def _now_s(self) -> int:
        return self._clock.now_us() // 1_000_000


class _StatusChange(Protocol):
    def __call__(
        self, before: dict[str, Any] | None, now_s: int, *, generation: int
    ) -> dict[str, Any]: ...


class _Verifier:
    """`transfer.Verifier` of the answers to a signed question."""

    def __init__(self, reader: tsig.Reader, now_s: Callable[[], int]) -> None:
        self._reader = reader
        self._now_s = now_s

    def check(self, message: bytes) -> bytes:
        try:
            return self._reader.take(message, self._now_s())
        except tsig.Unverified as error:
            raise ValueError(str(error)) from error

    def check_end(self) -> None:
        self._reader.finish()


def _checked(octets: bytes, verifier: _Verifier | None) -> bytes:
    if verifier is None:
        return octets
    try:
        message = verifier.check(octets)
        verifier.check_end()
    except ValueError as error:
        raise BadTransfer(f"TSIG: {error}") from None
    return message


def peer_of(secondary: Secondary, primary: Primary) -> Peer:
    is_tls = secondary.transport == "tls"
    return Peer(primary.address, secondary.port_of(primary), is_tls, primary.server_name)


def _reason(fault: "_Fault | Unreachable | BadTransfer") -> Reason:
    if isinstance(fault, _Fault):
        return fault.reason
    if isinstance(fault, Unreachable):
        return "Unreachable"
    return "BadTransfer" if fault.rcode is None else "Refused"


def _key_name(ref: str) -> Name:
    """Name of a TSIG key that a DNSZone refers to."""
    return names.key(names.from_text(ref))


def _key(zone: str) -> Key:
    return key_of(DNS_ZONE.name, "", zone)


def _is_same_host(address: str, client: str) -> bool:
    """Whether a query from `client` is from the primary at `address`."""
    try:
        found = ip_address(client.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found) == ip_address(address)
