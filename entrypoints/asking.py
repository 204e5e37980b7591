"""Questions that people ask of a node, and answers as they and programs read them."""

from typing import TYPE_CHECKING, Any

from kudurru.domain.dns import names, record_types, records
from kudurru.domain.dns.lookup import RCODE_NAMES
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.notation import time_text
from kudurru.domain.query_log import NO_RCODE

if TYPE_CHECKING:
    from kudurru.adapters.query_log.reader import Logged


def query_packet(name: str, rtype: str, *, dnssec: bool) -> bytes:
    """Raises: Invalid with all that is wrong."""
    causes = []
    owner, number = names.ROOT, 0
    try:
        owner = names.from_text(name)
    except names.BadName as error:
        causes.append(Cause("NAME", str(error)))
    try:
        number = record_types.type_from_text(rtype)
    except record_types.BadRecord as error:
        causes.append(Cause("TYPE", str(error)))
    if causes:
        raise Invalid("query", causes)
    # No ID: nothing crosses a network. EDNS with the largest buffer: no answer is cut.
    opt = b"\x00\x00\x29\xff\xff\x00\x00" + (b"\x80\x00" if dnssec else b"\x00\x00") + b"\x00\x00"
    head = b"\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x01"
    return head + owner + number.to_bytes(2, "big") + b"\x00\x01" + opt


def answer_document(wire: bytes) -> dict[str, Any]:
    """The answer as builtins with stable keys."""
    import dns.flags
    import dns.message
    import dns.rcode

    message = dns.message.from_wire(wire)
    question = message.question[0]
    return {
        "question": {
            "name": names.to_text(question.name.to_wire() or b"\x00"),
            "type": record_types.type_to_text(question.rdtype),
        },
        "rcode": dns.rcode.to_text(message.rcode()),
        "flags": dns.flags.to_text(message.flags).lower().split(),
        "answer": _records(message.answer),
        "authority": _records(message.authority),
        "additional": _records(message.additional),
        "ede": [
            {"code": int(option.code), "text": option.text or ""}
            for option in message.options
            if hasattr(option, "text") and hasattr(option, "code")
        ],
    }


def _records(section: Any) -> list[dict[str, Any]]:
    return [
        {
            "name": names.to_text(rrset.name.to_wire()),
            "ttl": rrset.ttl,
            "type": record_types.type_to_text(rrset.rdtype),
            "data": records.rdata_to_text(rrset.rdtype, rdata.to_wire()),
        }
        for rrset in section
        for rdata in rrset
    ]


def logged_document(one: "Logged") -> dict[str, Any]:
    """A query as programs see it."""
    rcode = "none" if one.rcode == NO_RCODE else RCODE_NAMES.get(one.rcode, f"RCODE{one.rcode}")
    return {
        "id": one.id,
        "time": time_text(one.ts_us),
        "client": one.client,
        "name": one.name,
        "type": record_types.type_to_text(one.type),
        "proto": one.proto,
        "rcode": rcode,
        "source": one.source,
        "reason": one.reason,
        "policy": one.policy,
        "list": one.list,
        "rule": one.rule,
        "upstream": one.upstream,
        "durationMs": one.duration_us / 1000,
        "count": one.count,
    }
