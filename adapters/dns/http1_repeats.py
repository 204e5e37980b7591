"""Requests over HTTP/1.1 whose answers are known, past the library that speaks it, as
http2_repeats.py has it: h11 spends a sixth of a millisecond on each.

What h11 has read as a request once, and answered and kept the connection open, is read here when it
comes again, octet by octet the same but for the message in its target and its body. That is done
only where h11 has nothing of a request, and nothing is left of one behind.
"""

import hashlib
import secrets
from collections.abc import Iterable
from typing import NamedTuple

from kudurru.adapters.dns.answering import ANSWERS_MIN
from kudurru.adapters.dns.doh import MEDIA_TYPE, Doh, Form, http_date, message_in

HEAD_MAX = 1 << 10  # octets of a request before its body
AT_ONCE = 10  # below a quarter of a millisecond
FORMS_MAX = 1024  # as many clients as a proxy may have; one more, and the oldest goes
FORMS_HELD_MAX = 16 * FORMS_MAX
"""Of all connections together, some 8 MB: sixteen such proxies. Beyond, a connection has what it
has, and FORMS_SURE in any case: those of a client that asks for itself."""
FORMS_SURE = 8

_END = b"\r\n\r\n"
_PARAMETER = b"?dns="
_SECRET = secrets.token_bytes(16)
_FRAMED_OTHERWISE = frozenset({b"transfer-encoding", b"expect", b"upgrade"})


class Head(NamedTuple):
    """Of a request: what all like it say, the message in its target, and octets before its body."""

    key: bytes
    text: bytes
    size: int


class Room:
    """For forms of all connections of a listener."""

    def __init__(self) -> None:
        self.held = 0


class Http1Repeats:
    def __init__(self, doh: Doh, peer: str, client_id: str, room: Room) -> None:
        self._doh = doh
        self._room = room
        self._is_over = False
        self._peer, self._client_id = peer, client_id
        self._forms: dict[bytes, Form] = {}  # oldest first, by what a digest keeps of their keys

    def take(self, arrived: bytearray) -> tuple[int, bytes]:
        """Answer what is known at the beginning of what has arrived: octets used, and the
        responses."""
        responses = b""
        at = 0
        for _ in range(AT_ONCE if self._forms else 0):
            head = head_at(arrived, at)
            form = None if head is None else self._forms.get(_digest(head.key))
            if head is None or form is None:
                break
            end = head.size + at + (form.body_size or 0)
            if len(arrived) < end:
                break
            packet = message_in(head.text) if head.text else bytes(arrived[at + head.size : end])
            if packet is None:
                break
            known = self._doh.repeat(packet, form.client, form.client_id)
            if known is None:
                break
            responses += _response(*known)
            at = end
            if len(responses) >= ANSWERS_MIN:
                break
        return at, responses

    def learn(
        self,
        head: Head,
        method: bytes,
        target: bytes,
        headers: Iterable[tuple[bytes, bytes]],
    ) -> None:
        """h11 has read a request with this head, and the connection goes on behind it."""
        fields = list(headers)
        names = [name for name, _ in fields]
        lengths = names.count(b"content-length")
        form = self._doh.form_of(
            [(b":method", method), (b":path", target), *fields], self._peer, self._client_id
        )
        # A message has one place: by GET there is no body, by POST one that says how long it is.
        # h11 ends lines with LF alone too: such a head may end before ours, and its target as well.
        if (
            form is None
            or self._is_over
            or head.key.count(b"\n") != head.key.count(b"\r\n")
            or not _FRAMED_OTHERWISE.isdisjoint(names)
            or (method, bool(head.text), lengths) not in ((b"GET", True, 0), (b"POST", False, 1))
        ):
            return
        before = len(self._forms)
        self._forms[_digest(head.key)] = form._replace(packet=None)
        most = FORMS_MAX if self._room.held < FORMS_HELD_MAX else max(before, FORMS_SURE)
        if len(self._forms) > most:
            del self._forms[next(iter(self._forms))]
        self._room.held += len(self._forms) - before

    def forget(self) -> None:
        """The connection is over."""
        self._room.held -= len(self._forms)
        self._forms.clear()
        self._is_over = True


def head_at(arrived: bytearray, at: int) -> Head | None:
    """The head that is whole at an offset."""
    end = arrived.find(_END, at, at + HEAD_MAX)
    if end < 0:
        return None
    head = bytes(arrived[at : end + len(_END)])
    line_end = head.find(b"\r\n")
    mark = head.find(_PARAMETER, 0, line_end) if head.startswith(b"GET ") else -1
    if mark < 0:
        return Head(head, b"", len(head))
    text_at = mark + len(_PARAMETER)
    text_end = head.find(b" ", text_at, line_end)
    if text_end < 0:
        return None
    return Head(head[:text_at] + head[text_end:], head[text_at:text_end], len(head))


def _digest(key: bytes) -> bytes:
    """16 octets in the place of up to a thousand; nobody finds two keys that have the same."""
    return hashlib.blake2b(key, digest_size=16, key=_SECRET).digest()


def _response(wire: bytes, cache_control: bytes) -> bytes:
    """As h11 writes `Doh.response_of`."""
    return (
        b"HTTP/1.1 200 OK\r\ndate: %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n"
        b"cache-control: %b\r\n\r\n%b"
    ) % (http_date(), MEDIA_TYPE, len(wire), cache_control, wire)
