"""The other end of the API: requests over HTTP or HTTPS, one connection, kept while it lasts."""

import http.client
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

from kudurru.domain.errors import Cause, Invalid, Unreachable

CONNECT_S = 10.0
ANSWER_S = 120.0
"""More than a server takes for anything but a restore."""

ANSWER_MAX = 1 << 30
PART_BYTES = 64 * 1024


class Given(NamedTuple):
    """An answer."""

    code: int
    headers: Mapping[str, str]
    body: bytes


class ApiClient:
    """Speaks to one server. `url` is `http://host:port` or `https://…`."""

    def __init__(self, url: str, token: str, ca: str = "", *, answer_s: float = ANSWER_S) -> None:
        """`ca` is a file of CAs that the server's certificate may be from, empty: the system's.
        `answer_s` is how long the server may be silent.
        Raises: Invalid for what is no address of a server, no token, or no CA."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port, parts = None, None, urlsplit("")
        is_plain = not (parts.path.strip("/") or parts.query or parts.username or parts.fragment)
        if parts.scheme not in ("http", "https") or not host or not is_plain:
            raise Invalid("--server", [Cause("", f"{url!r} is not like http://127.0.0.1:8080")])
        if not token:
            fault = "no token: give --token or KUDURRU_TOKEN; `kudurru token create` makes one"
            raise Invalid("--server", [Cause("", fault)])
        if not (token.isascii() and token.isprintable()):
            raise Invalid("--token", [Cause("", "holds characters that no token has")])
        self.url = url
        self._token = token
        self._answer_s = answer_s
        self._stream: socket.socket | None = None
        self._response: http.client.HTTPResponse | None = None  # of a stream
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            self._connection = http.client.HTTPSConnection(
                host, port, timeout=CONNECT_S, context=_trusting(ca)
            )
        elif ca:
            raise Invalid("--ca", [Cause("", f"{url} is asked in the clear: give an https:// one")])
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=CONNECT_S)

    def connect(self) -> None:
        """Be sure that there is somebody, before anything is asked. Raises: Unreachable."""
        with self._translated():
            self._connect()

    def _connect(self) -> None:
        """A server that is not there is noticed soon, one that works may take its time."""
        self._connection.connect()
        self._stream = self._connection.sock
        self._stream.settimeout(self._answer_s)

    def close(self) -> None:
        self._connection.close()
        if self._response is not None:  # it may have taken the socket over
            self._response.close()

    def abort(self) -> None:
        """End what waits for the server, in whatever thread: it gets Unreachable."""
        with suppress(OSError):
            if self._stream is not None:
                self._stream.shutdown(socket.SHUT_RDWR)

    def ask(
        self,
        method: str,
        path: str,
        params: Mapping[str, str | int | bool] | None = None,
        *,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> Given:
        """An answer, whatever it says. Raises: Unreachable."""
        with self._translated():
            response = self._asked(method, path, params, body, content_type)
            octets = self._whole(response, ANSWER_MAX)
        return Given(response.status, dict(response.headers.items()), octets)

    def pass_on(
        self,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
        answer_max: int,
    ) -> Given:
        """The answer to what somebody else asked, with headers of theirs; `target` is a path with
        its query, as they came (latin-1). Raises: Unreachable, also for an answer of more than
        `answer_max` octets."""
        encoded = "".join(c if c.isascii() else f"%{ord(c):02X}" for c in target)
        with self._translated():
            sent = {**headers, **self._authorization()}
            self._connection.request(method, encoded, body=body, headers=sent)
            response = self._connection.getresponse()
            octets = self._whole(response, answer_max)
        return Given(response.status, dict(response.headers.items()), octets)

    def _whole(self, response: http.client.HTTPResponse, most: int) -> bytes:
        """A body. Read with a limit, http.client takes one that was cut off for whole. Raises:
        Unreachable, http.client.HTTPException."""
        octets = response.read(most + 1)
        if len(octets) > most:
            self._connection.close()
            raise Unreachable(f"{self.url} answers with more than {most} octets")
        if response.length:
            raise http.client.IncompleteRead(octets, response.length)
        return octets

    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}

    def stream(
        self, path: str, params: Mapping[str, str | int | bool]
    ) -> tuple[Given, Iterator[bytes]]:
        """An answer of any length: its head, and its body in parts; a refusal has its body with its
        head. Raises: Unreachable, also where the parts end too early."""
        given, response = self._begun(path, params)
        return given, iter(lambda: self._part(response), b"")

    def reading(
        self, path: str, params: Mapping[str, str | int | bool]
    ) -> tuple[Given, Callable[[int], bytes]]:
        """As `stream`, but for an answer whose parts say how long they are: the function gives so
        many octets, once they are all there, or fewer at the end. Large ones are not copied."""
        given, response = self._begun(path, params)
        return given, lambda size: self._exactly(response, size)

    def _begun(
        self, path: str, params: Mapping[str, str | int | bool]
    ) -> tuple[Given, http.client.HTTPResponse]:
        with self._translated():
            response = self._asked("GET", path, params, None, "")
            body = response.read(ANSWER_MAX) if response.status >= 400 else b""
        self._response = response
        return Given(response.status, dict(response.headers.items()), body), response

    def _part(self, response: http.client.HTTPResponse) -> bytes:
        with self._translated():
            return response.read1(PART_BYTES)

    def _exactly(self, response: http.client.HTTPResponse, size: int) -> bytes:
        with self._translated():
            return response.read(size)

    def _asked(
        self,
        method: str,
        path: str,
        params: Mapping[str, str | int | bool] | None,
        body: bytes | None,
        content_type: str,
    ) -> http.client.HTTPResponse:
        shown = {k: str(v).lower() if isinstance(v, bool) else v for k, v in (params or {}).items()}
        target = path + (f"?{urlencode(shown)}" if shown else "")
        headers = self._authorization()
        if body is not None:
            headers["Content-Type"] = content_type
        if self._connection.sock is None:
            self._connect()
        self._connection.request(method, target, body=body, headers=headers)
        return self._connection.getresponse()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except ssl.SSLCertVerificationError as error:
            self._connection.close()
            why = f"its certificate is not trusted: {error.verify_message}"
            raise Unreachable(f"{self.url}: {why}; --ca names the file of its CA") from None
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            what = str(error) or type(error).__name__
            if getattr(error, "reason", "") in _NO_TLS:
                what = "it speaks HTTP: say http://, or set api.tls there"
            raise Unreachable(f"{self.url} does not answer: {what}") from None


_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")
"""What versions of OpenSSL call an answer that is no TLS."""


def _trusting(ca: str) -> ssl.SSLContext:
    """Raises: Invalid."""
    try:
        return ssl.create_default_context(cafile=ca or None)
    except ssl.SSLError:
        raise Invalid("--ca", [Cause("", f"{ca} holds no certificate in PEM")]) from None
    except OSError as error:
        raise Invalid("--ca", [Cause("", f"{ca}: {error.strerror}")]) from None
