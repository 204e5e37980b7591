"""Our definitions in a cluster: what an apply would change there, and the apply itself.

Both are the same server-side apply, once as a dry run, so that what is shown is what would be done:
the API server's defaults are no differences, nor is what others set beside ours.
"""

import asyncio
from typing import Any

import msgspec

from kudurru.adapters.kubernetes.answers import Absent, Forbidden
from kudurru.adapters.kubernetes.client import APPLY_PATCH, Client
from kudurru.adapters.kubernetes.crds import crds
from kudurru.adapters.kubernetes.definitions import lacking
from kudurru.domain.errors import Busy
from kudurru.domain.kinds.meta import GROUP, VERSION

COLLECTION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MANAGER = "kudurru-crds"
LOOK_S = 0.25
"""Between looks whether they are served."""

Object = dict[str, Any]


class Applied(msgspec.Struct, frozen=True):
    """The spec of a definition before and after; None before where there was none."""

    name: str
    before: Object | None
    after: Object

    @property
    def is_changed(self) -> bool:
        return self.before != self.after


async def apply_definitions(client: Client, *, dry_run: bool) -> list[Applied]:
    """In order of kinds. What another manager set otherwise becomes ours: they are the program's.
    Raises: Refused, Unanswered; what was applied before that stays."""
    return [await _apply(client, definition, dry_run=dry_run) for definition in crds()]


async def _apply(client: Client, definition: Object, *, dry_run: bool) -> Applied:
    name = definition["metadata"]["name"]
    path = f"{COLLECTION}/{name}"
    try:
        before = (await client.get(path, dict))["spec"]
    except Absent:
        before = None
    query = f"fieldManager={MANAGER}&force=true{'&dryRun=All' if dry_run else ''}"
    after: Object = await client.request(
        "PATCH", f"{path}?{query}", definition, content_type=APPLY_PATCH
    )
    return Applied(name, before, after["spec"])


async def until_served(client: Client, limit_s: float) -> None:
    """Until the API server serves all of them. Raises: Busy when it still does not then; Refused,
    Unanswered."""
    missing = []
    try:
        async with asyncio.timeout(limit_s):
            while missing := await lacking(client):
                await asyncio.sleep(LOOK_S)
            for definition in crds():
                await _until_read(client, definition["spec"]["names"]["plural"])
    except TimeoutError:
        kinds = ", ".join(one.kind for one in missing) or "definitions"
        what = f"{kinds}: installed, and not served after {limit_s:g} s"
        raise Busy(f"{what}; `kudurru crds install` again shows when they are") from None


async def _until_read(client: Client, plural: str) -> None:
    """A kind is announced before its storage is there: then it is 404, or 429, which the client
    waits for."""
    while True:
        try:
            await client.get(f"/apis/{GROUP}/{VERSION}/{plural}?limit=1", dict)
        except Absent:
            await asyncio.sleep(LOOK_S)
        except Forbidden:
            return  # who may define kinds need not be one who may read their objects
        else:
            return
