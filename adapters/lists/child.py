"""The process that does the heavy work of lists: `python -m kudurru.adapters.lists.child`.

It gets one job on standard input, answers on standard output, and ends. It is niced and may be
killed at any time: what it writes has names of its own, and only the parent gives it its place. So
neither a bomb nor a million lines hold up the process that answers queries.
"""

import hashlib
import mmap
import os
import resource
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from kudurru.adapters.lists.jobs import (
    Build,
    Built,
    CannotFetch,
    Failed,
    Fetch,
    Fetched,
    Job,
    Nameserver,
    Resolve,
    Response,
    Result,
    Unchanged,
)
from kudurru.adapters.lists.tables import TextDamaged, step_aside, write_table_aside
from kudurru.adapters.secret_files import write_all
from kudurru.domain.lists.body import Facts, NoList, inspect
from kudurru.domain.lists.table import Unusable

NICE = 10
CPU_S = 600
"""Of the processor, for one job."""
RESOLVE_S = 10.0
_STEP = 1 << 20


def do(job: Job) -> Result:
    """Never raises for what comes from outside, or for a disk that refuses."""
    try:
        if isinstance(job, Build):
            return Built(write_table_aside(Path(job.path), job.texts, job.seed))
        return _fetch(job)
    except CannotFetch as error:
        return Failed(str(error), error.retry_after_s)
    except (NoList, Unusable) as error:
        return Failed(str(error))
    except TextDamaged as error:
        return Failed(str(error), damaged=error.digest)
    except OSError as error:
        return Failed(f"the disk refuses: {error.strerror or error}")


def _fetch(job: Fetch) -> Fetched | Unchanged:
    deadline = time.monotonic() + job.seconds
    hasher = hashlib.sha256()
    spool = Path(job.spool)
    try:
        with _create(spool) as file:

            def write(piece: bytes) -> None:
                hasher.update(piece)
                write_all(file.fileno(), piece)

            response = _get(job, write, lambda: deadline - time.monotonic())
            if response.kind == "unchanged":
                spool.unlink()
                return Unchanged()
            size = file.tell()
            os.fsync(file.fileno())
        facts = _inspect(spool, size, job)
    except BaseException:
        spool.unlink(missing_ok=True)
        raise
    return Fetched(hasher.hexdigest(), size, facts, response)


def _get(
    job: Fetch, write: Callable[[bytes], object], seconds_left: Callable[[], float]
) -> Response:
    if job.request.url.startswith("file:"):
        return _read_file(path_of(job.request.url), job.request.max_bytes, write)
    from kudurru.adapters.lists.fetch import fetch  # urllib3 and TLS: builds do without

    return fetch(job.request, write, resolve=resolver(job.nameservers), seconds_left=seconds_left)


def path_of(url: str) -> Path:
    """Of `file:/path` and `file:///path`."""
    rest = url.removeprefix("file:")
    return Path("/" + rest.lstrip("/")) if rest.startswith("///") else Path(rest)


def _read_file(path: Path, max_bytes: int, write: Callable[[bytes], object]) -> Response:
    try:
        kind = path.stat().st_mode
        if not path.is_absolute() or not stat.S_ISREG(kind):
            raise CannotFetch("it is no regular file with an absolute path")
        total = 0
        with path.open("rb", buffering=0) as file:
            while piece := file.read(_STEP):
                total += len(piece)
                if total > max_bytes:
                    raise CannotFetch(f"it is larger than {max_bytes} octets")
                write(piece)
    except FileNotFoundError:
        raise CannotFetch("there is no such file") from None
    except PermissionError:
        raise CannotFetch("it may not be read by this user") from None
    return Response("new")


def _inspect(spool: Path, size: int, job: Fetch) -> Facts:
    if not size:
        raise NoList("it is empty")
    with spool.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as text:
        return inspect(text, job.context, had_entries=job.had_entries, on_progress=step_aside)


def resolver(nameservers: Sequence[Nameserver]) -> Resolve:
    """Of host names, by these servers, or as this machine does. Where servers are given the names
    of lists never go through our own filter."""
    if not nameservers:
        return _as_this_machine
    import dns.exception
    import dns.nameserver
    import dns.resolver

    asking = dns.resolver.Resolver(configure=False)
    asking.lifetime = RESOLVE_S
    asking.nameservers = [
        dns.nameserver.DoTNameserver(one.address, one.port, one.tls_name)
        if one.tls_name
        else dns.nameserver.Do53Nameserver(one.address, one.port)
        for one in nameservers
    ]

    def resolve(host: str, _port: int) -> list[str]:
        try:
            return list(asking.resolve_name(host).addresses())
        except dns.exception.DNSException as error:
            raise OSError(type(error).__name__) from error

    return resolve


def _as_this_machine(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def _create(path: Path) -> BinaryIO:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Control-C is for the parent, which ends us
    os.nice(NICE)
    with suppress(OSError):  # where memory runs out, it is this process that goes
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Job)
    sys.stdout.buffer.write(msgspec.msgpack.encode(do(job)))


if __name__ == "__main__":
    main()
