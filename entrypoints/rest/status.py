"""The one shape of every refusal, and which error is told with which code.

`Status` is that of Kubernetes: reason, code, message and `details.causes[]`; what else an error
knows (an owner, two numbers) is in `details` too, so that a client makes the same error of it.
"""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from kudurru.adapters.http_api import Reply
from kudurru.domain.errors import (
    Busy,
    Cause,
    Closed,
    Conflict,
    Follows,
    Invalid,
    KudurruError,
    ManagedBy,
    MassChange,
    NotFound,
    PartiallyApplied,
    Pruned,
    Redacted,
    Stop,
    Unreachable,
)

RETRY_AFTER_S = 1


class StatusCause(msgspec.Struct, frozen=True):
    field: str
    message: str


class StatusDetails(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the error knows. `name` is what it is about."""

    causes: list[StatusCause] = []
    name: str = ""
    owner: str = ""  # ManagedBy
    zone: str = ""  # MassChange, with the two numbers
    changed: int | None = None
    total: int | None = None
    oldest: int | None = None  # Pruned: the first position that can be told
    position: int | None = None  # of what was recorded, where that is all there is to say


class Status(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What became of a request that gives nothing else back."""

    api_version: Literal["v1"] = "v1"
    kind: Literal["Status"] = "Status"
    status: Literal["Success", "Failure"]
    reason: str = ""
    code: int
    message: str
    details: StatusDetails = StatusDetails()


class BadRequest(Invalid):
    """The request itself is wrong, whatever the state."""


class Unauthorized(KudurruError):
    """Nobody knows who asks."""


class Forbidden(KudurruError):
    """Whoever asks may not do that."""


class WrongMethod(KudurruError):
    """A path that is there, asked in a way that it is not."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self.allowed = sorted(allowed)
        super().__init__(f"this path takes {', '.join(self.allowed)}")


class WrongType(KudurruError):
    """A body of a type that is not read here."""


class TooMany(KudurruError):
    """One caller has too much under way."""


class PreconditionFailed(Conflict):
    """If-Match or If-None-Match does not hold."""


class Unanswered(Unreachable):
    """Another node was asked to do it, and what came of that is not known."""


_CODES: tuple[tuple[type[KudurruError], int, str], ...] = (
    (BadRequest, 400, "BadRequest"),
    (Unauthorized, 401, "Unauthorized"),
    (Forbidden, 403, "Forbidden"),
    (WrongMethod, 405, "MethodNotAllowed"),
    (WrongType, 415, "UnsupportedMediaType"),
    (TooMany, 429, "TooManyRequests"),
    (PreconditionFailed, 412, "Conflict"),
    (Invalid, 422, "Invalid"),
    (Redacted, 410, "Redacted"),
    (Pruned, 410, "Pruned"),
    (NotFound, 404, "NotFound"),
    (ManagedBy, 409, "ManagedBy"),
    (MassChange, 409, "MassChange"),
    (PartiallyApplied, 409, "PartiallyApplied"),
    (Conflict, 409, "Conflict"),
    (Busy, 503, "Busy"),
    (Unanswered, 502, "Unanswered"),
    (Unreachable, 503, "Unreachable"),
    (Closed, 503, "Closed"),
    (Follows, 409, "Follows"),
    (Stop, 503, "Stopped"),
)
"""The first that fits counts."""


def success(message: str, code: int = 200, *, position: int | None = None) -> Status:
    details = StatusDetails(position=position)
    return Status(status="Success", code=code, message=message, details=details)


def reply_to(error: KudurruError) -> Reply:
    """A refusal as an answer."""
    code, reason = _code_of(error)
    headers: tuple[tuple[str, str], ...] = ()
    if code in (429, 503):
        headers = (("Retry-After", str(RETRY_AFTER_S)),)
    elif isinstance(error, WrongMethod):
        headers = (("Allow", ", ".join(error.allowed)),)
    elif code == 401:
        headers = (("WWW-Authenticate", 'Bearer realm="kudurru"'),)
    status = Status(
        status="Failure", reason=reason, code=code, message=str(error), details=_details(error)
    )
    return Reply(code=code, body=encoded(status), headers=headers)


def encoded(value: Any) -> bytes:
    """JSON, also of a text that holds half a surrogate pair, as file names may."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_printable(msgspec.to_builtins(value)))


def _printable(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {_printable(key): _printable(part) for key, part in value.items()}
        case list():
            return [_printable(part) for part in value]
        case _:
            return value


def _code_of(error: KudurruError) -> tuple[int, str]:
    for kind, code, reason in _CODES:
        if isinstance(error, kind):
            return code, type(error).__name__ if kind is Stop else reason
    return 500, "InternalError"


def _details(error: KudurruError) -> StatusDetails:
    match error:
        case Invalid():
            causes = [StatusCause(cause.field, cause.message) for cause in error.causes]
            return StatusDetails(name=error.what, causes=causes)
        case ManagedBy():
            return StatusDetails(name=error.what, owner=error.owner)
        case MassChange():
            return StatusDetails(zone=error.zone, changed=error.changed, total=error.total)
        case Pruned():
            return StatusDetails(name=error.what, oldest=error.oldest)
        case Follows():
            return StatusDetails(name=error.leader)
        case _:
            return StatusDetails()


def error_from(status: Status) -> KudurruError:
    """The error that a server told. For clients."""
    details = status.details
    match status.reason:
        case "Invalid" | "BadRequest":
            causes = [Cause(cause.field, cause.message) for cause in details.causes]
            return Invalid(details.name or "request", causes or [Cause("", status.message)])
        case "ManagedBy":
            return ManagedBy(details.name, details.owner)
        case "MassChange" if details.changed is not None and details.total is not None:
            return MassChange(details.zone, details.changed, details.total)
        case "Follows" if details.name:
            return Follows(details.name)
        case "Pruned" if details.oldest is not None:
            return Pruned(details.name, details.oldest)
        case _:
            return _SIMPLE.get(status.reason, KudurruError)(status.message)


_SIMPLE: dict[str, type[KudurruError]] = {
    "NotFound": NotFound,
    "Redacted": Redacted,
    "Conflict": Conflict,
    "Busy": Busy,
    "TooManyRequests": Busy,
    "Unreachable": Unreachable,
    "Unanswered": Unreachable,
    "Closed": Closed,
}
