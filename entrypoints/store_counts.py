"""What a store was asked, how it ended and how long it took."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import msgspec

from kudurru.domain.errors import Closed, Conflict, Invalid, KudurruError, ManagedBy, NotFound
from kudurru.domain.ports import Clock

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="Counted")

RESULTS: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (NotFound, "not_found"),
    (Conflict, "conflict"),
    (ManagedBy, "managed_by"),
    (Invalid, "invalid"),
    (Closed, "closed"),
    (asyncio.CancelledError, "canceled"),
)


class StoreStatistics(msgspec.Struct, frozen=True):
    operations: dict[tuple[str, str], int]  # by operation and result
    seconds: dict[str, float]  # by operation
    relists: dict[str, int]  # watches that began with everything that is there, by kind


class StoreCounts:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._operations: Counter[tuple[str, str]] = Counter()
        self._took_us: Counter[str] = Counter()
        self.relists: Counter[str] = Counter()

    def count(self, operation: str, result: str, took_us: int) -> None:
        self._operations[operation, result] += 1
        self._took_us[operation] += took_us

    def statistics(self) -> StoreStatistics:
        seconds = {operation: us / 1_000_000 for operation, us in self._took_us.items()}
        return StoreStatistics(dict(self._operations), seconds, dict(self.relists))


class Counted(Protocol):
    counts: StoreCounts


def counted(
    operation: str,
) -> Callable[
    [Callable[Concatenate[S, P], Awaitable[T]]],
    Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
]:
    """Count the calls of a method."""

    def counting(
        method: Callable[Concatenate[S, P], Awaitable[T]],
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
        @wraps(method)
        async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            clock = self.counts.clock
            started_us, result = clock.monotonic_us(), "error"
            try:
                found = await method(self, *args, **kwargs)
                result = "ok"
            except (KudurruError, asyncio.CancelledError) as error:
                result = _result_of(error)
                raise
            finally:
                self.counts.count(operation, result, clock.monotonic_us() - started_us)
            return found

        return call

    return counting


def _result_of(error: BaseException) -> str:
    return next((result for kind, result in RESULTS if isinstance(error, kind)), "error")
