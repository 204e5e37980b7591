"""Asks the node's own listeners for the health name: a socket that nobody serves any more looks
fine from inside.

A listener that twice in a row did not answer makes the node not ready, and is named there.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from struct import Struct as Layout
from typing import NoReturn

from kudurru.adapters.dns.probe import probe, target_of
from kudurru.adapters.metrics import Sample
from kudurru.adapters.networks import Networks
from kudurru.adapters.sockets import Bound, has_address, split_address
from kudurru.domain.dns.health import HEALTH_NAME
from kudurru.domain.dns.record_types import A
from kudurru.domain.dns.records import CLASS_IN
from kudurru.domain.errors import Unreachable
from kudurru.domain.ports import Timers
from kudurru.domain.settings import Listener as Configured
from kudurru.entrypoints.waiting import pause, unfinished

log = logging.getLogger("kudurru")

INTERVAL_US = 5_000_000
TIMEOUT_US = 3_000_000
FAILURES = 2

_QUERY = Layout("!HHHHHH")
_QUESTION = Layout("!HH")

Probe = Callable[[], Awaitable[None]]
"""Returns when the listener answered. Raises: Unreachable."""


class SelfCheck:
    def __init__(self, probes: Mapping[str, Probe], timers: Timers) -> None:
        """`probes` by the name of their listener."""
        self._probes = dict(probes)
        self._timers = timers
        self._failures = dict.fromkeys(probes, 0)  # in a row
        self._why: dict[str, str] = {}

    async def run(self) -> NoReturn:
        while True:
            await pause(self._timers, INTERVAL_US)
            await self.look()

    async def look(self) -> None:
        """Ask all once. Never raises for what they do."""
        tasks = {
            name: asyncio.create_task(_why_not(ask), name=f"selfcheck: {name}")
            for name, ask in self._probes.items()
        }
        try:
            await unfinished(tasks.values(), self._timers, TIMEOUT_US)
        finally:
            for task in tasks.values():
                task.cancel()
        for name, task in tasks.items():
            is_done = task.done() and not task.cancelled()
            self._note(name, task.result() if is_done else "no answer in time")

    def problems(self) -> list[str]:
        """For readiness: listeners that do not answer."""
        return [
            f"Listener: {name} does not answer this node itself: {self._why[name]}"
            for name, count in self._failures.items()
            if count >= FAILURES
        ]

    def samples(self) -> Iterable[Sample]:
        for name, count in self._failures.items():
            yield Sample("listener_answers", (name,), count < FAILURES)

    def _note(self, name: str, why: str) -> None:
        before = self._failures[name]
        self._failures[name] = before + 1 if why else 0
        self._why[name] = why
        if self._failures[name] == FAILURES:
            log.error("%s does not answer this node itself: %s", name, why)
        elif before >= FAILURES and not why:
            log.warning("%s answers again", name)


async def _why_not(ask: Probe) -> str:
    """What went wrong; empty when nothing did."""
    try:
        await ask()
    except Unreachable as error:
        return str(error)
    except Exception as error:
        log.exception("a listener could not be asked; please report it")
        return f"{type(error).__name__}: {error}"
    return ""


def probes_of(
    listeners: Iterable[Configured], bound: Sequence[Bound], id_: int
) -> dict[str, Probe]:
    """By protocol and address, `udp 192.0.2.53:53`. `id_` is that of the messages."""
    query = _QUERY.pack(id_, 0, 1, 0, 0, 0) + HEALTH_NAME + _QUESTION.pack(A, CLASS_IN)
    found: dict[str, Probe] = {}
    for listener, one in zip(listeners, bound, strict=True):
        proto, address = one.listener.proto, one.address
        is_proxied = target_of(address)[0] in Networks(listener.proxy_protocol)
        ask = partial(probe, proto, address, query, is_proxied=is_proxied)
        found[f"{proto} {address}"] = (
            partial(_if_here, ask, address) if one.listener.freebind else ask
        )
    return found


async def _if_here(ask: Probe, address: str) -> None:
    """An address that another machine has at the moment would be answered by that one."""
    if has_address(split_address(address)[0]):
        await ask()
