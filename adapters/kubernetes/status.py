"""Writing the status of an object, and nothing else of it."""

from collections.abc import Callable
from typing import Any

from kudurru.adapters.kubernetes.answers import Absent, Collided
from kudurru.adapters.kubernetes.client import Client
from kudurru.adapters.kubernetes.informer import key_of
from kudurru.adapters.kubernetes.memo import Memo

Object = dict[str, Any]


async def settle_status(
    client: Client,
    memo: Memo,
    path: str,
    held: Object,
    compute: Callable[[Object], Object | None],
) -> Object | None:
    """Write the status that `compute` makes of an object, None where it is right as it is. When
    the copy turns out to be old, read the object, compute again, and write once more.

    The object as the API server has it after the write; None when none was needed. `held` and its
    parts are left alone. Raises: Absent when the object is gone; Collided when it moved twice.
    """
    status = compute(held)
    if status is None:
        return None
    try:
        return await replace_status(client, memo, path, held, status)
    except (Absent, Collided):
        fresh = await read(client, memo, path, key_of(held))
    status = compute(fresh)
    if status is None:
        return None
    return await replace_status(client, memo, path, fresh, status)


async def replace_status(
    client: Client, memo: Memo, path: str, held: Object, status: Object
) -> Object:
    """Of the version that `held` has. Its uid goes along, so that an object which was made again
    under the name is not meant."""
    # The server wants apiVersion and kind, and the whole object, of which it takes the status.
    body = held | {"status": status}

    async def write() -> Object:
        return await client.request("PUT", f"{path}/status", body)

    return await memo.send(key_of(held), write, version_of)


async def read(client: Client, memo: Memo, path: str, key: str) -> Object:
    """The object as the API server has it. Raises: Absent, and the memo forgets it then."""
    try:
        return await memo.send(key, lambda: client.get(path, dict), version_of)
    except Absent:
        memo.forget(key)
        raise


def version_of(found: Object) -> str:
    return str(found["metadata"]["resourceVersion"])
