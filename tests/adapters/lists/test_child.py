"""The process for lists: what it makes of what comes, and that it can be killed."""

import asyncio
import gzip
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import dns.message
import dns.rdatatype
import dns.rrset
import pytest

from kudurru.adapters.lists import worker
from kudurru.adapters.lists.child import do, path_of, resolver
from kudurru.adapters.lists.jobs import (
    Build,
    Built,
    Failed,
    Fetch,
    Fetched,
    Nameserver,
    Request,
    Text,
    Unchanged,
)
from kudurru.domain.lists.rules import Context, Reason
from kudurru.domain.objects import Key
from tests.adapters.lists.servers import answer, serving


def fetch_file(folder: Path, octets: bytes, *, had_entries: bool = False) -> Fetched | Failed:
    path = folder / "origin"
    path.write_bytes(octets)
    return fetched(folder, f"file:{path}", had_entries=had_entries)


def fetched(folder: Path, url: str, *, had_entries: bool = False) -> Fetched | Failed:
    request = Request(url, 1 << 20)
    found = do(Fetch(request, str(folder / "spool"), Context(), had_entries, 10))
    assert isinstance(found, Fetched | Failed)
    assert (folder / "spool").exists() is isinstance(found, Fetched)
    return found


def test_a_list_is_counted_and_left_at_its_place(tmp_path: Path) -> None:
    found = fetch_file(tmp_path, b"\xef\xbb\xbf0.0.0.0 a.example\r\n||b.example^\r\nx##y\r\n/(/")
    assert isinstance(found, Fetched)
    assert found.facts.entries == 2
    assert found.facts.refused == {Reason.COSMETIC: 1, Reason.REGEX: 1}
    assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o600


def test_expressions_over_the_limit_are_not_counted_as_rules(tmp_path: Path) -> None:
    found = fetch_file(tmp_path, b"".join(b"/^a%d[.]/\n" % i for i in range(1003)))
    assert isinstance(found, Fetched)
    assert found.facts.entries == 1000
    assert found.facts.refused == {Reason.REGEX_MAX: 3}


NO_LISTS = {
    "empty": b"",
    "blank": b"\n\n  \n",
    "a page": b"  <!DOCTYPE HTML><title>secret</title>",
    "another page": b"<html><head></head></html>",
    "a comment of HTML": b"<!-- moved -->",
    "XML": b"<?xml version='1.0'?><Error>secret</Error>",
    "binary": bytes(range(256)) * 10,
    "an archive": gzip.compress(b"a.example\n"),
    "a zip": b"PK\x03\x04" + bytes(100),
    "UTF-16": "a.example\n".encode("utf-16"),
    "prose": b"secret words of the intranet\nand more of it\n",
    "JSON": b'{"error": "secret"}',
    "URLs": b"https://secret.example/list.txt\n",
    "long lines": b"a" * 100_000,
    "too large": b"a.example\n" * 200_000,
}


@pytest.mark.parametrize("octets", NO_LISTS.values(), ids=NO_LISTS.keys())
def test_what_is_no_list_is_refused_and_not_quoted(tmp_path: Path, octets: bytes) -> None:
    found = fetch_file(tmp_path, octets)
    assert isinstance(found, Failed)
    assert "secret" not in found.why


def test_a_list_that_shrinks_to_nothing_is_refused(tmp_path: Path) -> None:
    only_comments = b"# nothing today\n"
    assert isinstance(fetch_file(tmp_path, only_comments), Fetched)
    found = fetch_file(tmp_path, only_comments, had_entries=True)
    assert isinstance(found, Failed)
    assert found.why == "it has no rules"


def test_a_list_with_more_rules_than_there_may_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kudurru.domain.lists.body.RULES_MAX", 3)
    assert isinstance(fetch_file(tmp_path, b"a.example\n" * 3), Fetched)
    assert isinstance(fetch_file(tmp_path, b"a.example\n" * 4), Failed)


def test_only_regular_files_with_absolute_paths_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for url in (
        f"file:{tmp_path}",
        f"file:{tmp_path}/pipe",
        "file:/dev/zero",
        "file:pyproject.toml",
    ):
        found = fetched(tmp_path, url)
        assert isinstance(found, Failed), url
    assert path_of("file:///a/b") == path_of("file:/a/b") == Path("/a/b")


def test_an_address_of_this_machine_is_refused(tmp_path: Path) -> None:
    with serving(lambda _: [answer(b"a.example\n")]) as port:
        for host in ("127.0.0.1", "localhost", "[::1]", "0.0.0.0"):
            found = fetched(tmp_path, f"http://{host}:{port}/")
            assert isinstance(found, Failed)
            assert "this machine" in found.why


def test_a_list_comes_over_http_and_is_unchanged_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kudurru.adapters.lists.fetch.why_refused", lambda a, **_: None)

    def script(head: bytes) -> list[bytes]:
        if b"If-None-Match" in head:
            return [answer(status="304 Not Modified")]
        body = gzip.compress(b"a.example\n")
        return [answer(body, ETag='"v1"', Content_Encoding="gzip")]

    with serving(script) as port:
        url = f"http://127.0.0.1:{port}/list"
        found = fetched(tmp_path, url)
        assert isinstance(found, Fetched)
        assert found.facts.entries == 1
        assert found.response.etag == '"v1"'
        assert (tmp_path / "spool").read_bytes() == b"a.example\n"
        again = Fetch(Request(url, 1 << 20, '"v1"'), str(tmp_path / "s"), Context(), True, 10)
        assert do(again) == Unchanged()
    assert not (tmp_path / "s").exists()


def test_names_of_servers_are_resolved_by_the_servers_that_were_named() -> None:
    asked = []

    def reply(packet: bytes) -> bytes:
        query = dns.message.from_wire(packet)
        asked.append(query.question[0].name.to_text())
        answer = dns.message.make_response(query)
        if query.question[0].rdtype == dns.rdatatype.A:
            name = query.question[0].name
            answer.answer.append(dns.rrset.from_text(name, 60, "IN", "A", "192.0.2.7"))
        return answer.to_wire()

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(60)

        def serve() -> None:
            while (received := sock.recvfrom(4096))[0]:
                sock.sendto(reply(received[0]), received[1])

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            resolve = resolver([Nameserver(*sock.getsockname())])
            assert list(resolve("lists.example", 443)) == ["192.0.2.7"]
            assert set(asked) == {"lists.example."}
        finally:
            sock.sendto(b"", sock.getsockname())
            thread.join()


# --- in a process of its own ------------------------------------------------------------------


def children() -> set[int]:
    while True:
        tasks = Path("/proc/self/task").iterdir()
        try:
            return {int(pid) for task in tasks for pid in (task / "children").read_text().split()}
        except OSError:
            continue  # a thread ended meanwhile, and its children are another one's


def build(folder: Path, lines: int) -> Build:
    """A job of some length."""
    path = folder / "origin"
    path.write_bytes(b"".join(b"n%d.example\n" % i for i in range(lines)))
    found = do(Fetch(Request(f"file:{path}", 1 << 28), str(folder / "body"), Context(), False, 60))
    assert isinstance(found, Fetched)
    text = Text(Key("l"), 0, "t", Context(), str(folder / "body"), found.digest)
    return Build((text,), 1, str(folder / "table"))


def test_a_job_is_done_by_another_process(tmp_path: Path) -> None:
    found = asyncio.run(worker.run(build(tmp_path, 10), 60))
    assert isinstance(found, Built)
    assert found.facts[0].entries == 10


def test_a_process_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    before = children()
    assert asyncio.run(worker.run(build(tmp_path, 10), 0.001)) == Failed("it took too long")
    assert children() <= before


def test_a_process_ends_with_whoever_waits_for_it(tmp_path: Path) -> None:
    before = children()
    job = build(tmp_path, 200_000)

    async def cancelled() -> None:
        task = asyncio.create_task(worker.run(job, 60))
        while not children() - before:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancelled())
    assert children() <= before


def test_a_process_that_dies_is_an_outcome_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    found = asyncio.run(worker.run(build(tmp_path, 10), 60))
    assert found == Failed("the process that did it ended with 1")


def test_a_process_of_another_version_is_an_outcome_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/echo")
    found = asyncio.run(worker.run(build(tmp_path, 10), 60))
    assert isinstance(found, Failed)
    assert "another version" in found.why


@pytest.fixture(autouse=True)
def no_child_stays() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before
