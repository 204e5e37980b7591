"""Rights over the API server: which one a request needs, and which feature of ours needs it."""

import re
from collections.abc import Iterable, Iterator
from urllib.parse import parse_qs, urlsplit

import msgspec

from kudurru.adapters.kubernetes.answers import Forbidden
from kudurru.adapters.kubernetes.client import Client
from kudurru.adapters.kubernetes.rbac import FEATURES, Feature

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"

_MESSAGE = re.compile(r'cannot (\S+) resource "([^"]+)" in API group "([^"]*)"')
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Right(msgspec.Struct, frozen=True, order=True):
    group: str  # "" of core
    resource: str  # with its subresource: "dnszones/status"
    verb: str

    def __str__(self) -> str:
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {resource}"


class Rule(msgspec.Struct, frozen=True, rename="camel"):
    """What somebody may do (authorization.k8s.io/v1 ResourceRule)."""

    verbs: list[str]
    api_groups: list[str] = []
    resources: list[str] = []
    resource_names: list[str] = []

    def allows(self, right: Right, names: Iterable[str] = ()) -> bool:
        """Over all objects, or over those `names`."""
        whole, _, part = right.resource.partition("/")
        resources = {right.resource, "*", f"*/{part}" if part else whole}
        return (
            bool({right.verb, "*"} & set(self.verbs))
            and bool({right.group, "*"} & set(self.api_groups))
            and bool(resources & set(self.resources))
            and (not self.resource_names or (bool(names) and set(names) <= {*self.resource_names}))
        )


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    resource_rules: list[Rule] | None = None
    incomplete: bool = False


class _Review(msgspec.Struct, frozen=True):
    status: _Status


def right_of(method: str, target: str) -> Right | None:
    """The right that a request needs; None for one that is not about objects."""
    split = urlsplit(target)
    parts = split.path.strip("/").split("/")
    group, parts = ("", parts[2:]) if parts[0] == "api" else (_at(parts, 1), parts[3:])
    if len(parts) > 2 and parts[0] == "namespaces":
        parts = parts[2:]
    if not parts:
        return None
    resource, name, part = parts[0], _at(parts, 1), _at(parts, 2)
    if method == "GET":
        watches = "watch" in parse_qs(split.query)
        verb = "watch" if watches else "get" if name else "list"
    else:
        verb = _VERBS.get(method, method.lower())
    return Right(group, f"{resource}/{part}" if part else resource, verb)


def right_missing(error: Forbidden) -> Right | None:
    """As the server names it: an apply may lack the right to create."""
    if found := _MESSAGE.search(error.status.message or error.text):
        return Right(found[3], found[2], found[1])
    return right_of(error.method, error.path)


def feature_of(right: Right) -> Feature | None:
    """The feature that a right is for."""
    for feature in FEATURES:
        if right in needed(feature):
            return feature
    return None


def needed(feature: Feature) -> Iterator[Right]:
    for rule in feature.rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield Right(group, resource, verb)


async def missing_rights(
    client: Client, namespace: str, features: Iterable[Feature]
) -> list[tuple[Right, Feature]] | None:
    """What the features need and we may not do in a namespace: one request tells all. None where
    an authorizer's rules cannot be listed: it tells by refusing. Raises: Refused, Unanswered."""
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    review = await client.request("POST", REVIEWS, body, type_=_Review)
    if review.status.incomplete:
        return None
    rules = review.status.resource_rules or []
    return [
        (right, feature)
        for feature in features
        for rule in feature.rules
        for right in needed(feature._replace(rules=[rule]))
        if not any(one.allows(right, rule.get("resourceNames", ())) for one in rules)
    ]


def _at(parts: list[str], index: int) -> str:
    return parts[index] if index < len(parts) else ""
