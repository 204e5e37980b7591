"""What people ask about filtering: explanations and pauses, over a node."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from kudurru.domain.dns import names, record_types
from kudurru.domain.errors import Cause, Invalid, NotFound
from kudurru.domain.events import Who
from kudurru.domain.filtering import pauses
from kudurru.domain.filtering.clients import Caller, caller_from, mac_from_text, packed_address
from kudurru.domain.filtering.decision import EVERYONE
from kudurru.domain.filtering.explain import By, Explanation, explain
from kudurru.domain.filtering.policies import full_name
from kudurru.domain.kinds.meta import DEFAULT_NAMESPACE
from kudurru.domain.kinds.registry import CLIENT_GROUP, POLICY
from kudurru.domain.objects import ObjectRef
from kudurru.domain.ports import Neighbours
from kudurru.entrypoints.service import because
from kudurru.entrypoints.wiring import Change, Node

if TYPE_CHECKING:
    from kudurru.projections.pipeline.resolver import Way


class Onward(Protocol):
    """Where a server sends what neither zones nor policies answer."""

    def admits(self, client: str) -> bool:
        """Whether a client may ask what no zone here holds."""
        ...

    def way_of(
        self, key: names.Name, rtype: int, client: str, upstreams: Sequence[str]
    ) -> "tuple[Way, Sequence[str]]":
        """What becomes of a question of a client whose policy names these upstreams, and who is
        asked."""
        ...


_BY: "dict[Way, By]" = {
    "forward": "resolver", "special": "special", "nobody": "nobody", "not-allowed": "nobody",
}  # fmt: skip
_REFUSALS: "dict[Way, str]" = {
    "nobody": "there are no upstreams to ask",
    "not-allowed": "the client may not recurse, see acl.recursion",
}


class ExplainRequest(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    type: str = "A"
    client: str = "127.0.0.1"
    mac: str = ""  # empty: as the neighbour table has it
    client_id: str = ""
    listener: str = "udp"


class BlockingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Pause or resume. `group` is `[namespace/]name`, empty: everybody."""

    blocks: bool
    group: str = ""
    for_s: int | None = None  # of a pause; None: until it is resumed
    reason: str = ""


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    group: str  # empty: everybody
    until: int | None  # unix time; None: until it is resumed


class BlockingState(msgspec.Struct, frozen=True, kw_only=True):
    pauses: list[Pause]
    policies: int
    diagnoses: list[str]


def read_explanation(
    node: Node,
    request: ExplainRequest,
    neighbours: Neighbours,
    onward: Onward,
    *,
    now_us: int | None = None,
) -> Explanation:
    """Raises Invalid with all that is wrong with the request."""
    qname, rtype, caller = _parsed(request, neighbours)
    now_s = (node.clock.now_us() if now_us is None else now_us) // 1_000_000
    filters = node.views.policies.filters
    zones = node.zones.served
    found = explain(zones, filters, caller, qname, rtype, now_s)
    if found.answered_by == "policy" and not onward.admits(caller.text):
        refusal = _REFUSALS["not-allowed"]
        return msgspec.structs.replace(found, answered_by="nobody", refusal=refusal, upstreams=())
    if found.answered_by != "resolver":
        return msgspec.structs.replace(found, upstreams=())
    key = names.key(qname)
    way, upstreams = onward.way_of(key, rtype, caller.text, found.upstreams)
    return msgspec.structs.replace(
        found, answered_by=_BY[way], refusal=_REFUSALS.get(way, ""), upstreams=upstreams
    )


def _parsed(request: ExplainRequest, neighbours: Neighbours) -> tuple[names.Name, int, Caller]:
    causes = []
    qname, rtype = names.ROOT, 0
    caller = Caller(bytes(4))
    try:
        qname = names.from_text(request.name)
    except names.BadName as error:
        causes.append(Cause("NAME", str(error)))
    try:
        rtype = record_types.type_from_text(request.type)
    except record_types.BadRecord as error:
        causes.append(Cause("TYPE", str(error)))
    try:
        caller = caller_from(
            request.client,
            mac=mac_from_text(request.mac),
            client_id=request.client_id,
            listener=request.listener,
        )
    except ValueError as error:
        causes.append(Cause("client", str(error)))
    if causes:
        raise Invalid("explain", causes)
    if not caller.mac:
        caller = msgspec.structs.replace(caller, mac=neighbours.mac_of(caller.address))
    return qname, rtype, caller


def checked_client(address: str) -> str:
    """Raises Invalid for a text that is no address."""
    try:
        packed_address(address)
    except ValueError as error:
        raise Invalid("client", [Cause("", str(error))]) from None
    return address


def to_blocking(node: Node, request: BlockingRequest, who: Who) -> Change:
    """The change that pauses or resumes. Raises NotFound for a group that is not there."""
    group = full_name(request.group, DEFAULT_NAMESPACE) if request.group else EVERYONE
    policies = node.views.policies
    if group and not policies.has_group(group) and group not in policies.pauses:
        raise NotFound(f"there is no ClientGroup {group}; see `kudurru get cg -A`")
    version = node.objects.version(pauses.stream_of(group))
    if request.blocks:
        command = pauses.resume_command(group, version)
    else:
        now_s = node.clock.now_us() // 1_000_000
        command = pauses.pause_command(group, version, now_s, request.for_s)
    return Change(commands=(command,), who=because(who, request.reason))


def read_blocking(node: Node, sees: Callable[[ObjectRef], bool] = lambda _: True) -> BlockingState:
    """What is said of groups and policies that `sees`, and of everybody."""
    view = node.views.policies
    now_s = node.clock.now_us() // 1_000_000
    held = {g: until for g, until in view.pauses.items() if until is None or until > now_s}
    return BlockingState(
        pauses=[
            Pause(group=group, until=until)
            for group, until in sorted(held.items())
            if group == EVERYONE or sees(_ref(CLIENT_GROUP.name, group))
        ],
        policies=sum(sees(_ref(POLICY.name, policy.name)) for policy in view.filters.policies),
        diagnoses=[
            f"{d.object}: {d.reason}: {d.message}" for d in view.diagnoses() if sees(d.object)
        ],
    )


def _ref(kind: str, name: str) -> ObjectRef:
    """Of `namespace/name`."""
    return ObjectRef(kind, *name.split("/", 1))
