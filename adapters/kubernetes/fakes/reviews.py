"""What an API server says of people and of rights: who has a token, and who may do what."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec

from kudurru.adapters.kubernetes.rbac import FEATURES

Object = dict[str, Any]


class Person(msgspec.Struct, frozen=True):
    name: str
    groups: tuple[str, ...] = ()
    audiences: tuple[str, ...] = ("kudurru",)
    """That its token is for."""


def _nobody(who: str, groups: Collection[str], wanted: Object) -> bool:  # noqa: ARG001
    return False


class Reviews:
    def __init__(self) -> None:
        self.people: dict[str, Person] = {}
        """By token."""
        self.may: Callable[[str, Collection[str], Object], bool] = _nobody
        """(user, groups, resourceAttributes) to whether it is allowed."""
        self.is_incomplete = False
        """Whether an authorizer is there whose rules cannot be listed."""

    def answer(self, kind: str, sent: Object, forbidden: Iterable[tuple[str, str]]) -> Object:
        spec = sent["spec"]
        match kind:
            case "TokenReview":
                status = self._token(spec)
            case "SubjectAccessReview":
                allowed = self.may(
                    spec.get("user", ""), spec.get("groups") or (), spec["resourceAttributes"]
                )
                status = {"allowed": allowed}
            case _:
                status = {
                    "incomplete": self.is_incomplete,
                    "nonResourceRules": [],
                    "resourceRules": list(_rules(set(forbidden))),
                }
        return sent | {"status": status}

    def _token(self, spec: Object) -> Object:
        person = self.people.get(spec.get("token", ""))
        audiences = [
            one for one in spec.get("audiences") or () if person and one in person.audiences
        ]
        if person is None or not audiences:
            return {"user": {}, "error": "token lookup failed"}
        user = {"username": person.name, "uid": f"{person.name}-uid", "groups": [*person.groups]}
        return {"authenticated": True, "user": user, "audiences": audiences}


def _rules(forbidden: set[tuple[str, str]]) -> Iterable[Object]:
    """As the manifests give them, but for what is forbidden."""
    for feature in FEATURES:
        for rule in feature.rules:
            for resource in rule["resources"]:
                verbs = [verb for verb in rule["verbs"] if (verb, resource) not in forbidden]
                yield rule | {"resources": [resource], "verbs": verbs}
