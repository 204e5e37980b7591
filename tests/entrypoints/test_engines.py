"""Which engine serves UDP."""

import asyncio
from typing import Any

import pytest

from kudurru.adapters.clock import SystemClock
from kudurru.adapters.cpus import usable_cpus
from kudurru.adapters.dns import engine_native
from kudurru.adapters.dns.engine_native import NativeEngine
from kudurru.adapters.dns.engine_python import PythonEngine
from kudurru.adapters.networks import Networks
from kudurru.adapters.sockets import Listener, bind_all
from kudurru.domain.errors import Invalid
from kudurru.domain.notation import parse_network
from kudurru.domain.ports import PacketEngine
from kudurru.domain.settings import RatelimitSettings
from kudurru.entrypoints.listeners import Udp

native = pytest.mark.skipif(
    not engine_native.is_available(), reason="the native engine was not built"
)


def engine_of(udp: Udp, proxies: Networks | None = None) -> PacketEngine:
    (bound,) = bind_all([Listener("udp", "127.0.0.1:0")])
    limiter = udp.limiter(RatelimitSettings(), SystemClock(), None)
    engine = udp.engine(Silent(), bound, limiter, proxies)
    asyncio.run(engine.stop())
    return engine


class Silent:
    def handle(self, packet: bytes, client: str, proto: str) -> Any:
        return None


def test_the_engine_in_python_has_one_socket_unless_told_otherwise() -> None:
    udp = Udp("python", 0)
    assert (udp.is_native, udp.sockets) == (False, 1)
    assert Udp("python", 3).sockets == 3
    assert isinstance(engine_of(udp), PythonEngine)


@native
@pytest.mark.parametrize("wanted", ["native", "auto"])
def test_the_native_engine_has_a_socket_for_each_usable_cpu(wanted: Any) -> None:
    udp = Udp(wanted, 0)
    assert (udp.is_native, udp.sockets) == (True, usable_cpus())
    assert Udp(wanted, 1).sockets == 1
    assert isinstance(engine_of(udp), NativeEngine)


@native
def test_the_native_engine_answers_from_zones_unless_told_otherwise() -> None:
    assert Udp("native", 1).images is not None
    udp = Udp("native", 1, has_zones=False)
    assert udp.images is None
    assert isinstance(engine_of(udp), NativeEngine)


@native
def test_proxy_headers_and_listeners_beyond_its_scopes_are_for_the_engine_in_python() -> None:
    udp = Udp("native", 1)
    assert isinstance(engine_of(udp, Networks([parse_network("10.0.0.0/8")])), PythonEngine)
    for _ in range(256):
        assert isinstance(engine_of(udp), NativeEngine)
    assert isinstance(engine_of(udp), PythonEngine)


def test_where_it_was_not_built_auto_does_without_and_native_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_native, "_engine", None)
    udp = Udp("auto", 0)
    assert (udp.is_native, udp.sockets) == (False, 1)
    assert isinstance(engine_of(udp), PythonEngine)
    with pytest.raises(Invalid, match=r"dns\.engine.*C compiler"):
        Udp("native", 0)
