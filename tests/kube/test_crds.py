"""The definitions on a real API server: it takes them, and holds objects to them."""

from collections.abc import Iterator
from typing import Any

import pytest

from kudurru.adapters.kubernetes.crds import crds
from kudurru.domain.kinds.registry import KINDS
from tests.kube.server import ApiServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

API = "/apis/kudurru.io/v1alpha1"

MINIMAL: dict[str, dict[str, Any]] = {
    "DNSZone": {"zoneName": "example.org."},
    "DNSRecordSet": {"zoneRef": {"name": "zone"}, "endpoints": []},
    "BlockList": {"sources": [{"inline": []}]},
    "ClientGroup": {},
    "Policy": {},
}
NEEDS: dict[tuple[str, str], dict[str, Any]] = {
    ("DNSZone", "secondary"): {"type": "Secondary"},
    ("DNSZone", "forward"): {"type": "Forward"},
    ("Policy", "customIPs"): {"blockMode": "custom"},
}
"""What a field goes with, by the rules."""


def collection(kind: str, namespace: str = "default") -> str:
    within = f"/namespaces/{namespace}" if KINDS[kind].namespaced else ""
    return f"{API}{within}/{KINDS[kind].plural}"


def document(kind: str, spec: Any, name: str = "tried") -> dict[str, Any]:
    metadata = {"name": name}
    return {"apiVersion": "kudurru.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def tried(server: ApiServer, kind: str, spec: Any) -> tuple[int, str]:
    """Status and message for an object that is checked and not kept."""
    path = f"{collection(kind)}?dryRun=All&fieldValidation=Strict"
    status, answer = server.call("POST", path, document(kind, spec), user="account")
    return status, answer.get("message", "")


def specs() -> Iterator[tuple[str, dict[str, Any]]]:
    for definition in crds():
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        yield definition["spec"]["names"]["kind"], schema["properties"]["spec"]


def bounds() -> Iterator[tuple[str, str, Any, Any]]:
    """(kind, what is bounded, a spec at the bound, one beyond it) for every bound of a schema."""
    for kind, schema in specs():
        for path, part in parts(schema, ()):
            for word, good, bad in tries(part):
                where = f"{'.'.join(path)}.{word}"
                yield (
                    kind,
                    where,
                    spec_with(kind, schema, path, good),
                    spec_with(kind, schema, path, bad),
                )


def parts(schema: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[Any, dict[str, Any]]]:
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from parts(part, (*path, name))
    if "items" in schema:
        yield from parts(schema["items"], (*path, "[]"))


def tries(part: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """A value at each bound, and one beyond."""
    if "enum" in part:
        yield "enum", part["enum"][0], "no such value"
    if "minimum" in part:
        yield "minimum", part["minimum"], part["minimum"] - 1
    if "maximum" in part:
        yield "maximum", part["maximum"], part["maximum"] + 1
    if "maxLength" in part:
        yield "maxLength", "a" * part["maxLength"], "a" * (part["maxLength"] + 1)
    if "minLength" in part:
        yield "minLength", "a" * part["minLength"], "a" * (part["minLength"] - 1)
    if "maxItems" in part:
        item, size = least(part["items"]), part["maxItems"]
        yield "maxItems", [item] * size, [item] * (size + 1)
    if "minItems" in part:
        item, size = least(part["items"]), part["minItems"]
        yield "minItems", [item] * size, [item] * (size - 1)


def least(part: dict[str, Any]) -> Any:
    """A value that a schema takes."""
    if "enum" in part:
        return part["enum"][0]
    match part["type"]:
        case "object":
            found = {name: least(part["properties"][name]) for name in part.get("required", ())}
            if "x-kubernetes-validations" in part and not found:
                found = {name: least(one) for name, one in list(part["properties"].items())[:1]}
            return found
        case "array":
            return [least(part["items"])] * part.get("minItems", 0)
        case "string":
            return "a" * part.get("minLength", 0)
    return part.get("minimum", 0)


def spec_with(kind: str, schema: dict[str, Any], path: tuple[str, ...], value: Any) -> Any:
    """The least spec of a kind that has a value at a path."""
    spec = _with(schema, path, value)
    return MINIMAL[kind] | NEEDS.get((kind, path[0] if path else ""), {}) | spec


def _with(schema: dict[str, Any], path: tuple[str, ...], value: Any) -> Any:
    if not path:
        return value
    if path[0] == "[]":
        return [_with(schema["items"], path[1:], value)]
    required = {name: least(schema["properties"][name]) for name in schema.get("required", ())}
    return required | {path[0]: _with(schema["properties"][path[0]], path[1:], value)}


def test_every_bound_is_enforced(installed: ApiServer) -> None:
    wrong, count = [], 0
    for kind, where, good, bad in bounds():
        if where in ("type.enum", "blockMode.enum"):
            continue  # goes with other fields: see the rules
        count += 1
        status, message = tried(installed, kind, good)
        if status != 201:
            wrong.append(f"{kind} {where}: at the bound {status} {message[:300]}")
        status, message = tried(installed, kind, bad)
        if status != 422:
            wrong.append(f"{kind} {where}: beyond the bound {status} {message[:300]}")
    assert not wrong, "\n".join(wrong)
    assert count > 100


SECONDARY = {"primaries": [{"address": "192.0.2.1"}]}
FORWARD = {"upstreams": ["192.0.2.1"]}
ZONE = {"zoneName": "example.org."}
RULES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("DNSZone", ZONE | {"type": "Secondary", "secondary": SECONDARY},
     ZONE | {"type": "Secondary"}, "type Secondary needs secondary"),
    ("DNSZone", ZONE | {"type": "Primary"},
     ZONE | {"secondary": SECONDARY}, "no other type has it"),
    ("DNSZone", ZONE | {"type": "Forward", "forward": FORWARD},
     ZONE | {"type": "Forward"}, "type Forward needs forward"),
    ("DNSZone", ZONE | {"catalog": {}},
     ZONE | {"type": "Forward", "forward": FORWARD, "catalog": {}}, "lists nothing"),
    ("DNSZone", ZONE | {"type": "Primary"}, ZONE | {"type": "primary"}, "Unsupported value"),
    ("BlockList", {"sources": [{"url": "https://example.org/"}, {"inline": ["a"]}]},
     {"sources": [{"inline": ["a"]}, {"url": "https://example.org/", "inline": ["a"]}]},
     "exactly one of url, configMapRef, inline"),
    ("BlockList", {"sources": [{"configMapRef": {"name": "a"}}]},
     {"sources": [{}]}, "exactly one of url"),
    ("ClientGroup", {"clients": [{"ip": "192.0.2.1"}, {"mac": "00:00:5e:00:53:01"}]},
     {"clients": [{"ip": "192.0.2.1", "cidr": "192.0.2.0/24"}]}, "exactly one of cidr, ip, mac"),
    ("ClientGroup", {"clients": [{"listener": "guest"}]},
     {"clients": [{"listener": "guest"}, {}]}, "exactly one of cidr"),
    ("Policy", {"blockMode": "custom", "customIPs": ["192.0.2.1"]},
     {"blockMode": "custom"}, "blockMode custom needs customIPs"),
    ("Policy", {"blockMode": "nxdomain"},
     {"blockMode": "nxdomain", "customIPs": ["192.0.2.1"]}, "no other mode has them"),
    ("Policy", {}, {"blockMode": "none"}, "Unsupported value"),
    ("Policy", {"deny": []}, {"denied": []}, "unknown field"),
    ("DNSRecordSet", MINIMAL["DNSRecordSet"], {"endpoints": []}, "Required value"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "good", "bad", "why"), RULES)
def test_a_rule_takes_one_object_and_refuses_another(
    installed: ApiServer, kind: str, good: dict[str, Any], bad: dict[str, Any], why: str
) -> None:
    assert tried(installed, kind, good) == (201, "")
    status, message = tried(installed, kind, bad)
    assert status in (400, 422)
    assert why in message


def test_the_name_of_a_zone_is_immutable_however_it_is_spelt(installed: ApiServer) -> None:
    zones = collection("DNSZone")
    made = document("DNSZone", ZONE, "immutable")
    assert installed.call("POST", zones, made, user="account")[0] == 201
    for name, expected in (("Example.ORG", 200), ("example.net.", 422)):
        status, answer = installed.call(
            "PATCH",
            f"{zones}/immutable",
            {"spec": {"zoneName": name}},
            user="account",
            form="application/merge-patch+json",
        )
        assert status == expected, answer
    assert "immutable" in answer["message"]
    assert installed.call("DELETE", f"{zones}/immutable", user="account")[0] == 200


def test_a_status_is_written_by_itself_and_moves_no_generation(installed: ApiServer) -> None:
    groups = collection("ClientGroup")
    status, made = installed.call(
        "POST", groups, document("ClientGroup", {}, "seen") | {"status": {"observedGeneration": 9}}
    )
    assert (status, made["metadata"]["generation"], "status" in made) == (201, 1, False)
    made["status"], made["spec"] = {"observedGeneration": 1}, {"clients": [{"ip": "192.0.2.1"}]}
    status, after = installed.call("PUT", f"{groups}/seen/status", made, user="account")
    assert (status, after["metadata"]["generation"]) == (200, 1)
    assert (after["spec"], after["status"]) == ({}, {"observedGeneration": 1})
    installed.call("DELETE", f"{groups}/seen")


def test_kubectl_shows_the_columns_that_people_look_for(installed: ApiServer) -> None:
    zones = collection("DNSZone")
    installed.call("POST", zones, document("DNSZone", ZONE, "shown"))
    table = "application/json;as=Table;v=v1;g=meta.k8s.io"
    status, answer = installed.call("GET", f"{zones}/shown", accept=table)
    assert status == 200
    names = [column["name"] for column in answer["columnDefinitions"]]
    assert names == ["Name", "Zone", "Serial", "Records", "Ready", "Age"]
    installed.call("DELETE", f"{zones}/shown")
