"""TSIG keys and API tokens that a cluster keeps as Secrets."""

import asyncio
import base64
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.kubernetes.fakes.network import client_of
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.adapters.sealing import NodeKey
from kudurru.adapters.timers import LoopTimers
from kudurru.domain.dns import names
from kudurru.domain.errors import Conflict
from kudurru.domain.kinds.apitoken import token_text
from kudurru.domain.ports import EventLog
from kudurru.entrypoints.cluster.secrets import LABEL, ClusterSecrets, kept
from kudurru.entrypoints.history import who_of
from kudurru.entrypoints.keyring import KeyRequest, Keyring, revocation
from kudurru.entrypoints.tokens import NotLetIn, TokenRequest, Tokens
from kudurru.entrypoints.wiring import Node
from kudurru.entrypoints.writer import Writer
from tests.clusters import Kube, until
from tests.nodes import TESTER

SECRETS = "/api/v1/namespaces/default/secrets"
OCTETS = bytes(range(32))
KEY = base64.b64encode(OCTETS).decode()
TOKEN = token_text("deployer", b"\x07" * 32)


def a_secret(called: str, kind: str, /, **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": called, "labels": {LABEL: kind}},
        "data": {key: base64.b64encode(text.encode()).decode() for key, text in data.items()},
    }


class Bench:
    def __init__(self, kube: Kube, folder: Path, log: EventLog | None = None) -> None:
        self.kube = kube
        clock, entropy = SystemClock(), SystemEntropy()
        self.log = log or MemoryEventLog(entropy=entropy, clock=clock)
        self.node = Node(self.log, clock, entropy)
        self.node.catch_up()
        self.writer = Writer(self.node)
        self.keyring = Keyring(self.node, NodeKey(folder / "node.key", entropy))
        self.tokens = Tokens(self.node)
        self.client = client_of(kube.server, clock)
        self.secrets = ClusterSecrets(
            self.node, self.writer, self.keyring, self.client, "default",
            timers=LoopTimers(), entropy=entropy, chance=random.Random(1),
        )  # fmt: skip

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Bench"]:
        tasks = [asyncio.ensure_future(main()) for main in (self.writer.run, self.secrets.run)]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.client.transport.close()

    async def put(self, secret: dict[str, Any]) -> None:
        path = f"{SECRETS}/{secret['metadata']['name']}?fieldManager=kubectl&force=true"
        form = "application/apply-patch+yaml"
        await self.kube.people.request("PATCH", path, secret, content_type=form)

    async def delete(self, name: str) -> None:
        await self.kube.people.request("DELETE", f"{SECRETS}/{name}")

    def secret_of(self, name: str) -> bytes | None:
        found = self.keyring.find(names.from_text(name))
        return found.secret if found else None

    def role(self, token: str) -> str:
        try:
            return self.tokens.find(token, "192.0.2.1").rights.role
        except NotLetIn:
            return ""


def run(case: Callable[[Bench], Awaitable[None]], folder: Path) -> None:
    async def main() -> None:
        kube = Kube()
        try:
            await case(Bench(kube, folder))
        finally:
            await kube.close()

    asyncio.run(main())


def test_a_secret_makes_the_token_of_a_follower_that_can_mount_it(tmp_path: Path) -> None:
    async def case(bench: Bench) -> None:
        made = a_secret(
            "deployer", "APIToken", token=TOKEN, role="follower", expiresAt="2999-01-01T00:00:00Z"
        )
        await bench.put(made)
        async with bench.running():
            await until(lambda: bench.role(TOKEN) == "follower")
            assert bench.tokens.find(TOKEN, "192.0.2.1").rights.may("log.follow")

    run(case, tmp_path)


def test_a_key_and_a_token_are_used_from_a_secret_until_it_is_gone(tmp_path: Path) -> None:
    async def case(bench: Bench) -> None:
        await bench.put(a_secret("transfer", "TSIGKey", secret=KEY))
        of_others = a_secret("of-others", "TSIGKey", secret=KEY)
        del of_others["metadata"]["labels"]
        await bench.put(of_others)
        async with bench.running():
            await until(lambda: bench.secret_of("transfer") == OCTETS)
            token = a_secret(
                "of-deployer", "APIToken", name="deployer", token=TOKEN, role="operator",
                expiresAt="2999-01-01T00:00:00Z", namespaces="team, ops",
            )  # fmt: skip
            await bench.put(token)
            await until(lambda: bench.role(TOKEN) == "operator")
            rights = bench.tokens.find(TOKEN, "192.0.2.1").rights
            assert rights.namespaces == ("team", "ops")
            other = base64.b64encode(b"x" * 32).decode()
            rules = '[{"zone":"lab.example"}]'
            changed = a_secret("transfer", "TSIGKey", secret=other, updates=rules)
            await bench.put(changed)
            await until(lambda: bench.secret_of("transfer") == b"x" * 32)
            spec = bench.keyring.spec(names.from_text("transfer"))
            assert spec is not None
            assert [rule.zone for rule in spec.updates] == ["lab.example"]
            await bench.delete("transfer")
            await bench.delete("of-deployer")
            await until(lambda: bench.secret_of("transfer") is None and not bench.role(TOKEN))
            assert bench.secrets.warnings() == []
            assert {who_of(event).actor for event in bench.log.read()} == {"kubernetes:secrets"}

    run(case, tmp_path)


def test_no_secret_is_in_the_log_or_stays_in_memory(tmp_path: Path) -> None:
    async def case(bench: Bench) -> None:
        await bench.put(a_secret("transfer", "TSIGKey", secret=KEY))
        async with bench.running():
            await until(lambda: bench.secret_of("transfer") == OCTETS)
            await until(lambda: not bench.secrets._waiting)
            rows = msgspec.msgpack.encode(list(bench.log.read()))
            assert KEY.encode() not in rows
            assert OCTETS not in rows
            (found,) = bench.secrets._informer.copy.values()
            assert found.secret == b""
            assert repr(found) == "Kept('transfer')"

    run(case, tmp_path)


def test_the_next_start_writes_nothing_and_revokes_what_is_gone_meanwhile(tmp_path: Path) -> None:
    async def case(bench: Bench) -> None:
        await bench.put(a_secret("stays", "TSIGKey", secret=KEY))
        await bench.put(a_secret("goes", "TSIGKey", secret=KEY))
        async with bench.running():
            await until(lambda: bench.secret_of("goes") == bench.secret_of("stays") == OCTETS)
        await bench.delete("goes")
        head = bench.log.head().seq
        async with Bench(bench.kube, tmp_path, bench.log).running() as again:
            await until(lambda: again.secret_of("goes") is None)
            await until(lambda: not again.secrets._waiting)
            assert again.secret_of("stays") == OCTETS
        assert again.log.head().seq == head + 1

    run(case, tmp_path)


def test_a_secret_that_cannot_be_used_is_named_and_used_again_when_it_is_mended(
    tmp_path: Path,
) -> None:
    async def case(bench: Bench) -> None:
        await bench.put(a_secret("transfer", "TSIGKey", secret=KEY))
        async with bench.running():
            await until(lambda: bench.secret_of("transfer") == OCTETS)
            await bench.put(a_secret("transfer", "TSIGKey", secret="not base64!"))
            await bench.put(a_secret("short", "TSIGKey", secret="YQ=="))
            await until(lambda: len(bench.secrets.warnings()) == 2)
            short, transfer = bench.secrets.warnings()
            assert transfer == "Secret transfer: data.secret is not in base64"
            assert "1 octets" in short
            await until(lambda: bench.secret_of("transfer") is None)
            await bench.put(a_secret("transfer", "TSIGKey", secret=KEY))
            await bench.delete("short")
            await until(lambda: bench.secrets.warnings() == [])
            await until(lambda: bench.secret_of("transfer") == OCTETS)

    run(case, tmp_path)


def test_a_key_that_was_made_here_is_left_alone_and_one_of_the_cluster_too(tmp_path: Path) -> None:
    async def case(bench: Bench) -> None:
        request = KeyRequest(name="ours", algorithm="hmac-sha256", secret=b"o" * 32)
        bench.node.commit(bench.keyring.creation(request, TESTER, SystemEntropy()))
        await bench.put(a_secret("ours", "TSIGKey", secret=KEY))
        await bench.put(a_secret("theirs", "TSIGKey", secret=KEY))
        token = a_secret("deployer", "APIToken", token=TOKEN, role="viewer",
                         expiresAt="2999-01-01T00:00:00Z")  # fmt: skip
        await bench.put(token)
        async with bench.running():
            await until(lambda: bench.secret_of("theirs") == OCTETS and bench.role(TOKEN))
            await until(lambda: bench.secrets.warnings())
            assert "kudurru" in bench.secrets.warnings()[0]
            assert bench.secret_of("ours") == b"o" * 32
            await bench.delete("ours")
            await until(lambda: not bench.secrets.warnings())
            assert bench.secret_of("ours") == b"o" * 32
            with pytest.raises(Conflict, match="delete it there"):
                revocation(bench.node, "theirs", TESTER)
            with pytest.raises(Conflict, match="delete it there"):
                bench.tokens.revocation("deployer", TESTER)
            await bench.put(a_secret("ours", "TSIGKey", secret=KEY))
            await until(bench.secrets.warnings)
            await bench.writer.submit(revocation(bench.node, "ours", TESTER))
            await until(lambda: bench.secret_of("ours") == OCTETS)
            assert bench.secrets.warnings() == []

    run(case, tmp_path)


def test_two_secrets_of_one_key_hand_over_when_one_goes(tmp_path: Path) -> None:
    async def case(bench: Bench) -> None:
        await bench.put(a_secret("a", "TSIGKey", name="shared", secret=KEY))
        async with bench.running():
            await until(lambda: bench.secret_of("shared") == OCTETS)
            await bench.put(a_secret("b", "TSIGKey", name="shared", secret=KEY))
            await until(lambda: len(bench.secrets._informer.copy) == 2)
            await bench.delete("a")
            await until(lambda: len(bench.secrets._informer.copy) == 1)
            await until(lambda: not bench.secrets._waiting)
            assert bench.secret_of("shared") == OCTETS

    run(case, tmp_path)


@pytest.mark.parametrize(
    ("kind", "data", "fault"),
    [
        ("TSIGKey", {}, "data.secret is missing"),
        ("TSIGKey", {"secret": "ÿ"}, "data.secret is not in base64"),
        ("TSIGKey", {"secret": KEY, "key": "x"}, "data.key is not known"),
        ("TSIGKey", {"secret": KEY, "updates": "{"}, "data.updates: "),
        ("TSIGKey", {"secret": KEY, "name": "a b"}, "data.name is no name"),
        ("APIToken", {"token": "secret-words"}, "data.token is not kudurru_one_"),
        ("APIToken", {"token": token_text("one", b"1" * 32), "role": "bootstrap"}, "bootstrap"),
        ("User", {}, "neither APIToken nor TSIGKey"),
    ],
)
def test_what_is_wrong_with_a_secret_is_said_without_telling_it(
    kind: str, data: dict[str, str], fault: str
) -> None:
    document = a_secret("one", kind, **data)
    document["metadata"]["resourceVersion"] = "1"
    with pytest.raises(ValueError, match=fault) as refused:
        kept(document)
    for name in data.keys() & {"secret", "token"}:
        assert data[name] not in str(refused.value)


# --- revocations ------------------------------------------------------------------------------

OTHER = token_text("deployer", b"\x08" * 32)


def a_token(called: str, token: str = TOKEN) -> dict[str, Any]:
    return a_secret(
        called, "APIToken", name="deployer", token=token, role="operator",
        expiresAt="2999-01-01T00:00:00Z",
    )  # fmt: skip


@pytest.mark.parametrize("is_told", [True, False])
def test_what_is_gone_is_revoked_whatever_is_wrong_with_others(
    is_told: bool, tmp_path: Path
) -> None:
    async def case(bench: Bench) -> None:
        await bench.put(a_token("of-deployer"))
        await bench.put(a_secret("broken", "TSIGKey", secret="not base64!"))
        async with bench.running():
            await until(lambda: bench.role(TOKEN) == "operator")
            if is_told:
                await bench.delete("of-deployer")
                await until(lambda: not bench.role(TOKEN))
        if not is_told:
            await bench.delete("of-deployer")
        again = Bench(bench.kube, tmp_path, bench.log)
        async with again.running():
            await until(lambda: not again.role(TOKEN))
            await until(lambda: len(again.secrets.warnings()) == 1)

    run(case, tmp_path)


@pytest.mark.parametrize("then", ["revoked while it runs", "deleted when broken", "restarted"])
def test_a_secret_that_cannot_be_used_any_more_is_used_no_more(then: str, tmp_path: Path) -> None:
    async def case(bench: Bench) -> None:
        await bench.put(a_token("of-deployer"))
        await bench.put(a_secret("transfer", "TSIGKey", secret=KEY))
        broken = [
            a_token("of-deployer", "no token"),
            a_secret("transfer", "TSIGKey", secret="YQ=="),  # too short, as the keyring has it
        ]
        async with bench.running():
            await until(lambda: bench.role(TOKEN) and bench.secret_of("transfer"))
            if then != "restarted":
                for secret in broken:
                    await bench.put(secret)
                if then == "deleted when broken":
                    await bench.delete("of-deployer")
                    await bench.delete("transfer")
                await until(lambda: not bench.role(TOKEN) and not bench.secret_of("transfer"))
                return
        for secret in broken:
            await bench.put(secret)
        again = Bench(bench.kube, tmp_path, bench.log)
        async with again.running():
            await until(lambda: not again.role(TOKEN) and not again.secret_of("transfer"))
            await until(lambda: len(again.secrets.warnings()) == 2)
            await again.put(a_token("of-deployer", OTHER))
            await until(lambda: again.role(OTHER))
            assert not again.role(TOKEN)

    run(case, tmp_path)


def test_of_two_secrets_of_one_token_the_first_counts_and_the_other_when_that_is_gone(
    tmp_path: Path,
) -> None:
    async def case(bench: Bench) -> None:
        await bench.put(a_token("b", OTHER))
        async with bench.running():
            await until(lambda: bench.role(OTHER))
            await bench.put(a_token("a"))
            await until(lambda: bench.role(TOKEN))
            assert not bench.role(OTHER)
            told = "Secret b: APIToken deployer is of the Secret a"
            await until(lambda: bench.secrets.warnings() == [told])
            await bench.delete("a")
            await until(lambda: bench.role(OTHER))
            assert not bench.role(TOKEN)
            await until(lambda: bench.secrets.warnings() == [])
            kept_now = bench.secrets._informer.copy.values()
            await until(lambda: {one.secret for one in kept_now} == {b""})

    run(case, tmp_path)


def test_the_second_of_a_token_that_cannot_be_read_leaves_it_revoked(tmp_path: Path) -> None:
    async def case(bench: Bench) -> None:
        await bench.put(a_token("a"))
        await bench.put(a_token("b", OTHER))
        async with bench.running():
            await until(lambda: bench.role(TOKEN))
            await until(lambda: not bench.secrets._waiting)
            bench.kube.api.forbidden = {("list", "secrets")}
            await bench.delete("a")
            await until(lambda: not bench.role(TOKEN))
            assert not bench.role(OTHER)

    run(case, tmp_path)


def test_more_secrets_than_there_is_room_for_keep_none_from_being_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def case(bench: Bench) -> None:
        for name in "abcd":
            await bench.put(a_secret(name, "TSIGKey", secret=KEY))
        monkeypatch.setattr("kudurru.entrypoints.cluster.secrets.SECRETS_MAX", 2)
        async with bench.running():
            await until(lambda: len(bench.secrets.warnings()) == 2)
            used = [name for name in "abcd" if bench.secret_of(name)]
            assert len(used) == 2
            await bench.delete(used[0])
            await until(lambda: len([n for n in "abcd" if bench.secret_of(n)]) == 2)
            await until(lambda: len(bench.secrets.warnings()) == 1)
            for name in set("abcd") - {used[0]}:
                await bench.delete(name)
            await until(lambda: not any(map(bench.secret_of, "abcd")))

    run(case, tmp_path)


def token_of(i: int) -> str:
    return token_text(f"s{i:03}", bytes([i]) * 32)


def one_of_many(i: int) -> dict[str, Any]:
    return a_secret(
        f"s{i:03}", "APIToken", token=token_of(i), role="viewer", expiresAt="2999-01-01T00:00:00Z"
    )


def is_used(bench: Bench, i: int) -> bool:
    return bench.role(token_of(i)) == "viewer"


@pytest.fixture
def crowd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a case with room for three Secrets of twenty, which are s000 to s002."""
    monkeypatch.setattr("kudurru.entrypoints.cluster.secrets.SECRETS_MAX", 3)

    def run_it(case: Callable[[Bench], Awaitable[None]]) -> None:
        async def whole(bench: Bench) -> None:
            for i in range(20):
                await bench.put(one_of_many(i))
            async with bench.running():
                await until(lambda: len(bench.secrets.warnings()) == 17)
                bench.kube.api.calls.clear()
                await case(bench)

        run(whole, tmp_path)

    return run_it


def reads(bench: Bench) -> int:
    return sum(plural == "secrets" and verb == "list" for verb, plural, _ in bench.kube.api.calls)


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "is not used" in text]


async def revoke_one_of_ours(bench: Bench) -> None:
    request = TokenRequest(name="mine", role="viewer")
    change, _ = bench.tokens.creation(request, TESTER, SystemEntropy())
    await bench.writer.submit(change)
    await bench.writer.submit(bench.tokens.revocation("mine", TESTER))
    await until(lambda: not bench.secrets._wake.is_set() and not bench.secrets._waiting)


def test_those_that_wait_for_room_ask_nothing_when_a_token_of_somebody_goes(
    crowd: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def case(bench: Bench) -> None:
        caplog.clear()
        await revoke_one_of_ours(bench)
        assert len(bench.secrets.warnings()) == 17
        assert reads(bench) == 0
        assert not refusals(caplog)

    crowd(case)


def test_of_those_that_wait_as_many_are_read_as_there_is_room_for(
    crowd: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def case(bench: Bench) -> None:
        caplog.clear()
        for name in ("s000", "s001"):
            await bench.delete(name)
        await until(lambda: is_used(bench, 3) and is_used(bench, 4))
        assert len(bench.secrets.warnings()) == 15
        assert reads(bench) == 2
        assert not refusals(caplog)

    crowd(case)


def test_room_that_the_first_in_line_has_no_use_for_is_the_next_ones(
    crowd: Callable[..., None],
) -> None:
    async def case(bench: Bench) -> None:
        stale = bench.secrets._informer.copy["default/s003"]
        stale.version = "1"  # as if it had changed, and that was not heard of yet
        await bench.delete("s000")
        await until(lambda: is_used(bench, 4))
        assert not is_used(bench, 3)
        assert reads(bench) == 2

    crowd(case)


def is_heard(bench: Bench, key: str) -> bool:
    there = bench.kube.api.objects("secrets")[key]["metadata"]["resourceVersion"]
    return bench.secrets._informer.versions.get(key) == there


def test_a_secret_that_is_changed_and_still_wrong_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def case(bench: Bench) -> None:
        async with bench.running():
            for text in ("no base64!", "none either!"):
                await bench.put(a_secret("transfer", "TSIGKey", secret=text))
                await until(lambda: is_heard(bench, "default/transfer"))
            assert len(refusals(caplog)) == 1
            await bench.delete("transfer")
            await until(lambda: not bench.secrets.warnings())
            assert not bench.secrets._told

    run(case, tmp_path)


def test_an_api_server_without_secrets_revokes_nothing(tmp_path: Path) -> None:
    async def case(bench: Bench) -> None:
        await bench.put(a_token("of-deployer"))
        async with bench.running():
            await until(lambda: bench.role(TOKEN))
        bench.kube.api.absent = {"secrets"}
        again = Bench(bench.kube, tmp_path, bench.log)
        async with again.running():
            await until(lambda: again.secrets._informer.is_absent)
            assert again.role(TOKEN)

    run(case, tmp_path)
