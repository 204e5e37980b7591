"""Restore and undo give nobody what only others may do, and a query is no way to be somebody."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import dns.message
import dns.opcode
import dns.update
import pytest

from tests.api import Api, refused, serving
from tests.entrypoints.rest.shapes import record_set, zone

SECRET = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
LIST = {
    "apiVersion": "kudurru.io/v1alpha1", "kind": "BlockList", "metadata": {"name": "host"},
    "spec": {"sources": [{"url": "file:/etc/hosts"}]},
}  # fmt: skip
PATH = "/namespaces/default/blocklists/host"


def on_api(ask: Callable[[Api], Awaitable[Any]], tmp: Path) -> Any:
    async def asked() -> Any:
        async with serving("viewer", "operator", tmp=tmp / "key") as api:
            return await ask(api)

    return asyncio.run(asked())


def test_a_key_is_neither_undone_nor_brought_back_by_an_operator(tmp_path: Path) -> None:
    async def ask(api: Api) -> None:
        made = await api.ask("POST", "/tsigkeys", {"name": "k", "secret": SECRET})
        at = made.headers["X-Kudurru-Position"]
        refused(await api.ask("POST", "/undo", {"what": at}, token="operator"), 403, "Forbidden")
        done = await api.ask("POST", "/undo", {"what": at, "apply": True})
        assert done.code == 200, done
        scope = {"objects": ["tsigkey/k"]}
        body = {"at": at, "scope": scope, "apply": True}
        refused(await api.ask("POST", "/restore", body, token="operator"), 403, "Forbidden")
        # The secret went with the key: an admin who restores it has to give it again.
        assert (await api.ask("POST", "/restore", body)).code == 200
        [state] = (await api.ask("GET", "/tsigkeys")).json
        assert state["problem"]

    on_api(ask, tmp_path)


def test_what_an_admin_took_back_is_not_restored_by_an_operator(tmp_path: Path) -> None:
    async def ask(api: Api) -> None:
        assert (await api.ask("PUT", PATH, LIST)).code == 201
        at = str(api.node.log.head().seq)
        assert (await api.ask("DELETE", PATH)).code == 200
        body = {"at": at, "scope": {"objects": ["blocklist/default/host"]}, "apply": True}
        status = refused(
            await api.ask("POST", "/restore", body, token="operator"), 403, "Forbidden"
        )
        assert "an admin may apply this" in status["message"]
        assert (await api.ask("POST", "/restore", body)).code == 200

    on_api(ask, tmp_path)


@pytest.mark.parametrize("qtype", ["AXFR", "IXFR"])
def test_a_query_in_the_name_of_a_client_is_no_transfer(tmp_path: Path, qtype: str) -> None:
    async def ask(api: Api) -> None:
        assert (await api.ask("PUT", "/dnszones/z.example", zone("z.example"))).code == 201
        path = f"/query?name=z.example&type={qtype}&client=192.0.2.9"
        refused(await api.ask("GET", path, token="viewer"), 422, "Invalid")

    on_api(ask, tmp_path)


def test_a_query_in_the_name_of_a_client_is_neither_update_nor_notify(tmp_path: Path) -> None:
    update = dns.update.UpdateMessage("z.example.")
    update.add("a", 60, "A", "192.0.2.1")
    notify = dns.message.make_query("z.example.", "SOA")
    notify.set_opcode(dns.opcode.NOTIFY)

    async def ask(api: Api) -> None:
        for message in (update, notify):
            answer = await api.ask(
                "POST", "/query?client=192.0.2.9", message.to_wire(), token="viewer",
                kind="application/dns-message",
            )  # fmt: skip
            refused(answer, 422, "Invalid")

    on_api(ask, tmp_path)


def test_a_record_set_is_restored_by_an_operator_as_before(tmp_path: Path) -> None:
    async def ask(api: Api) -> None:
        assert (await api.ask("PUT", "/dnszones/z.example", zone("z.example"))).code == 201
        where = "/namespaces/default/dnsrecordsets/a"
        await api.ask("PUT", where, record_set("a", "z.example", "default"))
        at = str(api.node.log.head().seq)
        await api.ask("DELETE", where)
        body = {"at": at, "scope": {"zone": "z.example"}, "apply": True}
        assert (await api.ask("POST", "/restore", body, token="operator")).code == 200

    on_api(ask, tmp_path)
