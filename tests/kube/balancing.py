"""Nodes of one cluster behind dnsdist, with dnsperf asking: all as processes on loopback.

Everything has an address of its own below 127/8, so that a node that comes back finds its port.
"""

import random
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests import loads
from tests.blackbox.program import PATIENCE_S, Serving, kudurru, serving, wait_until
from tests.kube.serving import metric
from tests.loads import Load
from tests.real_servers import need

PORT = 5300
CONFIGURATION = """\
setLocal("{address}")
setSecurityPollSuffix("")
setVerboseHealthChecks(true)
-- On a busy machine an answer that is late is neither lost nor the sign of a broken node.
setUDPTimeout(10)
"""
BACKEND = """\
newServer({{
  name = "{name}", address = "{address}",
  checkName = "health.kudurru.internal.", checkType = "A", mustResolve = true,
  checkInterval = 1, checkTimeout = 5000, maxCheckFailures = 2, rise = 2,
}})
"""


def addresses(count: int) -> list[str]:
    """Of loopback, which nobody else is likely to use, with a port that nobody is given."""
    network = f"127.{random.randint(64, 250)}.{random.randint(1, 250)}"
    return [f"{network}.{i}:{PORT}" for i in range(1, count + 1)]


class Nodes:
    """Servers by name. One that ended may be started again, at its address and with its data."""

    def __init__(self, folder: Path, env: Mapping[str, Mapping[str, str]]) -> None:
        """`env` is of each, by name."""
        self._folder = folder
        self._env = env
        self.at = dict(zip(env, addresses(len(env)), strict=True))
        """Where they answer DNS."""
        self._stacks: dict[str, ExitStack] = {}
        self.running: dict[str, Serving] = {}

    def start(self, name: str, *options: str) -> None:
        stack = ExitStack()
        at, env = self.at[name], dict(self._env[name])
        node = serving(self._folder / name, *options, dns_at=at, env=env)
        self.running[name] = stack.enter_context(node)
        self._stacks[name] = stack

    def end(self, name: str, *, is_killed: bool = False) -> None:
        node = self.running.pop(name)
        if is_killed:
            node.process.kill()
            node.process.wait(PATIENCE_S)
        else:
            assert node.stop() == 0
        self._stacks.pop(name).close()

    def close(self) -> None:
        with ExitStack() as stack:
            for one in self._stacks.values():
                stack.push(one)

    def drain(self, name: str) -> None:
        done = kudurru("lameduck", "0s", "--ops", self.running[name].addresses["ops"])
        assert done.code == 0, done.err

    def leader(self) -> str | None:
        for name, node in self.running.items():
            if metric(node, "kudurru_leader"):
                return name
        return None

    def serials(self, zone: str) -> set[int]:
        """That they have of a zone, all of them."""
        found = (node.texts(zone, "SOA")[0].split() for node in self.running.values())
        return {int(parts[2]) if len(parts) > 2 else 0 for parts in found}

    def have(self, name: str, target: str) -> bool:
        return all(node.texts(name) == [target] for node in self.running.values())


class Balancer:
    """dnsdist, which asks nodes that answer the health name."""

    def __init__(self, folder: Path, nodes: Nodes, stack: ExitStack) -> None:
        (address,) = addresses(1)
        self.host = address.partition(":")[0]
        text = CONFIGURATION.format(address=address)
        for name, address in nodes.at.items():
            text += BACKEND.format(name=name, address=address)
        file, self._log = folder / "dnsdist.conf", folder / "dnsdist.log"
        file.write_text(text)
        command = [need("dnsdist"), "--supervised", "--disable-syslog", "--config", str(file)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        stack.callback(self._end)

    def _end(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def wait_for(self, state: str, name: str) -> None:
        """Until a node is up for it, or down."""

        def is_said() -> bool:
            text = self._log.read_text()
            assert self._process.poll() is None, text
            lines = [line for line in text.splitlines() if f"Marking downstream {name} " in line]
            return bool(lines) and f"'{state}'" in lines[-1]

        wait_until(is_said)


@contextmanager
def under_load(balancer: Balancer, names: Sequence[str], per_second: int) -> Iterator[Load]:
    at = ("-s", balancer.host, "-p", str(PORT))
    with loads.under_load(*at, names=names, per_second=per_second) as load:
        yield load
