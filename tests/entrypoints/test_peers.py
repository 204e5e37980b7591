"""Zones as other nodes are told of them."""

import asyncio
import json

from kudurru.adapters.http_api import Request
from kudurru.entrypoints.peers import ZONES, PeersApp
from tests.nodes import a_change, memory_node
from tests.objects import manifest, put


def test_a_node_that_replays_its_log_tells_of_no_zones() -> None:
    node = memory_node()
    node.commit(a_change(put(manifest("DNSZone", "a.example", {"zoneName": "a.example"}))))
    node.zones.show_unstamped()
    synced: list[bool] = []
    app = PeersApp(node, "ns1", lambda: bool(synced))
    request = Request(method="GET", path=ZONES, query="", headers={}, peer="", local="")
    assert app.admit(request) is None
    before = asyncio.run(app.answer(request))
    assert json.loads(before.body) == {"node": "ns1", "zones": None}
    synced.append(True)
    [zone] = json.loads(asyncio.run(app.answer(request)).body)["zones"]
    assert (zone["zone"], zone["type"]) == ("a.example.", "Primary")
