"""What every transport does with a query: the memo, then the handler; and the counting."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, cast

from kudurru.adapters.dns.memo import MESSAGE_MAX, Keeper, Memo
from kudurru.domain.filtering.clients import packed_address
from kudurru.domain.later import Later
from kudurru.domain.ports import (
    EngineStatistics,
    IdentifyingHandler,
    QueryHandler,
    RepeatListener,
    Reply,
)
from kudurru.domain.query_log import Answered, Repeat

HEADER = 12  # octets of a DNS header: what is shorter cannot be answered, RFC 1035 section 4.1.1

ANSWERS_MIN = 64 << 10  # octets of answers behind which no more are recalled at a time

Wire = bytes | None
"""An answer; None is a drop."""


def message_at(arrived: bytearray, at: int) -> bytes | None:
    """The message at an offset of a stream, behind two octets of its length; None while it is not
    whole."""
    if len(arrived) < at + 2:
        return None
    end = at + 2 + int.from_bytes(arrived[at : at + 2], "big")
    return bytes(arrived[at + 2 : end]) if len(arrived) >= end else None


class Many(NamedTuple):
    """An answer of many messages: the first, and what makes the others."""

    first: bytes
    rest: Iterator[bytes]


class Waiting:
    """Answers to come, of one connection or one engine. `on_empty` hears when the last is there."""

    __slots__ = ("_laters", "on_empty")

    def __init__(self, on_empty: Callable[[], None] | None = None) -> None:
        self._laters: set[Later[Wire]] = set()
        self.on_empty = on_empty

    def __len__(self) -> int:
        return len(self._laters)

    def add(self, later: Later[Wire], deliver: Callable[[Wire], None]) -> None:
        self._laters.add(later)
        later.then(partial(self._settled, later, deliver))

    def discard(self, later: Later[Wire]) -> None:
        """The client gave one up."""
        if later in self._laters:
            self._laters.remove(later)
            later.cancel()
            self._tell_when_empty()

    async def drain(self, patience_s: float) -> None:
        """Wait so long for what is to come; nobody takes what comes later."""
        is_empty = asyncio.Event()
        self.on_empty = is_empty.set
        if self._laters:
            with suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await is_empty.wait()
        self.cancel()

    def cancel(self) -> None:
        """Nobody is there any more to take the answers."""
        laters = list(self._laters)
        self._laters.clear()
        for later in laters:
            later.cancel()

    def _settled(self, later: Later[Wire], deliver: Callable[[Wire], None], wire: Wire) -> None:
        self._laters.discard(later)
        deliver(wire)
        if not self._laters:
            self._tell_when_empty()

    def _tell_when_empty(self) -> None:
        if not self._laters and self.on_empty is not None:
            self.on_empty()


@dataclass(slots=True)
class Answering:
    """State of one engine: its handler, its memo, its counters."""

    handler: QueryHandler
    proto: str
    reply_max: int  # octets that the transport can carry
    memo: Memo | Keeper = field(default_factory=Memo)
    received: int = 0
    answered: int = 0
    malformed: int = 0
    proxyproto: int = 0
    full: int = 0
    busy: int = 0
    unsent: int = 0
    by_handler: int = 0
    send_errors: int = 0
    exceptions: int = 0
    faults: int = 0
    waiting: int = 0

    listener: RepeatListener | None = None
    """The handler, when it wants to hear of what the memo answers."""
    identifying: IdentifyingHandler | None = None
    """The handler, when it wants to know what clients call themselves."""

    def __post_init__(self) -> None:
        if getattr(self.handler, "hears_repeats", False):
            self.listener = cast(RepeatListener, self.handler)
        if getattr(self.handler, "takes_client_ids", False):
            self.identifying = cast(IdentifyingHandler, self.handler)

    def is_named(self, client_id: str) -> bool:
        """Whether a group goes by what a client calls itself."""
        return self.identifying is not None and self.identifying.names_id(client_id)

    @property
    def tells_clients_apart(self) -> bool:
        return self.identifying is not None and self.identifying.tells_clients_apart

    def recall(
        self, packet: bytes, client: str, client_id: str = "", room: int = MESSAGE_MAX
    ) -> bytes | None:
        """The answer from the memo, or None. `room`: octets that it may have."""
        if isinstance(self.memo, Memo):
            wire, client_class = self.memo.find(packet, room), 0
            if wire is None:
                return None
        else:
            asker = packed_address(client)
            is_named = client_id != "" and self.is_named(client_id)
            known = self.memo.find_for(packet, asker, is_named=is_named, room=room)
            if known is None:
                return None
            wire, client_class = known
        if self.listener is not None:
            (weight,) = self.weigh(1)
            if weight:
                self.tell(((packed_address(client), packet[2:], client_class, weight),))
        return wire

    def recall_many(
        self, arrived: bytearray, at: int, client: str, client_id: str, limit: int
    ) -> tuple[int, bytes]:
        """Answer messages in a stream from the memo, from an offset on, as `Keeper.take` has it:
        the offset behind them, and their answers. They are counted."""
        if isinstance(self.memo, Memo):
            return self._recall_each(arrived, at, client, limit)
        at, count, answers, repeats = self.memo.take(
            arrived,
            at,
            packed_address(client),
            is_named=client_id != "" and self.is_named(client_id),
            limit=limit,
            is_told=self.listener is not None,
        )
        self.note_repeats(count, repeats)
        return at, answers

    def note_repeats(self, count: int, repeats: Sequence[Repeat]) -> None:
        """Count queries that the memo has answered, and tell who listens of some."""
        self.received += count
        self.answered += count
        if repeats:
            self.tell(repeats)

    def _recall_each(
        self, arrived: bytearray, at: int, client: str, limit: int
    ) -> tuple[int, bytes]:
        answers = bytearray()
        for _ in range(limit):
            packet = message_at(arrived, at)
            if packet is None or (wire := self.recall(packet, client)) is None:
                break
            at += 2 + len(packet)
            answers += len(wire).to_bytes(2, "big") + wire
            self.received += 1
            self.answered += 1
            if len(answers) >= ANSWERS_MIN:
                break
        return at, bytes(answers)

    def weigh(self, count: int) -> Sequence[int]:
        """What the next repeats stand for, `RepeatListener.weigh` of each. What goes wrong there
        costs nobody an answer."""
        if self.listener is not None:
            try:
                return [self.listener.weigh() for _ in range(count)]
            except Exception as fault:
                self.noticed(fault)
        return (0,) * count

    def tell(self, repeats: Iterable[Repeat]) -> None:
        """Tell who listens of repeats. What goes wrong there costs nobody an answer."""
        if self.listener is not None:
            try:
                self.listener.repeated(self.proto, repeats)
            except Exception as fault:
                self.noticed(fault)

    def tell_answered(self, answers: Iterable[Answered]) -> None:
        """The same of answers from the zones."""
        if self.listener is not None:
            try:
                self.listener.answered(answers)
            except Exception as fault:
                self.noticed(fault)

    def ask(self, packet: bytes, client: str, client_id: str = "") -> Wire | Later[Wire]:
        """`ask_many`, where an answer is one message."""
        found = self.ask_many(packet, client, client_id)
        return found.first if isinstance(found, Many) else found

    def ask_many(
        self, packet: bytes, client: str, client_id: str = ""
    ) -> Wire | Later[Wire] | Many:
        """The handler's answer, remembered where it may be; None is a drop, and counted.

        The handler answers its own faults with SERVFAIL. One that escapes it costs this query and
        is shown by the loop's exception handler; the listener lives.
        """
        era = self.memo.era
        try:
            if client_id and self.identifying is not None:
                reply = self.identifying.handle(packet, client, self.proto, client_id)
            else:
                reply = self.handler.handle(packet, client, self.proto)
            if isinstance(reply, Later):
                if not reply.is_over:
                    return self._wait(reply, era, packet)
                reply = reply.value
            wire = self._taken(era, packet, reply)
        except Exception as fault:
            self.failed(fault)
            return None
        if wire is not None and reply is not None and reply.more is not None:
            return Many(wire, reply.more)
        return wire

    def _wait(self, reply: Later[Reply | None], era: int, packet: bytes) -> Later[Wire]:
        self.waiting += 1
        later: Later[Wire] = Later(partial(self._give_up, reply))
        reply.then(partial(self._came, later, era, packet))
        return later

    def _came(
        self,
        later: Later[Wire],
        era: int,
        packet: bytes,
        reply: Reply | None,
    ) -> None:
        self.waiting -= 1
        wire: Wire = None
        try:
            wire = self._taken(era, packet, reply)
        except Exception as fault:
            self.failed(fault)
        try:
            later.settle(wire)
        except Exception as fault:  # of this connection: others wait for the same answer
            self.failed(fault)

    def _give_up(self, reply: Later[Reply | None]) -> None:
        self.waiting -= 1
        reply.cancel()

    def _taken(self, era: int, packet: bytes, reply: Reply | None) -> Wire:
        if reply is None:
            self.by_handler += 1
            return None
        wire = reply.wire
        if len(wire) > self.reply_max:
            raise ValueError(f"a reply of {len(wire)} octets; at most {self.reply_max}")
        if reply.keep is not None and not isinstance(self.memo, Memo):
            self.memo.keep(era, packet, wire, reply.keep, reply.origins)
        elif reply.memo:
            self.memo.store(era, packet, wire, reply.origins)
        return wire

    def failed(self, fault: Exception) -> None:
        """Show and count what cost a query its answer."""
        self.exceptions += 1
        self._show(fault)

    def noticed(self, fault: Exception) -> None:
        """Show and count what did not."""
        self.faults += 1
        self._show(fault)

    def _show(self, fault: Exception) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"the {self.proto} query handler failed", "exception": fault}
        )

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(
            received=self.received,
            answered=self.answered,
            memo_hits=self.memo.counts(),
            memo_unsent=self.unsent,
            dropped_malformed=self.malformed,
            dropped_proxyproto=self.proxyproto,
            dropped_full=self.full,
            dropped_busy=self.busy,
            dropped_by_handler=self.by_handler,
            send_errors=self.send_errors,
            unhandled_exceptions=self.exceptions,
            faults=self.faults,
            waiting=self.waiting,
        )
