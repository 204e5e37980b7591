"""Who a service account is by its token, and what it may do, as a real API server says."""

import asyncio
from typing import Any

import pytest

from kudurru.adapters.kubernetes.reviews import AUDIENCE, KubernetesReviews
from kudurru.domain.errors import StorageFailed
from kudurru.domain.objects import key_of
from tests.kube.connections import connected
from tests.kube.server import ApiServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
NAME = "system:serviceaccount:default:deployer"
PATIENCE_S = 60.0


def token_for(server: ApiServer, *audiences: str) -> str:
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": list(audiences)},
    }
    status, found = server.call("POST", f"{ACCOUNTS}/deployer/token", body)
    assert status == 201
    return str(found["status"]["token"])


def let_write(server: ApiServer) -> None:
    """Record sets of the namespace default."""
    api = "rbac.authorization.k8s.io"
    rule = {"apiGroups": ["kudurru.io"], "resources": ["dnsrecordsets"], "verbs": ["patch"]}
    role: dict[str, Any] = {
        "apiVersion": f"{api}/v1",
        "kind": "Role",
        "metadata": {"name": "deployer"},
        "rules": [rule],
    }
    binding = role | {
        "kind": "RoleBinding",
        "roleRef": {"apiGroup": api, "kind": "Role", "name": "deployer"},
        "subjects": [{"kind": "ServiceAccount", "name": "deployer", "namespace": "default"}],
    }
    del binding["rules"]
    assert server.call("POST", f"{RBAC}/roles", role)[0] == 201
    assert server.call("POST", f"{RBAC}/rolebindings", binding)[0] == 201


def test_a_service_account_is_known_by_a_token_for_us_and_may_do_what_its_roles_say(
    installed: ApiServer,
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "deployer"}}
    assert installed.call("POST", ACCOUNTS, account)[0] == 201
    ours, theirs = token_for(installed, AUDIENCE), token_for(installed)

    async def main() -> None:
        async with connected(installed) as client:
            reviews = KubernetesReviews(client)
            user = await reviews.user(ours)
            assert user is not None
            assert user.name == NAME
            assert "system:serviceaccounts:default" in user.groups
            assert await reviews.user(theirs) is None  # that one opens the API server
            assert await reviews.user(ours[:-8] + "AAAAAAAA") is None
            assert await reviews.user(installed.tokens["account"]) is None
            wanted = key_of("DNSRecordSet", "default", "www")
            assert NAME in await reviews.refusal(user, "patch", wanted)
            let_write(installed)
            async with asyncio.timeout(PATIENCE_S):
                while await KubernetesReviews(client).refusal(user, "patch", wanted):
                    await asyncio.sleep(0.05)
            fresh = KubernetesReviews(client)
            assert await fresh.refusal(user, "delete", wanted)
            assert await fresh.refusal(user, "patch", key_of("DNSRecordSet", "other", "www"))
            assert await fresh.refusal(user, "patch", key_of("DNSZone", "", "example"))

    asyncio.run(main())


def test_an_account_without_the_manifest_cannot_ask(installed: ApiServer) -> None:
    async def main() -> None:
        async with connected(installed, "nobody") as client:
            with pytest.raises(StorageFailed, match=r"schemas/rbac/reviews\.yaml"):
                await KubernetesReviews(client).user("a")

    asyncio.run(main())
