"""A TCP proxy that can be cut, for what stands between a node and its database."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Proxy:
    """Listens on a port of its own and forwards to a Unix socket."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._is_cut = False
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._word = b""
        self._is_delivered = False
        self._flows = threading.Event()
        self._flows.set()
        self.has_swallowed = threading.Event()
        """Since `hang`."""
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End every connection, and let none in."""
        with self._lock:
            self._is_cut = True
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            _end(pair)

    def heal(self) -> None:
        self._is_cut = False

    def hang(self) -> None:
        """Swallow what comes, as a network does whose other end is gone; `resume` passes it on."""
        self.has_swallowed.clear()
        self._flows.clear()

    def resume(self) -> None:
        self._flows.set()

    def cut_once_at(self, word: bytes, *, is_delivered: bool) -> None:
        """End the next connection whose client says this; the server has heard it, or not."""
        self._is_delivered = is_delivered
        self._word = word

    def close(self) -> None:
        self.resume()
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            with self._lock:
                if self._is_cut:
                    _end((client, server))
                    continue
                server.connect(str(self._target))
                pair = (client, server)
                self._pairs.add(pair)
            for source, sink in ((client, server), (server, client)):
                threading.Thread(
                    target=self._forward, args=(pair, source, sink), daemon=True
                ).start()

    def _forward(
        self, pair: tuple[socket.socket, socket.socket], source: socket.socket, sink: socket.socket
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if source is pair[0] and self._word and self._word in data:
                    self._word = b""
                    if self._is_delivered:
                        # Half closed: the server acts on what it has heard, and nobody listens.
                        with self._lock:
                            self._pairs.discard(pair)  # no cut may come in between
                        pair[0].close()
                        sink.sendall(data)
                        sink.shutdown(socket.SHUT_WR)
                        while sink.recv(65536):
                            pass
                    break
                if not self._flows.is_set():
                    self.has_swallowed.set()
                self._flows.wait()
                sink.sendall(data)
        with self._lock:
            self._pairs.discard(pair)
        _end(pair)


def _end(pair: tuple[socket.socket, socket.socket]) -> None:
    for one in pair:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


@contextmanager
def proxy(target: Path) -> Iterator[Proxy]:
    found = Proxy(target)
    try:
        yield found
    finally:
        found.close()
