"""Users of a Kubernetes cluster in the API: they write what the cluster lets them, and no more."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kudurru.adapters.http_api import ApiServer
from kudurru.adapters.sockets import Listener, bind_all, split_address
from kudurru.domain.commands import Apply, Delete
from kudurru.domain.errors import StorageFailed
from kudurru.domain.objects import Key, key_of, ref_of
from kudurru.domain.ports import ClusterUser
from kudurru.entrypoints.history import who_of
from kudurru.entrypoints.rest.people import STRANGER_BODY_MAX, People
from kudurru.entrypoints.wiring import Change, Result
from tests.api import Api, refused, serving
from tests.entrypoints.rest.shapes import record_set, zone
from tests.nodes import TESTER

ALICE = "eyJh.alice.sig"
BOB = "eyJh.bob.sig"


class Cluster:
    """Implements `ClusterReviews`: who has which token, and what is allowed: (user, verb, kind,
    namespace)."""

    def __init__(self) -> None:
        self.tokens = {ALICE: ClusterUser("alice"), BOB: ClusterUser("bob")}
        self.allowed = {
            ("alice", verb, "DNSRecordSet", "default") for verb in ("create", "patch", "delete")
        }
        self.is_away = False
        self.asked = 0

    async def user(self, token: str) -> ClusterUser | None:
        self._check()
        return self.tokens.get(token)

    async def refusal(self, user: ClusterUser, verb: str, key: Key) -> str:
        self._check()
        ref = ref_of(key)
        if (user.name, verb, ref.kind, ref.namespace) in self.allowed:
            return ""
        return f"{user.name} may not {verb} {ref.kind} in Kubernetes"

    def _check(self) -> None:
        self.asked += 1
        if self.is_away:
            raise StorageFailed("Kubernetes cannot be asked")


def play(case: Callable[[Api, Cluster], Awaitable[None]]) -> None:
    async def main() -> None:
        async with serving("admin") as api:
            cluster = Cluster()
            api.context.people = People(cluster, api.node.clock)
            api.token |= {"alice": ALICE, "bob": BOB}
            await api.ask("PUT", "/dnszones/home", zone("home"))
            await case(api, cluster)

    asyncio.run(main())


ONE = "/namespaces/default/dnsrecordsets/www"
OTHER = "/namespaces/team/dnsrecordsets/www"


def a_set(namespace: str = "default", address: str = "192.0.2.1") -> dict[str, Any]:
    return record_set("www", "home", namespace, address)


def test_a_user_writes_what_the_cluster_allows_and_the_log_names_him() -> None:
    async def case(api: Api, cluster: Cluster) -> None:
        made = await api.ask("PUT", ONE, a_set(), token="alice")
        assert made.code == 201
        patch = {"metadata": {"labels": {"a": "b"}}}
        assert (await api.ask("PATCH", ONE, patch, token="alice")).code == 200
        assert (await api.ask("DELETE", ONE, token="alice")).code == 200
        actors = [who_of(event).actor for event in api.node.log.read() if "/www" in event.key]
        assert set(actors) == {"kubernetes-user:alice"}

    play(case)


@pytest.mark.parametrize(
    ("method", "path", "body", "token", "why"),
    [
        ("PUT", OTHER, a_set("team"), "alice", "alice may not patch DNSRecordSet"),
        ("PUT", ONE, a_set(), "bob", "bob may not patch DNSRecordSet"),
        ("PATCH", ONE, {"metadata": {"labels": {"a": "b"}}}, "bob", "bob may not patch"),
        ("PATCH", "/namespaces/default/dnsrecordsets/none", {}, "bob", "bob may not patch"),
        ("DELETE", ONE, None, "bob", "bob may not delete"),
        ("DELETE", "/dnszones/home", None, "alice", "alice may not delete DNSZone"),
        ("POST", "/dnszones/home:refresh", None, "alice", "alice may not patch DNSZone"),
        ("POST", "/batch", {"apply": [a_set(), a_set("team")]}, "alice", "alice may not patch"),
        (
            "POST",
            "/batch",
            {"delete": [{"kind": "DNSZone", "name": "home"}]},
            "alice",
            "alice may not delete DNSZone",
        ),
        ("PUT", f"{ONE}?force=true", a_set(), "alice", "objects.force"),
        ("GET", ONE, None, "alice", "objects.read"),
        ("GET", "/tokens", None, "alice", "tokens"),
        ("PATCH", "/settings", {"cache.maxEntries": 5}, "alice", "settings.write"),
    ],
)
def test_what_the_cluster_does_not_allow_is_refused_and_nothing_is_written(
    method: str, path: str, body: Any, token: str, why: str
) -> None:
    async def case(api: Api, cluster: Cluster) -> None:
        await api.ask("PUT", ONE, a_set())
        head = api.node.log.head().seq
        answer = await api.ask(method, path, body, token=token)
        assert why in refused(answer, 403, "Forbidden")["message"]
        await api.events("auth.denied.v1")
        (denied,) = (one for one in api.node.log.read() if one.type == "auth.denied.v1")
        assert who_of(denied).actor == f"kubernetes-user:{token}"
        kinds = {event.key.partition("/")[0] for event in api.node.log.read() if event.seq > head}
        assert kinds <= {"System"}  # who was refused

    play(case)


def test_a_batch_is_reviewed_whole_before_it_is_written() -> None:
    async def case(api: Api, cluster: Cluster) -> None:
        answer = await api.ask("POST", "/batch", {"apply": [a_set()]}, token="alice")
        assert answer.code == 200
        cluster.allowed.discard(("alice", "create", "DNSRecordSet", "default"))
        changed = await api.ask("PUT", ONE, a_set(address="192.0.2.9"), token="alice")
        assert changed.code == 200  # it is there: nothing is made
        await api.ask("DELETE", ONE, token="alice")
        answer = await api.ask("POST", "/batch", {"apply": [a_set()]}, token="alice")
        assert "may not create" in refused(answer, 403, "Forbidden")["message"]

    play(case)


def test_a_token_that_the_cluster_does_not_know_lets_nobody_in() -> None:
    async def case(api: Api, cluster: Cluster) -> None:
        api.token["stranger"] = "eyJh.nobody.sig"
        answer = await api.ask("GET", "/info", token="stranger")
        assert "--audience kudurru" in refused(answer, 401, "Unauthorized")["message"]
        (fact,) = await api.events("auth.denied.v1")
        assert "nobody" not in str(fact)
        assert (await api.ask("GET", "/info", token="alice")).json["role"] == "cluster-user"
        del cluster.tokens[ALICE]
        assert (await api.ask("GET", "/info", token="alice")).code == 401

    play(case)


def test_whoever_is_not_known_yet_sends_little_and_then_as_much_as_others() -> None:
    async def case(api: Api, cluster: Cluster) -> None:
        large = {"apply": [a_set()], "reason": "x" * 200}
        headers = {"content-length": str(STRANGER_BODY_MAX + 1)}
        answer = await api.ask("POST", "/batch", large, token="alice", headers=headers)
        assert "ask for /api/v1/info first" in refused(answer, 401, "Unauthorized")["message"]
        chunked = {"content-length": "", "transfer-encoding": "chunked"}
        answer = await api.ask("POST", "/batch", large, token="alice", headers=chunked)
        assert answer.code == 401
        assert cluster.asked == 0
        assert (await api.ask("GET", "/info", token="alice")).code == 200
        answer = await api.ask("POST", "/batch", large, token="alice", headers=headers)
        assert answer.code == 200

    play(case)


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("size", [STRANGER_BODY_MAX - 500, STRANGER_BODY_MAX + 500])
def test_a_body_without_a_length_is_counted_as_it_comes(size: int, is_known: bool) -> None:
    """RFC 9112 section 7.1: chunks tell their length one by one."""

    async def case(api: Api, cluster: Cluster) -> None:
        if is_known:
            assert (await api.ask("GET", "/info", token="alice")).code == 200
        asked = cluster.asked
        body = json.dumps({"apply": [a_set()], "reason": "x" * 100}).encode().ljust(size)
        head = (
            "POST /api/v1/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {ALICE}\r\nTransfer-Encoding: chunked\r\n"
            "Connection: close\r\n\r\n"
        ).encode()
        chunks = [body[i : i + 8192] for i in range(0, len(body), 8192)]
        framed = b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in chunks)
        (bound,) = bind_all([Listener("tcp", "127.0.0.1:0")])
        server = ApiServer(api.app, bound.sockets)
        await server.start()
        try:
            host, port = split_address(server.addresses[0])
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(head + framed + b"0\r\n\r\n")
            answer = await reader.read()
            writer.close()
        finally:
            await server.stop()
        if is_known or size <= STRANGER_BODY_MAX:
            assert answer.startswith(b"HTTP/1.1 200")
        else:
            assert answer.startswith(b"HTTP/1.1 401")
            assert b"ask for /api/v1/info first" in answer
            assert cluster.asked == asked
            assert api.node.objects.find(key_of("DNSRecordSet", "default", "www")) is None

    play(case)


@pytest.mark.parametrize("how", ["put", "batch", "if none match"])
def test_who_may_change_and_not_make_makes_nothing_that_went_meanwhile(how: str) -> None:
    async def case(api: Api, cluster: Cluster) -> None:
        await api.ask("PUT", ONE, a_set(), token="alice")
        cluster.allowed.discard(("alice", "create", "DNSRecordSet", "default"))
        changed = await api.ask("PUT", ONE, a_set(address="192.0.2.8"), token="alice")
        assert changed.code == 200
        again = cluster.refusal

        async def refusal(user: ClusterUser, verb: str, key: Key) -> str:
            why = await again(user, verb, key)
            if verb == "create":  # it is there as we look, and goes before it is written
                await api.ask("DELETE", ONE)
            return why

        cluster.refusal = refusal  # type: ignore[method-assign]  # somebody deletes as we ask
        document = a_set(address="192.0.2.9")
        match how:
            case "put":
                answer = await api.ask("PUT", ONE, document, token="alice")
            case "batch":
                answer = await api.ask("POST", "/batch", {"apply": [document]}, token="alice")
            case _:
                only_new = {"if-none-match": "*"}
                answer = await api.ask("PUT", ONE, document, token="alice", headers=only_new)
        assert "may not create" in refused(answer, 403, "Forbidden")["message"]
        assert (await api.ask("GET", ONE)).code == 404

    play(case)


def test_who_may_change_and_not_make_writes_the_version_that_he_was_let_to_change() -> None:
    """It goes after the last look at it, and before the write: there are no two answers."""

    async def case(api: Api, cluster: Cluster) -> None:
        await api.ask("PUT", ONE, a_set(), token="alice")
        cluster.allowed.discard(("alice", "create", "DNSRecordSet", "default"))
        submit = api.writer.submit
        key = key_of("DNSRecordSet", "default", "www")

        async def late(change: Change) -> Result:
            if isinstance(change.commands[0], Apply):
                api.writer.submit = submit  # type: ignore[method-assign]
                await submit(Change(commands=(Delete(key=key),), who=TESTER))
            return await submit(change)

        api.writer.submit = late  # type: ignore[method-assign]  # another writer is faster
        answer = await api.ask("PUT", ONE, a_set(address="192.0.2.9"), token="alice")
        refused(answer, 409, "Conflict")
        assert api.node.objects.find(key) is None

    play(case)


def test_while_the_cluster_cannot_be_asked_nobody_of_it_is_let_in() -> None:
    async def case(api: Api, cluster: Cluster) -> None:
        cluster.is_away = True
        assert (await api.ask("PUT", ONE, a_set(), token="alice")).code >= 500
        assert (await api.ask("PUT", ONE, a_set())).code == 201  # a token of ours

    play(case)


def test_without_a_cluster_such_a_token_is_one_that_is_not_known() -> None:
    async def main() -> None:
        async with serving("admin") as api:
            api.token["alice"] = ALICE
            answer = await api.ask("GET", "/info", token="alice")
            assert "not known here" in refused(answer, 401, "Unauthorized")["message"]

    asyncio.run(main())
