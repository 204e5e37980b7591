"""Routes: what the API can be asked, as a table. The dispatcher finds them, OpenAPI shows them."""

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from kudurru.domain.access import Right
from kudurru.domain.errors import NotFound
from kudurru.entrypoints.rest.calls import JSON, Handler, Param, Prepare, unquoted
from kudurru.entrypoints.rest.status import WrongMethod

PREFIX = "/api/v1"

PARENTS_MAX = 256
PARENT_OCTETS_MAX = 256
"""Of paths that are remembered: there is one for each kind, namespace and method."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that can be asked. `path` is below PREFIX, names in braces."""

    method: str
    path: str
    right: Right
    handler: Handler
    prepare: Prepare | None = None
    """In place of the handler, where that is enough: most of what a task costs is spared."""
    about: str
    tag: str
    params: tuple[Param, ...] = ()
    body: Any = None  # type of the body, or a JSON Schema
    body_types: tuple[str, ...] = (JSON,)
    reply: Any = None  # type of what comes back, or a JSON Schema
    reply_types: tuple[str, ...] = (JSON,)
    code: int = HTTPStatus.OK
    more_codes: tuple[int, ...] = ()  # of success
    is_conditional: bool = False  # takes If-Match
    is_leaders: bool = False
    """What comes of it is in the log, so that a node which follows has its leader do it."""
    is_endless: bool = False
    """Has no limit of time: a stream, or what must not be cut off in the middle."""


class Router:
    """Finds routes by method and path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._tree: dict[str, Any] = {}
        self._parents: dict[tuple[str, str], _Parent] = {}
        for route in self.routes:
            node = self._tree
            for segment in segments(route.path):
                node = node.setdefault("{}" if segment.startswith("{") else segment, {})
            methods = node.setdefault("", {})
            assert route.method not in methods, f"{route.method} {route.path} is there twice"
            methods[route.method] = route, _places(route.path)

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """The route, and the names of its path. Raises: NotFound, WrongMethod, BadRequest."""
        parent, _, last = path.rpartition("/")
        known = self._parents.get((method, parent))
        if known is not None and _is_plain(last) and last not in known.others:
            return known.route, {**known.names, known.last: last}
        route, names = self._find(method, path)
        if route.path.endswith("}") and _is_plain(last) and len(parent) <= PARENT_OCTETS_MAX:
            self._note(method, parent, last, route, names)
        return route, names

    def _note(
        self, method: str, parent: str, last: str, route: Route, names: dict[str, str]
    ) -> None:
        """Most paths end in a name, and those before the last slash are few. Whatever name it is,
        the way to it is the same, but for words that stand for themselves at that depth."""
        depth = len(segments(route.path))
        places = [segments(one.path) for one in self.routes]
        others = frozenset([place[-1] for place in places if len(place) == depth])
        if last in others:
            return
        if len(self._parents) >= PARENTS_MAX:
            self._parents.clear()
        name = route.path.rpartition("{")[2][:-1]
        before = {key: value for key, value in names.items() if key != name}
        self._parents[method, parent] = _Parent(route, before, name, others)

    def _find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        given = [unquoted(part, "path") for part in segments(path.removeprefix(PREFIX))]
        methods = self._walk(self._tree, given) if path.startswith(f"{PREFIX}/") else None
        if methods is None:
            raise NotFound("nothing is served at this path; /api/v1/openapi.json says what is")
        found = methods.get("GET" if method == "HEAD" else method)
        if found is None:
            raise WrongMethod(methods)
        route, places = found
        return route, {name: given[place] for name, place in places}

    def _walk(self, node: Mapping[str, Any], given: list[str]) -> "dict[str, _Found] | None":
        if not given:
            return node.get("")
        if "" in given:
            return None
        for branch in (given[0], "{}"):
            if branch in node and (branch == "{}" or not given[0].startswith("{")):
                found = self._walk(node[branch], given[1:])
                if found is not None:
                    return found
        return None


class _Parent(NamedTuple):
    """What is known of paths that go on with a name."""

    route: Route
    names: dict[str, str]  # before it
    last: str  # what its name is called
    others: frozenset[str]  # that would be no name there


def _is_plain(segment: str) -> bool:
    """Whether it is what it stands for, and not two segments."""
    return bool(segment) and segment.isascii() and "%" not in segment and ":" not in segment


_Places = tuple[tuple[str, int], ...]
_Found = tuple[Route, _Places]


def _places(path: str) -> _Places:
    """Names of a path, and which segments they are."""
    return tuple((part[1:-1], i) for i, part in enumerate(segments(path)) if part[:1] == "{")


def segments(path: str) -> list[str]:
    """Of a path; `name:verb` at its end is two of them, ":verb" the second."""
    parts = path.split("/")[1:]
    name, mark, verb = parts[-1].rpartition(":") if parts else ("", "", "")
    return [*parts[:-1], name, mark + verb] if mark else parts
