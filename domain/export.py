"""The log in the formats of others, and in one that proves itself.

JSON Lines is that one: a first line that says what the file is, a line an event with everything
that was hashed, a last line with the signed checkpoint. Entry, body and who stand in it as the
very octets that were hashed, which are JSON already: what a person reads is what is verified. A
selection carries with each event the proof that it is in the log; that nothing is missing between
them no such file can show. `entrypoints/verify_export.py` reads it with nothing but Python.

The other formats are for tools that know them, and prove nothing.
"""

import csv
import io
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from kudurru.domain.codec import canonical
from kudurru.domain.events import (
    OBJECT_APPLIED,
    OBJECT_DELETED,
    OBJECT_STATUS,
    OBJECT_TYPES,
    Recorded,
    Who,
)
from kudurru.domain.object_store import resource_version
from kudurru.domain.objects import ref_of
from kudurru.domain.ports import LogRow, StoredCheckpoint

EXPORT_VERSION = 1
OCSF_VERSION = "1.6.0"

Filter = dict[str, str]
"""What a selection was made by: option to value."""


# --- JSON Lines, verifiable -------------------------------------------------------------------


def first_line(
    origin: str,
    size: int,
    selection: Filter,
    adoptions: Iterable[str],
    began: str = "",
) -> bytes:
    """`size` events are in the log; `adoptions` are the notes that its keys were adopted by.
    `began` is the origin that the chain began with, another where the log went on from a backup."""
    document = {
        "kudurru": "export",
        "version": EXPORT_VERSION,
        "origin": origin,
        "size": size,
        "filter": selection or None,
        "keys": list(adoptions),
    }
    if began not in ("", origin):
        document["began"] = began
    return canonical(document) + b"\n"


def event_line(row: LogRow, proof: Sequence[bytes] | None = None) -> bytes:
    """One event. By itself with `proof`, its audit path to the root of the checkpoint at the end;
    else with its place in the chain."""
    parts = [
        *_raw("entry", row.entry),
        b'"salt":' + _hex(row.salt),
        *_raw("body", row.body),
        b'"whoSalt":' + _hex(row.who_salt),
        *_raw("who", row.who),
        b'"leaf":' + _hex(row.leaf),
    ]
    if proof is None:
        parts.append(b'"head":' + _hex(row.head))
    else:
        parts.append(b'"proof":[' + b",".join(map(_hex, proof)) + b"]")
    return b"{" + b",".join(parts) + b"}\n"


def last_line(checkpoint: StoredCheckpoint, events: int) -> bytes:
    return canonical({"checkpoint": checkpoint.note, "events": events}) + b"\n"


def _hex(octets: bytes | None) -> bytes:
    return b"null" if octets is None else b'"' + octets.hex().encode() + b'"'


def _raw(name: str, octets: bytes | None) -> list[bytes]:
    """A field with the octets as they are; in base64 where they are not one line of JSON, as
    streams of the eventsourcing library's own may be, or would read as erased."""
    if octets is None:
        return [b'"%s":null' % name.encode()]
    if octets != b"null" and b"\n" not in octets and b"\r" not in octets:
        try:
            msgspec.json.decode(octets)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
        else:
            return [b'"%s":' % name.encode() + octets]
    return [b'"%sBase64":"%s"' % (name.encode(), b64encode(octets))]


# --- formats of others ------------------------------------------------------------------------


class Exported(msgspec.Struct, frozen=True):
    """An event taken apart, for formats that have fields of their own."""

    event: Recorded
    who: Who
    kind: str
    namespace: str
    name: str
    verb: str
    body: dict[str, Any] | None  # None: erased, or no JSON object

    @property
    def time(self) -> str:
        """RFC 3339, microseconds."""
        moment = datetime.fromtimestamp(self.event.ts / 1_000_000, UTC)
        return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def exported(event: Recorded) -> Exported:
    who = Who(actor="(erased)")
    if event.who is not None:
        who = msgspec.json.decode(event.who, type=Who)
    kind, _, rest = event.key.partition("/")
    namespace, name = "", rest
    if rest.count("/") == 1:
        ref = ref_of(event.key)
        namespace, name = ref.namespace, ref.name
    body = _body(event)
    return Exported(event, who, kind, namespace, name, _verb(event, body), body)


def _body(event: Recorded) -> dict[str, Any] | None:
    if event.body is None:
        return None
    try:
        body = msgspec.json.decode(event.body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return body if isinstance(body, dict) else None


def _verb(event: Recorded, body: dict[str, Any] | None) -> str:
    """As Kubernetes has them. Generation 1 at the first version of an object's life is its
    creation; what was erased counts as a change."""
    if event.type == OBJECT_DELETED:
        return "delete"
    if event.type == OBJECT_APPLIED and body is not None and body.get("generation") == 1:
        return "create" if event.ver == 1 else "update"
    return "update" if event.type in OBJECT_TYPES else "record"


def to_kubernetes(origin: str, one: Exported) -> dict[str, Any]:
    """`audit.k8s.io/v1` Event, level RequestResponse, stage ResponseComplete."""
    event = one.event
    resource = one.kind.lower() + "s"
    where = f"/namespaces/{one.namespace}" if one.namespace else ""
    status = "/status" if event.type == OBJECT_STATUS else ""
    reference = {
        "resource": resource,
        "namespace": one.namespace,
        "name": one.name,
        "apiGroup": "kudurru.io",
        "apiVersion": "v1alpha1",
        "resourceVersion": resource_version(int(origin.rpartition("/")[2]), event.seq),
        "subresource": status.removeprefix("/"),
    }
    document: dict[str, Any] = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "RequestResponse",
        "auditID": f"{origin}/{event.seq}",
        "stage": "ResponseComplete",
        "requestURI": f"/apis/kudurru.io/v1alpha1{where}/{resource}/{one.name}{status}",
        "verb": one.verb,
        "user": {"username": one.who.actor},
        "userAgent": event.manager,
        "objectRef": {name: value for name, value in reference.items() if value},
        "responseStatus": {"metadata": {}, "code": 200},
        "requestReceivedTimestamp": one.time,
        "stageTimestamp": one.time,
        "annotations": {f"kudurru.io/{name}": text for name, text in _facts(one).items()},
    }
    if one.body is not None:
        document["responseObject"] = one.body
    return document


def to_cloudevent(origin: str, one: Exported) -> dict[str, Any]:
    """CloudEvents 1.0, structured mode; `sequence` is its extension of that name."""
    event = one.event
    return {
        "specversion": "1.0",
        "id": str(event.seq),
        "source": origin,
        "type": f"io.kudurru.{event.type}",
        "subject": str(event.key),
        "time": one.time,
        "sequence": f"{event.seq:020d}",
        "datacontenttype": "application/json",
        "data": {
            "manager": event.manager,
            "scope": event.scope,
            "transaction": event.txn,
            "version": event.ver,
            "who": msgspec.to_builtins(one.who),
            "body": one.body,
        },
    }


_OCSF_ACTIVITIES = {"create": 1, "update": 3, "delete": 4}
_OCSF_API_ACTIVITY = 6003


def to_ocsf(origin: str, one: Exported) -> dict[str, Any]:
    """OCSF API Activity."""
    event = one.event
    activity = _OCSF_ACTIVITIES.get(one.verb, 99)
    document: dict[str, Any] = {
        "class_uid": _OCSF_API_ACTIVITY,
        "class_name": "API Activity",
        "category_uid": 6,
        "category_name": "Application Activity",
        "activity_id": activity,
        "activity_name": {1: "Create", 3: "Update", 4: "Delete"}.get(activity, one.verb),
        "type_uid": _OCSF_API_ACTIVITY * 100 + activity,
        "time": event.ts // 1_000,
        "severity_id": 1,
        "severity": "Informational",
        "status_id": 1,
        "status": "Success",
        "metadata": {
            "version": OCSF_VERSION,
            "product": {"name": "kudurru", "vendor_name": "kudurru"},
            "uid": f"{origin}/{event.seq}",
            "log_name": origin,
            "sequence": event.seq,
        },
        "actor": {"user": {"name": one.who.actor}},
        "api": {"operation": event.type, "service": {"name": "kudurru"}},
        "src_endpoint": {"name": one.who.source or "unknown"},
        "resources": [{"type": one.kind, "name": one.name, "namespace": one.namespace}],
        "unmapped": {**_facts(one), "body": one.body},
    }
    if one.who.reason:
        document["message"] = one.who.reason
    return document


def _facts(one: Exported) -> dict[str, str]:
    facts = {
        "seq": str(one.event.seq),
        "transaction": str(one.event.txn),
        "type": one.event.type,
        "scope": one.event.scope,
        "source": one.who.source,
        "reason": one.who.reason,
        "cause": one.who.cause,
    }
    return {name: text for name, text in facts.items() if text}


COLUMNS = (
    "seq",
    "transaction",
    "time",
    "verb",
    "type",
    "kind",
    "namespace",
    "name",
    "zone",
    "version",
    "manager",
    "actor",
    "source",
    "reason",
    "cause",
    "body",
)


def to_row(one: Exported) -> dict[str, Any]:
    """A row of a table, fields in the order of COLUMNS."""
    event, who = one.event, one.who
    body = None if event.body is None else event.body.decode(errors="replace")
    values = (
        event.seq,
        event.txn,
        one.time,
        one.verb,
        event.type,
        one.kind,
        one.namespace,
        one.name,
        event.scope.partition("/")[2],
        event.ver,
        event.manager,
        who.actor,
        who.source,
        who.reason,
        who.cause,
        body,
    )
    return dict(zip(COLUMNS, values, strict=True))


Convert = Callable[[str, Exported], dict[str, Any]]

JSON_FORMATS: dict[str, Convert] = {
    "k8s": to_kubernetes,
    "cloudevents": to_cloudevent,
    "ocsf": to_ocsf,
}


def csv_line(cells: Iterable[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([_cell(cell) for cell in cells])
    return text.getvalue().encode()


def _cell(cell: Any) -> Any:
    """Text that a spreadsheet would take for a formula is quoted as text."""
    if isinstance(cell, str) and cell.lstrip().startswith(_FORMULA_BEGINS):
        return "'" + cell
    return cell


_FORMULA_BEGINS = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # and as wide as ideographs
