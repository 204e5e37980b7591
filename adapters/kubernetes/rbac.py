"""What the service account may do, as manifests: one per feature, each of which may be left out.

Server-side apply needs `patch`, and `create` too where it makes an object; specs need no `update`.
A creation has no name that a rule could hold it to, and a list or a watch of many objects neither.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from kudurru.domain.kinds.meta import GROUP
from kudurru.domain.kinds.registry import KINDS

ACCOUNT = "kudurru"
NAMESPACE = "kudurru"
"""Of the service account in the manifests, and of what is in the release's namespace."""
LEASE = "kudurru-controller"
"""The one that nodes compete for."""

Rule = dict[str, list[str]]


class Feature(NamedTuple):
    name: str
    about: str
    rules: list[Rule]
    is_of_namespace: bool = False
    """Whether the rules are for the release's namespace only."""


def _rule(group: str, resources: list[str], verbs: str, names: list[str] | None = None) -> Rule:
    rule = {"apiGroups": [group], "resources": resources, "verbs": verbs.split()}
    return rule | {"resourceNames": names} if names else rule


_OF_CLUSTER = {
    *("namespaces", "tokenreviews", "subjectaccessreviews"),
    *(kind.plural for kind in KINDS.values() if not kind.namespaced),
}
_PLURALS = [kind.plural for kind in KINDS.values() if not kind.is_internal]

FEATURES = (
    Feature(
        "objects",
        "Objects of kudurru, and their status.",
        [
            _rule(GROUP, _PLURALS, "get list watch create patch delete"),
            _rule(GROUP, [f"{plural}/status" for plural in _PLURALS], "update patch"),
        ],
    ),
    Feature(
        "cluster-id",
        "Tells one cluster from another, so that a log of another one is not served.",
        [_rule("", ["namespaces"], "get", ["kube-system"])],
    ),
    Feature("events", "Events beside the objects.", [_rule("", ["events"], "create patch")]),
    Feature(
        "leader",
        "One node of several does what is done once.",
        [
            _rule("coordination.k8s.io", ["leases"], "create"),
            _rule("coordination.k8s.io", ["leases"], "get update", [LEASE]),
        ],
        is_of_namespace=True,
    ),
    Feature(
        "leader-address",
        "Nodes find the leader behind the service.",
        [_rule("discovery.k8s.io", ["endpointslices"], "list watch")],
        is_of_namespace=True,
    ),
    Feature(
        "internal",
        "Reads keys and tokens in Secrets, and lists in ConfigMaps.",
        [
            _rule("", ["secrets"], "list watch"),
            _rule("", ["configmaps"], "get list watch"),
        ],
        is_of_namespace=True,
    ),
    Feature(
        "reviews",
        "Asks who a user of Kubernetes is, and whether he may do what he asks for in the API.",
        [
            _rule("authentication.k8s.io", ["tokenreviews"], "create"),
            _rule("authorization.k8s.io", ["subjectaccessreviews"], "create"),
        ],
    ),
    Feature(
        "external-dns",
        "Reads DNSEndpoints, and says in them what was seen.",
        [
            _rule("externaldns.k8s.io", ["dnsendpoints"], "get list watch"),
            _rule("externaldns.k8s.io", ["dnsendpoints/status"], "patch"),
        ],
    ),
)


def of_cluster(feature: Feature) -> list[Rule]:
    """What of a feature is about objects that are in no namespace."""
    return _among(feature, lambda resource: resource in _OF_CLUSTER)


def in_namespaces(feature: Feature) -> list[Rule]:
    """The rest of it: where only some namespaces are watched, it is wanted in these alone."""
    return _among(feature, lambda resource: resource not in _OF_CLUSTER)


def _among(feature: Feature, is_wanted: Callable[[str], bool]) -> list[Rule]:
    found = []
    for rule in feature.rules:
        resources = [one for one in rule["resources"] if is_wanted(one.partition("/")[0])]
        if resources:
            found.append(rule | {"resources": resources})
    return found


def manifests(
    feature: Feature, *, account: str = ACCOUNT, namespace: str = NAMESPACE
) -> list[dict[str, Any]]:
    """A role with the rules of the feature, and its binding to the service account."""
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    return bound(feature, subject, namespace)


def bound(feature: Feature, subject: dict[str, str], namespace: str) -> list[dict[str, Any]]:
    """As `manifests`, for whoever `subject` is."""
    scope = "" if feature.is_of_namespace else "Cluster"
    metadata = {"name": f"kudurru-{feature.name}"}
    if feature.is_of_namespace:
        metadata["namespace"] = namespace
    api = "rbac.authorization.k8s.io"
    reference = {"apiGroup": api, "kind": f"{scope}Role", "name": metadata["name"]}
    return [
        {
            "apiVersion": f"{api}/v1",
            "kind": f"{scope}Role",
            "metadata": metadata,
            "rules": feature.rules,
        },
        {
            "apiVersion": f"{api}/v1",
            "kind": f"{scope}RoleBinding",
            "metadata": metadata,
            "roleRef": reference,
            "subjects": [subject],
        },
    ]
