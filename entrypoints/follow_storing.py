"""Storing what was checked, in a thread of its own, while what comes next is checked.

SQLite lets the interpreter go while it stores, and waits for the disk: so a follower uses two
cores, and the disk is waited for beside the work. Order stays: nothing is stored that was not
checked, and what was stored is what came, up to some place at which the log may end.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Self

from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.domain.ports import Copied

AHEAD_MAX = 4
"""Parts that were checked and wait: a megabyte each, where no row is larger. One would do if all
took the same time; the disk does not."""


class _Cut(Exception):
    """There is no more, and the log may not end here."""


class Storing:
    """Used by one thread, as a context. What is left of a change that is not whole when the context
    ends is forgotten; a failure of the storage is raised by whatever is called next."""

    def __init__(self, log: SQLiteEventLog, failed: Callable[[], None]) -> None:
        """`failed` is called once, in the thread that stores, when the log grows no more: for who
        waits for what comes next."""
        self._log = log
        self._failed = failed
        self._changed = threading.Condition()
        self._parts: deque[Copied] = deque()
        self._open = 0  # parts that were added and are not durable
        self._taken = 0  # of them, those that are in the transaction
        self._is_over = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kudurru-follow-store")
        self.is_whole = True
        """Whether the log may end with what was added last."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join()
        if self._failure is not None and self._failure is not error:
            raise self._failure

    def add(self, part: Copied) -> None:
        """Waits while too much is ahead. Raises: what `SQLiteEventLog.take_over` does, for this
        part or one before."""
        with self._changed:
            self._wait_for(lambda: len(self._parts) < AHEAD_MAX)
            self._parts.append(part)
            self._open += 1
            self.is_whole = part.is_whole
            self._changed.notify_all()

    def settle(self) -> None:
        """Waits until all that was added is durable; the last part has to be whole. Raises: as
        `add`."""
        assert self.is_whole, "what is not whole is not made durable"
        with self._changed:
            self._wait_for(lambda: not self._open)

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._failure is not None or condition())
        if self._failure is not None:
            raise self._failure

    # --- in the thread ------------------------------------------------------------------

    def _run(self) -> None:
        try:
            # Waited for before the transaction begins: who follows mostly waits.
            while (part := self._next()) is not None:
                self._log.take_over(chain([part], self._rest()))
                with self._changed:
                    self._open -= self._taken
                    self._taken = 0
                    self._changed.notify_all()
        except _Cut:
            pass
        except BaseException as error:  # the other thread raises it
            with self._changed:
                self._failure = error
                self._changed.notify_all()
            self._failed()

    def _next(self) -> Copied | None:
        """The next part; None where there are no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._parts or self._is_over)
            if not self._parts:
                return None
            self._taken += 1
            self._changed.notify_all()
            return self._parts.popleft()

    def _rest(self) -> Iterator[Copied]:
        while (part := self._next()) is not None:
            yield part
        raise _Cut
