"""Cookies towards one upstream (RFC 7873 section 5, RFC 9018): who answers shows 8 octets that only
the upstream has seen, so a forger has to guess those as well.

Cookies are sent to everybody over UDP and insisted on where they came back before. What costs them
(a server that changed, a path that strips options) costs a question over TCP three times at most,
and then cookies are left out for a while.
"""

from typing import Literal

from kudurru.domain.chance import Chance
from kudurru.domain.dns.cookies import CLIENT_SIZE
from kudurru.domain.dns.messages import COOKIE, pack_option

SHOWN_SIZES = range(16, 41)
"""Octets of a cookie with a server's part (RFC 7873 section 4)."""

CLIENT_LIFE_US = 3600 * 1_000_000
"""A cookie of ours is replaced after an hour: RFC 9018 section 3 wants another one when our address
changes, which a connected socket does not tell; so two addresses are known as one client's for an
hour at most, and to a server that we chose."""

LOST_MAX = 3
"""Answers without their cookie in a row, each found right in another way, after which cookies are
left out."""

LEFT_OUT_US = 15 * 60 * 1_000_000
"""For so long, as EDNS is."""

Shown = Literal["good", "none", "wrong"]
"""What a response shows: our cookie, no cookie, or somebody else's."""


class CookieJar:
    """Times are monotonic, in microseconds."""

    __slots__ = ("_client", "_lost", "_off_until_us", "_option", "_renew_us", "is_expected")

    def __init__(self) -> None:
        self._client = b""
        self._option = b""
        self._renew_us = 0
        self._off_until_us = 0
        self._lost = 0
        self.is_expected = False
        """The upstream gave cookies back: an answer without is suspect."""

    def option(self, now_us: int, chance: Chance) -> bytes:
        """The EDNS option for a query; empty: none."""
        if now_us >= self._renew_us:
            self._client = chance.octets(CLIENT_SIZE)
            self._option = pack_option(COOKIE, self._client)
            self._renew_us = now_us + CLIENT_LIFE_US
        return self._option if now_us >= self._off_until_us else b""

    def judge(self, sent: bytes, shown: bytes | None) -> Shown:
        """What the cookie of a response (None: it has none) says, where `sent` is the option of the
        query. A good one is kept for the next query."""
        if shown is None:
            return "none"
        client = sent[4 : 4 + CLIENT_SIZE]
        if len(shown) not in SHOWN_SIZES or not shown.startswith(client):
            return "wrong"
        if client == self._client:  # else it is replaced meanwhile
            self._option = pack_option(COOKIE, shown)
        return "good"

    def came_back(self) -> None:
        """An answer over UDP had its cookie."""
        self.is_expected = True
        self._lost = 0

    def was_lost(self, now_us: int) -> None:
        """An answer was right, and cookies were in its way."""
        self._lost += 1
        if self._lost >= LOST_MAX:
            self.leave_out(now_us)

    def leave_out(self, now_us: int) -> None:
        """Send none for a while."""
        self._lost = 0
        self.is_expected = False
        self._off_until_us = now_us + LEFT_OUT_US
