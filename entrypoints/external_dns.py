"""The webhook provider of external-dns: its requests over HTTP. Decision 0041 says where it stands.

The protocol has no authentication, so who may ask is told by address; browsers are refused. Only
5xx is tried again by external-dns, so what a later try may cure is answered so.
"""

import ipaddress
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from kudurru.adapters.http_api import ApiLimits, ApiServer, Application, Reply, Request
from kudurru.adapters.http_ops import LOOPBACK, Response, failure
from kudurru.adapters.metrics import Sample
from kudurru.adapters.sockets import Bound
from kudurru.domain.dns.names import to_text
from kudurru.domain.errors import Busy, Cause, Conflict, KudurruError, MassChange
from kudurru.domain.events import Who
from kudurru.domain.settings import ExternalDnsSettings
from kudurru.entrypoints.rest.calls import (
    OBJECTS_VALUES_MAX,
    check_not_packed,
    converted,
    read_json,
)
from kudurru.entrypoints.rest.status import BadRequest, WrongType, encoded, reply_to
from kudurru.entrypoints.steps import unhurried
from kudurru.entrypoints.wiring import Change, Node
from kudurru.entrypoints.writer import Writer
from kudurru.projections.external_dns import (
    MANAGER,
    Changes,
    Terms,
    command_steps,
    endpoint_steps,
    filters,
    unowned,
)

log = logging.getLogger("kudurru")

MEDIA_TYPE = "application/external.dns.webhook+json;version=1"
"""In exactly this spelling: external-dns compares it as text."""

SHOWN_MAX = 3

TRIES = 5
"""As `Store.apply` gives up: somebody else writes the same objects all the time."""

_METHODS = {
    "/": ("GET",), "/records": ("GET", "POST"), "/adjustendpoints": ("POST",), "/healthz": ("GET",)
}  # fmt: skip


class ExternalDns(Application):
    """Implements `adapters.http_api.Application`."""

    def __init__(
        self,
        settings: ExternalDnsSettings,
        node: Node,
        writer: Writer,
        is_synced: Callable[[], bool],
        names: Iterable[str] = (),
    ) -> None:
        """`names`: by which the listener may be asked, beside its addresses."""
        self._settings = settings
        self._node = node
        self._writer = writer
        self._is_synced = is_synced
        self._names = LOOPBACK | {name.lower() for name in names}
        self._terms = Terms(
            namespace=settings.namespace,
            domains=tuple(settings.domains),
            deletes=settings.policy == "sync",
        )
        self._left_out: list[str] = []
        self._asked: Counter[tuple[str, str]] = Counter()  # by path and code

    def server(self, bound: Bound, body_bytes: int) -> ApiServer:
        return ApiServer(self, bound.sockets, limits=ApiLimits(body_bytes=body_bytes))

    def samples(self) -> Iterable[Sample]:
        for labels, count in self._asked.items():
            yield Sample("external_dns_requests_total", labels, count)

    def admit(self, request: Request) -> Response | None:
        refused = self._refused(request)
        return self._counted(request, refused) if refused is not None else None

    def _refused(self, request: Request) -> Response | None:
        allowed = _METHODS.get(request.path)
        if not self._may_ask(request):
            return failure(403, "your address is not among externalDNS.clients")
        if not self._is_no_browser(request):
            return failure(403, "asked by a browser, or by a name that is not in api.names")
        if allowed is None:
            return failure(404, f"there are {', '.join(_METHODS)}, and nothing else")
        if request.method not in allowed:
            answer = failure(405, f"this path takes {', '.join(allowed)}")
            return Reply(code=405, body=answer.body, headers=(("Allow", ", ".join(allowed)),))
        if request.method == "POST":
            given = request.headers.get("content-type", "")
            if not _is_ours(given):
                return reply_to(WrongType(f"a body of type {given[:200]!r}: send {MEDIA_TYPE}"))
            try:
                check_not_packed(request)
            except WrongType as error:
                return reply_to(error)
        elif request.has_body:
            return failure(400, "this path takes no body")
        accept = request.headers.get("accept", "*/*")
        if request.path != "/healthz" and not any(map(_is_acceptable, accept.split(","))):
            return failure(406, f"{accept[:200]!r} is asked for; there is {MEDIA_TYPE} only")
        return None

    def _may_ask(self, request: Request) -> bool:
        try:
            peer = ipaddress.ip_address(request.peer.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(peer, "ipv4_mapped", None) or peer
        return any(mapped in network for network in self._settings.clients)

    def _is_no_browser(self, request: Request) -> bool:
        """A page can be made to ask on loopback through a name that an attacker points here."""
        headers = request.headers
        host = headers.get("host", "").lower()
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        is_known = name in self._names or name == request.local
        return is_known and not {"origin", "sec-fetch-site"} & headers.keys()

    async def answer(self, request: Request) -> Response:
        try:
            if not self._is_synced():
                raise Busy("NotSynced: the log is being replayed")
            answer = await self._answer(request)
        except MassChange as error:
            log.warning("external-dns: %s", error)
            text = f"{error}: externalDNS.allowMassChange"
            answer = failure(409, text, reason="MassChange")
        except KudurruError as error:
            log.warning("external-dns: %s", error)
            answer = reply_to(error)
        return self._counted(request, answer)

    async def _answer(self, request: Request) -> Response:
        views = self._node.zones, self._node.objects
        match request.method, request.path:
            case _, "/healthz":
                return Response(200, b'{"status":"ok"}')
            case _, "/":
                return _ours({"filters": filters(self._node.zones, self._terms)})
            case "GET", _:
                return _ours(await unhurried(endpoint_steps(*views, self._terms)))
            case _, "/adjustendpoints":
                return _ours(_adjusted(request))
            case _:
                changes = converted(_capitals_aside(_body(request)), Changes)
                await self._carry_out(changes, request.peer)
                return Response(204, b"", MEDIA_TYPE)

    async def _carry_out(self, changes: Changes, peer: str) -> None:
        """Raises: KudurruError."""
        settings = self._settings
        self._tell_left_out(changes)
        who = Who(actor=MANAGER, source=f"webhook {peer}", reason=_summary(changes))
        for _ in range(TRIES):
            steps = command_steps(changes, self._node.zones, self._node.objects, self._terms)
            commands = await unhurried(steps)
            if settings.dry_run:
                log.info("external-dns, a dry run: %s", who.reason)
            if not commands:
                return
            change = Change(
                commands=tuple(commands),
                who=who,
                dry_run=settings.dry_run,
                allow_mass_change=settings.allow_mass_change,
            )
            try:
                await self._writer.submit(change)
            except Conflict:
                continue
            return
        raise Busy("others write the same record sets all the time; try again")

    def _tell_left_out(self, changes: Changes) -> None:
        """Once, and not each minute."""
        found = sorted(map(to_text, unowned(changes, self._node.zones, self._terms)))
        if found and found != self._left_out:
            log.warning(
                "external-dns: %s: left out, since the TXT record that says whose it is would "
                "be in no zone here; give external-dns --txt-prefix=%%{record_type}-owner.",
                ", ".join(found[:SHOWN_MAX]) + (" and more" if len(found) > SHOWN_MAX else ""),
            )
        self._left_out = found

    def overdue(self, request: Request) -> Response:
        return self._counted(
            request, failure(503, "not done in time; see with `kudurru history` what came of it")
        )

    def _counted(self, request: Request, answer: Response) -> Response:
        path = request.path if request.path in _METHODS else "other"
        self._asked[path, str(answer.code)] += 1
        return answer


def _is_ours(media_type: str) -> bool:
    return media_type.replace(" ", "").lower() == MEDIA_TYPE


def _is_acceptable(media_range: str) -> bool:
    plain = media_range.partition(";q=")[0].strip()
    return plain in ("*/*", "application/*") or _is_ours(plain)


def _ours(value: Any) -> Response:
    return Response(200, encoded(value), MEDIA_TYPE)


def _body(request: Request) -> Any:
    return read_json(request.body, OBJECTS_VALUES_MAX)


def _capitals_aside(changes: Any) -> Any:
    """Of older versions the names of the four lists begin with capitals."""
    if not isinstance(changes, dict):
        return changes
    return {name[:1].lower() + name[1:]: part for name, part in changes.items()}


def _adjusted(request: Request) -> list[dict[str, Any]]:
    """Endpoints without `providerSpecific`: what is not kept must not be wanted, or each run of
    external-dns would want to change it. Raises: Invalid."""
    given = _body(request)
    if given is None:
        return []
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise BadRequest("endpoints", [Cause("", "a list of endpoints is wanted")])
    return [{k: v for k, v in one.items() if k != "providerSpecific"} for one in given]


def _summary(changes: Changes) -> str:
    counts = {
        "create": changes.create, "update": changes.update_new, "delete": changes.delete
    }  # fmt: skip
    return ", ".join(f"{verb} {len(part)}" for verb, part in counts.items() if part) or "no change"
