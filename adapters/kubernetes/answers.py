"""What an API server answers when it does not do what it was asked, as errors.

Unanswered    no answer came: it may or may not have done it
└── TooLarge      an answer that is larger than what we take
Refused       an answer that is not 2xx
├── Absent        404
├── Collided      409, and 422 for another uid
├── Expired       410: the version, or the page, is too old; list again
├── Throttled     429 for longer than we wait
└── Forbidden     401, 403: says which verb is missing
NotLeading    we did not send it: another may lead
"""

from typing import Any

import msgspec

from kudurru.adapters.kubernetes.nesting import read, read_slowly
from kudurru.domain.errors import Busy, Conflict, KudurruError, NotFound, Unreachable

TEXT_MAX = 2048
"""Octets of an answer that an error repeats."""


class StatusCause(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    kind: str = ""
    causes: list[StatusCause] = []
    retry_after_seconds: int = 0


class Status(msgspec.Struct, frozen=True):
    """The body of an answer that is not 2xx (meta/v1)."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class Unanswered(Unreachable):
    """No answer came, or not all of it. A write may have been done all the same."""

    def __init__(self, method: str, path: str, why: str) -> None:
        self.method = method
        self.path = path
        self.why = why
        super().__init__(method, path, why)

    def __str__(self) -> str:
        return (
            f"{self.method} {self.path}: the API server did not answer: {self.why}; "
            "it is asked again, and until then this node answers from its log"
        )


class TooLarge(Unanswered):
    """An answer of more octets than are taken: ask for less at once."""


class NotLeading(KudurruError):
    """A write was not sent, since it cannot be shown that this process leads."""


class Refused(KudurruError):
    """An answer that is not 2xx, which no other class is for."""

    def __init__(self, method: str, path: str, code: int, status: Status, text: str) -> None:
        self.method = method
        self.path = path
        self.code = code
        self.status = status
        self.text = text  # of the server, at most TEXT_MAX octets
        super().__init__(method, path, code, status, text)

    def __str__(self) -> str:
        return f"{self.method} {self.path}: {self.code} {self.text}"

    @property
    def causes(self) -> list[StatusCause]:
        return self.status.details.causes if self.status.details else []


class Absent(Refused, NotFound):
    """404: the object is not there, or its kind is not."""


class Collided(Refused, Conflict):
    """409: the object is not as the write says, or another manager holds fields of it. Also the
    422 with which a server-side apply learns that the object has another uid."""


class Expired(Refused):
    """410: the version is older than what the server remembers."""


class Throttled(Refused, Busy):
    """429. `retry_after_s` is what the server asked for, 0 when it said nothing."""

    def __init__(
        self, method: str, path: str, code: int, status: Status, text: str, retry_after_s: int = 0
    ) -> None:
        super().__init__(method, path, code, status, text)
        self.retry_after_s = retry_after_s


class Forbidden(Refused):
    """401 or 403."""

    def __str__(self) -> str:
        if self.code == 401:
            return f"{super().__str__()}; the credentials are refused: look at the service account"
        return (
            f"{super().__str__()}; bind a role with that verb to the service account "
            "(schemas/rbac), or leave the feature out"
        )


_BY_CODE: dict[int, type[Refused]] = {
    401: Forbidden,
    403: Forbidden,
    404: Absent,
    409: Collided,
    410: Expired,
}


def refusal(method: str, path: str, code: int, body: bytes, header: str = "") -> Refused:
    """The error for an answer that is not 2xx. `header` is its Retry-After."""
    try:
        status = read(body, Status)
    except (msgspec.DecodeError, UnicodeDecodeError):
        status = Status()
    text = cut(status.message or body.decode(errors="replace")).rstrip()
    if code == 429:
        return Throttled(method, path, code, status, text, _retry_after_s(header, status))
    if code == 422 and _is_about_uid(status):
        return Collided(method, path, code, status, text)
    return _BY_CODE.get(code, Refused)(method, path, code, status, text)


def retry_after(error: BaseException) -> int:
    """Seconds that the API server asked for before the next try; 0 when it asked for none."""
    return error.retry_after_s if isinstance(error, Throttled) else 0


def cut(text: str, size: int = TEXT_MAX) -> str:
    """At most `size` octets, ended at a character, with an ellipsis where something is missing."""
    octets = text.encode(errors="replace")
    if len(octets) <= size:
        return text
    return octets[: size - 3].decode(errors="ignore") + "…"


def _retry_after_s(header: str, status: Status) -> int:
    # RFC 9110 section 10.2.3 also has a date; an API server sends seconds.
    if header.strip().isdecimal() and int(header) > 0:
        return int(header)
    return max(0, status.details.retry_after_seconds) if status.details else 0


def _is_about_uid(status: Status) -> bool:
    causes = status.details.causes if status.details else []
    return any(cause.field == "metadata.uid" for cause in causes)


async def decoded(method: str, path: str, body: bytes, type_: Any) -> Any:
    """Raises: Unanswered, when the octets are no such object: they may be half of one."""
    try:
        return await read_slowly(body, type_)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unanswered(method, path, f"the body cannot be read: {error}") from error
