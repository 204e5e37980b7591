"""A node that follows: a thread that copies the leader's log into its own, whatever happens there.

The leader may go away, come back, be another: the copy is served all the same, and goes on where it
was. What is no continuation of it is refused, and looked at again now and then, as the leader may
be put right.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import NoReturn

import msgspec

from kudurru.adapters.metrics import Sample
from kudurru.domain.errors import (
    Diverged,
    Invalid,
    KudurruError,
    LogDamaged,
    LogNewer,
    Stop,
    Unreachable,
)
from kudurru.domain.events import PAYLOAD_REDACTED, Recorded
from kudurru.domain.lineage import LogAbout
from kudurru.domain.ports import Clock
from kudurru.domain.replica import Frame, Page, Pulse, Receiver, Target
from kudurru.domain.settings import FollowSettings
from kudurru.domain.signed_note import VerifierKey, parse_key
from kudurru.entrypoints.follow_place import Copy, named, receiver_of
from kudurru.entrypoints.follow_storing import Storing
from kudurru.entrypoints.leader import Leader
from kudurru.entrypoints.place_file import write_file
from kudurru.entrypoints.runner import Runner
from kudurru.entrypoints.standing import Standing

log = logging.getLogger("kudurru.follow")

RETRY_S = 1.0
RETRY_MAX_S = 15.0
"""Between attempts to reach a leader, from the first to all later ones."""

REFUSED_S = 60.0
"""Until a log that was refused is looked at again."""

LATE_S = 15.0
"""Without a word from the leader: then answers may be old, and the node says so."""


PULSES_MAX = 5
"""Signs of life after which the first copy counts as whole, though the leader has more: what it
does not get signed."""


REFUSALS = (Diverged, LogDamaged, LogNewer)
"""What is wrong with the leader's log, or with what follows of it here."""


class Retries(msgspec.Struct, frozen=True):
    first_s: float = RETRY_S
    most_s: float = RETRY_MAX_S
    refused_s: float = REFUSED_S


class FollowStatistics(msgspec.Struct, frozen=True):
    is_connected: bool
    lag_events: int  # of what the leader said last
    silent_s: float  # since it said that
    copied: int  # events
    sessions: int
    refused: int  # logs


class Following:
    """Of one process. `run` in a loop, the copying in a thread of its own."""

    def __init__(
        self,
        copy: Copy,
        settings: FollowSettings,
        trusted: Iterable[str],
        standing: Standing,
        clock: Clock,
        retries: Retries | None = None,
    ) -> None:
        """`trusted` are the keys of audit.trustedKeys. Raises: Invalid."""
        self._copy = copy
        self._log = copy.log
        self._place = copy.place
        self._settings = settings
        self._settings_keys = tuple(map(parse_key, trusted))
        self._standing = standing
        self._clock = clock
        self._retries = retries or Retries()
        self._leader: Leader | None = None
        self._above: list[str] = []
        self._began_us = self._heard_us = clock.monotonic_us()
        self._leader_head = 0
        self._pulses = 0
        self._is_connected = False
        self._began_at = int(self._log.head().seq)
        self._has_grown = False  # in the last session
        self._sessions = self._refused = 0
        self._ending = asyncio.Event()
        self._stopped = asyncio.Event()
        self._again = asyncio.Event()
        self._ended = asyncio.Event()
        self._ended.set()
        self.in_step = threading.Event()
        """Set once everything that the leader had signed is here; at the start where something is
        here already: it is served, whether there is a leader or not."""
        if self._began_at:
            self.in_step.set()
        self.problem: KudurruError | None = None
        """Why nothing is copied now."""
        self.over = asyncio.Event()
        """Set when this node was promoted."""
        self._redacted = asyncio.Event()
        standing.above = lambda: self._above

    @property
    def url(self) -> str:
        return self._place.url

    @property
    def settings(self) -> FollowSettings:
        return self._settings

    @property
    def copy(self) -> Copy:
        return self._copy

    def statistics(self) -> FollowStatistics:
        # Who follows writes nothing else: what the log grew by was copied, and is never seen before
        # it is counted.
        at = int(self._log.head().seq)
        return FollowStatistics(
            is_connected=self._is_connected,
            lag_events=max(0, self._leader_head - at),
            silent_s=self._silent_s(),
            copied=at - self._began_at,
            sessions=self._sessions,
            refused=self._refused,
        )

    def samples(self) -> Iterator[Sample]:
        if self.over.is_set():
            return
        seen = self.statistics()
        yield Sample("follower_connected", (), seen.is_connected)
        yield Sample("follower_lag_events", (), seen.lag_events)
        yield Sample("follower_silence_seconds", (), seen.silent_s)
        yield Sample("follower_events_total", (), seen.copied)
        yield Sample("follower_sessions_total", (), seen.sessions)
        yield Sample("follower_refused_total", (), seen.refused)

    def _silent_s(self) -> float:
        return (self._clock.monotonic_us() - self._heard_us) / 1_000_000

    def obstacles(self) -> list[str]:
        """For readiness: a node without anything to serve."""
        if self.in_step.is_set() or self.over.is_set():
            return []
        why = f": {self.problem}" if self.problem is not None else ""
        return [f"NotSynced: the log of {self.url} is not here yet{why}"]

    def warnings(self) -> list[str]:
        if self.over.is_set():
            return []
        position, error = self._log.head().seq, self.problem
        if isinstance(error, REFUSALS):
            what = f"the log of {self.url} is refused, answers stay as of {position}"
            return [f"Follower: {what}: {error}"]
        if isinstance(error, Stop):
            return [f"Follower: nothing can be copied, answers stay as of {position}: {error}"]
        if self._silent_s() < LATE_S:
            return []
        why = error or f"{self.url} is silent"
        what = f"no news for {self._silent_s():.0f} s, answers are as of {position}"
        return [f"Follower: {what}: {why}"]

    # --- running ------------------------------------------------------------------------

    def add_to(self, runner: Runner, forget: Callable[[], Awaitable[None]]) -> None:
        """`forget` drops what was made of the log before something in it was erased."""
        runner.add("follower", self.run, stop=self.stop)
        runner.add("follower: redactions", partial(self.keep_redacted, forget))

    async def first_copy(self) -> None:
        """Before anything can be served: copy until nothing is missing. It waits for a leader that
        is away, or refused."""
        if not self.in_step.is_set():
            await self._keep_copying(is_first=True)

    async def run(self) -> None:
        """Until `stop`. A promotion ends the copying and not this."""
        while not self._stopped.is_set():
            await self._keep_copying()
            await self._again.wait()
            self._again.clear()

    async def _keep_copying(self, *, is_first: bool = False) -> None:
        delay_s = self._retries.first_s
        self._ended.clear()
        try:
            while not self._ending.is_set():
                error = await asyncio.to_thread(self._session, is_first=is_first)
                if self._ending.is_set() or (is_first and error is None):
                    break
                self._note(error)
                if self._has_grown:
                    delay_s = self._retries.first_s
                is_refused = isinstance(error, (*REFUSALS, Invalid))
                await self._pause(self._retries.refused_s if is_refused else delay_s)
                delay_s = min(2 * delay_s, self._retries.most_s)
        except asyncio.CancelledError:
            self._ending.set()  # or the thread would go on
            self._abort()
            raise
        finally:
            self._ended.set()

    async def _pause(self, seconds: float) -> None:
        # Not wait_for: in Python 3.11 that loses a cancellation that comes with the event.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()

    def _abort(self) -> None:
        leader = self._leader
        if leader is not None:
            leader.abort()

    def begin_again(self) -> None:
        """After an `end` that came to nothing."""
        self._ending.clear()
        self._again.set()

    def promoted(self) -> None:
        """This node follows nobody any more."""
        self._above = []
        self.problem = None
        self.over.set()

    async def stop(self) -> None:
        """`run` returns soon."""
        self._stopped.set()
        self._again.set()
        await self.end()

    async def end(self) -> None:
        """Copy nothing more; over when this returns."""
        self._ending.set()
        while not self._ended.is_set():
            self._abort()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await self._ended.wait()

    async def keep_redacted(self, forget: Callable[[], Awaitable[None]]) -> NoReturn:
        """What is erased in the copy must not stay in what was made of it before."""
        while True:
            await self._redacted.wait()
            self._redacted.clear()
            await forget()

    def recorded(self, events: list[Recorded]) -> None:
        """Hears of events that are in the views now."""
        if any(event.type == PAYLOAD_REDACTED for event in events):
            self._redacted.set()

    def _note(self, error: KudurruError | None) -> None:
        """The end of a session. A reason is logged when it is another one than before."""
        before, self.problem = self.problem, error
        if isinstance(error, REFUSALS):
            self._refused += 1
        if error is None or str(error) == str(before):
            return
        if isinstance(error, Stop | Invalid):
            log.error("the log of %s is not followed: %s", self.url, error)
        else:
            log.warning("the log of %s is not followed for now: %s", self.url, error)

    # --- in a thread --------------------------------------------------------------------

    def _session(self, *, is_first: bool) -> KudurruError | None:
        """Copy until something is in the way, which is the result; the first time until nothing is
        missing."""
        try:
            at, self._has_grown = self._log.head().seq, False
            with Leader(self.url, self._settings) as leader:
                self._leader = leader
                self._check(leader.about())
                try:
                    self._copy_from(leader, is_first=is_first)
                finally:
                    self._has_grown = self._log.head().seq != at
        except KudurruError as error:
            return error
        finally:
            self._leader = None
            self._is_connected = False
        return None

    def _check(self, about: LogAbout) -> None:
        """Raises: Diverged for a leader that is none."""
        if self._standing.instance in about.instances:
            if about.instances[0] == self._standing.instance:
                raise Diverged(0, f"{self.url} is this node itself: follow another one")
            names = f"{about.node or self.url} follows this node"
            raise Diverged(0, f"{names}, so nobody would lead: follow the node that is written to")
        if about.log_id != self._log.log_id:
            raise Diverged(
                0,
                f"{self.url} has another log, {about.log_id}, than is here, {self._log.log_id}: "
                "nothing here was changed. Follow a node of this log, or take that log in place of "
                "this one with --adopt",
            )
        self._above = about.instances

    def _copy_from(self, leader: Leader, *, is_first: bool) -> None:
        trusted = (*map(parse_key, self._place.keys), *self._settings_keys)
        receiver = receiver_of(self._log, trusted)
        frames = self._heard(leader.frames(int(receiver.head.seq)))
        self._sessions += 1
        # As soon as nothing can be stored, who waits for the leader's next word is woken.
        with Storing(self._log, leader.abort) as storing:
            for frame in frames:
                if isinstance(frame, Page):
                    storing.add(receiver.take(frame))
                    continue
                self._settle(storing, receiver)
                if isinstance(frame, Target):
                    self._aim(receiver, frame)
                    continue
                self._pulse(frame)
                if is_first and self.in_step.is_set():
                    return

    def _settle(self, storing: Storing, receiver: Receiver) -> None:
        """Whatever is no page is looked at with all pages before it in the log."""
        if not storing.is_whole:
            after = int(receiver.head.seq) + 1
            raise LogDamaged("gap", after, f"{self.url} ends in the middle of a change")
        storing.settle()

    def _heard(self, frames: Iterable[Frame]) -> Iterator[Frame]:
        for frame in frames:
            if self._ending.is_set():
                raise Unreachable("this node follows no longer")
            self._heard_us = self._clock.monotonic_us()
            yield frame

    def _aim(self, receiver: Receiver, target: Target) -> None:
        try:
            checkpoint = receiver.aim(target)
        except Diverged as error:
            with Leader(self.url, self._settings) as other:  # this one is in a stream
                raise named(error, self._log, other) from None
        if not self._is_connected:
            log.info("following %s from position %d", self.url, receiver.head.seq)
        self._is_connected, self.problem = True, None
        self._leader_head = max(self._leader_head, checkpoint.size)
        if not self._place.keys:
            self._pin(receiver.signer)

    def _pin(self, key: VerifierKey | None) -> None:
        """At the first contact: from here on no other key is believed."""
        if key is None:
            return
        self._place = msgspec.structs.replace(self._place, keys=[str(key)])
        write_file(self._copy.path, self._place)
        log.info("the log of %s is signed by %s: only its successors are believed", self.url, key)

    def _pulse(self, pulse: Pulse) -> None:
        self._leader_head = pulse.head
        self._pulses += 1
        if pulse.head <= self._log.head().seq or self._pulses >= PULSES_MAX:
            self.in_step.set()
