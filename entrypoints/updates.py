"""Dynamic updates (RFC 2136): decided one after another, each answered when it is durable.

Whether an update may happen is in `domain.dns.update`; who is asking, what a refused one leaves
behind, and that nobody wrote meanwhile is here.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn

import msgspec

from kudurru.domain.dns import names, update
from kudurru.domain.dns.lookup import (
    NOERROR,
    NOTAUTH,
    RCODE_NAMES,
    REFUSED,
    SERVFAIL,
)
from kudurru.domain.dns.message_reader import Message
from kudurru.domain.dns.names import BadName, Name
from kudurru.domain.dns.tsig import LATE_S, SeenSignatures
from kudurru.domain.dns.update import Update, UpdateRefused
from kudurru.domain.errors import Conflict, KudurruError
from kudurru.domain.events import Recorded, Who
from kudurru.domain.kinds.tsigkey import UpdateRule
from kudurru.domain.later import Later
from kudurru.domain.restore import Scope
from kudurru.domain.zone_import import RRs
from kudurru.entrypoints.keyring import Keyring
from kudurru.entrypoints.wiring import Change, Guard, Node
from kudurru.entrypoints.writer import Writer
from kudurru.projections.pipeline.signatures import Opened, Refusal
from kudurru.projections.updating import MANAGER_PREFIX, commands_of, manager_of, read_owner
from kudurru.projections.zone_state import ZoneState

log = logging.getLogger("kudurru.updates")

WAITING_MAX = 256
"""Updates that wait for those before them: clients give up and repeat after some seconds."""

TRIES = 5
"""An update is decided again when somebody else changed the zone meanwhile."""


LOGGED_PER_S = 10
"""Refused updates that are logged in a second: anybody can send them. All are counted."""

_SIGNED = "signed at "
"""Before the unix time, in the reason of an update: the other nodes of a log read it."""


class UpdateStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Updates since the start, by name of the code that they were answered with."""

    answered: dict[str, int]
    full: int  # answered SERVFAIL because too many waited


class _Waiting(NamedTuple):
    message: Message
    client: str
    opened: Opened
    answer: Later[int]


class Updates:
    """`answer` is called by the pipeline, `heard` is told of events, `run` is one task."""

    def __init__(self, node: Node, writer: Writer, keyring: Keyring) -> None:
        self._node = node
        self._writer = writer
        self._keyring = keyring
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue(WAITING_MAX)
        self._signed: dict[Name, SeenSignatures] = {}
        # What was signed before this process began may have been carried out by the one before.
        self._since_s = node.clock.now_us() // 1_000_000
        self._answered: Counter[str] = Counter()
        self._full = 0
        self._logged_s = self._logged = self._unlogged = 0

    def answer(self, message: Message, client: str, opened: Opened) -> Later[int]:
        """The code for an update, once it is durable or refused."""
        answer: Later[int] = Later()
        if opened.signer is None:
            # Anybody can send these: they take no place of those that may be carried out.
            answer.settle(self._refuse_unsigned(message, client))
            return answer
        try:
            self._queue.put_nowait(_Waiting(message, client, opened, answer))
        except asyncio.QueueFull:
            self._full += 1
            self._count(SERVFAIL)
            answer.settle(SERVFAIL)
        return answer

    def _refuse_unsigned(self, message: Message, client: str) -> int:
        try:
            self._zone(update.read_update(message))
            raise UpdateRefused(REFUSED, "it is not signed")
        except UpdateRefused as refused:
            self._count(refused.rcode)
            self._log_refused(client, "none", str(refused))
            return refused.rcode

    def refused(self, client: str, refusal: Refusal) -> None:
        """An update came whose signature does not hold."""
        self._count(refusal.rcode)
        key = names.to_text(refusal.key) if refusal.key is not None else "unknown"
        self._log_refused(client, key, "bad signature")

    def heard(self, recorded: Iterable[Recorded]) -> None:
        """Events were taken in: what another node carried out is not carried out again here, nor
        what was signed before it."""
        for event in recorded:
            if event.who is None or not event.manager.startswith(MANAGER_PREFIX):
                continue
            who = msgspec.json.decode(event.who, type=Who)
            name, time_s = event.manager.removeprefix(MANAGER_PREFIX), _signed_s(who)
            if who.actor != event.manager or time_s is None:
                continue  # somebody else in the name of the manager
            with suppress(BadName):
                self._signed_with(names.key(names.from_text(name))).heard(time_s)

    async def run(self) -> NoReturn:
        try:
            while True:
                waiting = await self._queue.get()
                if waiting.answer.is_over:
                    continue  # whoever asked is gone
                rcode = await self._handle(waiting)
                self._count(rcode)
                waiting.answer.settle(rcode)
        finally:
            while not self._queue.empty():
                self._queue.get_nowait().answer.settle(SERVFAIL)

    def statistics(self) -> UpdateStatistics:
        return UpdateStatistics(answered=dict(self._answered), full=self._full)

    def _log_refused(self, client: str, key: str, why: str) -> None:
        now_s = self._node.clock.monotonic_us() // 1_000_000
        if now_s != self._logged_s:
            if self._unlogged:
                log.warning("%d more updates were refused and not logged", self._unlogged)
            self._logged_s, self._logged, self._unlogged = now_s, 0, 0
        if self._logged >= LOGGED_PER_S:
            self._unlogged += 1
            return
        self._logged += 1
        log.warning("an update from %s with key %s is refused: %s", client, key, why)

    def _count(self, rcode: int) -> None:
        self._answered[RCODE_NAMES.get(rcode, str(rcode))] += 1

    async def _handle(self, waiting: _Waiting) -> int:
        assert waiting.opened.signer is not None, "unsigned ones do not wait"
        key = waiting.opened.signer.key.name
        shown = names.to_text(key, final_dot=False)
        try:
            await self._carry_out(waiting, key)
        except UpdateRefused as refused:
            # Names and types of the message are in the text: escaped, one line.
            self._log_refused(waiting.client, shown, str(refused))
            return refused.rcode
        except KudurruError as error:
            self._forget(key, waiting.opened)  # it may be sent again as it is
            log.warning("an update from %s with key %s failed: %s", waiting.client, shown, error)
            return SERVFAIL
        except Exception:
            # A fault of ours costs this update, and not the server.
            log.exception(
                "an update from %s with key %s failed; please report it", waiting.client, shown
            )
            return SERVFAIL
        return NOERROR

    async def _carry_out(self, waiting: _Waiting, key: Name) -> None:
        """Raises: UpdateRefused; what the writer does."""
        asked = update.read_update(waiting.message)
        state = self._zone(asked)
        spec = self._keyring.spec(key)
        rules = spec.updates if spec is not None else []
        self._check_fresh(key, waiting.opened)
        for left in reversed(range(TRIES)):
            try:
                async with self._writer.applying:
                    change = self._change(asked, state.name, waiting, rules)
                if change.commands:
                    await self._writer.submit(change)
            except Conflict:
                if not left:
                    raise
            else:
                return

    def _zone(self, asked: Update) -> ZoneState:
        """The primary zone that is to be updated. Raises: UpdateRefused."""
        state = self._node.zones.serving(names.key(asked.zone))
        if state is None:
            raise UpdateRefused(NOTAUTH, f"{names.to_text(asked.zone)} is not served here")
        if state.spec.type != "Primary":
            raise UpdateRefused(REFUSED, f"{names.to_text(asked.zone)} is updated at its primary")
        return state

    def _change(
        self, asked: Update, name: str, waiting: _Waiting, rules: Sequence[UpdateRule]
    ) -> Change:
        """Decided against what the views hold now; refused with Conflict when that moved on."""
        state = self._node.zones.state(name)
        if state is None or state.zone is None:
            raise UpdateRefused(NOTAUTH, f"{names.to_text(asked.zone)} is not served here any more")
        zone = state.zone

        def read(owner: Name) -> RRs:
            return read_owner(zone, owner)

        # Prerequisites tell what a zone holds: not to a key that may not update it.
        ours = update.rules_for(asked, rules)
        update.check_prerequisites(asked, read)
        update.check_allowed(asked, ours, read)
        update.prescan(asked)
        opened = waiting.opened
        assert opened.signer is not None
        text = names.to_text(opened.signer.key.name, final_dot=False)
        commands = commands_of(update.apply(asked, read), state, self._node.objects, text)
        guard = Guard(Scope(zone=name), self._node.position, f"update {text}")
        who = Who(
            actor=manager_of(text),
            source=f"update {waiting.client}",
            reason=f"{_SIGNED}{opened.signed_s}",
        )
        return Change(commands=tuple(commands), who=who, guard=guard)

    def _check_fresh(self, key: Name, opened: Opened) -> None:
        """An update that was seen already is not carried out again. Raises: UpdateRefused."""
        if not self._signed_with(key).take(opened.signed_s, opened.mac):
            fault = f"it was seen already, or signed more than {LATE_S} s before another of its key"
            raise UpdateRefused(REFUSED, fault)

    def _signed_with(self, key: Name) -> SeenSignatures:
        return self._signed.setdefault(key, SeenSignatures(self._since_s))

    def _forget(self, key: Name, opened: Opened) -> None:
        self._signed_with(key).forget(opened.mac)


def _signed_s(who: Who) -> int | None:
    """When an update was signed, as its event says it."""
    is_ours, digits = who.reason.startswith(_SIGNED), who.reason.removeprefix(_SIGNED)
    return int(digits) if is_ours and digits.isdecimal() else None
