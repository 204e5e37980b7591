"""What every object has: group and version, metadata, conditions, and the rules of their names."""

import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kudurru.domain.errors import Cause

GROUP = "kudurru.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

DEFAULT_NAMESPACE = "default"

MANAGED_BY = f"{GROUP}/managed-by"
ENABLED = f"{GROUP}/enabled"
COMMENT = f"{GROUP}/comment"
PEOPLES_ANNOTATIONS = (ENABLED, COMMENT)
"""Belong to people: kept by an Apply that does not name them, whoever manages the object."""
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

OBJECT_BYTES_MAX = 1 << 20
ANNOTATIONS_BYTES_MAX = 256 << 10  # as Kubernetes has it
LABEL_VALUE_MAX = 63

NOT_UNICODE = "half of a surrogate pair; write the character itself, in UTF-8"

TTL_MAX = 2**31 - 1
"""RFC 2181 section 8: a TTL is an unsigned 31-bit number of seconds."""

Ttl = Annotated[int, Meta(ge=0, le=TTL_MAX)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Text = Annotated[str, Meta(min_length=1, max_length=1024)]

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z", re.ASCII)
_SUBDOMAIN = re.compile(
    r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*\Z", re.ASCII
)
_QUALIFIED = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?\Z", re.ASCII)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?\Z", re.ASCII)

NAME_MAX = 253


class Spec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Base of what a person writes. Unknown fields are refused; defaults are not stored."""


class StrictSpec(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a spec: unknown fields are faults."""


def share_defaults(part: Spec) -> None:
    """Give fields that equal their default that very value: `omit_defaults` goes by identity, and
    a 300 that was read is another object than the default 300. For `__post_init__` of parts whose
    defaults are numbers above 256, texts or structs."""
    fields = reversed(part.__struct_fields__)
    for field, default in zip(fields, reversed(part.__struct_defaults__), strict=False):
        value = getattr(part, field)
        if value is not default and value == default:
            msgspec.structs.force_setattr(part, field, default)


class ObjectMeta(StrictSpec, frozen=True, kw_only=True):
    """Metadata as Kubernetes has it. What the store sets is ignored on the way in."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""  # RFC 3339, UTC, whole seconds
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


Reason = Literal[
    "AsExpected", "ZoneNotFound", "NotSelected", "MissingReference", "Unsupported", "Duplicated",
    "OutsideZone", "Invalid", "Disabled", "ServingFromSnapshot",
    "NotFetched", "NotTransferred", "Expired", "Unreachable", "Refused", "BadTransfer", "Behind",
    "NotAllowed",
]  # fmt: skip
"""Why an object, or a part of it, is as it is: of conditions and of problems."""


class Condition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    type: str
    status: Literal["True", "False", "Unknown"]  # Unknown: it cannot be told yet
    reason: str
    message: str = ""
    observed_generation: int = 0
    last_transition_time: str = ""  # RFC 3339, whole seconds; moves only with `status`


def is_unicode(text: str) -> bool:
    """Whether a text can be written down: not where it holds half of a surrogate pair, as octets
    that are no UTF-8 become on a command line."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_INTERFACE = re.compile(r"[A-Za-z0-9_.-]{1,15}", re.ASCII)
BAD_SCOPE = "a scope is the name of an interface, and for link-local addresses only"


def has_bad_scope(address: str) -> bool:
    """Whether a valid address has a scope (RFC 4007 section 11) that cannot name an interface, or
    has one and is not link-local. Python takes any text for a scope."""
    _, percent, scope = address.partition("%")
    return bool(percent) and not (ip_address(address).is_link_local and _INTERFACE.fullmatch(scope))


def is_dns_label(text: str) -> bool:
    """RFC 1123 label as Kubernetes has it."""
    return _LABEL.match(text) is not None


def is_dns_subdomain(text: str) -> bool:
    return len(text) <= NAME_MAX and _SUBDOMAIN.match(text) is not None


def metadata_faults(meta: ObjectMeta, *, namespaced: bool) -> Iterator[Cause]:
    if not is_dns_subdomain(meta.name):
        yield Cause(
            "metadata.name",
            f"{meta.name!r} is no RFC 1123 subdomain: lower-case letters, digits, '-' and '.', "
            f"at most {NAME_MAX} characters",
        )
    if namespaced and meta.namespace and not is_dns_label(meta.namespace):
        yield Cause(
            "metadata.namespace",
            f"{meta.namespace!r} is no RFC 1123 label: lower-case letters, digits and '-', "
            "at most 63 characters",
        )
    if not namespaced and meta.namespace:
        yield Cause("metadata.namespace", "this kind is cluster-scoped; leave the namespace out")
    if meta.labels:
        yield from _label_faults(meta.labels)
    if meta.annotations:
        yield from _annotation_faults(meta.annotations)


def _label_faults(labels: Mapping[str, str]) -> Iterator[Cause]:
    for key, value in labels.items():
        if not _is_qualified(key):
            yield Cause(f"metadata.labels[{key}]", "the key is no qualified name")
        if len(value) > LABEL_VALUE_MAX or not _LABEL_VALUE.match(value):
            yield Cause(
                f"metadata.labels[{key}]",
                f"{value!r} is no label value: at most {LABEL_VALUE_MAX} letters, digits, "
                "'-', '_' and '.', beginning and ending with a letter or digit",
            )


def _annotation_faults(annotations: Mapping[str, str]) -> Iterator[Cause]:
    size = 0
    for key, value in annotations.items():
        size += len(key) + len(value.encode("utf-8", "surrogatepass"))
        # Lower-cased as Kubernetes does; the Kelvin sign would become a "k".
        if not (key.isascii() and _is_qualified(key.lower())):
            yield Cause(f"metadata.annotations[{key}]", "the key is no qualified name")
    enabled = annotations.get(ENABLED)
    if enabled is not None and enabled.strip().lower() not in ("true", "false"):
        yield Cause(
            f"metadata.annotations[{ENABLED}]", f'{enabled!r} is neither "true" nor "false"'
        )
    if size > ANNOTATIONS_BYTES_MAX:
        yield Cause("metadata.annotations", f"{size} bytes in all; at most {ANNOTATIONS_BYTES_MAX}")


def _is_qualified(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    if slash and not is_dns_subdomain(prefix):
        return False
    return _QUALIFIED.match(name) is not None


def is_enabled(annotations: Mapping[str, str]) -> bool:
    """Whether the object counts: `kudurru.io/enabled: "false"`, any case, trimmed, switches off."""
    return annotations.get(ENABLED, "").strip().lower() != "false"
