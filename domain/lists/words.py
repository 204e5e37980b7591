"""Words that lines of lists are made of: names and addresses, as people write them."""

import re

from kudurru.domain.dns import names
from kudurru.domain.dns.names import BadName, Name
from kudurru.domain.dns.record_types import AAAA, A
from kudurru.domain.lists.rules import Reason
from kudurru.domain.notation import parse_address

_LABEL = re.compile(r"(?=[-_]*[a-z0-9])[a-z0-9_-]{1,63}\Z")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class Refused(Exception):
    """A line, or a word of it, makes no rule."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


def name_of(word: str) -> Name:
    """A name as lists have them, lower case; U-labels by UTS 46 as browsers do, an A-label as it
    is. Raises Refused."""
    text = word.removesuffix(".")
    if text.isascii():
        text = text.lower()
    else:
        import idna  # its tables are loaded when the first such name is met

        try:  # lowers too, but for a final sigma, which Python would lower to another letter
            text = idna.encode(text, uts46=True, transitional=False).decode("ascii")
        except (idna.IDNAError, UnicodeError):
            raise Refused(Reason.NAME) from None
        text = text.removesuffix(".")
    labels = text.split(".")
    # A last label that is a number makes an address of it (WHATWG URL, "ends in a number").
    if not all(map(_LABEL.match, labels)) or _NUMBER.fullmatch(labels[-1]):
        raise Refused(Reason.NAME)
    try:
        return names.from_text(text)
    except BadName:
        raise Refused(Reason.NAME) from None


def is_address(word: str) -> bool:
    """An IP address, perhaps with a zone index."""
    if not word[:1].isdigit() and ":" not in word:  # spares most names the attempt
        return False
    try:
        parse_address(word.partition("%")[0])
    except ValueError:
        return False
    return True


def address_record(text: str) -> tuple[int, bytes]:
    """Type and rdata of an address. Raises Refused for one with a zone index, which is of one host
    and has no place in a record."""
    try:
        address = parse_address(text)
    except ValueError:
        raise Refused(Reason.UNSUPPORTED) from None
    return (A if address.version == 4 else AAAA), address.packed


def without_comment(text: str) -> str:
    return text.partition("#")[0].strip()


def is_header(text: str) -> bool:
    """`[Adblock Plus 2.0]`"""
    return text[0] == "[" and text[-1] == "]"
