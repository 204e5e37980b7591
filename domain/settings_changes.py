"""Settings that are changed through kudurru: what may be changed, and the event that says so.

    key of the cluster  with a settings file, and a log that no other node writes: written there;
                        else the log keeps it, as a layer between settings file and environment
    key of the node     that changes while it runs: kept in memory, gone at the next start
    all other keys      refused, by name

The newest event of the one stream holds the whole layer of the log, so that a start reads one event
and pruning keeps what counts. Two who change settings at once cannot both be next in the stream.
"""

import json
import shlex
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from kudurru.domain.codec import canonical, in_profile
from kudurru.domain.commands import RecordFact
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.events import SETTINGS_CHANGED, Position, Recorded
from kudurru.domain.object_store import DEFAULT_MANAGER
from kudurru.domain.objects import Key as StreamKey
from kudurru.domain.ports import EventLog
from kudurru.domain.settings import KEYS, Key
from kudurru.domain.settings_layers import Resolved, key_at, unknown_key
from kudurru.domain.settings_values import Given, Origin, read_value, shown

SETTINGS_KEY = StreamKey("Settings//cluster")

Kept = Literal["log", "file", "memory"]

Patch = Mapping[str, Any]
"""Path of a key, or of an entry of its map, to its new value as a file would give it; None takes
the value of this layer away."""


class SettingsChanged(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Payload of settings.changed.v1."""

    changed: dict[str, Any]  # as a `Patch`
    kept: Kept
    values: dict[str, Any] = {}  # the layer of the log from here on
    node: str = ""  # whose file or memory it went to


class Layer(msgspec.Struct, frozen=True):
    """The layer of the log: values by key, as a file gives them."""

    values: Mapping[str, Any] = {}
    version: int = 0  # of the stream
    position: Position = Position(0)

    @property
    def origin(self) -> Origin:
        return Origin("log", f"position {self.position}")


def layer_of(log: EventLog, upto: Position | None = None) -> Layer:
    """The layer as the log has it now, or had it at a position: one read."""
    for event in log.read(0, upto, key=SETTINGS_KEY, newest_first=True):
        if event.type == SETTINGS_CHANGED and event.body is not None:
            return Layer(decode(event.body).values, event.ver, event.seq)
    return Layer()


def decode(body: bytes) -> SettingsChanged:
    return msgspec.json.decode(body, type=SettingsChanged)


def before(log: EventLog, event: Recorded) -> dict[str, Any]:
    """What the keys that a change names were by earlier changes like it: in the log, in the same
    settings file, in the memory of the same node. A key is missing where none set it."""
    change = decode(event.body or b"")
    left = set(change.changed)
    found: dict[str, Any] = {}
    for earlier in log.read(0, event.seq - 1, key=SETTINGS_KEY, newest_first=True):
        if not left:
            break
        if earlier.type != SETTINGS_CHANGED or earlier.body is None:
            continue
        fact = decode(earlier.body)
        if change.kept == "log":
            return {path: v for path in left if (v := _at(fact.values, path)) is not None}
        if (fact.kept, fact.node) == (change.kept, change.node):
            named = left & fact.changed.keys()
            left -= named
            found |= {path: v for path in named if (v := fact.changed[path]) is not None}
    return found


def ways_back(log: EventLog, event: Recorded) -> list[Cause]:
    """How a change of settings is taken back, key by key: by a change like it, which is checked and
    goes where the key is kept now."""
    change = decode(event.body or b"")
    earlier = before(log, event)
    return [Cause(path, _way_back(path, earlier, change.kept)) for path in sorted(change.changed)]


def _way_back(path: str, earlier: Mapping[str, Any], kept: Kept) -> str:
    if path in earlier:
        value = shlex.quote(text_of(earlier[path]))
        return f"settings are set, not undone: `kudurru config set {path} {value}`"
    if kept == "file":
        return "settings are set, not undone: what the settings file said before is not in the log"
    return f"settings are set, not undone: `kudurru config unset {path}`"


def text_of(value: Any) -> str:
    """A value as `config set` takes it."""
    return value if isinstance(value, str) else json.dumps(value)


def _at(values: Mapping[str, Any], path: str) -> Any:
    """The value of a key, or of an entry of its map, in a layer; None where it is not there."""
    key, entry = key_at(path) or (None, "")
    if key is None or not entry:
        return values.get(path)
    return (values.get(key.path) or {}).get(entry)


def checked(patch: Patch, resolved: Resolved) -> dict[str, Any]:
    """The patch with each value as we write it. Raises Invalid with every fault: keys that are not
    known, or are changed elsewhere, and values that cannot be."""
    faults: list[Cause] = []
    found: dict[str, Any] = {}
    if not patch:
        faults.append(Cause("", "no key is named: give at least one"))
    for path, raw in patch.items():
        at = key_at(path)
        if at is None and raw is None and "." in path:
            found[path] = None  # a key of another version may be in the layer
        elif at is None:
            faults.append(Cause(path, unknown_key(path)))
        elif refusal := _refusal(at[0], resolved):
            faults.append(Cause(path, refusal))
        else:
            found[path] = None if raw is None else _normal(*at, raw, faults)
    scopes = {KEYS[at[0].path].marks.scope for path in found if (at := key_at(path))}
    if len(scopes) > 1:
        faults.append(Cause("", "keys of the node and of the cluster: change them separately"))
    if faults:
        raise Invalid("settings", faults)
    return found


def _refusal(key: Key, resolved: Resolved) -> str:
    """Why a key is not changed this way; "" where it is."""
    if locked := resolved.locked_by(key.path):
        return f"set by {locked}, which wins over any other place: change it there"
    marks = key.marks
    if marks.host_only:
        return "a key of the host, which is never changed from outside: set it in the node file"
    if marks.scope == "node" and marks.restart:
        return "read when the process starts: set it in the node file, or by a flag of `serve`"
    return ""


def _normal(key: Key, entry: str, raw: Any, faults: list[Cause]) -> Any:
    before = len(faults)
    given = Given(key, {entry: raw} if entry else raw, Origin("log"))
    value = read_value(given, faults)
    if len(faults) > before:
        return None
    written = shown(key.type, value)
    if not in_profile(written):
        faults.append(Cause(key.path, "names of entries are ASCII: write them as xn--"))
    return next(iter(written.values())) if entry else written


def kept_by(patch: Patch, *, has_file: bool) -> Kept:
    """Where a checked patch goes. `has_file`: there is a settings file, which all nodes of the log
    have."""
    keys = [at[0] for path in patch if (at := key_at(path))]
    if any(key.marks.scope == "node" for key in keys):
        return "memory"
    return "file" if has_file else "log"


def patched(values: Mapping[str, Any], patch: Patch) -> dict[str, Any]:
    """Values of a layer after a checked patch."""
    found = dict(values)
    for path, value in patch.items():
        key, entry = key_at(path) or (None, "")
        if key is None or not entry:
            found[path] = value
        else:
            entries = {**(found.get(key.path) or {}), entry: value}
            found[key.path] = {n: v for n, v in entries.items() if v is not None} or None
    return {path: value for path, value in found.items() if value is not None}


def command(change: SettingsChanged, version: int) -> RecordFact:
    """Order to record a change. `version` is that of the stream now."""
    return RecordFact(
        type=SETTINGS_CHANGED,
        key=SETTINGS_KEY,
        ver=version + 1,
        scope="/",
        manager=DEFAULT_MANAGER,
        body=canonical(change),
    )
