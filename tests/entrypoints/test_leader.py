"""What comes from the node that is followed, whatever it is."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kudurru.domain.errors import Unreachable
from kudurru.domain.replica import FRAME_MAX, Frame, Page, Pulse, encode_frame
from kudurru.domain.settings import FollowSettings, SecretFile
from kudurru.entrypoints.leader import Leader

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-kudurru-log\r\n"
PAGE = Page(last=7, rows=[], leaves=bytes(300_000), checkpoints=[], secrets=[], proof=[])
SENT: list[Frame] = [Pulse(head=1), PAGE, Pulse(head=2)]


def framed(frame: Frame) -> bytes:
    octets = encode_frame(frame)
    return struct.pack(">I", len(octets)) + octets


def chunked(octets: bytes, size: int) -> bytes:
    parts = (octets[at : at + size] for at in range(0, len(octets), size))
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that gives one answer, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            connection, _ = server.accept()
            with connection:
                asked = b""
                while not asked.endswith(b"\r\n\r\n"):
                    asked += connection.recv(65_536)
                connection.sendall(answer)

        thread = threading.Thread(target=run)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def heard(answer: bytes, folder: Path) -> tuple[list[Frame], str]:
    """The frames, and why there are no more."""
    token = folder / "token"
    token.write_text("secret")
    found: list[Frame] = []
    with (
        answering(answer) as url,
        Leader(url, FollowSettings(url=url, token=SecretFile(str(token)))) as leader,
        pytest.raises(Unreachable) as error,
    ):
        found.extend(leader.frames(0))  # keeps what came before it raises
    return found, str(error.value)


WHOLE = b"".join(map(framed, SENT))
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        *(CHUNKED + chunked(WHOLE, size) + b"0\r\n\r\n" for size in (1_000, 4_096, 1 << 20)),
        CHUNKED + chunked(WHOLE, 999),
        HEAD + b"\r\n" + WHOLE,
        HEAD + b"Content-Length: %d\r\n\r\n" % len(WHOLE) + WHOLE,
    ],
    ids=["small chunks", "chunks", "one chunk", "cut off", "until it hangs up", "of known length"],
)
def test_frames_come_however_they_are_cut(answer: bytes, tmp_path: Path) -> None:
    assert heard(answer, tmp_path)[0] == SENT


@pytest.mark.parametrize("missing", [1, len(framed(SENT[-1])) - 2], ids=["frame", "length"])
@pytest.mark.parametrize("is_chunked", [True, False])
def test_half_a_frame_is_none(missing: int, is_chunked: bool, tmp_path: Path) -> None:
    cut = WHOLE[:-missing]
    answer = CHUNKED + chunked(cut, len(cut)) if is_chunked else HEAD + b"\r\n" + cut
    assert heard(answer, tmp_path)[0] == SENT[:-1]


def test_a_frame_that_is_too_large_is_not_waited_for(tmp_path: Path) -> None:
    answer = HEAD + b"\r\n" + framed(SENT[0]) + struct.pack(">I", FRAME_MAX + 1)
    found, why = heard(answer, tmp_path)
    assert found == SENT[:1]
    assert f"it sends {FRAME_MAX + 1} octets at once" in why


def test_what_is_no_frame_is_refused(tmp_path: Path) -> None:
    found, why = heard(HEAD + b"\r\n" + struct.pack(">I", 3) + b"abc", tmp_path)
    assert found == []
    assert "is no kudurru that can be followed: what it sends cannot be read" in why
