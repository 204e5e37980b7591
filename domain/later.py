"""An answer that is still to come: plain callbacks, no task and no loop.

Who will know the value makes a `Later` and settles it once; who wants it listens, or cancels when
nobody wants it any more. Everything happens in the thread of the loop.
"""

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class Later(Generic[T]):
    """A value for one listener. `on_cancel` hears that the value is not wanted any more."""

    __slots__ = ("_listener", "_on_cancel", "_value", "is_over")

    def __init__(self, on_cancel: Callable[[], None] | None = None) -> None:
        self._on_cancel = on_cancel
        self._listener: Callable[[T], None] | None = None
        self._value: T
        self.is_over = False
        """Settled or cancelled: nothing more happens."""

    @property
    def value(self) -> T:
        """What it was settled with. Ask only when it is over and was not cancelled."""
        return self._value

    def settle(self, value: T) -> None:
        """Say the value. Does nothing when it is over, so a time-out and an answer may race."""
        if self.is_over:
            return
        self.is_over = True
        listener, self._listener, self._on_cancel = self._listener, None, None
        # Whoever waits and whoever is waited for knew each other: left like that, they would be
        # work for the garbage collector, which costs more than all else here.
        if listener is None:
            self._value = value
        else:
            listener(value)

    def then(self, listener: Callable[[T], None]) -> None:
        """Have the listener called with the value, at once where it is known, never after
        `cancel`."""
        if not self.is_over:
            self._listener = listener
        elif hasattr(self, "_value"):
            listener(self._value)

    def cancel(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        on_cancel, self._listener, self._on_cancel = self._on_cancel, None, None
        if on_cancel is not None:
            on_cancel()

    def map(self, change: Callable[[T], U]) -> "Later[U]":
        """The changed value, later. Cancelling it cancels this one."""
        changed: Later[U] = Later(self.cancel)
        self.then(partial(_settle_changed, changed, change))
        return changed


def _settle_changed(changed: Later[U], change: Callable[[T], U], value: T) -> None:
    changed.settle(change(value))
