"""The stage for messages that are no questions: NOTIFY (RFC 1996) and updates (RFC 2136).

It parses whole messages, which is slow and may be: they are few, the limiter stands before them,
and a message that is malformed ends here.
"""

from collections import Counter
from collections.abc import Callable
from struct import Struct as Layout

import msgspec

from kudurru.domain.dns.lookup import FORMERR, NOERROR, NOTAUTH, NOTIMP, REFUSED
from kudurru.domain.dns.message_reader import BadMessage, Message, Question, read_message
from kudurru.domain.dns.messages import error_reply
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.record_types import SOA
from kudurru.domain.dns.records import CLASS_IN
from kudurru.domain.dns.tsig import Signer
from kudurru.domain.later import Later
from kudurru.projections.pipeline.signatures import Opened, Refusal, Signatures

NOTIFY, UPDATE = 4, 5
_AA = 0x04  # of the third octet
_COUNTS = Layout("!BBHHHH")  # flags, then the sizes of the sections
_TAIL = Layout("!HH")
_RCODE_MASK = 0x0F

OnNotify = Callable[[Name, str, Name | None], str]
"""(zone, address of the client, name of the key that the message is signed with) to a verdict:
taken, refused, unknown."""

OnUpdate = Callable[[Message, str, Opened], Later[int]]
"""(message, address of the client, its signature) to the code of the answer, which comes when the
change is durable."""

OnRefused = Callable[[str, Refusal], None]
"""(address of the client, refusal) of an update whose signature does not hold: it is logged."""

_CODES = {"taken": NOERROR, "refused": REFUSED, "unknown": NOTAUTH}


class ControlStatistics(msgspec.Struct, frozen=True, kw_only=True):
    notifies: dict[str, int]  # by what became of them


class Control:
    """`now_s` gives unix time."""

    def __init__(
        self,
        signatures: Signatures,
        *,
        on_notify: OnNotify,
        on_update: OnUpdate,
        on_refused: OnRefused,
        now_s: Callable[[], int],
    ) -> None:
        self._signatures = signatures
        self._on_notify = on_notify
        self._on_update = on_update
        self._on_refused = on_refused
        self._now_s = now_s
        self._notifies: Counter[str] = Counter()

    def handle(self, packet: bytes, client: str) -> bytes | Later[bytes]:
        """The reply to a message that is a NOTIFY or an UPDATE, at once or later."""
        is_notify = packet[2] >> 3 & 0xF == NOTIFY
        opened = self._signatures.opened(packet, self._now_s())
        if isinstance(opened, Refusal):
            if is_notify:
                self._notifies["unverified"] += 1
            else:
                self._on_refused(client, opened)
            return opened.wire
        try:
            message = read_message(opened.message)
        except BadMessage:
            if is_notify:
                self._notifies["malformed"] += 1
            return self._signed(error_reply(packet, FORMERR), opened)
        if is_notify:
            return self._signed(self._notify(packet, message, client, opened.signer), opened)
        code = self._on_update(message, client, opened)
        return code.map(lambda rcode: self._signed(error_reply(packet, rcode), opened))

    def _signed(self, reply: bytes, opened: Opened) -> bytes:
        signer = opened.signer
        return reply if signer is None else signer.sign(reply, self._now_s())

    def statistics(self) -> ControlStatistics:
        return ControlStatistics(notifies=dict(self._notifies))

    def _notify(self, packet: bytes, message: Message, client: str, signer: Signer | None) -> bytes:
        if len(message.questions) != 1:
            self._notifies["malformed"] += 1
            return error_reply(packet, FORMERR)
        question = message.questions[0]
        if question.rtype != SOA or question.rclass != CLASS_IN:
            # RFC 1996 section 3.7 leaves room for other types; none is defined.
            self._notifies["malformed"] += 1
            return _reply(packet, question, NOTIMP)
        key = signer.key.name if signer is not None else None
        verdict = self._on_notify(question.name, client, key)
        self._notifies[verdict] += 1
        return _reply(packet, question, _CODES[verdict])


def _reply(packet: bytes, question: Question, rcode: int) -> bytes:
    """A response with the question of the message (RFC 1996 section 4.7). It is written anew: the
    name may have been a pointer into the header, which is another one in the answer."""
    head = error_reply(packet, rcode)
    counts = _COUNTS.pack(head[2] | _AA, head[3], 1, 0, 0, 0)
    return head[:2] + counts + question.name + _TAIL.pack(question.rtype, question.rclass)
