"""The error tree, divided by what the caller can do.

    KudurruError
    ├── Invalid        fix the input; every fault is named in `causes`
    ├── NotFound       name something that exists
    │   ├── Redacted       it was, and its content was erased on purpose
    │   └── Pruned         it was, and the log begins after it
    ├── MassChange     more of a zone changes than people mean by accident: look, then allow it
    ├── ManagedBy      another manager owns the object: talk to it, or force
    ├── Conflict       the state moved: read again, decide again
    ├── Busy           a limit is reached or another process holds the place: wait
    ├── Unreachable    another server does not answer: try again later, or ask another
    ├── Unsupported    another server is of a version without that: update it
    ├── PartiallyApplied  some of a batch was written: look at what is left, apply it again
    ├── Closed         this store was closed: open another
    ├── Follows        this node copies another's log: write there
    └── Stop           nothing can be written until a person acts
        ├── LogDamaged     what is stored does not verify
        ├── Diverged       another node's log is no continuation of this one
        ├── LogNewer       written by a newer kudurru
        └── StorageFailed  the disk or the database refuses
            └── StorageBroken  so that only a restart can tell what is recorded

Each message says what is wrong, where, and what to do. Texts that came from outside are escaped
where they are shown, not here.
"""

from collections.abc import Iterable

import msgspec


class KudurruError(Exception):
    """Root of what this program raises on purpose. `str()` is a sentence for a person."""


class Cause(msgspec.Struct, frozen=True, omit_defaults=True):
    """One fault of an input: the path of the field, and what is wrong with it."""

    field: str
    message: str
    at: str = ""  # "file:line" where the input is a file

    def __str__(self) -> str:
        return ": ".join(part for part in (self.at, self.field, self.message) if part)


class Invalid(KudurruError):
    """The input breaks rules. Nothing was written.

    `what` names the input (an object, a file); `causes` holds every fault that was found.
    """

    def __init__(self, what: str, causes: Iterable[Cause]) -> None:
        self.what = what
        self.causes = tuple(causes)
        super().__init__(what, self.causes)

    def __str__(self) -> str:
        if len(self.causes) == 1:
            cause = self.causes[0]
            return str(cause) if cause.at else f"{self.what}: {cause}"
        return f"{self.what}: {len(self.causes)} faults\n" + "\n".join(
            f"  {cause}" for cause in self.causes
        )


class NotFound(KudurruError):
    """There is no such thing."""


class Redacted(NotFound):
    """A payload was erased, and an event of the log says so."""


class Pruned(NotFound):
    """A position is before the first that the log can tell the state of."""

    def __init__(self, what: str, oldest: int) -> None:
        self.what = what
        self.oldest = oldest
        super().__init__(what, oldest)

    def __str__(self) -> str:
        return (
            f"{self.what} is before position {self.oldest}, where this log begins since it was "
            f"pruned: give {self.oldest} or a later one, or look in a backup (`kudurru log export`)"
        )


SETTINGS = "settings"


class ManagedBy(KudurruError):
    """The object belongs to another manager. Of SETTINGS none can be taken over."""

    def __init__(self, what: str, owner: str) -> None:
        self.what = what
        self.owner = owner
        super().__init__(what, owner)

    def __str__(self) -> str:
        if self.what == SETTINGS:
            return f"the settings are managed by {self.owner}: change them there"
        return (
            f"{self.what} is managed by {self.owner!r}; "
            f"change it there, or take it over whole with --force"
        )


class MassChange(KudurruError):
    """A change would take away or alter a large part of a zone."""

    def __init__(self, zone: str, changed: int, total: int) -> None:
        self.zone = zone
        self.changed = changed
        self.total = total
        super().__init__(zone, changed, total)

    def __str__(self) -> str:
        return (
            f"this would change or remove {self.changed} of the {self.total} records of "
            f"{self.zone}; if that is meant, give --allow-mass-change"
        )


class Conflict(KudurruError):
    """The state moved since the caller read it."""


class Busy(KudurruError):
    """A limit is reached, or another process holds the place: try again later."""


class Unreachable(KudurruError):
    """Another server does not answer, or not in time."""


class Unsupported(KudurruError):
    """Another server does not know what was asked."""


class PartiallyApplied(KudurruError):
    """A batch ended in the middle, on a store that cannot write many objects as one. The fields
    hold keys in the order of the batch; what was not tried is in `left`."""

    def __init__(self, done: Iterable[str], failed: str, left: Iterable[str], why: str) -> None:
        self.done = tuple(done)
        self.failed = failed
        self.left = tuple(left)
        self.why = why
        super().__init__(self.done, failed, self.left, why)

    def __str__(self) -> str:
        return (
            f"{self.failed}: {self.why}; {len(self.done)} objects before it are written, "
            f"{len(self.left)} after it are not: mend it and apply all again"
        )


class Closed(KudurruError):
    """The store was closed: the process is ending."""


class Follows(KudurruError):
    """This node copies the log of another, its leader, and writes nothing of its own."""

    def __init__(self, leader: str) -> None:
        self.leader = leader
        super().__init__(leader)

    def __str__(self) -> str:
        return (
            f"this node follows {self.leader}: change things there, with `--server {self.leader}` "
            "and a token; when that is gone for good, `kudurru promote` makes this node the one "
            "that is written to"
        )


class Stop(KudurruError):
    """Nothing can be written here until a person acts."""


ADVICE = "keep this log as evidence and go back to a backup that verifies"
"""What to do about a damage, whatever its kind."""


class LogDamaged(Stop):
    """What is stored does not verify. `position` is the first bad seq, `kind` what is bad there:
    gap, payload, entry, chain, tree, signature, truncation or state."""

    def __init__(self, kind: str, position: int, message: str) -> None:
        self.kind = kind
        self.position = position
        self.message = message
        super().__init__(kind, position, message)

    def __str__(self) -> str:
        return f"position {self.position}: {self.message}"


class Diverged(Stop):
    """The logs of two nodes have a common beginning, or none, and part. `position` is the first
    that they do not have in common, 0 where that is not known."""

    def __init__(self, position: int, message: str) -> None:
        self.position = position
        self.message = message
        super().__init__(position, message)

    def __str__(self) -> str:
        return f"position {self.position}: {self.message}" if self.position else self.message


class LogNewer(Stop):
    """The log was written by a newer kudurru: upgrade this one."""


class StorageFailed(Stop):
    """The disk or the database refuses; the message names the file and what to do."""


class StorageBroken(StorageFailed):
    """The file is damaged, or a commit failed half-way, so that it is open whether the change is
    durable. Nothing is written any more; the next start reads back what is there."""
