"""Settings that change while a node runs: by their files, by the log, or through kudurru.

All ways lead through `_take`: what is new is checked whole, then the parts that it concerns are
told, in the order they subscribed, one change at a time. What cannot be taken changes nothing, and
the last good settings stay. Keys that are read at the start keep their value until the next one.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

import msgspec

from kudurru.adapters.settings_file import SettingsDraft
from kudurru.domain import settings_changes
from kudurru.domain.errors import SETTINGS, Invalid, ManagedBy
from kudurru.domain.events import SETTINGS_CHANGED, Position, Recorded, Who
from kudurru.domain.ports import Clock, EventLog
from kudurru.domain.settings import KEYS, Settings
from kudurru.domain.settings_changes import Kept, Layer, Patch, SettingsChanged, patched
from kudurru.domain.settings_layers import Resolved, assembled, given_by_values, key_at
from kudurru.domain.settings_values import Origin, shown
from kudurru.entrypoints.service import because
from kudurru.entrypoints.settings import Read, Sources, Stamp, read_sources, stamp_of
from kudurru.entrypoints.wiring import Change, Result

log = logging.getLogger("kudurru.settings")

LOOK_S = 0.5
"""Between looks at the files. A look is one stat for each; unlike a watch by the kernel it sees
files on a network too, and those that are bound into a container one by one."""
SETTLE_S = 0.2
"""A file that changes must stand still so long before it is read."""
READ_EVERY_S = 10.0
"""Files are read so often whatever stat says, for clocks and file systems that are coarse."""

Check = Callable[[Settings], None]
"""Raises Invalid for settings that a part cannot take."""
Subscriber = Callable[[Settings], None]


class Submit(Protocol):
    async def __call__(self, change: Change) -> Result: ...


class PatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Keys to set, by their dotted path; None takes back what was set this way."""

    set: dict[str, Any]
    reason: str = ""


class PatchReply(msgspec.Struct, frozen=True, kw_only=True):
    changed: dict[str, Any]
    kept: Kept
    persisted: bool
    seq: int = 0  # position of the event, 0: nothing changed
    restart: list[str] = []  # keys of those that take effect at the next start


class Planned(msgspec.Struct, frozen=True):
    """A patch that may be done: with `draft` entered record `change`, then call `finish`; with
    nothing to change there is none."""

    reply: PatchReply
    change: Change | None = None
    draft: SettingsDraft | None = None
    memory: dict[str, Any] = {}


class LiveSettings:
    """The settings of one process. On one loop, or without any."""

    def __init__(self, sources: Sources, clock: Clock) -> None:
        """Raises Invalid with every fault of the files, variables and flags."""
        self._sources = sources
        self._clock = clock
        self._layer = Layer()
        self._is_shared = False
        self._memory: dict[str, Any] = {}
        self._stamp: Stamp = ()
        self._read = read_sources(sources)
        self.resolved = self._read.resolve()
        self._begin(self.resolved)
        self._checks: list[Check] = []
        self._subscribers: list[tuple[tuple[str, ...], Subscriber]] = []
        self._patching = asyncio.Lock()
        self._reading = asyncio.Lock()
        self.problem = ""
        """Why the newest files are not what runs; "" when they are."""
        self.reloaded_us = clock.now_us()  # when settings were taken last

    def _begin(self, resolved: Resolved) -> None:
        self.resolved = resolved
        self._running = dict(resolved.values)
        self.current = resolved.settings
        """What runs. Replaced, never changed."""

    def take_up(self, event_log: EventLog, upto: Position | None = None) -> None:
        """Lay the log's settings, of now or of a position, over those of the files, before
        anything has begun."""
        self._is_shared = event_log.is_shared
        self._layer = settings_changes.layer_of(event_log, upto)
        self._begin(self._read.resolve(self._layer, self._memory))
        self._tell_warnings()

    def _tell_warnings(self) -> None:
        for warning in self.resolved.warnings:
            log.warning("%s", warning)

    @property
    def settings_file(self) -> str:
        """Where cluster keys are read, and changes of them written unless nodes share the log; ""
        for none."""
        return str(self._read.settings_file or "")

    # --- who wants to know --------------------------------------------------------------

    def check(self, check: Check) -> None:
        """Ask before anything is changed."""
        self._checks.append(check)

    def subscribe(self, prefixes: Sequence[str], subscriber: Subscriber) -> None:
        """Tell of changes of these keys and of those under them."""
        self._subscribers.append((tuple(prefixes), subscriber))

    @property
    def waiting(self) -> list[str]:
        """Keys whose newest value runs after a restart only."""
        return [
            path for path, value in self.resolved.values.items() if value != self._running[path]
        ]

    def rows(self) -> list[dict[str, Any]]:
        """Every key as builtins, with where its value came from; `running` is there where another
        value runs until the restart."""
        return [
            setting_row(self.resolved, path)
            | ({"running": self._shown(path)} if path in set(self.waiting) else {})
            for path in KEYS
        ]

    def _shown(self, path: str) -> Any:
        return shown(KEYS[path].type, self._running[path])

    # --- changes ------------------------------------------------------------------------

    def reload(self) -> bool:
        """Read the files again; whether their content is another. What is wrong with them is told
        once, and changes nothing."""
        return self._use(read_sources(self._sources, self._read))

    async def reread(self) -> bool:
        """`reload`, while the loop turns: a file system on a network may hang."""
        async with self._reading:  # what was read first is used first
            return self._use(await asyncio.to_thread(read_sources, self._sources, self._read))

    def _use(self, found: Read) -> bool:
        if found is self._read:
            return False
        self._read = found
        try:
            self._take(found.resolve(self._layer, self._memory), "files")
        except (Invalid, OSError) as error:
            self.problem = str(error)
            log.error("the changed settings are not used, the last good ones stay: %s", error)
        return True

    def recorded(self, events: Sequence[Recorded]) -> None:
        """Take what the log says now: of this node or another one."""
        for event in events:
            if event.type == SETTINGS_CHANGED and event.body is not None:
                values = settings_changes.decode(event.body).values
                self._take_layer(Layer(values, event.ver, event.seq))

    def catch_up(self, event_log: EventLog, upto: Position | None = None) -> None:
        """Take what the log says by now, or up to where it can be trusted."""
        self._take_layer(settings_changes.layer_of(event_log, upto))

    def _take_layer(self, layer: Layer) -> None:
        before, self._layer = self._layer, layer
        if layer.values != before.values:
            self._retake(f"position {layer.position}")

    def _retake(self, why: str) -> None:
        try:
            self._take(self._read.resolve(self._layer, self._memory), why)
        except Invalid as error:
            self.problem = str(error)
            log.error("settings of the log are not used, the last good ones stay: %s", error)

    def _take(self, resolved: Resolved, why: str) -> None:
        """Raises Invalid, and nothing has changed."""
        changed = [p for p in KEYS if resolved.values[p] != self.resolved.values[p]]
        hot = {p: resolved.values[p] for p in changed if not KEYS[p].marks.restart}
        wanted = assembled(self._running | hot)
        for check in self._checks:
            check(wanted)
        self.resolved = resolved
        self.problem = ""
        self.reloaded_us = self._clock.now_us()
        self._tell_warnings()
        for path in changed:
            self._tell(path, why)
        if hot:
            self._running |= hot
            self.current = wanted
            self._notify(hot)

    def _tell(self, path: str, why: str) -> None:
        value = msgspec.json.encode(self.resolved.shown(path)).decode()
        later = ""
        if path in self.waiting and KEYS[path].marks.restart:
            later = "; it takes effect after a restart"
        log.info("setting %s is %s now, by %s%s", path, value, why, later)

    def _notify(self, changed: dict[str, Any]) -> None:
        for prefixes, subscriber in self._subscribers:
            if any(is_within(path, prefix) for path in changed for prefix in prefixes):
                try:
                    subscriber(self.current)
                except Exception:
                    # A fault of ours in one part: the others still get what is true now.
                    log.exception("a part did not take its settings")

    # --- through kudurru ----------------------------------------------------------------

    async def patch(self, request: PatchRequest, who: Who, submit: Submit) -> PatchReply:
        """Raises: Invalid, ManagedBy; Conflict when another node was faster; StorageFailed; what
        submitting does."""
        async with self._patching:
            if self.settings_file:
                await self.reread()  # what somebody wrote there just now is kept
            planned = self._planned(request, who)
            if planned.change is None:
                return planned.reply
            if planned.draft is None:
                return self.finish(planned, await submit(planned.change))
            result = await _record_with(planned.draft, submit, planned.change)
            await self.reread()
            return msgspec.structs.replace(planned.reply, seq=result.seq)

    def plan(self, request: PatchRequest, who: Who) -> Planned:
        """What a patch comes to. Raises as `patch` does; then nothing was done."""
        if self.settings_file:
            self.reload()  # what somebody wrote there just now is kept
        return self._planned(request, who)

    def _planned(self, request: PatchRequest, who: Who) -> Planned:
        if self.current.kubernetes.enabled:
            raise ManagedBy(SETTINGS, f"the ConfigMap behind {self.settings_file or 'this node'}")
        patch = settings_changes.checked(request.set, self.resolved)
        # Another node does not see this one's file: what it took out of a log that they share
        # would be gone there.
        has_file = bool(self.settings_file) and not self._is_shared
        kept = settings_changes.kept_by(patch, has_file=has_file)
        if self._read.config_map is not None and kept != "memory":
            # Nothing can be written there, and the log would cover what is.
            raise ManagedBy(SETTINGS, f"the ConfigMap mounted at {self._read.config_map}")
        layer, memory, written = dict(self._layer.values), dict(self._memory), self._written()
        match kept:
            case "log":
                layer = patched(layer, patch)
            case "memory":
                memory = patched(memory, patch)
            case "file":
                written = patched(written, patch)
                layer = patched(layer, dict.fromkeys(patch))  # which would cover the file
        is_same = (layer, memory, written) == (self._layer.values, self._memory, self._written())
        self._check(layer, memory, written)
        reply = PatchReply(
            changed={} if is_same else patch,
            kept=kept,
            persisted=kept != "memory",
            restart=[path for path in _keys_of(patch) if KEYS[path].marks.restart],
        )
        if is_same:
            return Planned(reply)
        node = "" if kept == "log" else self.current.node.name
        fact = SettingsChanged(changed=patch, kept=kept, values=layer, node=node)
        command = settings_changes.command(fact, self._layer.version)
        change = Change(commands=(command,), who=because(who, request.reason))
        is_written = written != self._written()
        draft = SettingsDraft(Path(self.settings_file), written) if is_written else None
        return Planned(reply, change, draft, memory)

    def _written(self) -> dict[str, Any]:
        """What the settings file says, by key."""
        found: dict[str, Any] = {}
        for one in self._read.files:
            if one.origin.layer == "settings file":
                path = one.key.path
                found[path] = {**found.get(path, {}), **one.raw} if one.key.is_map else one.raw
        return found

    def _check(self, layer: Patch, memory: Patch, written: Patch) -> None:
        """Whether these layers make settings that may run. Raises Invalid."""
        ignored: list[str] = []
        others = [one for one in self._read.files if one.origin.layer != "settings file"]
        file = given_by_values(written, Origin("settings file", self.settings_file), ignored)
        found = msgspec.structs.replace(self._read, files=others + file)
        resolved = found.resolve(Layer(layer), memory, is_asked=True)
        for check in self._checks:
            check(resolved.settings)

    def finish(self, planned: Planned, result: Result) -> PatchReply:
        """After the change was recorded. Raises: StorageFailed."""
        if planned.draft is not None:
            planned.draft.publish()
            self.reload()
        elif planned.memory != self._memory:
            self._memory = planned.memory
            self._retake("this node's memory")
        return msgspec.structs.replace(planned.reply, seq=result.seq)

    # --- files --------------------------------------------------------------------------

    async def watch(self) -> NoReturn:
        """Reload when files change, until cancelled."""
        read_at = self._clock.monotonic_us()
        while True:
            await asyncio.sleep(LOOK_S)
            stamp = await self._look()
            now_us = self._clock.monotonic_us()
            if stamp == self._stamp and now_us - read_at < READ_EVERY_S * 1_000_000:
                continue
            while stamp != self._stamp:
                self._stamp = stamp
                await asyncio.sleep(SETTLE_S)
                stamp = await self._look()
            read_at = now_us
            await self.reread()

    async def _look(self) -> Stamp:
        return await asyncio.to_thread(stamp_of, self._sources, self._read.settings_file)


async def _record_with(draft: SettingsDraft, submit: Submit, change: Change) -> Result:
    """Record a change between writing a draft and publishing it, which a thread does."""
    await asyncio.to_thread(draft.write)
    try:
        result = await submit(change)
    except BaseException:
        await asyncio.to_thread(draft.discard)
        raise
    await asyncio.to_thread(draft.publish)
    return result


def setting_row(resolved: Resolved, path: str) -> dict[str, Any]:
    """A key as builtins, for people and programs."""
    marks = KEYS[path].marks
    return {
        "key": path,
        "value": resolved.shown(path),
        "source": ", ".join(str(origin) for origin in resolved.origins[path]),
        "changes": "at restart" if marks.restart else "at once",
        "scope": marks.scope,
    }


def is_within(path: str, name: str) -> bool:
    """Whether a key is what the name says, or under it."""
    return path == name or path.startswith(f"{name}.")


def _keys_of(patch: Patch) -> list[str]:
    return list(dict.fromkeys(at[0].path for path in patch if (at := key_at(path))))
