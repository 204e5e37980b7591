"""The client's side of the command socket."""

import socket
from contextlib import closing

import pytest

from kudurru.domain.errors import Invalid
from kudurru.entrypoints.rpc import RemoteService


def test_a_text_that_cannot_be_sent_is_invalid_and_nothing_is_sent() -> None:
    ours, theirs = socket.socketpair()
    with closing(theirs), RemoteService(ours) as server, pytest.raises(Invalid, match="surrogate"):
        server.export("\udcff")
