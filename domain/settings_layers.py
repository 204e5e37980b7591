"""Settings out of layers: files, the log, environment, flags, laid over the defaults.

A file may nest keys or write them flat, which is how `listeners` (the list) and
`listeners.sockets` stand beside each other. Maps are merged entry by entry, everything else is
replaced. Every value of every layer is checked, also where a later layer covers it, and all faults
are reported at once with the place of each.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from kudurru.domain.documents import FAULTS_MAX, Document, read_documents
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.notation import duration_text
from kudurru.domain.settings import ENCRYPTED, KEYS, SECTIONS, Key, Section, Settings, key_path
from kudurru.domain.settings_values import Given, LayerName, Origin, kind_of, read_value, shown

_S = TypeVar("_S", bound=Section)

LEASE_SLACK_MIN = timedelta(seconds=2)
"""What is left for the longest request of a leader that lost its Lease, before another may lead."""

_FOLDED = {path.casefold(): path for path in KEYS}


class Resolved(msgspec.Struct, frozen=True):
    """Settings, and the same by key, each with where it came from (a map: all its layers)."""

    settings: Settings
    values: Mapping[str, Any]
    origins: Mapping[str, tuple[Origin, ...]]
    warnings: tuple[str, ...] = ()
    """What the log says and could not be taken, a sentence each."""

    def shown(self, path: str) -> Any:
        """A value as builtins, as a file would give it."""
        return shown(KEYS[path].type, self.values[path])

    def locked_by(self, path: str) -> str | None:
        """The environment variable or flag that holds the key against any other change."""
        last = self.origins[path][-1]
        return last.place if last.layer in ("environment", "command line") else None


def resolve(given: Iterable[Given], faults: Sequence[Cause] = ()) -> Resolved:
    """Settings of the defaults and what was given, in order: later wins.

    Raises Invalid with the `faults` found before and every one found here.
    """
    found = list(faults)
    values = {path: key.default for path, key in KEYS.items()}
    origins: dict[str, tuple[Origin, ...]] = dict.fromkeys(KEYS, (Origin("default"),))
    for one in given:
        path = one.key.path
        value = read_value(one, found)
        if one.key.is_map:
            values[path] = {**values[path], **(value or {})}
            origins[path] += (one.origin,)
        else:
            values[path] = value
            origins[path] = (one.origin,)
    if found:
        raise Invalid("settings", found)
    settings = assembled(values)
    broken = [_placed(paths, message, origins) for paths, message in _broken_rules(settings)]
    if broken:
        raise Invalid("settings", broken)
    return Resolved(settings, values, origins)


def assembled(values: Mapping[str, Any]) -> Settings:
    """Settings of values by key. Rules between keys are not asked."""
    return _assembled(Settings, values)


def _assembled(section: type[_S], values: Mapping[str, Any], prefix: str = "") -> _S:
    hints = get_type_hints(section)
    fields = {}
    for field in msgspec.structs.fields(section):
        path = key_path(prefix, field)
        hint = hints[field.name]
        is_section = isinstance(hint, type) and issubclass(hint, Section)
        fields[field.name] = _assembled(hint, values, path) if is_section else values[path]
    return section(**fields)


def _placed(paths: Sequence[str], message: str, origins: Mapping[str, tuple[Origin, ...]]) -> Cause:
    """A fault of several keys, at the first one that is not a default."""
    for path in paths:
        origin = origins[path.partition("[")[0]][-1]
        if origin.layer != "default":
            return Cause(path, message, origin.place)
    return Cause(paths[0], message)


def _broken_rules(settings: Settings) -> Iterator[tuple[Sequence[str], str]]:
    """Faults of values that are fine by themselves and not together: keys and message."""
    cache, lease, tls = settings.cache, settings.kubernetes.lease, settings.tls
    if cache.min_ttl > cache.max_ttl:
        yield ("cache.minTTL", "cache.maxTTL"), "cache.minTTL is above cache.maxTTL: change one"
    slack = lease.duration - lease.renew - lease.retry
    if lease.renew <= lease.retry or slack < LEASE_SLACK_MIN:
        keys = [f"kubernetes.lease.{name}" for name in ("duration", "renew", "retry")]
        least = duration_text(LEASE_SLACK_MIN)
        yield keys, f"renew must be above retry, and duration {least} above both together"
    if bool(tls.cert) != bool(tls.key):
        yield ("tls.cert", "tls.key"), "tls.cert and tls.key come together: give both"
    internal = (tls.internal.ca, tls.internal.cert, tls.internal.key)
    if any(internal) != all(internal) or (settings.listeners.internal and not all(internal)):
        keys = [f"tls.internal.{name}" for name in ("ca", "cert", "key")]
        message = "tls.internal.ca, .cert and .key come together: give all three"
        yield [*keys, "listeners.internal"], message
    taken = set()
    for i, listener in enumerate(settings.listeners.all):
        if listener.proto in ENCRYPTED and not tls.cert:
            message = f"{listener.proto} wants tls.cert and tls.key: give both"
            yield (f"listeners[{i}].proto",), message
        if listener.proxy_protocol and listener.proto in ("h3", "quic"):
            message = f"{listener.proto} takes no PROXY header: leave it out"
            yield (f"listeners[{i}].proxyProtocol",), message
        if listener.trusted_proxies and listener.proto not in ("https", "h3"):
            message = (
                f"{listener.proto} has no X-Forwarded-For: give proxyProtocol, or leave it out"
            )
            yield (f"listeners[{i}].trustedProxies",), message
        transport = "udp" if listener.proto in ("udp", "h3", "quic") else "tcp"
        place = (transport, listener.address)
        if listener.address.port and place in taken:
            where = f"{listener.address} over {transport}"
            message = f"another listener has {where}: choose another port"
            yield (f"listeners[{i}].address",), message
        taken.add(place)


# Layers: where values come from.


def given_by_document(
    document: Document, layer: LayerName, faults: list[Cause], *, only_cluster: bool = False
) -> list[Given]:
    """Values of a file, nested or flat. Faults are added: keys that are not known or given twice,
    and with `only_cluster` keys of a node."""
    walk = _Walk(document, layer, faults)
    walk.descend(document.value, "")
    if only_cluster:
        for one in walk.given:
            if one.key.marks.scope == "node":
                message = "a key of the node; the settings file holds cluster keys only: move it"
                faults.append(one.fault(one.key.path, f"{message} to the node file"))
    return walk.given


class _Walk:
    """Down a document to the keys in it."""

    def __init__(self, document: Document, layer: LayerName, faults: list[Cause]) -> None:
        self.document = document
        self.layer = layer
        self.faults = faults
        self.given: list[Given] = []
        self.seen: set[str] = set()

    def descend(self, value: Any, prefix: str) -> None:
        if value is None and prefix:
            return  # a section with all its keys commented out
        if not isinstance(value, dict):
            self.fault(prefix, f"keys are wanted here, as in `maxEntries: 5`, not {kind_of(value)}")
            return
        for name, child in value.items():
            path = f"{prefix}.{name}" if prefix else name
            if len(self.faults) >= FAULTS_MAX:
                return
            if path in KEYS and not (path in SECTIONS and isinstance(child, dict)):
                self.give(path, KEYS[path], child)
            elif path in SECTIONS:
                self.descend(child, path)
            elif owner := _map_of(path):
                self.give(path, owner, {path[len(owner.path) + 1 :]: child})
            else:
                self.fault(path, unknown_key(path, is_section=isinstance(child, dict)))

    def give(self, path: str, key: Key, raw: Any) -> None:
        if path in self.seen:
            self.fault(path, "given twice in this file: keep one")
        self.seen.add(path)
        origin = Origin(self.layer, self.document.place(path))
        self.given.append(Given(key, raw, origin, self.document))

    def fault(self, path: str, message: str) -> None:
        self.faults.append(Cause(path, message, self.document.place(path)))


ENVIRONMENT_PREFIX = "KUDURRU__"
RESERVED = {"KUDURRU_DATA": "node.dataDir", "KUDURRU_SETTINGS_FILE": "settingsFile"}
"""Variables with one underscore that set a key, unless they are empty. Others are not ours to
judge: Kubernetes injects KUDURRU_SERVICE_HOST and the like for a Service of our name."""


def given_by_values(values: Mapping[str, Any], origin: Origin, ignored: list[str]) -> list[Given]:
    """Values of the log or of memory, each by its key. What this version cannot read is left out
    and told in `ignored`: nobody can edit the log, and DNS must come up."""
    given: list[Given] = []
    for path, raw in values.items():
        if path not in KEYS:
            ignored.append(f"{path}, set in the log, is no key of this version: `config unset` it")
            continue
        one = Given(KEYS[path], raw, origin)
        faults: list[Cause] = []
        read_value(one, faults)
        if faults:
            ignored.append(f"{path}, set in the log, cannot be read: {faults[0].message}")
        else:
            given.append(one)
    return given


def given_by_environment(environ: Mapping[str, str], faults: list[Cause]) -> list[Given]:
    """Values of `KUDURRU__SECTION__KEY` in any case. Faults are added."""
    given: dict[str, Given] = {}
    for name in sorted(environ):
        path = RESERVED.get(name) if environ[name] else None
        if name.upper().startswith(ENVIRONMENT_PREFIX):
            path = name[len(ENVIRONMENT_PREFIX) :].replace("__", ".")
        if path is None:
            continue
        owner = KEYS.get(_FOLDED.get(path.casefold(), ""))
        entry = ""
        if owner is None and (owner := _map_of(path.casefold())):
            entry = path[len(owner.path) + 1 :].lower()
        if owner is None:
            faults.append(Cause("", unknown_key(path), name))
            continue
        raw = _raw(owner, environ[name], name, entry, faults)
        slot = f"{owner.path}.{entry}"
        if slot in given:
            other = given[slot].origin.place
            faults.append(Cause(owner.path, f"set by {other} too: keep one of the two", name))
        given[slot] = Given(owner, raw, Origin("environment", name))
    return list(given.values())


def given_by_flags(flags: Mapping[str, tuple[str, Any]], faults: list[Cause]) -> list[Given]:
    """Values of explicit command-line flags: key → (flag, value). Text is read as in the
    environment."""
    return [
        Given(
            KEYS[path],
            _raw(KEYS[path], raw, flag, "", faults) if isinstance(raw, str) else raw,
            Origin("command line", flag),
        )
        for path, (flag, raw) in flags.items()
    ]


def value_of_text(key: Key, entry: str, text: str, faults: list[Cause]) -> Any:
    """What a text on a command line means as the value of a key, or of an entry of its map, as in
    the environment. Faults are added."""
    value = _raw(key, text, "VALUE", entry, faults)
    return value[entry] if entry else value


def key_at(path: str) -> tuple[Key, str] | None:
    """The key at a path, and the entry of its map where the path goes on; None: there is none."""
    if path in KEYS:
        return KEYS[path], ""
    owner = _map_of(path)
    return None if owner is None else (owner, path[len(owner.path) + 1 :])


def dns_listeners(addresses: Iterable[str]) -> list[dict[str, str]]:
    """The value of `listeners` that `--dns ADDRESS…` means: UDP and TCP on each."""
    return [
        {"proto": proto, "address": address} for address in addresses for proto in ("udp", "tcp")
    ]


def _raw(key: Key, text: str, source: str, entry: str, faults: list[Cause]) -> Any:
    """Builtins that a text stands for: as written where the key wants text, split at commas where
    it wants a plain list, else one YAML value."""
    kind = get_args(key.type)[1] if entry else key.type
    value: Any = text
    if _wants_list(kind, text) and not text.lstrip().startswith("["):
        value = [part.strip() for part in text.split(",") if part.strip()]
    elif kind in (bool, int) or get_origin(kind) is Mapping or _wants_list(kind, text):
        try:
            documents = read_documents(text.encode(errors="replace"), what=source, format="yaml")
        except Invalid as error:
            faults.extend(Cause(key.path, cause.message, source) for cause in error.causes)
            documents = []
        value = documents[0].value if len(documents) == 1 else None
    return {entry: value} if entry else value


def _wants_list(kind: Any, text: str) -> bool:
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    words = [word for option in options for word in get_args(option) if isinstance(word, str)]
    return text not in words and any(get_origin(option) is tuple for option in options)


def _map_of(path: str) -> Key | None:
    """The key whose map has an entry at the path. Letter case counts only in the key's own part
    of a file's path, never in a variable's."""
    for key in KEYS.values():
        if key.is_map and path.startswith((f"{key.path}.", f"{key.path.casefold()}.")):
            return key
    return None


_CLOSE = 0.6
"""How much a word has to be like another to be taken for it, of 1."""


def unknown_key(path: str, *, is_section: bool = False) -> str:
    """What to say of a key that is not in the table."""
    path = path if len(path) < 100 else path[:100] + "…"
    forms = {_squeezed(known): known for known in ([*SECTIONS] if is_section else [*KEYS])}
    close = difflib.get_close_matches(_squeezed(path), forms, n=1, cutoff=_CLOSE)
    meant = _entry_of_section(path) or (forms[close[0]] if close else "")
    if meant:
        return f"there is no key {path}; did you mean {meant}?"
    return f"there is no key {path}; `kudurru config show` lists all"


def _entry_of_section(path: str) -> str:
    """`upstreams.groups.default` for `upstreams.default`: the entry of the section's map, where
    what is written after the section is like none of its keys; "" otherwise."""
    section, _, entry = path.partition(".")
    named = [key.removeprefix(f"{section}.") for key in KEYS if key.startswith(f"{section}.")]
    maps = [
        key
        for key in KEYS.values()
        if key.path.startswith(f"{section}.") and key.is_map and get_args(key.type)[0] is str
    ]
    if not maps or not entry or difflib.get_close_matches(entry, named, n=1, cutoff=_CLOSE):
        return ""
    return f"{maps[0].path}.{entry}"


def _squeezed(path: str) -> str:
    return path.translate({ord(mark): None for mark in ".-_"}).casefold()
