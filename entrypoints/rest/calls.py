"""A request to the API, read: who asks, for what, with which parameters and body."""

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec

from kudurru.adapters.http_api import Request, Stream
from kudurru.adapters.http_ops import Response
from kudurru.domain.access import Right
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.events import Who
from kudurru.entrypoints.rest.status import BadRequest, Forbidden, WrongType
from kudurru.entrypoints.tokens import Principal
from kudurru.entrypoints.wiring import Change, Result

if TYPE_CHECKING:
    from kudurru.entrypoints.rest.context import Context

DEPTH_MAX = 32
"""As of documents that come as files."""

VALUES_MAX = 10_000
"""Commas, brackets and braces that open, outside of strings: what a body costs to read goes by its
values more than by its octets. Only objects have more."""

OBJECTS_VALUES_MAX = 400_000
"""Of objects, which are read in a thread where they are large: 10,000 record sets have half."""

KEYS_MAX = 10_000
"""Of one object: none that makes sense has more, and what reads it does so in one go."""

ASIDE_MIN = 64 * 1024
"""Octets of a body from which on it is read in a thread."""

SLICE = 64 * 1024
"""Octets that are looked at in one go: less than a millisecond."""

QUERY_MAX = 4096
"""Characters of a parameter: a selector or a reason is shorter."""

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"

_T = TypeVar("_T")


class Param(msgspec.Struct, frozen=True):
    """A parameter of a query."""

    name: str
    type: Literal["text", "count", "switch"]  # a count is 0 or more
    about: str
    is_needed: bool = False


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What a route is given."""

    context: "Context"
    principal: Principal
    request: Request
    names: dict[str, str]  # of the path
    params: dict[str, Any]  # those that were given

    @property
    def who(self) -> Who:
        return Who(actor=self.principal.actor, source=f"api {self.request.peer}")

    def text(self, name: str, default: str = "") -> str:
        found: str = self.params.get(name, default)
        return found

    def count(self, name: str, default: int) -> int:
        found: int = self.params.get(name, default)
        return found

    def has(self, name: str) -> bool:
        return bool(self.params.get(name, False))

    def document(self, *types: str, values_max: int = VALUES_MAX) -> Any:
        """The body as builtins. Raises: BadRequest, WrongType."""
        check_type(self.request, types or (JSON,))
        return read_json(self.request.body, values_max)

    def body(self, kind: type[_T], *, values_max: int = VALUES_MAX) -> _T:
        """The body as a value of that type. Raises: BadRequest, WrongType, Invalid."""
        return converted(self.document(values_max=values_max), kind)

    async def reading(self, read: Callable[[], _T]) -> _T:
        """What is read of the body; a large one in a thread, and DNS is answered meanwhile."""
        if len(self.request.body) < ASIDE_MIN:
            return read()
        return await self.briefly(read)

    async def aside(self, work: Callable[[], _T]) -> _T:
        """Run what reads much of the log in a thread, when there is room."""
        found: _T = await self.context.heavy.run(self.principal.name, work)
        return found

    async def briefly(self, work: Callable[[], _T]) -> _T:
        """Run what ends soon in a thread; it waits for nothing that reads much of the log."""
        found: _T = await self.context.brief.run(self.principal.name, work)
        return found

    def demand(self, right: Right) -> None:
        """Raises: Forbidden."""
        if not self.principal.rights.may(right):
            refuse(self.principal, right)


def converted(document: Any, kind: type[_T]) -> _T:
    """Builtins of a body as a value of that type. Raises: Invalid."""
    try:
        return msgspec.convert(document, kind, strict=True)
    except msgspec.ValidationError as error:
        raise Invalid("body", [_cause(error)]) from None


Handler = Callable[[Call], Awaitable[Any]]
"""Gives a value that is sent as JSON, a Response or a Stream. Raises KudurruError."""

Answer = Response | Stream

Told = Callable[[Result | BaseException], Response]
"""The answer to a change, of what became of it. Raises KudurruError."""

Prepare = Callable[[Call], tuple[Change, Told] | None]
"""What a call comes to that has to wait for nothing but its change; None for one that has to.
Raises KudurruError."""


def refuse(principal: Principal, right: Right) -> NoReturn:
    rights = principal.rights
    if rights.is_limited and type(rights)(role=rights.role).may(right):
        why = f"it concerns more than {rights.limits}"
    else:
        why = f"a token of role {rights.role} may not"
    raise Forbidden(f"this needs the right {right}: {why}")


_AT = re.compile(r"^(.*) - at `(.*)`$", re.S)


def _cause(error: msgspec.ValidationError) -> Cause:
    found = _AT.match(str(error))
    if found is None:
        return Cause("", str(error))
    return Cause(found[2].removeprefix("$").lstrip("."), found[1])


# --- bodies ---------------------------------------------------------------------------------


def check_type(request: Request, types: Sequence[str]) -> None:
    """Raises: WrongType."""
    check_not_packed(request)
    given = request.headers.get("content-type", "")
    if given in types:
        return
    kind, _, rest = given.partition(";")
    charset = rest.strip().lower().replace('"', "")
    if kind.strip().lower() not in types or charset not in ("", "charset=utf-8"):
        raise WrongType(f"a body of type {given or 'none'}: send {' or '.join(types)}, in UTF-8")


def check_not_packed(request: Request) -> None:
    """RFC 9110 section 15.5.16: what is small may be large once it is unpacked.

    Raises: WrongType.
    """
    coding = request.headers.get("content-encoding", "identity")
    if coding.strip().lower() not in ("", "identity"):
        raise WrongType(f"a body packed with {coding[:40]}: send it as it is")


def read_json(body: bytes, values_max: int = VALUES_MAX) -> Any:
    """JSON within our bounds: UTF-8, no key twice, no fractions, not nested deeper than
    DEPTH_MAX, of so many values at most. Raises: BadRequest."""
    _check_shape(body, values_max)
    try:
        value = _decoder.decode(body.decode())
        if b"\\u" in body:
            msgspec.json.encode(value)  # half of a surrogate pair is no text
    except UnicodeDecodeError as error:
        _bad(f"octet {error.start} is not UTF-8")
    except UnicodeEncodeError:
        _bad("half of a surrogate pair: write the character itself")
    except RecursionError:
        _bad(f"nested deeper than {DEPTH_MAX}")
    except ValueError as error:
        _bad(str(error) if isinstance(error, _Unwanted) else f"no JSON: {error}")
    return value


class _Unwanted(ValueError):
    """JSON, and not for us."""


def _bad(fault: str) -> NoReturn:
    raise BadRequest("body", [Cause("", fault)]) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > KEYS_MAX:
        raise _Unwanted(f"an object with {len(pairs)} keys; at most {KEYS_MAX}")
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _Unwanted(f"the key {name!r} is given twice")
            seen.add(name)
    return found


def _fraction(text: str) -> NoReturn:
    raise _Unwanted(f"{text[:40]} has a fraction or an exponent, which no field takes")


_decoder = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_fraction, parse_constant=_fraction
)

_MARKS = b",[]{}"
_AS_BRACKETS = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(_MARKS))


def _check_shape(body: bytes, values_max: int) -> None:
    """In a few passes that cost as much whatever the body is: it is no JSON yet. None of them is
    long: the loop gets no turn in the middle of one, whatever thread it is in."""
    if sum(body.count(mark) for mark in _MARKS) <= DEPTH_MAX:
        return
    # Without escapes every quote begins or ends a string: every other part is outside of them.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 4 * values_max + 2:  # a key and a value after each mark
        _bad(f"more than {values_max} values")
    marks = _outside_of_strings(plain).translate(_AS_BRACKETS, _OTHERS)
    if marks.count(b",") + marks.count(b"[") > values_max:
        _bad(f"more than {values_max} values")
    nested = marks.replace(b",", b"")
    for _ in range(DEPTH_MAX):  # each takes the innermost ones away
        nested = nested.replace(b"[]", b"")
    # What is left otherwise has brackets without their other half, and is no JSON.
    if b"[]" in nested or b"[" * (DEPTH_MAX + 1) in nested:
        _bad(f"nested deeper than {DEPTH_MAX}")


def _outside_of_strings(plain: bytes, size: int = SLICE) -> bytes:
    """What is in no string, of a text without escapes that is looked at in slices."""
    found, inside = [], 0
    for begin in range(0, len(plain), size):
        parts = plain[begin : begin + size].split(b'"')
        found.append(b"".join(parts[inside::2]))
        inside ^= (len(parts) - 1) & 1
    return b"".join(found)


# --- paths and queries ----------------------------------------------------------------------


def unquoted(text: str, where: str) -> str:
    """Raises: BadRequest."""
    if "%" not in text and text.isascii():
        return text
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise BadRequest("request", [Cause(where, "not UTF-8")]) from None


SECRETS_IN_URLS = frozenset({"token", "access_token", "api_key", "apikey", "key", "authorization"})


def read_query(query: str, known: Sequence[Param]) -> dict[str, Any]:
    """Raises: BadRequest with every fault."""
    if not query and not any(map(_is_needed, known)):
        return {}
    params = {param.name: param for param in known}
    found: dict[str, Any] = {}
    causes: list[Cause] = []
    for pair in query.split("&") if query else ():
        raw, _, value = pair.partition("=")
        name = unquoted(raw.replace("+", " "), "query")
        text = unquoted(value.replace("+", " "), name)
        fault = _fault(name, text, params, found)
        if fault:
            causes.append(Cause(name, fault))
    for param in known:
        if param.is_needed and param.name not in found and not causes:
            causes.append(Cause(param.name, "missing"))
    if causes:
        raise BadRequest("query", causes)
    return found


_is_needed = attrgetter("is_needed")


def _fault(name: str, text: str, params: dict[str, Param], found: dict[str, Any]) -> str:
    """What is wrong with a parameter; it is taken in where nothing is."""
    if name not in params:
        return f"not known here; there are {', '.join(params) or 'none'}"
    if name in found:
        return "given twice"
    if len(text) > QUERY_MAX:
        return f"{len(text)} characters; at most {QUERY_MAX}"
    match params[name].type:
        case "count" if not (text.isascii() and text.isdigit() and len(text) < 18):
            return "not a number"
        case "count":
            found[name] = int(text)
        case "switch" if text not in ("true", "false", ""):
            return "neither true nor false"
        case "switch":
            found[name] = text != "false"
        case _:
            found[name] = text
    return ""
