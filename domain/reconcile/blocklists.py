"""What has to be done so that BlockLists are fresh: which sources are due, what an attempt led to,
and what a list's status says of it.

A source that fails keeps its last good copy, and is tried again ever more rarely. Two lists that
name one URL, and read it alike, share one copy.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import msgspec

from kudurru.domain.kinds.blocklist import BlockListSource, BlockListSpec, SourceStatus
from kudurru.domain.kinds.durations import duration_us
from kudurru.domain.lists.body import Facts
from kudurru.domain.lists.rules import SELF, SUBTREE, Context
from kudurru.domain.objects import Key, ref_of

INLINE = "inline"
CONFIG_MAP = "configMap:"

RETRY_US = 60_000_000
"""After the first failure; twice as long after each more, at most an hour or the interval."""
RETRY_MAX_US = 3_600_000_000
INTERVAL_MIN_US = 60_000_000
"""What is fetched more often would be refused by those who publish lists."""
MESSAGE_MAX = 256

Phase = Literal["Fresh", "Unchanged", "Stale", "Failed"]


class ConfigMapPlace(NamedTuple):
    namespace: str  # the list's own
    name: str
    key: str  # "": all of them


class Want(msgspec.Struct, frozen=True):
    """A source that has to be fetched."""

    list: Key
    index: int  # in spec.sources
    title: str  # as status.sources[].source
    context: Context
    interval_us: int
    max_bytes: int

    @property
    def id(self) -> str:
        """Of the copy: sources with one id share it."""
        return _id(self.list, self.context, self.title)

    @property
    def config_map(self) -> ConfigMapPlace | None:
        """Where the text is, when it is not fetched by a URL."""
        if not self.title.startswith(CONFIG_MAP):
            return None
        name, _, key = self.title.removeprefix(CONFIG_MAP).partition("/")
        return ConfigMapPlace(ref_of(self.list).namespace, name, key)


class SourceState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What this node knows of a source, and keeps beside the copies."""

    digest: str = ""  # SHA-256 of the copy in use, hex; empty: there is none
    etag: str = ""
    last_modified: str = ""
    entries: int = 0
    invalid: int = 0
    attempted_us: int = 0
    succeeded_us: int = 0
    failures: int = 0  # in a row
    wait_us: int = 0  # as the server asked, after the last failure
    phase: Phase = "Failed"
    error: str = ""


NEVER_FETCHED = SourceState()


class Plan(msgspec.Struct, frozen=True):
    fetch: tuple[Want, ...]
    next_us: int | None  # when the next one is due; None: nothing is waited for


class Arrived(msgspec.Struct, frozen=True):
    """An attempt brought a text, or word that there is nothing new (`digest` is then empty)."""

    digest: str = ""
    facts: Facts = Facts()
    etag: str = ""
    last_modified: str = ""


class Missed(msgspec.Struct, frozen=True):
    """An attempt brought nothing that could be used."""

    why: str
    wait_us: int = 0


def context_of(spec: BlockListSpec) -> Context:
    """How the lines of a list are read. Bare names cover themselves unless `match` says more."""
    covers = SUBTREE if spec.match == "subtree" else SELF
    return Context(format=spec.format, covers=covers, is_allow=spec.kind == "allow")


def title_of(source: BlockListSource) -> str:
    if source.url is not None:
        return source.url
    if source.config_map_ref is not None:
        name, key = source.config_map_ref.name, source.config_map_ref.key
        return f"{CONFIG_MAP}{name}/{key}" if key else f"{CONFIG_MAP}{name}"
    return INLINE


def _id(list_: Key, context: Context, title: str) -> str:
    if title.startswith(CONFIG_MAP):
        title = f"{CONFIG_MAP}{ref_of(list_).namespace}/{title.removeprefix(CONFIG_MAP)}"
    return f"{context.format} {title}"


def wants_of(key: Key, spec: BlockListSpec, *, interval_us: int, max_bytes: int) -> Iterator[Want]:
    """Sources of an enabled list that have to be fetched; the defaults are those of the
    settings. A list cannot have larger texts than those allow."""
    own_us = duration_us(spec.refresh_interval) if spec.refresh_interval else interval_us
    most = min(spec.max_bytes or max_bytes, max_bytes)
    for index, source in enumerate(spec.sources):
        if source.inline is None:
            yield Want(
                key, index, title_of(source), context_of(spec), max(own_us, INTERVAL_MIN_US), most
            )


def due_us(want: Want, state: SourceState, now_us: int) -> int:
    """When a source is to be fetched again."""
    # A copy from the future: the clock went back, and nobody knows how old it is.
    if state.attempted_us == 0 or state.attempted_us > now_us:
        return now_us
    if not state.failures:
        return state.succeeded_us + want.interval_us
    longest = min(RETRY_MAX_US, want.interval_us)
    wait = min(RETRY_US << min(state.failures - 1, 16), longest)
    return state.attempted_us + max(wait, state.wait_us)


def plan(
    wants: Iterable[Want],
    states: Mapping[str, SourceState],
    now_us: int,
    *,
    forced: Collection[str] = (),
    busy: Collection[str] = (),
) -> Plan:
    """What to fetch now. `forced` ids are due whatever their state says, `busy` ones are on their
    way."""
    fetch: dict[str, Want] = {}
    next_us: int | None = None
    for want in wants:
        if want.id in busy or want.id in fetch:
            continue
        due = due_us(want, states.get(want.id, NEVER_FETCHED), now_us)
        if due <= now_us or want.id in forced:
            fetch[want.id] = want
        else:
            next_us = due if next_us is None else min(next_us, due)
    return Plan(tuple(fetch.values()), next_us)


def after(state: SourceState, outcome: Arrived | Missed, now_us: int) -> SourceState:
    """The state after an attempt. What was good stays when nothing better came."""
    if isinstance(outcome, Missed):
        return msgspec.structs.replace(
            state,
            attempted_us=now_us,
            failures=state.failures + 1,
            wait_us=outcome.wait_us,
            phase="Stale" if state.digest else "Failed",
            error=outcome.why[:MESSAGE_MAX],
        )
    good = msgspec.structs.replace(
        state,
        attempted_us=now_us, succeeded_us=now_us, failures=0, wait_us=0, phase="Unchanged",
        error="",
    )  # fmt: skip
    if not outcome.digest:
        return good
    is_new = outcome.digest != state.digest
    return msgspec.structs.replace(
        good,
        digest=outcome.digest,
        etag=outcome.etag,
        last_modified=outcome.last_modified,
        entries=outcome.facts.entries,
        invalid=outcome.facts.invalid,
        phase="Fresh" if is_new else "Unchanged",
    )


def without_copy(state: SourceState) -> SourceState:
    """The state when the copy turned out to be gone or damaged: due at once."""
    return SourceState(error=state.error)


def sources_status(
    key: Key, spec: BlockListSpec, states: Mapping[str, SourceState], inline: Mapping[int, Facts]
) -> list[SourceStatus]:
    """What status.sources of the list says. Sources that were never tried are not in it."""
    found = []
    context = context_of(spec)
    for index, source in enumerate(spec.sources):
        title = title_of(source)
        if source.inline is not None:
            facts = inline.get(index, Facts())
            found.append(
                SourceStatus(
                    source=title, entries=facts.entries, invalid_entries=facts.invalid,
                    phase="Fresh",
                )
            )  # fmt: skip
        elif (state := states.get(_id(key, context, title))) is not None and state.attempted_us:
            found.append(_status(title, state))
    return found


def _status(title: str, state: SourceState) -> SourceStatus:
    return SourceStatus(
        source=title,
        entries=state.entries,
        invalid_entries=state.invalid,
        digest=f"sha256:{state.digest}" if state.digest else "",
        etag=state.etag,
        last_attempt=_time_text(state.attempted_us),
        last_success=_time_text(state.succeeded_us),
        phase=state.phase,
        error=state.error,
    )


def is_worth_writing(before: list[SourceStatus], now: list[SourceStatus]) -> bool:
    """Whether a status says something else than the one before: a new time alone is nothing, or
    the log would grow with every attempt."""
    return list(map(_without_times, before)) != list(map(_without_times, now))


def _without_times(status: SourceStatus) -> SourceStatus:
    return msgspec.structs.replace(status, last_attempt="", last_success="", etag="")


def _time_text(time_us: int) -> str:
    if not time_us:
        return ""
    return datetime.fromtimestamp(time_us // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
