"""Tokens, keys and the node itself, over HTTP."""

from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import msgspec

from kudurru import __version__
from kudurru.adapters.http_api import Reply
from kudurru.adapters.http_ops import Response
from kudurru.domain.access import RIGHTS
from kudurru.domain.errors import Cause, Invalid
from kudurru.entrypoints.doctor_report import Report
from kudurru.entrypoints.keyring import KeyRequest, KeyState
from kudurru.entrypoints.live_settings import PatchReply, PatchRequest
from kudurru.entrypoints.messages import Messages, read_messages
from kudurru.entrypoints.rest.calls import JSON, MERGE_PATCH, Call, Param
from kudurru.entrypoints.rest.naming import settled
from kudurru.entrypoints.rest.routes import Route
from kudurru.entrypoints.rest.status import Status, encoded, success
from kudurru.entrypoints.service import because, read_info
from kudurru.entrypoints.tokens import NewToken, TokenRequest, TokenState

_REASON = Param("reason", "text", "Why; kept in the log.")


class KeyBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A TSIG key to make, or to give its secret again. `secret` is in base64."""

    name: str
    secret: str
    algorithm: str = "hmac-sha256"
    updates: list[dict[str, Any]] = []
    replace: bool = False
    reason: str = ""

    def __repr__(self) -> str:
        return f"KeyBody({self.name!r})"


class SettingRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A setting, and where its value came from. `running` is what runs until the restart."""

    key: str
    value: Any
    source: str
    changes: str  # "at once" or "at restart"
    scope: str
    running: Any = None


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a node is and holds, and who asks."""

    version: str
    log_id: str
    position: int
    digests: dict[str, str]
    token: str
    role: str
    rights: list[str]  # of the token, over something
    namespaces: list[str]
    zones: list[str]


def routes() -> Iterator[Route]:
    yield Route(
        method="GET", path="/info", right="info", handler=info, tag="node",
        about="What this node is, and who you are to it.", reply=NodeInfo,
        params=(Param("digests", "switch", "With digests of every view; takes long."),),
    )  # fmt: skip
    yield Route(
        method="GET", path="/info/messages", right="messages", handler=messages, tag="node",
        about="What is wrong with objects now, or is switched off.", reply=Messages,
    )  # fmt: skip
    yield Route(
        method="GET", path="/doctor", right="doctor", handler=doctor, tag="node",
        about="What is right and wrong with this node, and what to do.", reply=Report,
    )  # fmt: skip
    yield Route(
        method="GET", path="/settings", right="settings.read", handler=settings, tag="node",
        about="Every setting, its value, and where that came from.", reply=list[SettingRow],
    )  # fmt: skip
    yield Route(
        method="PATCH", path="/settings", right="settings.write", handler=patch_settings,
        about="Change settings, by their dotted paths; null takes back what was set this way.",
        tag="node", params=(_REASON,), body={"type": "object"}, body_types=(JSON, MERGE_PATCH),
        reply=PatchReply,
        is_leaders=True,
    )  # fmt: skip
    yield Route(
        method="GET", path="/node/config", right="settings.read", handler=node_config, tag="node",
        about="The settings that belong to this node alone.", reply=list[SettingRow],
    )  # fmt: skip
    yield Route(
        method="GET", path="/tokens", right="tokens", handler=list_tokens, tag="tokens",
        about="Tokens, without what they are.", reply=list[TokenState],
    )  # fmt: skip
    yield Route(
        method="POST", path="/tokens", right="tokens.create", handler=create_token, tag="tokens",
        about="Make a token. It is in the answer, and nowhere else.", body=TokenRequest,
        reply=NewToken, code=201,
        is_leaders=True,
    )  # fmt: skip
    yield Route(
        method="DELETE", path="/tokens/{name}", right="tokens", handler=revoke_token,
        tag="tokens", about="Take a token away.", params=(_REASON,), reply=Status,
        is_leaders=True,
    )  # fmt: skip
    yield Route(
        method="GET", path="/tsigkeys", right="keys", handler=list_keys, tag="TSIG keys",
        about="TSIG keys, without their secrets.", reply=list[KeyState],
    )  # fmt: skip
    yield Route(
        method="POST", path="/tsigkeys", right="keys", handler=create_key, tag="TSIG keys",
        about="Make a TSIG key, or give one its secret again.", body=KeyBody, reply=KeyState,
        code=201,
        is_leaders=True,
    )  # fmt: skip
    yield Route(
        method="DELETE", path="/tsigkeys/{name}", right="keys", handler=revoke_key,
        tag="TSIG keys", about="Take a TSIG key away, secret and all.", params=(_REASON,),
        reply=Status,
        is_leaders=True,
    )  # fmt: skip


async def settings(call: Call) -> Any:
    return await call.context.operate("settings", None, call.who)


async def node_config(call: Call) -> Any:
    rows = await call.context.operate("settings", None, call.who)
    return [row for row in rows if row["scope"] == "node"]


async def patch_settings(call: Call) -> Any:
    changes = call.document(JSON, MERGE_PATCH)
    if not isinstance(changes, dict) or not changes:
        fault = 'keys and values, such as {"cache.maxEntries": 1000}; null takes a key back'
        raise Invalid("settings", [Cause("", fault)])
    request = msgspec.to_builtins(PatchRequest(set=changes, reason=call.text("reason")))
    return await call.context.operate("settings-patch", request, call.who)


async def doctor(call: Call) -> Any:
    return await call.context.operate("doctor", call.principal.rights.role, call.who)


async def info(call: Call) -> NodeInfo:
    rights = call.principal.rights
    found = read_info(call.context.node, __version__, digests=call.has("digests"))
    return NodeInfo(
        version=found.version,
        log_id=found.log_id,
        position=found.position,
        digests=found.digests,
        token=call.principal.name,
        role=rights.role,
        rights=sorted(right for right in RIGHTS[rights.role] if rights.may(right)),
        namespaces=list(rights.namespaces),
        zones=list(rights.zones),
    )


async def messages(call: Call) -> Messages:
    await settled(call)
    return read_messages(call.context.node)


async def list_tokens(call: Call) -> list[TokenState]:
    return call.context.tokens.states()


async def create_token(call: Call) -> Response:
    wanted = call.body(TokenRequest)
    context = call.context
    change, new = context.tokens.creation(wanted, because(call.who, wanted.reason), context.entropy)
    await context.writer.submit(change)
    context.on_token()
    return Response(201, encoded(new))


async def revoke_token(call: Call) -> Status:
    name = call.names["name"]
    context = call.context
    who = because(call.who, call.text("reason"))
    result = await context.writer.submit(context.tokens.revocation(name, who))
    context.on_token()
    return success(f"token {name} is revoked", position=result.seq)


async def list_keys(call: Call) -> Any:
    return await call.context.operate("key-states", None, call.who)


async def create_key(call: Call) -> Response:
    wanted = call.body(KeyBody)
    try:
        secret = b64decode(wanted.secret, validate=True)
    except ValueError:
        raise Invalid("tsig create", [Cause("secret", "no base64")]) from None
    request = KeyRequest(
        name=wanted.name,
        algorithm=wanted.algorithm,
        secret=secret,
        updates=wanted.updates,
        replace=wanted.replace,
        reason=wanted.reason,
    )
    done = await call.context.operate("create-key", msgspec.to_builtins(request), call.who)
    states = await call.context.operate("key-states", None, call.who)
    name = wanted.name.lower().removesuffix(".")
    state = next(one for one in states if one["name"] == name)
    at = (("X-Kudurru-Position", str(done["seq"])),)
    return Reply(code=201, body=encoded(state), headers=at)


async def revoke_key(call: Call) -> Status:
    name = call.names["name"]
    argument = [name, call.text("reason")]
    done = await call.context.operate("revoke-key", argument, call.who)
    return success(f"key {name} is revoked", position=done["seq"])
