"""Both ends of the command socket, without a server behind it."""

import asyncio
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kudurru.domain.errors import Invalid
from kudurru.domain.events import Who
from kudurru.entrypoints import rpc
from kudurru.entrypoints.rpc import RemoteService, RpcServer, connect
from kudurru.entrypoints.service import ChangeRequest, manifest_from_wire


def test_a_text_that_cannot_be_sent_is_invalid_and_nothing_is_sent() -> None:
    ours, theirs = socket.socketpair()
    with closing(theirs), RemoteService(ours) as server, pytest.raises(Invalid, match="surrogate"):
        server.export("\udcff")


def test_a_command_that_is_under_way_when_the_server_stops_gets_its_answer(tmp_path: Path) -> None:
    async def scene() -> list[str]:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def handle(method: str, argument: Any, who: Who) -> Any:
            begun.set()
            await go_on.wait()
            return [f"{method} of {argument}"]

        server = RpcServer(tmp_path / "s", handle)
        await server.start()

        def ask() -> list[str]:
            client = connect(tmp_path / "s")
            assert client is not None
            with client:
                return client.export("home.arpa")

        asked = asyncio.create_task(asyncio.to_thread(ask))
        idle = socket.socket(socket.AF_UNIX)
        with closing(idle):
            idle.connect(str(tmp_path / "s"))
            await begun.wait()
            stopping = asyncio.create_task(server.stop())
            await asyncio.sleep(0)
            go_on.set()
            await stopping
        return await asked

    assert asyncio.run(asyncio.wait_for(scene(), 60)) == ["export of home.arpa"]


def test_objects_are_counted_however_they_are_framed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "OBJECTS_MAX", 5)
    document = {
        "apiVersion": "kudurru.io/v1alpha1",
        "kind": "DNSZone",
        "metadata": {"name": "z"},
        "spec": {"zoneName": "z.example"},
    }
    taken: list[int] = []

    async def handle(method: str, argument: Any, who: Who) -> Any:
        taken.append(len(argument.apply))
        return {"outcomes": [], "seq": 0}

    def ask(count: int) -> None:
        client = connect(tmp_path / "s")
        assert client is not None
        with client:
            client.change(ChangeRequest(apply=[manifest_from_wire(document)] * count))

    async def scene() -> None:
        server = RpcServer(tmp_path / "s", handle)
        await server.start()
        await asyncio.to_thread(ask, 5)
        with pytest.raises(Invalid, match="6 objects; at most 5 in one change"):
            await asyncio.to_thread(ask, 6)
        await server.stop()

    asyncio.run(asyncio.wait_for(scene(), 60))
    assert taken == [5]
