"""Several nodes on one log in PostgreSQL, as people run them."""

import json
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from kudurru.adapters.data_dir import open_data_dir
from kudurru.adapters.postgres.connection import EXCHANGE_TIMEOUT_S
from kudurru.adapters.postgres.log import PostgresEventLog
from kudurru.domain.errors import Busy, Conflict, KudurruError, NotFound, StorageFailed
from kudurru.domain.events import OBJECT_APPLIED
from kudurru.domain.verify import verify
from kudurru.entrypoints import command_socket
from kudurru.entrypoints.rpc import RemoteService, connect
from kudurru.entrypoints.service import ChangeRequest
from kudurru.entrypoints.upkeep import PruneRequest, RedactRequest
from tests.blackbox.program import (
    Serving,
    command,
    kudurru,
    records,
    serving,
    wait_until,
    write_json,
    zone,
)
from tests.interop.secondaries import Key, fetched
from tests.objects import parse
from tests.postgres import server
from tests.saying import Say
from tests.tcp_proxy import proxy

ZONE = "shared.example"


def www(address: str = "192.0.2.1") -> dict[str, object]:
    return records(f"www.{ZONE}", ZONE, (f"www.{ZONE}", "A", address))


@pytest.fixture
def database() -> str:
    return server().url(server().new_database())


def test_what_one_node_takes_every_node_serves(database: str, tmp_path: Path) -> None:
    file = write_json(tmp_path / "zone.json", zone(ZONE), www())
    with (
        serving(tmp_path / "a", "--store", database) as a,
        serving(tmp_path / "b", "--store", database) as b,
    ):
        assert kudurru("apply", "-f", file, "--data", tmp_path / "a").code == 0
        assert a.texts(f"www.{ZONE}") == ["192.0.2.1"]
        wait_until(lambda: b.texts(f"www.{ZONE}") == ["192.0.2.1"])
        write_json(file, www("192.0.2.2"))
        assert kudurru("apply", "-f", file, "--data", tmp_path / "b").code == 0
        wait_until(lambda: a.texts(f"www.{ZONE}") == ["192.0.2.2"])
        wait_until(lambda: a.texts(ZONE, "SOA") == b.texts(ZONE, "SOA"))
    # Without a server, commands find the log all the same.
    history = command("history", "--data", tmp_path / "a", "-o", "json")
    assert history.code == 0, history.err
    assert command("audit", "verify", "--data", tmp_path / "b").code == 0
    write_json(file, www("192.0.2.3"))
    assert command("apply", "-f", file, "--data", tmp_path / "a").code == 0
    with serving(tmp_path / "b") as again:  # which store it is on is known by now
        assert again.texts(f"www.{ZONE}") == ["192.0.2.3"]
    assert not (tmp_path / "a" / "log.db").exists()


def test_a_directory_is_never_given_another_log(database: str, tmp_path: Path) -> None:
    file = write_json(tmp_path / "zone.json", zone(ZONE))
    local, shared = tmp_path / "local", tmp_path / "shared"
    assert command("apply", "-f", file, "--data", local).code == 0
    with serving(shared, "--store", database):
        pass
    other = server().url(server().new_database())
    with serving(tmp_path / "other", "--store", other):
        pass
    for data, store, why in (
        (local, database, "has its log in sqlite"),
        (local, "memory", "has its log in sqlite"),
        (shared, "sqlite", "has its log in postgresql://"),
        (shared, other, "holds another log"),
        (tmp_path / "new", "mysql://x", "is no store: memory, sqlite, or postgresql://"),
        (tmp_path / "new", "postgresql://a:b@127.0.0.1/x", "the URL holds a password"),
        (tmp_path / "new", "postgresql://127.0.0.1:1/x", "check that the database runs"),
    ):
        done = command("serve", "--data", data, "--store", store, "--dns", "127.0.0.1:0")
        assert (done.code, done.out) == (1, "")
        assert why in done.err
    assert command("get", "zone", "--data", local).code == 0


def served_and_changed(data: Path, database: str, address: str) -> None:
    """A server on the database takes in an address of www, and signs that as it ends."""
    file = write_json(data.with_suffix(".json"), zone(ZONE), www(address))
    with serving(data, "--store", server().url(database)) as node:
        assert kudurru("apply", "-f", file, "--data", data).code == 0
        assert node.stop() == 0


def put_in_place(database: str, other: str) -> None:
    with server().connect() as admin:
        admin.execute(f"DROP DATABASE {database}")
        admin.execute(f"ALTER DATABASE {other} RENAME TO {database}")


def test_a_database_that_was_set_back_is_served_and_not_written(tmp_path: Path) -> None:
    data, database, backup = tmp_path / "data", server().new_database(), server().new_database()
    served_and_changed(data, database, "192.0.2.1")
    with server().connect() as admin:
        admin.execute(f"DROP DATABASE {backup}")
        admin.execute(f"CREATE DATABASE {backup} TEMPLATE {database}")
    served_and_changed(data, database, "192.0.2.2")
    kept = (data / "checkpoint").read_text()
    put_in_place(database, backup)
    file = write_json(tmp_path / "zone.json", zone(ZONE), www("192.0.2.3"))
    refused = command("apply", "-f", file, "--data", data)
    assert refused.code != 0
    assert "the log was set back" in refused.err
    with serving(data) as node:
        assert node.texts(f"www.{ZONE}") == ["192.0.2.1"]
        refused = command("apply", "-f", file, "--data", data)
        assert refused.code != 0
        assert "the log was set back" in refused.err
        assert "log import" in refused.err
        assert "the log was set back" in node.stderr()
        assert node.stop() == 0
    assert (data / "checkpoint").read_text() == kept  # the evidence stays
    assert command("audit", "verify", "--data", data).code == 16


def test_another_log_in_the_place_of_the_database_is_refused(tmp_path: Path) -> None:
    database, other = server().new_database(), server().new_database()
    served_and_changed(tmp_path / "data", database, "192.0.2.1")
    served_and_changed(tmp_path / "other", other, "192.0.2.2")
    put_in_place(database, other)
    file = write_json(tmp_path / "zone.json", zone(ZONE), www("192.0.2.3"))
    for line in (("serve", "--dns", "127.0.0.1:0"), ("apply", "-f", file)):
        refused = command(*line, "--data", tmp_path / "data")
        assert refused.code == 1
        assert "holds another log" in refused.err


class Node:
    """A server on the shared log, and callers of its command socket."""

    def __init__(self, data: Path, serving: Serving) -> None:
        self.serving = serving
        self._data = open_data_dir(data)
        self.acknowledged: list[str] = []

    def service(self) -> RemoteService:
        found = connect(command_socket.find(self._data))
        assert found is not None, "nobody answers"
        return found

    def position(self) -> int:
        with self.service() as service:
            return service.info().position

    def digests(self) -> dict[str, str]:
        with self.service() as service:
            return {k: v for k, v in service.info(digests=True).digests.items() if k != "clock"}

    def write(self, name: str, count: int, go_on: Callable[[], bool]) -> None:
        """Apply record sets one after the other, each until it is acknowledged."""
        for number in range(count):
            owner = f"{name}-{number}.{ZONE}"
            manifest = parse(records(owner, ZONE, (owner, "A", "192.0.2.1")))
            while go_on():
                with suppress(StorageFailed, Busy, Conflict), self.service() as service:
                    service.change(ChangeRequest(apply=[manifest]))
                    self.acknowledged.append(owner)
                    break


def test_what_one_node_erases_and_prunes_is_gone_for_all_and_a_backup_leaves_the_database(
    database: str, tmp_path: Path
) -> None:
    backup, other = tmp_path / "backup", tmp_path / "other"
    with ExitStack() as stack:
        running = (serving(tmp_path / name, "--store", database) for name in "ab")
        a, b = (
            Node(tmp_path / name, stack.enter_context(one))
            for name, one in zip("ab", running, strict=True)
        )
        with a.service() as service:
            service.change(ChangeRequest(apply=[parse(zone(ZONE))]))
            service.checkpoint()  # from here on a has the key
            owners = [f"host-{number}.{ZONE}" for number in range(300)]
            for address in ("192.0.2.7", "192.0.2.8"):
                many = [parse(records(owner, ZONE, (owner, "A", address))) for owner in owners]
                service.change(ChangeRequest(apply=many, allow_mass_change=True))
            first = service.change(ChangeRequest(apply=[parse(www("198.51.100.1"))])).seq
            second = service.change(ChangeRequest(apply=[parse(www("198.51.100.2"))])).seq
            service.change(ChangeRequest(apply=[parse(www("198.51.100.3"))]))
        wait_until(lambda: a.digests() == b.digests())
        for node, seq in ((a, first), (b, second)):  # b has no key to sign with
            with node.service() as service:
                service.redact(RedactRequest(seq=seq, reason="a secret"))
        with b.service() as service:
            assert service.prune(PruneRequest(before=100_000, dry_run=True)).upto
            with pytest.raises(NotFound, match="another node signs this log"):
                service.prune(PruneRequest(before=100_000))
            service.change(ChangeRequest(apply=[parse(www("192.0.2.9"))]))
        with a.service() as service:
            service.checkpoint()
            pruned = service.prune(PruneRequest(before=100_000))
            assert pruned.upto >= 256
        wait_until(lambda: a.digests() == b.digests() and a.position() == b.position())
        for name in "ab":
            data = tmp_path / name
            assert command("replay", "--verify", "--data", data).code == 0
            assert command("audit", "verify", "--level", "state", "--data", data).code == 0
            said = command("get", "rs", "--at", "10", "--data", data)
            assert f"give {pruned.upto} or a later one" in said.err
        assert command("log", "export", backup, "--data", tmp_path / "b").code == 0
        assert a.serving.texts(f"www.{ZONE}") == b.serving.texts(f"www.{ZONE}") == ["192.0.2.9"]
    done = command("log", "import", backup, "--data", other, "--reason", "moving")
    assert done.code == 0, done.err
    with serving(other) as again:
        assert again.texts(f"www.{ZONE}") == ["192.0.2.9"]


@contextmanager
def writing(node: Node, name: str, count: int, go_on: Callable[[], bool]):
    def write() -> None:
        with suppress(AssertionError, OSError, KudurruError):
            node.write(name, count, go_on)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield thread
    finally:
        thread.join()


@pytest.mark.slow
def test_three_nodes_append_through_a_death_and_a_cut_and_lose_and_double_nothing(
    tmp_path: Path, say: Say
) -> None:
    database = server().new_database()
    direct = server().url(database)
    with ExitStack() as stack:
        between = stack.enter_context(proxy(server().socket))
        indirect = f"postgresql://kudurru@127.0.0.1:{between.port}/{database}"
        nodes = []
        for name, url in (("a", direct), ("b", direct), ("c", indirect)):
            data = tmp_path / name
            nodes.append(Node(data, stack.enter_context(serving(data, "--store", url))))
        a, b, c = nodes
        with a.service() as service:
            service.change(ChangeRequest(apply=[parse(zone(ZONE)), parse(www())]))
        wait_until(lambda: all(n.serving.texts(f"www.{ZONE}") == ["192.0.2.1"] for n in nodes))
        lives = {"b": True}
        with (
            writing(a, "a", 300, lambda: True) as writing_a,
            writing(b, "b", 10_000, lambda: lives["b"]),
            writing(c, "c", 200, lambda: True) as writing_c,
        ):
            wait_until(lambda: all(len(node.acknowledged) >= 20 for node in nodes))
            between.cut()
            wait_until(lambda: len(a.acknowledged) >= 80)
            lives["b"] = False
            b.serving.process.kill()
            b.serving.process.wait()
            # What was known before the cut is answered through it.
            assert c.serving.texts(f"www.{ZONE}") == ["192.0.2.1"]
            assert c.serving.texts(f"a-0.{ZONE}") == ["192.0.2.1"]
            writing_a.join()
            wanted, healed = a.position(), time.monotonic()
            between.heal()
            wait_until(lambda: c.position() >= wanted)
            took_s = time.monotonic() - healed
            say(f"suite shared-log: a cut node was level {took_s:.2f} s after healing")
            writing_c.join()
        assert len(a.acknowledged) == 300
        assert len(c.acknowledged) == 200
        again = Node(
            tmp_path / "b", stack.enter_context(serving(tmp_path / "b", "--store", direct))
        )
        wait_until(lambda: a.digests() == c.digests() == again.digests())
    _check_log(direct, {owner for node in nodes for owner in node.acknowledged})


@pytest.mark.slow
def test_dns_is_answered_while_the_database_is_silent(tmp_path: Path) -> None:
    database = server().new_database()
    with proxy(server().socket) as between:
        url = f"postgresql://kudurru@127.0.0.1:{between.port}/{database}"
        with serving(tmp_path / "a", "--store", url) as serving_a:
            node = Node(tmp_path / "a", serving_a)
            with node.service() as service:
                service.change(ChangeRequest(apply=[parse(zone(ZONE)), parse(www())]))
            between.hang()
            with writing(node, "a", 3, lambda: True):
                assert between.has_swallowed.wait(60)
                for _ in range(200):
                    # Who waited for the database would wait for its own limit.
                    patience_s = EXCHANGE_TIMEOUT_S / 2
                    assert serving_a.ask(f"www.{ZONE}", patience_s=patience_s).answer
                    with node.service() as service:
                        assert service.get(parse(www()).key)["kind"] == "DNSRecordSet"
                assert node.acknowledged == []
                between.resume()
            assert len(node.acknowledged) == 3


def _check_log(url: str, acknowledged: set[str]) -> None:
    from kudurru.adapters.clock import SystemClock, SystemEntropy

    log = PostgresEventLog.open(url, entropy=SystemEntropy(), clock=SystemClock())
    try:
        assert verify(log).is_whole
        applied = [
            json.loads(event.body or b"{}")["spec"]["endpoints"][0]["dnsName"]
            for event in log.read()
            if event.type == OBJECT_APPLIED and event.key.startswith("DNSRecordSet/")
        ]
        assert acknowledged <= set(applied)
        assert len(applied) == len(set(applied)), "something was recorded twice"
    finally:
        log.close()


def test_a_node_begins_with_its_snapshot_and_what_others_did_since(
    database: str, tmp_path: Path
) -> None:
    file = write_json(tmp_path / "zone.json", zone(ZONE), www())
    often = {"KUDURRU__SNAPSHOTS__INTERVAL": "50ms"}
    with serving(tmp_path / "a", "--store", database, env=often):
        assert kudurru("apply", "-f", file, "--data", tmp_path / "a").code == 0
        wait_until((tmp_path / "a/views.db").exists)
    with serving(tmp_path / "b", "--store", database):
        write_json(file, www("192.0.2.2"))
        assert kudurru("apply", "-f", file, "--data", tmp_path / "b").code == 0
    with serving(tmp_path / "a") as a:
        assert a.texts(f"www.{ZONE}") == ["192.0.2.2"]
        replayed = command("replay", "--verify", "--data", tmp_path / "a", "-o", "json").json()
        assert replayed["server"] == "the server's views equal the replayed ones"


def test_nodes_share_keys_once_they_share_a_node_key(database: str, tmp_path: Path) -> None:
    file = write_json(tmp_path / "zone.json", zone(ZONE, transfer={"allow": ["k1"]}), www())
    a_data, b_data = tmp_path / "a", tmp_path / "b"

    def problems(data: Path) -> list[str]:
        keys = command("tsig", "list", "--data", data, "-o", "json").json()
        return [key["problem"] for key in keys]

    with serving(a_data, "--store", database):
        assert command("apply", "-f", file, "--data", a_data).code == 0
        secret = command("tsig", "create", "k1", "--data", a_data, "-o", "json").json()["secret"]
        assert problems(a_data) == [""]
        with serving(b_data, "--store", database):
            wait_until(lambda: problems(b_data))
            assert "copy keys/node.key" in problems(b_data)[0]
            refused = command("tsig", "create", "k2", "--data", b_data)
            assert (refused.code, "copy keys/node.key" in refused.err) == (1, True)
        shutil.copy(a_data / "keys/node.key", b_data / "keys/node.key")
        with serving(b_data) as b:
            assert problems(b_data) == [""]
            key = Key("k1", "hmac-sha256", secret)
            assert len(fetched(b.port, ZONE, key)) == 2
