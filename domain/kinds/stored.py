"""Specs as the log holds them.

What was accepted once is read for ever, whatever the rules have become since: a bound that is
tighter today, or a field that is gone, must not end a replay. So a stored spec that today's type
refuses is read by its shape alone: known fields, their values as they are.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from kudurru.domain.kinds.recordset import DNSRecordSetSpec
from kudurru.domain.kinds.zone import DNSZoneSpec

T = TypeVar("T", bound=msgspec.Struct)
Stored = bytes | msgspec.Raw


def reader_of(spec: type[T]) -> Callable[[Stored], T]:
    """What reads the stored specs of a kind. It raises TypeError where a field is missing that has
    no default: fields that a spec gains have one."""
    strict = msgspec.json.Decoder(spec)
    shape = inspect.type_info(spec)

    def read(stored: Stored) -> T:
        try:
            return strict.decode(stored)
        except msgspec.ValidationError:
            found: T = _shaped(shape, msgspec.json.decode(stored))
            return found

    return read


def _shaped(shape: inspect.Type, value: Any) -> Any:
    match shape:
        case inspect.StructType() if isinstance(value, dict):
            known = [field for field in shape.fields if field.encode_name in value]
            return shape.cls(**{f.name: _shaped(f.type, value[f.encode_name]) for f in known})
        case inspect.ListType() if isinstance(value, list):
            return [_shaped(shape.item_type, item) for item in value]
        case inspect.DictType() if isinstance(value, dict):
            return {key: _shaped(shape.value_type, item) for key, item in value.items()}
        case inspect.UnionType() if isinstance(value, dict | list):
            return next((_shaped(one, value) for one in shape.types if _suits(one, value)), value)
        case _:
            return value


def _suits(shape: inspect.Type, value: Any) -> bool:
    is_struct = isinstance(shape, inspect.StructType | inspect.DictType)
    return is_struct if isinstance(value, dict) else isinstance(shape, inspect.ListType)


read_zone = reader_of(DNSZoneSpec)
read_record_set = reader_of(DNSRecordSetSpec)


class _RecordSetBody(msgspec.Struct, frozen=True, rename="camel"):
    """What zones need of the payload of a DNSRecordSet."""

    creation_timestamp: str
    spec: DNSRecordSetSpec


class _OlderBody(msgspec.Struct, frozen=True, rename="camel"):
    """The same, of a spec that may be refused today."""

    creation_timestamp: str
    spec: msgspec.Raw


_decode_set_body = msgspec.json.Decoder(_RecordSetBody).decode
_decode_older_body = msgspec.json.Decoder(_OlderBody).decode


def read_record_set_body(body: bytes) -> tuple[str, DNSRecordSetSpec]:
    """When a record set was made, and its spec, of the payload of an obj.applied.v1."""
    try:
        found = _decode_set_body(body)
    except msgspec.ValidationError:
        older = _decode_older_body(body)
        return older.creation_timestamp, read_record_set(older.spec)
    return found.creation_timestamp, found.spec
