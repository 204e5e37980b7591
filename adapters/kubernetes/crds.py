"""CustomResourceDefinitions of the kinds, made from the same structs that check objects everywhere.

What a schema can say it says: types, bounds, enumerations, and in CEL what must be together. The
rest (a record's text, whether a name is one) is checked by the program, which reports it in the
status. Defaults are left out, since the API server would write them into objects, and an object is
kept as its author wrote it.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from kudurru.domain.kinds.meta import GROUP, VERSION
from kudurru.domain.kinds.registry import KINDS, Kind

_REFERENCE = "#/$defs/{name}"

_ONE_SOURCE = ("url", "configMapRef", "inline")
_ONE_CLIENT = ("cidr", "ip", "mac", "clientID", "ipSuffix", "listener")


def crd(kind: Kind) -> dict[str, Any]:
    """The definition of one kind, as `kubectl apply` takes it."""
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": name, "type": type_, "jsonPath": path}
            for name, type_, path in (*_COLUMNS.get(kind.name, ()), _READY, _AGE)
        ],
        "schema": {"openAPIV3Schema": _schema(kind)},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "shortNames": [_SHORT.get(kind.name, kind.short)],
                "categories": ["kudurru"],
            },
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "versions": [version],
        },
    }


def crds() -> list[dict[str, Any]]:
    """Of every kind that people write. What has secrets in it is no object of Kubernetes."""
    return [crd(kind) for kind in KINDS.values() if not kind.is_internal]


_SHORT = {"DNSRecordSet": "drs"}  # "rs" is a ReplicaSet to everybody
_READY = ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status')
_AGE = ("Age", "date", ".metadata.creationTimestamp")
_COLUMNS = {
    "DNSZone": (
        ("Zone", "string", ".spec.zoneName"),
        ("Serial", "integer", ".status.serial"),
        ("Records", "integer", ".status.recordCount"),
    ),
    "DNSRecordSet": (("Zone", "string", ".spec.zoneRef.name"),),
    "BlockList": (("Entries", "integer", ".status.entries"),),
    "Policy": (("Priority", "integer", ".spec.priority"),),
}


def _schema(kind: Kind) -> dict[str, Any]:
    parts, definitions = msgspec.json.schema_components(
        [kind.spec, kind.status], ref_template=_REFERENCE
    )
    spec, status = (_structural(part, definitions) for part in parts)
    for path, rules in _RULES.get(kind.name, {}).items():
        _at(spec, path)["x-kubernetes-validations"] = [
            {"rule": rule, "message": message} for rule, message in rules
        ]
    return {
        "description": kind.about,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }


_KEPT = (
    "type", "description", "enum", "required",
    "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "pattern",
)  # fmt: skip


def _structural(part: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON Schema as the API server wants it: no references, a type everywhere. null is no
    alternative: the server drops it from what it is given."""
    if "$ref" in part:
        return _structural(definitions[part["$ref"].removeprefix("#/$defs/")], definitions)
    if "anyOf" in part:
        (only,) = (one for one in part["anyOf"] if one != {"type": "null"})
        return _structural(only, definitions)
    found = {name: part[name] for name in _KEPT if part.get(name)}
    if "minimum" in part:
        found["minimum"] = part["minimum"]  # 0 says something
    if "enum" in part:
        found |= {"type": "string", "enum": [one for one in part["enum"] if one is not None]}
    if found["type"] == "integer":
        found["format"] = "int64"
    if "items" in part:
        found["items"] = _structural(part["items"], definitions)
    if "properties" in part:
        found["properties"] = {
            name: _structural(one, definitions) for name, one in part["properties"].items()
        }
    return found


def _at(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """The part of a schema at "a.b[]", "" for all of it."""
    for name in filter(None, path.split(".")):
        schema = schema["properties"][name.removesuffix("[]")]
        if name.endswith("[]"):
            schema = schema["items"]
    return schema


def _exactly_one(fields: tuple[str, ...]) -> tuple[str, str]:
    # Arithmetic, and the bound on the array that it runs over, keep its cost in the budget.
    terms = " + ".join(f"(has(self.{field}) ? 1 : 0)" for field in fields)
    return f"{terms} == 1", f"exactly one of {', '.join(fields)}"


def _absolute(name: str) -> str:
    return f"({name}.endsWith('.') ? {name} : {name} + '.').lowerAscii()"


_TYPE = "(has(self.type) ? self.type : 'Primary')"
_MODE = "(has(self.blockMode) ? self.blockMode : '')"

_RULES: dict[str, dict[str, list[tuple[str, str]]]] = {
    "DNSZone": {
        "zoneName": [(f"{_absolute('self')} == {_absolute('oldSelf')}", "immutable")],
        "": [
            (
                f"({_TYPE} == 'Secondary') == has(self.secondary)",
                "type Secondary needs secondary, and no other type has it",
            ),
            (
                f"({_TYPE} == 'Forward') == has(self.forward)",
                "type Forward needs forward, and no other type has it",
            ),
            (
                f"!has(self.catalog) || {_TYPE} != 'Forward'",
                "a zone that is forwarded lists nothing: leave out catalog",
            ),
        ],
    },
    "BlockList": {"sources[]": [_exactly_one(_ONE_SOURCE)]},
    "ClientGroup": {"clients[]": [_exactly_one(_ONE_CLIENT)]},
    "Policy": {
        "": [
            (
                f"({_MODE} == 'custom') == (has(self.customIPs) && size(self.customIPs) > 0)",
                "blockMode custom needs customIPs, and no other mode has them",
            )
        ]
    },
}
"""By kind and place in the spec: CEL, and what it means. domain/kinds has the same rules."""
