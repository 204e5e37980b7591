"""Hosts files: addresses and their names (hosts(5)), or names to block."""

from collections.abc import Iterator
from ipaddress import ip_address

from kudurru.domain.dns import names
from kudurru.domain.imports.model import Importing, Source, parsed_address

BLOCKING = frozenset({"0.0.0.0", "::"})  # noqa: S104  # nothing is bound to them
OF_THE_MACHINE = frozenset({
    "localhost", "localhost.localdomain", "local", "localhost4", "localhost6", "broadcasthost",
    "localhost4.localdomain4", "localhost6.localdomain6", "ip6-localhost", "ip6-loopback",
    "ip6-localnet", "ip6-mcastprefix", "ip6-allnodes", "ip6-allrouters", "ip6-allhosts",
})  # fmt: skip
"""Names that hosts files begin with. They are of every machine, and of no zone."""


def read(importing: Importing, sources: list[Source]) -> None:
    for source in sources:
        for at, line in lines_of(importing, source):
            read_line(importing, at, line.partition("#")[0])


def lines_of(importing: Importing, source: Source) -> Iterator[tuple[str, str]]:
    """(file:line, text) of a text. What is no UTF-8 is a fault."""
    try:
        text = source.data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = source.data.count(b"\n", 0, error.start) + 1
        importing.fault(f"{source.name}:{at}", "not UTF-8: save the file as UTF-8")
        return
    for number, line in enumerate(text.split("\n"), 1):
        yield f"{source.name}:{number}", line.strip()


def read_line(importing: Importing, at: str, line: str, domain: str = "") -> None:
    """An address and its names. With a `domain` names of one label have it added (expand-hosts)."""
    words = line.split()
    if not words:
        return
    address = parsed_address(words[0])
    if address is None:
        if parsed_address(words[0].partition("%")[0]) is None:
            importing.fault(at, f"{words[0]!r} is no IP address; a line is ADDRESS NAME…")
        elif set(words[1:]) - OF_THE_MACHINE:
            importing.leave(at, f"{words[0]} is an address of one machine's interface")
        return
    if len(words) == 1:
        importing.fault(at, f"{address} has no name; a line is ADDRESS NAME…")
    for word in words[1:]:
        if word.lower().rstrip(".") in OF_THE_MACHINE or parsed_address(word):
            continue  # `0.0.0.0 0.0.0.0` begins many
        if address in BLOCKING:
            importing.block(at, word)
        elif ip_address(address).is_loopback:
            importing.leave(at, f"{word}: {address} is this machine; to block it write 0.0.0.0")
        elif (owner := importing.name(at, word)) is not None:
            importing.address(at, owner, address)
            if domain and len(names.labels(owner)) == 1:
                _add_below(importing, at, f"{word}.{domain}", address)


def _add_below(importing: Importing, at: str, word: str, address: str) -> None:
    if (owner := importing.name(at, word)) is not None:
        importing.address(at, owner, address)
