"""What a node answers and filters, over HTTP: queries, explanations, lists, pauses, the cache, the
query log."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

from kudurru.adapters.http_ops import Response
from kudurru.adapters.query_log.reader import NotBegun, Top, Wanted, open_reader
from kudurru.domain import targets
from kudurru.domain.access import PSEUDONYMS_LEVEL
from kudurru.domain.dns import record_types
from kudurru.domain.errors import Busy, Cause, Invalid, NotFound
from kudurru.domain.filtering.explain import Explanation
from kudurru.domain.filtering.policies import full_name
from kudurru.domain.kinds.meta import DEFAULT_NAMESPACE
from kudurru.domain.kinds.registry import BLOCK_LIST
from kudurru.domain.objects import ObjectRef, key_of, ref_of
from kudurru.entrypoints import answering
from kudurru.entrypoints.asking import answer_document, logged_document, query_packet
from kudurru.entrypoints.explain_child import Question, explain_beside
from kudurru.entrypoints.filtering import (
    BlockingRequest,
    BlockingState,
    ExplainRequest,
    read_blocking,
)
from kudurru.entrypoints.list_service import ListRow
from kudurru.entrypoints.rest.calls import Call, Param
from kudurru.entrypoints.rest.naming import AT, check_names
from kudurru.entrypoints.rest.people import review
from kudurru.entrypoints.rest.routes import Route
from kudurru.entrypoints.rest.status import Status, encoded, success
from kudurru.entrypoints.service import LOOPBACK

QUERIES_MAX = 1_000
"""Queries of one page."""

DNS_MESSAGE = "application/dns-message"  # RFC 8484 section 6
_NAME = Param("name", "text", "The name that is asked for.", is_needed=True)
_TYPE = Param("type", "text", "The type; A when left out.")
_CLIENT = Param("client", "text", "Address of who asks; 127.0.0.1 when left out.")
_QUERIES = (
    Param("name", "text", "Of a name and those below it."),
    Param("client", "text", "As it is kept: an address, a network, a pseudonym."),
    Param("type", "text", "Of a type."),
    Param("source", "text", "blocked, cache, forward, …"),
    Param("policy", "text", "[namespace/]name"),
    Param("list", "text", "[namespace/]name"),
    Param("since", "text", "Not before."),
    Param("until", "text", "Before."),
    Param("after", "count", "After the query of this id; oldest first then."),
    Param("limit", "count", f"At most {QUERIES_MAX}."),
)


ZONES_ALONE = (
    "only zones are asked of the past: what policies and upstreams did then is not part of this; "
    "/explain?at= has the policies"
)


class QuestionAsked(msgspec.Struct, frozen=True):
    name: str
    type: str


class AnswerRecord(msgspec.Struct, frozen=True):
    name: str
    ttl: int
    type: str
    data: str


class ExtendedError(msgspec.Struct, frozen=True):
    """Of RFC 8914."""

    code: int
    text: str


class QueryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A DNS message, and of the past a `note` on what is no part of it."""

    question: QuestionAsked
    rcode: str
    flags: list[str]
    answer: list[AnswerRecord]
    authority: list[AnswerRecord]
    additional: list[AnswerRecord]
    ede: list[ExtendedError]
    note: str = ""


class Deleted(msgspec.Struct, frozen=True):
    deleted: int


class Refreshed(msgspec.Struct, frozen=True):
    """Lists that are fetched now, as namespace/name."""

    lists: list[str]


class Busiest(msgspec.Struct, frozen=True):
    top: list[Top]
    totals: dict[str, int]  # queries by source


class QueryPage(msgspec.Struct, frozen=True):
    items: list[dict[str, Any]]


def routes() -> Iterator[Route]:
    yield Route(
        method="GET", path="/query", right="query", handler=query, tag="answers",
        about="What a client gets for a name now, or what zones had of it back then: a `note` says"
        " so. It is not logged as a query.",
        params=(_NAME, _TYPE, _CLIENT, Param("dnssec", "switch", "Set the DO bit."), AT),
        reply=QueryAnswer,
    )  # fmt: skip
    yield Route(
        method="POST", path="/query", right="query", handler=query_wire, tag="answers",
        about="The same, with question and answer as DNS messages, which hold no note.",
        params=(_CLIENT, AT), body={"type": "string"}, body_types=(DNS_MESSAGE,),
        reply={"type": "string"}, reply_types=(DNS_MESSAGE,),
    )  # fmt: skip
    yield Route(
        method="GET", path="/explain", right="explain", handler=explain, tag="answers",
        about="Which zone, policy, list and rule decide what a client gets.",
        params=(
            _NAME, _TYPE, _CLIENT, Param("mac", "text", "Its MAC; else as this host knows it."),
            Param("clientID", "text", "Its ID over DoH, DoT or DoQ."),
            Param("listener", "text", "Where it asks; udp when left out."),
            AT,
        ),
        reply=Explanation, is_endless=True,
    )  # fmt: skip
    yield Route(
        method="GET", path="/blocking", right="explain", handler=blocking, tag="filtering",
        about="Who is paused, and what is wrong with policies.", reply=BlockingState,
    )  # fmt: skip
    yield Route(
        method="PUT", path="/blocking", right="blocking", handler=set_blocking, tag="filtering",
        about="Pause what policies deny, or resume it.", body=BlockingRequest, reply=BlockingState,
        is_leaders=True,
    )  # fmt: skip
    yield Route(
        method="GET", path="/lists", right="explain", handler=lists, tag="filtering",
        about="Subscribed lists and their sources.", reply=list[ListRow],
    )  # fmt: skip
    yield Route(
        method="POST", path="/lists:refresh", right="cache", handler=refresh_all, tag="filtering",
        about="Fetch all lists now.", reply=Refreshed, code=202,
    )  # fmt: skip
    for path in (
        f"/{BLOCK_LIST.plural}/{{namespace}}/{{name}}:refresh",
        f"/namespaces/{{namespace}}/{BLOCK_LIST.plural}/{{name}}:refresh",
    ):
        yield Route(
            method="POST", path=path, right="lists.refresh", handler=refresh, tag="filtering",
            about="Fetch a list now.", reply=Refreshed, code=202,
        )  # fmt: skip
    yield Route(
        method="GET", path="/cache", right="stats", handler=cache, tag="answers",
        about="What the cache holds.", reply=dict[str, int],
    )  # fmt: skip
    yield Route(
        method="DELETE", path="/cache", right="cache", handler=flush, tag="answers",
        about="Forget answers.", reply=Deleted,
        params=(
            Param("name", "text", "Of this name; all when left out."),
            Param("subtree", "switch", "And of those below it."),
        ),
    )  # fmt: skip
    yield Route(
        method="GET", path="/queries", right="stats", handler=queries, tag="query log",
        about="Logged queries, newest first. A viewer needs querylog.privacyLevel 2 or more,"
        " and sees what was logged with pseudonyms.",
        params=_QUERIES, reply=QueryPage,
    )  # fmt: skip
    yield Route(
        method="DELETE", path="/querylog", right="querylog.purge", handler=purge, tag="query log",
        about="Delete logged queries. Statistics by the hour stay.", reply=Deleted,
        params=(Param("before", "text", "From before a moment; all when left out."),),
    )  # fmt: skip
    yield Route(
        method="GET", path="/stats/{subject}", right="stats", handler=top, tag="query log",
        about="The busiest `domains`, `clients` or `blocked` names, by the hour.",
        params=(
            Param("since", "text", "Not before; 24h ago when left out."),
            Param("limit", "count", "How many; 10 when left out."),
        ),
        reply=Busiest,
    )  # fmt: skip
    yield Route(
        method="POST", path="/dnszones/{name}:refresh", right="objects.write", tag="dnszones",
        handler=refresh_zone, about="Ask the primaries of a secondary zone now.", reply=Status,
        code=202,
        is_leaders=True,
    )  # fmt: skip


async def query(call: Call) -> Any:
    packet = query_packet(call.text("name"), call.text("type", "A"), dnssec=call.has("dnssec"))
    if "at" in call.params:
        wire = await call.aside(partial(_answer_then, call, packet))
        return {**answer_document(wire), "note": ZONES_ALONE}
    argument = [packet, call.text("client", LOOPBACK)]
    return answer_document(await call.context.operate("query", argument, call.who))


def _answer_then(call: Call, packet: bytes) -> bytes:
    log, now_us = call.context.node.log, call.context.node.clock.now_us()
    return answering.answer_as_of(log, targets.resolve(call.text("at"), log, now_us), packet)


async def query_wire(call: Call) -> Response:
    packet = call.request.body
    if "at" in call.params:
        if len(packet) < answering.MESSAGE_MIN:
            raise Invalid("query", [Cause("", f"{len(packet)} octets are no DNS message")])
        wire = await call.aside(partial(_answer_then, call, packet))
    else:
        argument = [packet, call.text("client", LOOPBACK)]
        wire = await call.context.operate("query", argument, call.who)
    return Response(200, wire, DNS_MESSAGE)


async def explain(call: Call) -> Any:
    request = ExplainRequest(
        name=call.text("name"),
        type=call.text("type", "A"),
        client=call.text("client", LOOPBACK),
        mac=call.text("mac"),
        client_id=call.text("clientID"),
        listener=call.text("listener", "udp"),
    )
    if "at" in call.params:
        return await _explain_then(call, request)
    return await call.context.operate("explain", msgspec.to_builtins(request), call.who)


async def _explain_then(call: Call, request: ExplainRequest) -> Explanation:
    """By fetched lists as they are now, and with upstreams left open: neither is in the log."""
    context = call.context
    if context.data is None:
        raise NotFound("this log is in the memory of its server, and nobody else can read it")
    read, now_us = context.node.log, context.node.clock.now_us()
    upto = await call.aside(partial(targets.resolve, call.text("at"), read, now_us))
    if context.explaining.locked():
        raise Busy("a moment of the past is being explained for somebody else; try again")
    async with context.explaining:
        return await explain_beside(context.data, Question(request, upto))


async def blocking(call: Call) -> Any:
    rights = call.principal.rights

    def sees(ref: ObjectRef) -> bool:
        return rights.may_see(key_of(ref.kind, ref.namespace, ref.name), f"{ref.namespace}/")

    async with call.context.writer.applying:
        return read_blocking(call.context.node, sees)


async def set_blocking(call: Call) -> Any:
    request = msgspec.to_builtins(call.body(BlockingRequest))
    return await call.context.operate("set-blocking", request, call.who)


async def lists(call: Call) -> Any:
    rights = call.principal.rights
    rows = msgspec.convert(await call.context.operate("lists", None, call.who), list[ListRow])
    return [
        row
        for row in rows
        if rights.may_see(key_of(BLOCK_LIST.name, row.namespace, row.name), f"{row.namespace}/")
    ]


async def refresh_all(call: Call) -> Response:
    return await _refresh(call, [])


async def refresh(call: Call) -> Response:
    key = check_names(BLOCK_LIST, call.names)
    stored = call.context.node.objects.find(key)
    if stored is None or not call.principal.rights.may_see(key, stored.scope):
        raise NotFound(f"{ref_of(key)} does not exist")
    return await _refresh(call, [key])


async def _refresh(call: Call, keys: list[str]) -> Response:
    found = await call.context.operate("refresh-lists", keys, call.who)
    names = [f"{ref_of(key).namespace}/{ref_of(key).name}" for key in found]
    return Response(202, encoded(Refreshed(names)))


async def refresh_zone(call: Call) -> Response:
    rights, name = call.principal.rights, call.names["name"]
    key = key_of("DNSZone", "", name)
    await review(call, changed=[key])
    stored = call.context.node.objects.find(key)
    if stored is None or rights.why_not_write(key, stored.scope, stored.scope):
        raise NotFound(f"there is no zone {name!r} that this token may refresh")
    zone = await call.context.operate("refresh-zone", name, call.who)
    return Response(202, encoded(success(f"{zone}: its primaries are asked", 202)))


async def cache(call: Call) -> Any:
    return await call.context.operate("cache-stats", None, call.who)


async def flush(call: Call) -> Deleted:
    argument = {"name": call.text("name"), "subtree": call.has("subtree")}
    return Deleted(await call.context.operate("cache-flush", argument, call.who))


# --- the query log --------------------------------------------------------------------------


async def queries(call: Call) -> QueryPage:
    _check_level(call)
    page: QueryPage = await call.aside(partial(_queries, call))
    return page


def _check_level(call: Call) -> None:
    """Raises: Forbidden, where a query that is logged now names its client."""
    if call.context.settings().querylog.privacy_level < PSEUDONYMS_LEVEL:
        call.demand("querylog.read")


def _sees_pseudonyms_only(call: Call) -> bool:
    """Whatever the level is now: what was logged at a lower one is in the file as it was."""
    return not call.principal.rights.may("querylog.read")


def _queries(call: Call) -> QueryPage:
    now_us = call.context.node.clock.now_us()
    since, until = (
        targets.moment_us(call.text(word), now_us) if call.text(word) else None
        for word in ("since", "until")
    )
    wanted = Wanted(
        name=call.text("name").lower().rstrip("."),
        client=call.text("client"),
        rtype=_type(call.text("type")),
        source=call.text("source"),
        policy=_full(call.text("policy")),
        list=_full(call.text("list")),
        since_us=since,
        until_us=until,
        after=call.count("after", 0),
        pseudonyms_only=_sees_pseudonyms_only(call),
    )
    limit = min(call.count("limit", 100) or QUERIES_MAX, QUERIES_MAX)
    path = _log_of(call)
    try:
        with open_reader(path) as reader:
            found = reader.queries(wanted, limit, newest_first="after" not in call.params)
            return QueryPage([logged_document(one) for one in found])
    except NotBegun:
        return QueryPage([])


def _type(text: str) -> int | None:
    if not text:
        return None
    try:
        return record_types.type_from_text(text)
    except record_types.BadRecord as error:
        raise Invalid("query", [Cause("type", str(error))]) from None


def _full(name: str) -> str:
    return full_name(name, DEFAULT_NAMESPACE) if name else ""


def _log_of(call: Call) -> Any:
    if call.context.query_log is None:
        raise NotFound("this server keeps no query log: see querylog.enabled")
    return call.context.query_log


async def top(call: Call) -> Busiest:
    subject = call.names["subject"]
    if subject not in ("domains", "clients", "blocked"):
        raise NotFound(f"there are no statistics of {subject!r}; of domains, clients and blocked")
    if subject == "clients":
        _check_level(call)
    found: Busiest = await call.aside(partial(_top, call, subject))
    return found


def _top(call: Call, subject: Any) -> Busiest:
    now_us = call.context.node.clock.now_us()
    since_us = targets.moment_us(call.text("since", "24h ago"), now_us)
    limit = min(call.count("limit", 10) or QUERIES_MAX, QUERIES_MAX)
    path = _log_of(call)
    try:
        with open_reader(path) as reader:
            found = reader.top(
                subject, since_us, limit, pseudonyms_only=_sees_pseudonyms_only(call)
            )
            return Busiest(found, reader.totals(since_us))
    except NotBegun:
        return Busiest([], {})


async def purge(call: Call) -> Deleted:
    now_us = call.context.node.clock.now_us()
    before = call.text("before")
    before_us = targets.moment_us(before, now_us) if before else None
    deleted = await call.context.operate("purge-queries", before_us, call.who)
    call.context.access.acted("querylog.purge", call.who)
    return Deleted(deleted)
