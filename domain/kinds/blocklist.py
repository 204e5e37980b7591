"""BlockList: subscribed lists of names to deny or allow."""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from kudurru.domain.errors import Cause
from kudurru.domain.kinds.durations import duration_fault
from kudurru.domain.kinds.meta import Condition, Spec, StrictSpec, Text

MAX_BYTES = 1 << 30
INLINE_LINE_MAX = 4096
_SECRET = re.compile(
    r"[?&](token|key|apikey|api_key|access_token|secret|password|pass|sig|signature)=", re.I
)


class ConfigMapRef(StrictSpec, frozen=True, kw_only=True):
    name: Text
    key: Text | None = None


class BlockListSource(StrictSpec, frozen=True, kw_only=True):
    """Exactly one of them."""

    url: Annotated[str, Meta(min_length=1, max_length=2048)] | None = None
    config_map_ref: ConfigMapRef | None = None
    inline: (
        Annotated[list[Annotated[str, Meta(max_length=INLINE_LINE_MAX)]], Meta(max_length=10_000)]
        | None
    ) = None


class BlockListSpec(StrictSpec, frozen=True, kw_only=True):
    sources: Annotated[list[BlockListSource], Meta(min_length=1, max_length=256)]
    format: Literal["auto", "hosts", "domains", "adblock", "dnsmasq", "rpz", "regex"] = "auto"
    kind: Literal["deny", "allow"] = "deny"
    match: Literal["exact", "subtree"] | None = None
    refresh_interval: Text | None = None
    max_bytes: Annotated[int, Meta(ge=1, le=MAX_BYTES)] | None = None


class SourceStatus(Spec, frozen=True, kw_only=True):
    source: str
    entries: int = 0
    invalid_entries: int = 0
    digest: str = ""
    etag: str = ""
    last_attempt: str = ""
    last_success: str = ""
    phase: Literal["Fresh", "Unchanged", "Stale", "Failed"]  # no default: it is always shown
    error: str = ""


class BlockListStatus(Spec, frozen=True, kw_only=True):
    observed_generation: int = 0
    entries: int = 0
    sources: list[SourceStatus] = []
    conditions: list[Condition] = []


def blocklist_faults(spec: BlockListSpec) -> Iterator[Cause]:
    for i, source in enumerate(spec.sources):
        where = f"spec.sources[{i}]"
        given = [f for f in ("url", "config_map_ref", "inline") if getattr(source, f) is not None]
        if len(given) != 1:
            yield Cause(where, "exactly one of url, configMapRef and inline")
        if source.url is not None:
            yield from _url_faults(f"{where}.url", source.url)
    if spec.refresh_interval is not None:
        yield from duration_fault("spec.refreshInterval", spec.refresh_interval)


def _url_faults(where: str, url: str) -> Iterator[Cause]:
    scheme, _, rest = url.partition("://")
    if scheme not in ("http", "https", "file") and not url.startswith("file:"):
        yield Cause(where, "begins with none of http://, https:// and file:")
    # The value is not repeated: it may hold a credential.
    if "@" in rest.partition("/")[0]:
        yield Cause(where, "user information in a URL; keep credentials in a secret reference")
    if _SECRET.search(url):
        yield Cause(where, "a token in a URL; keep credentials in a secret reference")
