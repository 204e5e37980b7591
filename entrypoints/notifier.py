"""Tells secondaries of new versions, after the stamp: `spec.transfer.notify` of every zone.

It reconciles from the views, whatever woke it, so that a restart tells everybody where it stands
and no change is missed. On a log that nodes share, each node tells: it is the node that a secondary
asks which has to have the version. What is written into the status of a zone is what the leader
found: nodes whose networks differ would contradict each other there at every version.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from ipaddress import ip_address
from typing import Any, NamedTuple, NoReturn

from kudurru.adapters.dns.notify import NotifySocket
from kudurru.domain.commands import UpdateStatus
from kudurru.domain.dns import names, tsig
from kudurru.domain.dns.lookup import RCODE_NAMES
from kudurru.domain.dns.messages import notify_message
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.tsig import BadTsig, Reader, Unverified
from kudurru.domain.errors import Conflict, KudurruError, StorageFailed
from kudurru.domain.events import Who
from kudurru.domain.kinds.zone import DNS_PORT, Transfer, split_endpoint
from kudurru.domain.ports import Clock, Entropy
from kudurru.domain.reconcile.notifies import (
    ACKNOWLEDGED,
    UNSUPPORTED,
    Due,
    GivenUp,
    Notifies,
    NotifyStatistics,
    Target,
    status_with,
)
from kudurru.entrypoints.keyring import Keyring
from kudurru.entrypoints.wiring import Change, Node

log = logging.getLogger("kudurru")

PAUSE_S = 0.05
"""After a look at the zones, before the next: a burst of changes is one look."""

_OPCODE_NOTIFY = 4
_QR = 0x80


class _Asked(NamedTuple):
    """A message on its way."""

    apex: Name
    target: Target
    question: bytes
    reader: Reader | None


class Notifier:
    def __init__(
        self,
        node: Node,
        keyring: Keyring,
        clock: Clock,
        entropy: Entropy,
        submit: Callable[[Change], Awaitable[Any]],
    ) -> None:
        """`submit` writes what the status of a zone says of its secondaries."""
        self._node = node
        self._zones = node.zones
        self._submit = submit
        self._failures: dict[Name, dict[Target, str]] = {}
        self._unreported: set[Name] = set()
        self._keyring = keyring
        self._clock = clock
        self._entropy = entropy
        self._notifies = Notifies()
        self._asked: dict[tuple[str, int, int], _Asked] = {}  # by address, port, ID
        self._ids: dict[tuple[Name, Target], int] = {}
        self._wake = asyncio.Event()
        self._has_news = asyncio.Event()  # for the status of zones
        self._socket = NotifySocket(self._received)

    def statistics(self) -> NotifyStatistics:
        return self._notifies.statistics()

    def wake(self) -> None:
        """Zones may have changed. On the loop that `run` is on."""
        self._wake.set()

    async def run(self) -> NoReturn:
        try:
            while True:
                self._wake.clear()
                try:
                    await self._look()
                except StorageFailed as error:
                    # Of keys and objects on a log over a network. What is due is said again.
                    log.warning("secondaries are told later: %s", error)
                await self._pause()
        finally:
            self._socket.close()

    async def run_reports(self) -> NoReturn:
        """Keep what the status of zones says of their secondaries, while this node leads."""
        while True:
            await self._report()
            await self._has_news.wait()
            self._has_news.clear()
            await asyncio.sleep(PAUSE_S)

    async def _look(self) -> None:
        self._notifies.want(self._wanted(), self._clock.monotonic_us())
        for one in self._notifies.due(self._clock.monotonic_us()):
            if isinstance(one, Due):
                await self._send(one)
            else:
                self._gave_up(one)

    async def _pause(self) -> None:
        due_us = self._notifies.next_due_us()
        patience = None
        if due_us is not None:
            patience = max(0.0, (due_us - self._clock.monotonic_us()) / 1_000_000)
        await asyncio.sleep(PAUSE_S)
        try:
            async with asyncio.timeout(patience):
                await self._wake.wait()
        except TimeoutError:
            return

    def _wanted(self) -> Iterator[tuple[Name, int, list[Target]]]:
        for state in self._zones.states():
            transfer, zone = state.spec.transfer, state.zone
            if transfer is not None and transfer.notify and zone is not None and zone.stamped_soa:
                yield Name(zone.key), zone.serial, targets_of(transfer)

    async def _send(self, due: Due) -> None:
        state = self._zones.serving(due.apex)
        zone = state.zone if state is not None else None
        if zone is None:
            return
        self._forget(due.apex, due.target)
        id_ = int.from_bytes(self._entropy.token(2), "big")
        message = notify_message(id_, zone.apex, zone.soa_wire)
        reader = None
        if due.target.key is not None:
            key = self._keyring.find(due.target.key)
            if key is None:
                return  # which `gave_up` tells
            now_s = self._clock.now_us() // 1_000_000
            message, reader = tsig.sign_request(message, key, now_s)
        asked = _Asked(due.apex, due.target, zone.key, reader)
        self._asked[_canonical(due.target.address), due.target.port, id_] = asked
        self._ids[due.apex, due.target] = id_
        await self._socket.send(message, due.target.address, due.target.port)

    def _received(self, datagram: bytes, address: str, port: int) -> None:
        id_ = int.from_bytes(datagram[:2], "big")
        asked = self._asked.get((_canonical(address), port, id_))
        if asked is None or not datagram[2] & _QR or datagram[2] >> 3 & 15 != _OPCODE_NOTIFY:
            return
        if asked.reader is not None:
            try:
                asked.reader.take(datagram, self._clock.now_us() // 1_000_000)
            except (BadTsig, Unverified) as fault:
                # Anybody may have sent it: the right answer is waited for all the same.
                log.debug("an answer of %s to a NOTIFY does not hold: %s", asked.target, fault)
                return
        self._forget(asked.apex, asked.target)
        rcode = datagram[3] & 15
        now_us = self._clock.monotonic_us()
        result = self._notifies.answered(asked.apex, asked.target, rcode, now_us)
        if result in (ACKNOWLEDGED, UNSUPPORTED):
            self._failures.get(asked.apex, {}).pop(asked.target, None)
            self._will_report(asked.apex)
        self._wake.set()

    def _gave_up(self, one: GivenUp) -> None:
        self._forget(one.apex, one.target)
        why = "it does not answer"
        if one.last_rcode is not None:
            why = f"it answers {RCODE_NAMES.get(one.last_rcode, one.last_rcode)}"
        key = one.target.key
        if key is not None and self._keyring.find(key) is None:
            why = f"key {names.to_text(key, final_dot=False)} does not work: `kudurru tsig list`"
        self._failures.setdefault(one.apex, {})[one.target] = why
        self._will_report(one.apex)
        log.warning(
            "%s is not told of serial %d of %s any more: %s",
            *(one.target, one.serial, names.to_text(one.apex), why),
        )

    def _will_report(self, apex: Name) -> None:
        self._unreported.add(apex)
        self._has_news.set()

    async def _report(self) -> None:
        """Write what changed into the status of the zones, once for each change of it."""
        for apex in list(self._unreported):
            self._unreported.discard(apex)
            try:
                change = self._status_change(apex)
                if change is not None:
                    await self._submit(change)
            except Conflict:
                self._will_report(apex)  # somebody else wrote it meanwhile: look again
            except KudurruError as error:
                log.warning("what secondaries say is not written down: %s", error)

    def _status_change(self, apex: Name) -> Change | None:
        state = self._zones.serving(apex)
        stored = self._node.objects.find(state.key) if state is not None else None
        if state is None or stored is None:
            self._failures.pop(apex, None)
            return None
        listed = set(targets_of(state.spec.transfer)) if state.spec.transfer else set()
        found = self._failures.get(apex, {})
        self._failures[apex] = {target: why for target, why in found.items() if target in listed}
        status = status_with(
            stored.status,
            self._failures[apex],
            self._clock.now_us() // 1_000_000,
            generation=stored.body.generation,
        )
        if status is None:
            return None
        command = UpdateStatus(key=stored.key, status=status, expected=stored.resource_version)
        who = Who(actor="system", source="notify", reason="secondaries")
        return Change(commands=(command,), who=who)

    def _forget(self, apex: Name, target: Target) -> None:
        id_ = self._ids.pop((apex, target), None)
        if id_ is not None:
            self._asked.pop((_canonical(target.address), target.port, id_), None)


def _canonical(address: str) -> str:
    return str(ip_address(address))


def targets_of(transfer: Transfer) -> list[Target]:
    """Each once. `keys` is one key for all targets, or one for each in their order."""
    keys = [names.key(names.from_text(text)) for text in transfer.keys]
    targets: dict[Target, None] = {}
    for i, text in enumerate(transfer.notify):
        address, port = split_endpoint(text)
        key = keys[i if len(keys) > 1 else 0] if keys else None
        targets[Target(str(ip_address(address)), port or DNS_PORT, key)] = None
    return list(targets)
