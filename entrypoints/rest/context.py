"""What the routes of the API work on: one node and its parts."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from kudurru.domain.events import Who
from kudurru.domain.ports import Entropy
from kudurru.domain.settings import Settings
from kudurru.entrypoints.access_log import AccessLog
from kudurru.entrypoints.rest.forwarding import Forwarding
from kudurru.entrypoints.rest.heavy import Heavy
from kudurru.entrypoints.rest.people import People
from kudurru.entrypoints.standing import Standing
from kudurru.entrypoints.store import LogStore
from kudurru.entrypoints.tokens import Tokens
from kudurru.entrypoints.waiting import Threads
from kudurru.entrypoints.wiring import Node
from kudurru.entrypoints.writer import Writer

EXPORTS_MAX = 2
"""Exports of the log at once: each lasts as long as its client takes."""

Operations = Callable[[str, Any, Who], Awaitable[Any]]
"""(method, argument, who): what the socket's commands do. Raises KudurruError."""


class Context(msgspec.Struct, kw_only=True):
    node: Node
    writer: Writer
    store: LogStore
    operate: Operations
    tokens: Tokens
    access: AccessLog
    entropy: Entropy
    standing: Standing
    query_log: Path | None = None
    data: Path | None = None
    """The data directory, where other processes can read its log."""
    settings: Callable[[], Settings] = Settings
    """Those that run now."""
    heavy: Heavy = msgspec.field(default_factory=lambda: Heavy("past"))
    """What reads much of the log."""
    brief: Heavy = msgspec.field(default_factory=lambda: Heavy("brief"))
    """What ends soon, and is too much for the loop."""
    export_threads: Threads = msgspec.field(
        default_factory=lambda: Threads(EXPORTS_MAX, "kudurru-export")
    )
    exports: asyncio.Semaphore = msgspec.field(
        default_factory=lambda: asyncio.Semaphore(EXPORTS_MAX)
    )
    verifying: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    explaining: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    """Of the past: one process that is as large as the server."""
    followers: int = 0
    """Nodes that are sent the log."""
    watches: Counter[str] = msgspec.field(default_factory=Counter)
    """Open ones, by the name of the token."""
    people: People | None = None
    """Those whom a cluster knows; None where there is no cluster."""
    forwarding: Forwarding | None = None
    """Where the node follows, and passes on what the leader has to do."""
    on_token: Callable[[], None] = lambda: None
    """Called when a token was made or revoked."""
