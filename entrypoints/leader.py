"""The node whose log is followed, at the other end of its API. Blocking: for a thread."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec

from kudurru.adapters.api_client import ApiClient, Given
from kudurru.domain.errors import Cause, Invalid, Unreachable
from kudurru.domain.lineage import LogAbout
from kudurru.domain.replica import FRAME_MAX, Frame, decode_frame
from kudurru.domain.settings import FollowSettings
from kudurru.entrypoints.rest.status import Status, error_from

SILENCE_S = 20.0
"""After which a leader that sends nothing is not there any more: four signs of life are missing."""

PREFIX = "/api/v1"
LENGTH = struct.Struct(">I")


class Leader:
    """One connection, made when it is needed."""

    def __init__(self, url: str, settings: FollowSettings) -> None:
        """Raises: Invalid for what is no address, no token or no CA."""
        self.url = url
        token = _token_in(settings.token)
        try:
            self._client = ApiClient(url, token, settings.ca, answer_s=SILENCE_S)
        except Invalid as error:
            raise Invalid("follow", error.causes) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def abort(self) -> None:
        """End what waits, in another thread."""
        self._client.abort()

    def about(self, at: int = 0) -> LogAbout:
        """Raises: Unreachable; what the leader refuses with."""
        given = self._client.ask("GET", f"{PREFIX}/log", {"at": at} if at else {})
        self._check(given)
        try:
            return msgspec.json.decode(given.body, type=LogAbout)
        except msgspec.MsgspecError:
            raise self._strange("it answers with something else than this version") from None

    def frames(self, after: int) -> Iterator[Frame]:
        """What it sends, as it comes. Raises: Unreachable, also where it ends."""
        given, read = self._client.reading(f"{PREFIX}/log/rows", {"after": after})
        self._check(given)
        while len(length := read(LENGTH.size)) == LENGTH.size:
            size = LENGTH.unpack(length)[0]
            if size > FRAME_MAX:
                raise self._strange(f"it sends {size} octets at once")
            octets = read(size)
            if len(octets) < size:
                break
            yield self._decoded(octets)
        raise Unreachable(f"{self.url} sends no more")

    def _decoded(self, octets: bytes) -> Frame:
        try:
            return decode_frame(octets)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._strange(f"what it sends cannot be read ({error})") from None

    def _check(self, given: Given) -> None:
        if given.code < 400:
            return
        try:
            status = msgspec.json.decode(given.body, type=Status)
        except msgspec.MsgspecError:
            raise self._strange(f"it answers {given.code}") from None
        if given.code in (401, 403):
            why = f"{self.url} does not let this node in: {status.message}"
            raise Unreachable(f"{why}; make a token there with `token create --role follower`")
        raise error_from(status)

    def _strange(self, what: str) -> Unreachable:
        return Unreachable(f"{self.url} is no kudurru that can be followed: {what}")


def _token_in(path: str) -> str:
    """Read each time: whoever renews a token writes the file. Raises: Invalid."""
    if not path:
        fault = "no token: name the file of one with --token file:/path or follow.token"
        raise Invalid("follow.token", [Cause("", fault)])
    try:
        return Path(path).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no text"
        raise Invalid("follow.token", [Cause("", f"{path}: {reason}")]) from None
