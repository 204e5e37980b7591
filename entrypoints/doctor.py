"""What is wrong with a node, or soon will be: `kudurru doctor`, and the API's report.

Each check looks at one thing and says in a sentence what to do about it. A check that cannot be
made is one that failed: it never keeps the others from being made.
"""

import asyncio
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kudurru.adapters.clock import SystemEntropy
from kudurru.adapters.data_dir import DataDir, open_data_dir
from kudurru.adapters.dns import engine_native
from kudurru.adapters.signing import KeyFolder, check_signature
from kudurru.domain.chain import origin_of
from kudurru.domain.checkpoint import KeyChain
from kudurru.domain.epochs import epoch_began
from kudurru.domain.errors import Follows, Invalid, KudurruError
from kudurru.domain.events import SIGNING_KEY
from kudurru.domain.kinds.zone import zone_warnings
from kudurru.domain.notation import size_text
from kudurru.domain.ports import VerifiableLog
from kudurru.domain.verify import TAIL_ROWS, verify
from kudurru.entrypoints.checkpoints import Checkpointer
from kudurru.entrypoints.directory import open_reader, replay_verified, trust_of
from kudurru.entrypoints.doctor_report import Check, Report, report
from kudurru.entrypoints.live_settings import LiveSettings
from kudurru.entrypoints.messages import read_messages
from kudurru.entrypoints.settings import Sources
from kudurru.entrypoints.wiring import Node

if TYPE_CHECKING:
    from kudurru.entrypoints.front import Front
    from kudurru.entrypoints.listeners import Udp
    from kudurru.entrypoints.parts import Parts
    from kudurru.entrypoints.readiness import Readiness

SHOWN_MAX = 3
"""Of many things with the same fault, so many are named."""
DISK_LOW = 512 << 20
DISK_FULL = 64 << 20
"""Octets that are free where the data directory is. Each change needs some kilobytes."""
EXPIRY_DAYS = 14
"""Of a certificate: whoever renews them has tried and failed by then."""
CLOCK_SLACK_US = 60_000_000
"""The newest event may be so far ahead of the clock: nodes differ, and time servers correct."""


@dataclass(frozen=True, kw_only=True)
class Patient:
    """A running server."""

    parts: "Parts"
    front: "Front"
    readiness: "Readiness"


async def examine(patient: Patient, caller: str) -> Report:
    """The report of a running server. `caller` says who asks, and with which rights."""
    parts, front = patient.parts, patient.front
    node, live, checkpointer = parts.node, parts.settings, parts.checkpointer
    log: VerifiableLog = node.log  # type: ignore[assignment]  # every log of ours is
    listeners = [f"{one.listener.proto} {one.address}" for one in front.bound]
    made: dict[str, Check] = {}
    for name, check in {
        "config": lambda: config_check(live),
        "api": lambda: Check("api", "ok", "this node answers"),
        "token": lambda: Check("token", "ok", caller),
        "diagnoses": lambda: diagnoses_check(node, parts.keyring.problems()),
        "ready": lambda: ready_check(patient.readiness),
        "listeners": lambda: Check("listeners", "ok", f"bound: {', '.join(listeners)}"),
        "engine": lambda: engine_check(front.udp),
        "transfers": lambda: transfers_check(node),
        "checkpoints": lambda: checkpoints_check(live, checkpointer, node.follows),
        "upstreams": lambda: upstreams_check(front.resolving.unhealthy()),
        "certificate": lambda: certificate_check(front, node.clock.now_us() // 1_000_000),
        "lists": lambda: lists_check(parts),
    }.items():
        made[name] = _made(name, check)
    if parts.following is not None or parts.peers.urls:
        made["follow"] = _made("follow", lambda: follow_check(parts))
    # What waits for a disk, or for the server that has the log, is looked at beside the loop.
    keys = live.current.audit.trusted_keys
    made["dataDir"] = await asyncio.to_thread(data_dir_check, parts.directory.path)
    made["disk"] = await asyncio.to_thread(disk_check, parts.directory.path)
    made["clock"] = await asyncio.to_thread(_made, "clock", lambda: clock_check(node))
    made["log"] = await asyncio.to_thread(_made, "log", lambda: log_check(log, keys))
    return report(live.current.node.name, in_order(made))


def examine_directory(data: Path, config: Path | None, environ: Mapping[str, str]) -> Report:
    """The report of a data directory that no server holds."""
    made: dict[str, Check] = {}
    made["api"] = Check("api", "warn", f"no server holds {data}: DNS is not answered from it")
    made["dataDir"] = data_dir_check(data)
    made["disk"] = disk_check(data)
    name = ""
    if made["dataDir"].status != "fail":
        with _failing("log", made), open_reader(data) as node:
            log: VerifiableLog = node.log  # type: ignore[assignment]  # every log of ours is
            made["log"] = log_check(log, ())
            replay_verified(node, on_damage=lambda _: None)
            made["diagnoses"] = diagnoses_check(node, [])
            made["clock"] = clock_check(node)
            made["transfers"] = transfers_check(node)
            with _failing("config", made):
                live = LiveSettings(Sources(config, environ), node.clock)
                live.take_up(node.log)
                name = live.current.node.name
                made["config"] = config_check(live)
                with _failing("checkpoints", made):
                    made["checkpoints"] = kept_key_check(live, data, node)
    return report(name, in_order(made))


_ORDER = (
    *("config", "api", "token", "diagnoses", "dataDir", "ready", "listeners", "engine", "log"),
    *("checkpoints", "disk", "clock", "transfers", "upstreams", "certificate", "lists", "follow"),
)


def in_order(made: Mapping[str, Check]) -> Iterator[Check]:
    return (made[name] for name in _ORDER if name in made)


def _made(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except (KudurruError, OSError) as error:
        return Check(name, "fail", f"this could not be looked at: {error}")


class _failing:  # noqa: N801  # used as a function
    """What goes wrong inside is the failure of a check."""

    def __init__(self, name: str, made: dict[str, Check]) -> None:
        self._name, self._made = name, made

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _where: object) -> bool:
        if isinstance(error, Invalid):
            text = "; ".join(str(cause) for cause in error.causes)
            self._made[self._name] = Check(self._name, "fail", text)
        elif isinstance(error, KudurruError | OSError):
            self._made[self._name] = Check(self._name, "fail", str(error))
        else:
            return False
        return True


# --- the checks -------------------------------------------------------------------------------


def config_check(live: LiveSettings) -> Check:
    if live.problem:
        text = f"changed settings are not used, the last good ones stay: {live.problem}"
        return Check("config", "fail", text)
    trouble = list(live.resolved.warnings)
    if live.waiting:
        trouble.append(f"a restart is needed for {_named(live.waiting)}")
    if trouble:
        return Check("config", "warn", "; ".join(trouble))
    layers = {str(origin.layer) for found in live.resolved.origins.values() for origin in found}
    order = ("node file", "settings file", "log", "memory", "environment", "command line")
    where = [layer for layer in order if layer in layers]
    file = f"; the settings file is {live.settings_file}" if live.settings_file else ""
    return Check("config", "ok", f"settings from {', '.join(where) or 'defaults only'}{file}")


def diagnoses_check(node: Node, key_problems: list[str]) -> Check:
    messages = read_messages(node).items
    found = [str(message) for message in messages if message.severity == "warning"]
    found += key_problems
    if found:
        return Check("diagnoses", "warn", f"{_named(found)}; see `kudurru describe`")
    return Check("diagnoses", "ok", "every reference leads somewhere, every record is served")


def data_dir_check(path: Path) -> Check:
    """Made by the process that uses the directory."""
    try:
        directory = open_data_dir(path)
        exposed = list(_exposed(directory))
    except (KudurruError, OSError) as error:
        return Check("dataDir", "fail", str(error))
    secret = [name for name, is_secret in exposed if is_secret]
    if secret:
        text = f"others may read {_named(secret)}: run `chmod -R go-rwx {path}`"
        return Check("dataDir", "fail", text)
    warnings = list(directory.warnings)
    if exposed:
        warnings.append(f"others may read {_named([name for name, _ in exposed])}")
    if warnings:
        return Check("dataDir", "warn", "; ".join(warnings))
    return Check("dataDir", "ok", f"{path} is writable, and nobody else can read it")


def _exposed(directory: DataDir) -> Iterator[tuple[str, bool]]:
    """Files that others may read, and whether they are secrets."""
    for folder, is_secret in ((directory.path, False), (directory.keys, True)):
        for entry in os.scandir(folder):
            found = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(found.st_mode) and found.st_mode & (stat.S_IRGRP | stat.S_IROTH):
                secret = is_secret or entry.name == directory.admin_token.name
                yield entry.name, secret


def disk_check(path: Path) -> Check:
    try:
        free = shutil.disk_usage(path).free
    except OSError as error:
        return Check("disk", "fail", f"{path}: {error.strerror}")
    text = f"{size_text(free - free % (1 << 20))} free for {path}"
    if free < DISK_FULL:
        return Check("disk", "fail", f"{text}: changes will be refused, make room")
    if free < DISK_LOW:
        return Check("disk", "warn", f"{text}: make room before changes are refused")
    return Check("disk", "ok", text)


def ready_check(readiness: "Readiness") -> Check:
    if reasons := readiness.why_not():
        return Check("ready", "fail", "; ".join(reasons))
    if warnings := readiness.warnings():
        return Check("ready", "warn", "; ".join(warnings))
    return Check("ready", "ok", "queries are welcome")


def log_check(log: VerifiableLog, trusted_keys: Iterable[str]) -> Check:
    """The newest rows, as at every start: all of them is what `audit verify` does."""
    damages = verify(log, tail=TAIL_ROWS, trust=trust_of(tuple(trusted_keys))).damages
    if damages:
        return Check("log", "fail", f"{damages[0]}; see `kudurru audit verify`")
    newest = log.head().seq
    return Check("log", "ok", f"the newest {min(newest, TAIL_ROWS)} of {newest} events verify")


def checkpoints_check(
    live: LiveSettings, checkpointer: Checkpointer | None, follows: Follows | None = None
) -> Check:
    if follows is not None:
        text = f"those of {follows.leader} are verified and kept here: it is a copy outside of it"
        return Check("checkpoints", "ok", text)
    if checkpointer is None or checkpointer.key is None:
        why = checkpointer.why_not if checkpointer else "the log is damaged"
        return Check("checkpoints", "warn", f"nothing is signed here: {why or 'there is no key'}")
    return _publishing_check(live, checkpointer.failing())


def _publishing_check(live: LiveSettings, failing: list[str]) -> Check:
    publish = live.current.audit.checkpoint.publish
    if not publish:
        text = (
            "no checkpoint is published elsewhere, so whoever has this machine could replace the "
            "log unseen: set audit.checkpoint.publish"
        )
        return Check("checkpoints", "warn", text)
    if failing:
        return Check("checkpoints", "warn", f"no checkpoint reaches {_named(failing)}; see the log")
    return Check("checkpoints", "ok", f"signed, and published to {_named(publish)}")


def kept_key_check(live: LiveSettings, data: Path, node: Node) -> Check:
    """Of a directory that no server holds. Looks at the keys, and makes none."""
    origin = origin_of(node.log.log_id, node.log.epoch)
    keys = KeyFolder(open_data_dir(data).keys, origin, SystemEntropy())
    kept = [key.verifier for key in (keys.read(), keys.read_next()) if key is not None]
    chain = KeyChain(origin, check_signature)
    for event in node.log.read(epoch_began(node.log), key=SIGNING_KEY):
        chain.adopt(event.seq, event.body)
    if chain.current is None and not kept:
        return Check("checkpoints", "ok", "there is no key yet: the first start makes one")
    if chain.current is not None and chain.current not in kept:
        text = f"the log is signed by {chain.current}, which is not in {keys.path}"
        more = "another node has it" if node.log.is_shared else "put the key back"
        return Check("checkpoints", "warn", f"nothing is signed here: {text}: {more}")
    return _publishing_check(live, [])


def clock_check(node: Node) -> Check:
    if not node.views.clock.is_trusted:
        text = "the clock was set more than a day ahead, and serials do not follow it: set it right"
        return Check("clock", "fail", text)
    newest = node.log.get(node.log.head().seq)
    ahead_us = newest.ts - node.clock.now_us() if newest is not None else 0
    if ahead_us > CLOCK_SLACK_US:
        text = f"the clock is {ahead_us // 1_000_000} s behind the newest event: set it right"
        return Check("clock", "warn", text)
    return Check("clock", "ok", "the clock goes with the log")


def transfers_check(node: Node) -> Check:
    found = [text for state in node.zones.states() for text in zone_warnings(state.spec)]
    if found:
        return Check("transfers", "warn", _named(found))
    return Check("transfers", "ok", "no zone is given to addresses without a key")


def engine_check(udp: "Udp") -> Check:
    """Python answers right, but with some ten times the CPU."""
    if udp.is_native:
        zones = "zones and repeats" if udp.images is not None else "repeats"
        text = f"native: threads answer {zones}, {udp.sockets} for each address"
    elif engine_native.is_available():
        text = "Python, as dns.engine says"
    else:
        text = (
            "Python: the native engine was not built when kudurru was installed; with a C compiler "
            "and Python's headers it is, and takes a tenth of the CPU"
        )
    return Check("engine", "ok", text)


def upstreams_check(unhealthy: list[str]) -> Check:
    if unhealthy:
        return Check("upstreams", "warn", f"no answers come from {_named(unhealthy)}")
    return Check("upstreams", "ok", "no upstream is known to be away")


def certificate_check(front: "Front", now_s: int) -> Check:
    certificates = front.certificates
    if certificates is None:
        return Check("certificate", "ok", "no listener wants one")
    if certificates.problem:
        return Check("certificate", "fail", certificates.problem)
    days = (certificates.current.expires_at_s - now_s) // 86_400
    text = f"{certificates.current.cert_file} is good for {days} days"
    return Check("certificate", "ok" if days >= EXPIRY_DAYS else "warn", text)


def lists_check(parts: "Parts") -> Check:
    found = [
        f"{row.namespace}/{row.name}: {source.error}"
        for row in parts.lists.rows()
        for source in row.sources
        if row.enabled and source.error
    ]
    if found:
        return Check("lists", "warn", f"{_named(found)}; see `kudurru list status`")
    return Check("lists", "ok", "every source of every list was fetched")


def follow_check(parts: "Parts") -> Check:
    following, node = parts.following, parts.node
    trouble = [*parts.peers.warnings()]
    if node.blocked is not None:
        return Check("follow", "fail", str(node.blocked))
    if following is not None and node.follows is not None:
        trouble += following.obstacles() + following.warnings()
        if not trouble:
            lag = following.statistics().lag_events
            text = f"the log of {following.url} is copied, {lag} events are still to come"
            return Check("follow", "ok", text)
    if trouble:
        return Check("follow", "warn", "; ".join(trouble))
    return Check("follow", "ok", "this node follows nobody, and nobody else takes its writes")


def _named(texts: Iterable[str]) -> str:
    found = list(texts)
    more = f", and {len(found) - SHOWN_MAX} more" if len(found) > SHOWN_MAX else ""
    return ", ".join(found[:SHOWN_MAX]) + more
