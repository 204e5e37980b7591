"""What the process for lists is asked, and what it answers."""

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from kudurru.domain.lists.body import Facts
from kudurru.domain.lists.rules import Context
from kudurru.domain.lists.table import SourceFacts
from kudurru.domain.objects import Key

Resolve = Callable[[str, int], Iterable[str]]
"""Addresses of a host name, for a port. Raises OSError."""


class CannotFetch(Exception):
    """A text did not come. The message says why; `retry_after_s` when the server named a time."""

    def __init__(self, why: str, retry_after_s: int = 0) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class Request(msgspec.Struct, frozen=True):
    url: str
    max_bytes: int  # after decompression
    etag: str = ""
    last_modified: str = ""
    allow_private: bool = False


class Response(msgspec.Struct, frozen=True):
    """`unchanged`: what the caller has is what there is."""

    kind: Literal["new", "unchanged"]
    etag: str = ""
    last_modified: str = ""


class Text(msgspec.Struct, frozen=True):
    """A text that is to be in a table: a file, named after the SHA-256 of its content."""

    list: Key
    index: int  # in spec.sources
    title: str
    context: Context
    path: str
    digest: str


class Nameserver(msgspec.Struct, frozen=True):
    address: str
    port: int
    tls_name: str = ""  # the certificate's, of one over TLS; empty: plain


class Fetch(msgspec.Struct, frozen=True, tag=True):
    """Get a text, look at it, and leave it at `spool`."""

    request: Request  # of an http or https URL, or of a `file:` one
    spool: str
    context: Context
    had_entries: bool  # the copy in use has some
    seconds: float
    nameservers: tuple[Nameserver, ...] = ()  # to resolve with; none: as this machine does


class Build(msgspec.Struct, frozen=True, tag=True):
    """Write a table of texts at `path`."""

    texts: tuple[Text, ...]
    seed: int
    path: str


class Fetched(msgspec.Struct, frozen=True, tag=True):
    digest: str  # SHA-256 of what is at `spool`, hex
    size: int
    facts: Facts
    response: Response


class Unchanged(msgspec.Struct, frozen=True, tag=True):
    """The server says that there is nothing new."""


class Built(msgspec.Struct, frozen=True, tag=True):
    facts: tuple[SourceFacts, ...]


class Failed(msgspec.Struct, frozen=True, tag=True):
    why: str  # for a person
    retry_after_s: int = 0
    damaged: str = ""  # digest of a text on disk that is not what was fetched


Job = Fetch | Build
Result = Fetched | Unchanged | Built | Failed
