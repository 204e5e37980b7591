"""Where an object has this node send, for who is no admin (domain/outbound.py: what may not be).

Upstreams of zones and policies, primaries, and those who are told of changes. All are checked when
the object is applied, so they have to be given as addresses: what a name leads to may be another
thing tomorrow. URLs of lists are not among them: those are resolved and checked at each fetch. A
`file:` source reads this host and is the admin's.
"""

from collections.abc import Container, Iterator, Sequence
from ipaddress import ip_address
from typing import NamedTuple

from kudurru.domain.dns.upstreams import parse_upstream
from kudurru.domain.errors import Cause
from kudurru.domain.kinds.blocklist import BlockListSpec
from kudurru.domain.kinds.meta import Spec
from kudurru.domain.kinds.policy import PolicySpec
from kudurru.domain.kinds.zone import DNSZoneSpec, Secondary, Transfer
from kudurru.domain.outbound import why_refused

FILE = "file:"


class Words(NamedTuple):
    """What is said of a fault."""

    private_is_off: str
    advice: str


OF_TOKENS = Words("lists.allowPrivate is off", "an admin may apply this")
OF_CLUSTERS = Words("kubernetes.reach is public", "an admin may allow it by kubernetes.reach")


def reach_faults(
    spec: Spec,
    before: Spec | None = None,
    *,
    allow_private: bool,
    groups: Container[str] = (),
    words: Words = OF_TOKENS,
) -> Iterator[Cause]:
    """What a valid spec asks for that its author may not have. What the object asked for `before`
    somebody allowed: it may stay. `groups` are names of `upstreams.groups`, which an admin filled.
    """
    allowed = {text for _, text, _ in _reached(before)} if before is not None else set()
    for field, text, addresses in _reached(spec):
        if text in allowed or (isinstance(spec, PolicySpec) and text in groups):
            continue
        if text.lower().startswith(FILE):
            yield Cause(field, f"files of this host; {words.advice}")
        elif not addresses:
            yield Cause(field, "by name; give it by address, or add #ip=ADDRESS to it")
        for scoped in addresses:
            address = scoped.partition("%")[0]  # which leads to the same, and may be any text
            why = why_refused(
                ip_address(address), allow_private=allow_private, off=words.private_is_off
            )
            if why is not None:
                yield Cause(field, f"{address} is {why}; {words.advice}")


def reach_faults_of_cluster(
    spec: Spec,
    before: Spec | None,
    *,
    reach: str,
    groups: Container[str] = (),
    asked: Spec | None = None,
) -> Iterator[Cause]:
    """The same for an object that a cluster brings, whoever wrote it there: `reach` is public,
    private or any. A file of the node is never for it to name. What somebody `asked` this node for
    was held against his own rights."""
    own = {text for _, text, _ in _reached(asked)} if asked is not None else set()
    told = {field for field, text, _ in _reached(spec) if text in own}
    for field, text, _ in _reached(spec):
        if text.lower().startswith(FILE) and field not in told:
            told.add(field)
            yield Cause(field, "files of a node; no object of a cluster may name them")
    if reach == "any":
        return
    allow_private = reach == "private"
    others = reach_faults(
        spec, before, allow_private=allow_private, groups=groups, words=OF_CLUSTERS
    )
    yield from (fault for fault in others if fault.field not in told)


Reached = tuple[str, str, Sequence[str]]
"""A field, its text, and the addresses that it leads to; none: it names a host or a file."""


def _reached(spec: Spec) -> Iterator[Reached]:
    if isinstance(spec, PolicySpec):
        yield from _upstreams("spec.upstreams", spec.upstreams)
    if isinstance(spec, BlockListSpec):
        for i, source in enumerate(spec.sources):
            if source.url is not None and source.url.lower().startswith(FILE):
                yield f"spec.sources[{i}].url", source.url, ()
    if not isinstance(spec, DNSZoneSpec):
        return
    if spec.forward is not None:
        yield from _upstreams("spec.forward.upstreams", spec.forward.upstreams)
    if spec.secondary is not None:
        yield from _primaries("spec.secondary", spec.secondary)
    if spec.transfer is not None:
        yield from _notified("spec.transfer", spec.transfer)
    catalog = spec.catalog
    if catalog is None:
        return
    if catalog.secondary is not None:
        yield from _primaries("spec.catalog.secondary", catalog.secondary)
    for i, group in enumerate(catalog.groups):
        yield from _primaries(f"spec.catalog.groups[{i}].secondary", group.secondary)
    if catalog.transfer is not None:
        yield from _notified("spec.catalog.transfer", catalog.transfer)


def _upstreams(path: str, texts: Sequence[str]) -> Iterator[Reached]:
    for i, text in enumerate(texts):
        yield f"{path}[{i}]", text, _addresses(text)


def _addresses(text: str) -> Sequence[str]:
    """Of an upstream; the name of a group leads nowhere by itself."""
    try:
        return parse_upstream(text).addresses
    except ValueError:
        return ()


def _primaries(path: str, secondary: Secondary) -> Iterator[Reached]:
    for i, primary in enumerate(secondary.primaries):
        yield f"{path}.primaries[{i}].address", primary.address, [primary.address]


def _notified(path: str, transfer: Transfer) -> Iterator[Reached]:
    for i, text in enumerate(transfer.notify):
        yield f"{path}.notify[{i}]", text, [_without_port(text)]


def _without_port(text: str) -> str:
    """Of ADDR, ADDR:PORT or [ADDR]:PORT."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text
