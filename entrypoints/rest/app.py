"""The API as an application: who asks, whether they may, what is done, and how it is told.

In this order: the name that the listener was asked by, health, the token, the route, the right, the
limits, then the route itself. What is refused for lack of a right, and who came in, goes to the
access log; refusals of any kind have one shape.
"""

import hmac
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec

from kudurru.adapters.http_api import Answered, Application, Reply, Request, Stream
from kudurru.adapters.http_ops import LOOPBACK, Response
from kudurru.adapters.http_ops import Route as HealthRoute
from kudurru.domain.errors import Busy, Cause, KudurruError
from kudurru.entrypoints.dashboard import PREFIX as PAGE
from kudurru.entrypoints.dashboard import PageFile
from kudurru.entrypoints.rest import admin, answers, feed, objects, openapi, past, record, zones
from kudurru.entrypoints.rest.calls import (
    SECRETS_IN_URLS,
    Answer,
    Call,
    Told,
    check_type,
    read_query,
    refuse,
    unquoted,
)
from kudurru.entrypoints.rest.context import Context
from kudurru.entrypoints.rest.forwarding import hops_of, with_position
from kudurru.entrypoints.rest.people import check_stranger, is_of_cluster
from kudurru.entrypoints.rest.routes import PREFIX, Route, Router
from kudurru.entrypoints.rest.status import (
    BadRequest,
    Forbidden,
    Status,
    TooMany,
    Unauthorized,
    WrongMethod,
    encoded,
    reply_to,
)
from kudurru.entrypoints.tokens import NotLetIn, Principal
from kudurru.entrypoints.wiring import Change, Result

IN_FLIGHT_MAX = 100
"""Requests of one token that are being answered."""

OPENAPI = f"{PREFIX}/openapi.json"
DOCS = "/api/docs"


def all_routes() -> list[Route]:
    parts = (objects, zones, record, past, feed, answers, admin)
    return [route for part in parts for route in part.routes()]


class _Admitted(msgspec.Struct):
    """What the head of a request told."""

    principal: Principal | None  # None: of the cluster, which is asked before the answer
    route: Route
    names: dict[str, str]
    params: dict[str, Any]


_LET_IN = "let in"


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


class _LetIn(NamedTuple):
    """Who came with what, as far as is kept of a connection. It is shown nowhere."""

    text: bytes
    headers_number: int  # of its request: its name was one of ours too
    principal: Principal
    at_s: int

    def came_with(self, request: Request) -> bool:
        """Whether it came with the headers of this request."""
        return 0 < self.headers_number == request.headers_number

    def __repr__(self) -> str:
        return f"_LetIn({self.principal.name!r})"


AnAnswer = TypeVar("AnAnswer", bound=Answer)


class _Waiter:
    """Who asked for a change, until the writer tells what came of it."""

    __slots__ = ("_answered", "_end")

    def __init__(
        self,
        app: "RestApp",
        request: Request,
        principal: Principal,
        told: Told,
        answered: Answered,
    ) -> None:
        self._end = partial(app.end, request, principal, told)
        self._answered = answered

    def done(self) -> bool:
        return False

    def set_result(self, result: Result, /) -> None:
        self._answered(partial(self._end, result))

    def set_exception(self, exception: BaseException, /) -> None:
        self._answered(partial(self._end, exception))


class RestApp(Application):
    """Implements `adapters.http_api.Application`. Until `open` it serves health only."""

    def __init__(
        self,
        health: Mapping[str, HealthRoute],
        names: Iterable[str] = (),
        page: Mapping[str, PageFile] | None = None,
    ) -> None:
        """`names`: by which the listener may be asked, beside its addresses. `page`: files of the
        web page by their paths; None: there is none."""
        self._health = dict(health)
        self._page_files = dict(page or {})
        to_page = ("/", PAGE.rstrip("/")) if page else ()
        self._open_paths = frozenset((*health, *self._page_files, *to_page, OPENAPI, DOCS))
        self._linked_paths = frozenset((*to_page, PAGE)) if page else frozenset()
        self._names = LOOPBACK | {name.lower() for name in names}
        self._context: Context | None = None
        self._router = Router(all_routes())
        self._in_flight: Counter[str] = Counter()
        self._pages: dict[str, Reply] = {}
        self.requests: Counter[int] = Counter()  # answered, by code

    def open(self, context: Context) -> None:
        """Serve from now on: the node is in step with its log."""
        self._context = context

    @property
    def followers(self) -> int:
        """Nodes that are sent the log."""
        return self._context.followers if self._context is not None else 0

    # --- the head -----------------------------------------------------------------------

    def admit(self, request: Request) -> Response | None:
        try:
            before: _LetIn | None = request.kept.get(_LET_IN)
            has_names = before is not None and before.came_with(request)
            refused = None if has_names else self._check_names(request)
            if refused is None:
                request.context = self._admitted(request)
        except KudurruError as error:
            refused = reply_to(error)
        if refused is not None:
            self.requests[refused.code] += 1
        return refused

    def _check_names(self, request: Request) -> Response | None:
        """A browser can be made to ask through a name that an attacker points here."""
        host, origin = request.headers.get("host"), request.headers.get("origin")
        if host is None or not self._is_ours(_host_of(f"//{host}"), request):
            return _refusal(421, "MisdirectedRequest", "Host is no name or address of ours")
        if origin is not None and not self._is_ours(_host_of(origin), request):
            return _refusal(403, "Forbidden", "Origin is no name or address of ours")
        if origin is not None and _is_of_neighbour(origin, host):
            return _refusal(403, "Forbidden", "Origin is another port of this host")
        is_others = request.headers.get("sec-fetch-site", "none") in ("cross-site", "same-site")
        if is_others and not self._is_link(request):
            return _refusal(403, "Forbidden", "asked by a page of another site")
        return None

    def _is_link(self, request: Request) -> bool:
        """Whether somebody follows a link to the page, in a tab of its own (Fetch Metadata): it is
        the same for everybody, and no other page reads or frames it."""
        headers = request.headers
        return (
            request.method == "GET"
            and request.path in self._linked_paths
            and headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") == "document"
        )

    def _is_ours(self, name: str | None, request: Request) -> bool:
        return name in self._names or name == request.local

    def _admitted(self, request: Request) -> "_Admitted | None":
        """None for what needs no token, and takes no body."""
        if request.path in self._open_paths:
            if request.method not in ("GET", "HEAD"):
                raise WrongMethod(["GET"])
            _check_no_body(request)
            return None
        _check_no_secret(request)
        context = self._opened()
        principal = self._let_in(request, context)
        route, names = self._router.find(request.method, request.path)
        if principal is not None and not principal.rights.may(route.right):
            self._deny(context, principal, request, route)
        params = read_query(request.query, route.params)
        if route.body is None:
            _check_no_body(request)
        else:
            check_type(request, route.body_types)
        if route.is_endless:
            request.limit_s = math.inf
        return _Admitted(principal, route, names, params)

    def _opened(self) -> Context:
        if self._context is None:
            raise Busy("NotSynced: the log is being replayed; only health is served")
        return self._context

    def _let_in(self, request: Request, context: Context) -> Principal | None:
        before: _LetIn | None = request.kept.get(_LET_IN)
        if before is not None and not self._counts_still(before, context):
            before = None
        if before is not None and before.came_with(request):
            return before.principal
        text = _token_of(request)
        if context.people is not None and is_of_cluster(text):
            found = context.people.known(text)
            if found is None:
                check_stranger(request)
            return found
        if before is not None and hmac.compare_digest(before.text, _octets(text)):
            request.kept[_LET_IN] = before._replace(headers_number=request.headers_number)
            return before.principal
        try:
            principal = context.tokens.find(text, request.peer)
        except NotLetIn as error:
            context.access.denied(error.name, request.peer, error.why, claimed=error.claimed)
            kind = Forbidden if error.why == "address" else Unauthorized
            raise kind(str(error)) from None
        context.access.came_in(principal.name, request.peer)
        now_s = context.node.clock.now_us() // 1_000_000
        request.kept[_LET_IN] = _LetIn(_octets(text), request.headers_number, principal, now_s)
        return principal

    @staticmethod
    def _counts_still(before: "_LetIn", context: Context) -> bool:
        """Whether somebody was let in in this second: then nothing is new but that the token may
        have been revoked."""
        now_s = context.node.clock.now_us() // 1_000_000
        return now_s == before.at_s and context.tokens.still_counts(before.principal)

    def _deny(self, context: Context, who: Principal, request: Request, route: Route) -> None:
        context.access.denied(who.name, request.peer, "right", route.right)
        refuse(who, route.right)

    # --- the answer ---------------------------------------------------------------------

    def begin(self, request: Request, answered: Answered) -> bool:
        admitted = request.context
        if not isinstance(admitted, _Admitted) or admitted.route.prepare is None:
            return False
        principal = admitted.principal
        if principal is None or principal.user is not None:  # the cluster is to be asked
            return False
        try:
            context = self._opened()
            if _leader_for(admitted.route, context) is not None:
                return False
            self._check_still(request, principal, context)
            self._check_room(principal.name)
            prepared = self._prepared(_call(request, admitted, principal, context), admitted.route)
            if prepared is None:
                return False
            change, told = prepared
            context.writer.submit_soon(change, _Waiter(self, request, principal, told, answered))
            self._in_flight[principal.name] += 1
        except KudurruError as error:
            refused = self._counted(request, reply_to(error))
            answered(lambda: refused)
        return True

    def _prepared(self, call: Call, route: Route) -> tuple[Change, Told] | None:
        assert route.prepare is not None
        try:
            return route.prepare(call)
        except Forbidden:
            self._note_scope(call, route)
            raise

    def end(
        self, request: Request, principal: Principal, told: Told, result: Result | BaseException
    ) -> Response:
        """The answer to what `begin` began."""
        self._leave(principal.name)
        try:
            answer = told(result)
        except KudurruError as error:
            answer = reply_to(error)
        return self._counted(request, answer)

    async def answer(self, request: Request) -> Response | Stream:
        try:
            answer = await self._answer(request)
        except KudurruError as error:
            answer = reply_to(error)
        return self._counted(request, answer)

    def _counted(self, request: Request, answer: AnAnswer) -> AnAnswer:
        if not request.is_overdue:  # or it was counted as such
            self.requests[answer.code if isinstance(answer, Response) else 200] += 1
        return answer

    async def _answer(self, request: Request) -> Answer:
        health = self._health.get(request.path)
        if health is not None:
            return health()
        if request.context is None:
            return self._page(request)
        admitted: _Admitted = request.context
        context = self._opened()
        principal = await self._principal(request, admitted, context)
        name = principal.name
        self._check_room(name)
        self._in_flight[name] += 1
        try:
            leader = _leader_for(admitted.route, context)
            if leader is not None and context.forwarding is not None:
                return await context.forwarding.pass_on(leader, request, _token_of(request))
            return await self._carried_out(request, admitted, principal, context)
        finally:
            self._leave(name)

    def _check_room(self, name: str) -> None:
        if self._in_flight.get(name, 0) >= IN_FLIGHT_MAX:
            raise TooMany(f"{IN_FLIGHT_MAX} requests of this token are under way; try again")

    def _leave(self, name: str) -> None:
        self._in_flight[name] -= 1
        if not self._in_flight[name]:
            del self._in_flight[name]

    async def _principal(
        self, request: Request, admitted: _Admitted, context: Context
    ) -> Principal:
        """Between a head and its body, or the answers before it, a token may have been revoked.
        Raises: Unauthorized, Forbidden; StorageFailed when the cluster cannot be asked."""
        principal = admitted.principal
        if principal is None or principal.user is not None:
            return await self._of_cluster(request, admitted.route, context)
        self._check_still(request, principal, context)
        return principal

    def _check_still(self, request: Request, principal: Principal, context: Context) -> None:
        if not context.tokens.still_counts(principal):
            context.access.denied(principal.name, request.peer, "over")
            raise Unauthorized("the token was revoked or expired while this request came in")

    async def _of_cluster(self, request: Request, route: Route, context: Context) -> Principal:
        assert context.people is not None
        try:
            found = await context.people.find(_token_of(request))
        except NotLetIn as error:
            context.access.denied("", request.peer, error.why)
            raise Unauthorized(str(error)) from None
        if not found.rights.may(route.right):
            self._deny(context, found, request, route)
        return found

    async def _carried_out(
        self, request: Request, admitted: _Admitted, principal: Principal, context: Context
    ) -> Answer:
        call, route = _call(request, admitted, principal, context), admitted.route
        try:
            found = await route.handler(call)
        except Forbidden:
            self._note_scope(call, route)
            raise
        if isinstance(found, Stream):
            return found
        answer = (
            found if isinstance(found, Response) else Reply(code=route.code, body=encoded(found))
        )
        # Who passed it on waits for what was written.
        return with_position(answer, context.node.position) if hops_of(request) else answer

    @staticmethod
    def _note_scope(call: Call, route: Route) -> None:
        peer = call.request.peer
        call.context.access.denied(call.principal.name, peer, "scope", route.right)

    def overdue(self, request: Request) -> Response:
        self.requests[503] += 1
        fault = (
            f"not done within {request.limit_s:.0f} s; see with `kudurru history` what came of it"
        )
        return reply_to(Busy(fault))

    def _page(self, request: Request) -> Reply:
        """What needs no token: the web page, OpenAPI, and what shows that; those are made once."""
        path = request.path
        if path in ("/", PAGE.rstrip("/")):
            return Reply(code=307, body=b"", headers=(("Location", PAGE),))
        if (file := self._page_files.get(path)) is not None:
            is_known = file.is_known(request.headers.get("if-none-match", ""))
            return Reply(
                code=304 if is_known else 200,
                body=file.content,
                content_type=file.content_type,
                headers=file.headers,
                caching="no-cache",
            )
        if path not in self._pages:
            if path == OPENAPI:
                body = msgspec.json.encode(openapi.document(self._router.routes))
                self._pages[path] = Reply(code=200, body=body)
            else:
                page = openapi.page(self._router.routes).encode()
                policy = (("Content-Security-Policy", openapi.PAGE_POLICY),)
                self._pages[path] = Reply(
                    code=200, body=page, content_type="text/html; charset=utf-8", headers=policy
                )
        return self._pages[path]


def _leader_for(route: Route, context: Context) -> str | None:
    """The node that has to do it instead of this one."""
    if not route.is_leaders or context.forwarding is None:
        return None
    return context.forwarding.leader()


def _call(request: Request, admitted: _Admitted, principal: Principal, context: Context) -> Call:
    return Call(
        context=context,
        principal=principal,
        request=request,
        names=admitted.names,
        params=admitted.params,
    )


def _token_of(request: Request) -> str:
    """Raises: Unauthorized."""
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and text.strip():
        return text.strip()
    if key := request.headers.get("x-api-key", "").strip():
        return key
    raise Unauthorized("no token: send `Authorization: Bearer …`; `kudurru token create` makes one")


def _check_no_body(request: Request) -> None:
    """It would be held in memory for nothing. Raises: BadRequest."""
    if request.has_body:
        raise BadRequest("request", [Cause("body", "this path takes none with this method")])


def _check_no_secret(request: Request) -> None:
    """A URL is in logs, histories and Referer headers. Raises: BadRequest, which does not repeat
    it."""
    if not request.query:
        return
    for pair in request.query.split("&"):
        name = unquoted(pair.partition("=")[0], "query").lower()
        if name in SECRETS_IN_URLS:
            fault = "a token in a URL: it counts as told to everybody, so revoke it; send a header"
            raise BadRequest("query", [Cause(name, fault)])


def _refusal(code: int, reason: str, message: str) -> Reply:
    status = Status(status="Failure", reason=reason, code=code, message=message)
    return Reply(code=code, body=encoded(status))


def _is_of_neighbour(origin: str, host: str) -> bool:
    """Whether a page comes from the host that is asked, and from another program there. A port
    that is left out, and one that a proxy in front leaves out, is that of the scheme."""
    page, asked = urlsplit(origin), urlsplit(f"//{host}")
    usual = {"http": 80, "https": 443}.get(page.scheme)
    return page.hostname == asked.hostname and (page.port or usual) != (asked.port or usual)


@lru_cache(256)  # clients have few names for us, and most send the same one again and again
def _host_of(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for one that is none
        return parts.hostname  # lower-case, without port and brackets
    except ValueError:
        return None
