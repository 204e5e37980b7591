"""A web server that says what a test wants, on loopback."""

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from ssl import SSLContext, SSLError

Script = Callable[[bytes], Iterable[bytes]]
"""From the head of a request, what is sent, piece by piece; then the connection is closed."""


def answer(body: bytes = b"", status: str = "200 OK", **headers: str) -> bytes:
    headers = {"Content-Length": str(len(body))} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


@contextmanager
def serving(script: Script, tls: SSLContext | None = None) -> Iterator[int]:
    """The port of a server that follows a script."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed: the test is over
                return
            with connection:
                connection.settimeout(60)
                try:
                    if tls is None:
                        follow(connection)
                        continue
                    with tls.wrap_socket(connection, server_side=True) as secured:
                        follow(secured)
                except (OSError, SSLError):
                    continue

    def follow(connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (more := connection.recv(65536)):
                return
            head += more
        for piece in script(head):
            connection.sendall(piece)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
