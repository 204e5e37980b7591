"""deploy/compose as processes: its own files and commands, dnsdist and PostgreSQL from Debian.

Containers become processes in one network namespace that has all their addresses. A path in a
container becomes that of what is mounted there; a named volume becomes a folder. What differs from
Compose is said in `Composed.node`. Needs root, for the namespace and its ports.
"""

import json
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.absent import absent
from tests.blackbox.program import (
    PATIENCE_S,
    command_line,
    end,
    environment,
    read_line,
    wait_until,
)
from tests.kube.assets import place
from tests.loads import Load
from tests.real_servers import need

FOLDER = Path(__file__).parents[2] / "deploy/compose"
LOADER = "v2.16.2"
CLIENT = "172.30.53.100"
"""Of whoever asks, in the same network."""


@cache
def loader() -> Path:
    """Compose's own reader of compose files, built once and kept outside the tree."""
    target = place().parent.parent / f"compose-go-{LOADER}" / "cmd"
    if target.exists():
        return target
    if shutil.which("go") is None:
        absent("the tests of compose.yaml need Go, to build Compose's reader: install it, once")
    target.parent.mkdir(parents=True, exist_ok=True)
    flags = {"CGO_ENABLED": "0", "GOBIN": str(target.parent)}
    package = f"github.com/compose-spec/compose-go/v2/cmd@{LOADER}"
    command = ["go", "install", "-trimpath", package]
    subprocess.run(command, env=os.environ | flags, check=True, capture_output=True)
    return target


def read(file: Path) -> Any:
    """The project as Compose reads it, defaults and paths in full. Raises: CalledProcessError."""
    command = [loader(), "-format", "json", file.name]
    done = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


class Composed:
    """The project, and where its processes run."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.project = read(folder / "compose.yaml")
        self.services: dict[str, Any] = self.project["services"]
        self.stack = stack
        self.inside = self._network()
        for name in self.services:  # in files that are mounted, too, paths are those of containers
            for mount in self.services[name].get("volumes", []):
                if mount["type"] == "bind":
                    file = Path(mount["source"])
                    file.write_text(self.text(name, file.read_text()))

    def address(self, service: str) -> str:
        return str(self.services[service]["networks"]["dns"]["ipv4_address"])

    def _network(self) -> list[str]:
        """What puts a command into a network that has every address of the project."""
        lines = ["ip link set lo up"]
        addresses = [*map(self.address, self.services), CLIENT]
        lines += [f"ip address add {address}/24 dev lo" for address in addresses]
        lines += ["echo there", "exec sleep infinity"]
        holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", " && ".join(lines)], stdout=subprocess.PIPE, text=True
        )
        self.stack.callback(_finish, holder)
        if read_line(holder) != "there\n":
            absent("a network namespace cannot be made here: it needs root")
        return ["nsenter", f"--target={holder.pid}", "--net"]

    def start(self, command: Sequence[str], log: Path, **how: Any) -> "subprocess.Popen[str]":
        """A process in the network, killed at the end; what it says on stderr is in `log`."""
        with log.open("a") as file:
            process = subprocess.Popen([*self.inside, *command], stderr=file, text=True, **how)
        self.stack.callback(_finish, process)
        return process

    def run(self, *command: str) -> str:
        """What a program says in the network; it has to end well."""
        done = subprocess.run(
            [*self.inside, *command],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def text(self, service: str, text: str) -> str:
        """With the paths of a container changed to those of this machine."""
        for mount in self.services[service].get("volumes", []):
            source = mount["source"]
            if mount["type"] == "volume":
                source = str(self.folder / source)
            text = text.replace(mount["target"], source)
        for secret in self.services[service].get("secrets", []):
            file = self.project["secrets"][secret["source"]]["file"]
            text = text.replace(secret["target"], file)
        return text

    def postgres(self) -> None:
        """With the user, database and password of the project, until the end."""
        binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
        if not binaries:
            absent("PostgreSQL is missing: install Debian's package postgresql")
        variables = self.services["postgres"]["environment"]
        user, base = variables["POSTGRES_USER"], variables["POSTGRES_DB"]
        home = Path(tempfile.mkdtemp(prefix="kudurru-pg-"))  # which its own user can reach
        self.stack.callback(shutil.rmtree, home, ignore_errors=True)
        password = home / "password"
        source = self.text("postgres", variables["POSTGRES_PASSWORD_FILE"])
        password.write_text(Path(source).read_text())
        account = pwd.getpwnam("postgres")
        for path in (home, password):
            os.chown(path, account.pw_uid, account.pw_gid)
        as_user = ["setpriv", "--reuid=postgres", f"--regid={account.pw_gid}", "--clear-groups"]
        tools = binaries[-1].parent
        initdb = [str(tools / "initdb"), "-D", str(home / "data"), "-U", user, "--no-sync"]
        initdb += [f"--pwfile={password}", variables["POSTGRES_INITDB_ARGS"], "--auth-local=trust"]
        subprocess.run([*as_user, *initdb], check=True, capture_output=True, cwd=home)
        address = self.address("postgres")
        with (home / "data/pg_hba.conf").open("a") as rules:  # as the image has it
            rules.write("host all all all scram-sha-256\n")
        options = [f"unix_socket_directories={home}", f"listen_addresses={address}", "fsync=off"]
        server = [str(tools / "postgres"), "-D", str(home / "data")]
        server += [part for option in options for part in ("-c", option)]
        process = self.start([*as_user, *server], home / "log", cwd=home)
        psql = [*as_user, "psql", f"--host={home}", f"--username={user}", "--dbname=postgres"]
        create = [*psql, "--command", f"CREATE DATABASE {base}"]

        def is_up() -> bool:
            assert process.poll() is None, (home / "log").read_text()
            return (
                subprocess.run(create, capture_output=True, check=False, cwd=home).returncode == 0
            )

        wait_until(is_up)

    def dnsdist(self) -> None:
        command = [need("dnsdist"), "--supervised", "--disable-syslog", "--config"]
        file = self.text("dnsdist", "/etc/dnsdist/dnsdist.conf")
        with (self.folder / "dnsdist.log").open("w") as log:
            self.balancer = self.start([*command, file], self.folder / "dnsdist.log", stdout=log)
        self.wait_for("up", "node-a", "node-b")

    def node(self, name: str) -> "Node":
        """Started, and ready. Unlike in Compose it runs as whoever runs the tests, and its
        operations have a loopback address of their own, since the nodes share a network here."""
        operations = f"127.0.0.{self.address(name).rpartition('.')[2]}:8081"
        given = self.services[name]["environment"] | {"KUDURRU_DATA": "/var/lib/kudurru"}
        variables = {key: self.text(name, text) for key, text in given.items()}
        variables |= {"KUDURRU__OPS__ADDRESS": operations}
        arguments = [self.text(name, text) for text in self.services[name]["command"]]
        log = self.folder / f"{name}.log"
        process = self.start(
            command_line(*arguments), log, stdout=subprocess.PIPE, env=environment(**variables)
        )
        ready = read_line(process)
        assert ready.startswith("ready "), log.read_text()
        return Node(self, process, self.address(name), variables)

    def wait_for(self, state: str, *names: str, times: int = 1) -> None:
        """Until dnsdist has said so often that these nodes are up, or down."""
        log = self.folder / "dnsdist.log"

        def is_said() -> bool:
            assert self.balancer.poll() is None, log.read_text()
            lines = [line for line in log.read_text().splitlines() if "Marking downstream" in line]
            found = [line for line in lines if f"'{state}'" in line]
            return all(sum(name in line for line in found) >= times for name in names)

        wait_until(is_said)

    def load(self, names: Sequence[str], per_second: int) -> Load:
        """Queries of the client to dnsdist, until the end."""
        options = ("-s", self.address("dnsdist"), "-a", CLIENT)
        load = Load(*options, names=names, per_second=per_second, prefix=self.inside)
        self.stack.callback(load.close)
        return load

    def asked(self, server: str, name: str, rtype: str) -> str:
        """What a node or the balancer answers."""
        return self.run("dig", f"@{server}", "-b", CLIENT, "+short", name, rtype).strip()

    def serial(self, server: str, zone: str) -> int:
        return int(self.asked(server, zone, "SOA").split()[2])


def _finish(process: "subprocess.Popen[str]") -> None:
    process.kill()
    end(process)
    if process.stdout is not None:
        process.stdout.close()


class Node:
    """One that runs."""

    def __init__(
        self,
        composed: Composed,
        process: "subprocess.Popen[str]",
        address: str,
        variables: dict[str, str],
    ) -> None:
        self.composed = composed
        self.process = process
        self.address = address
        self.variables = variables

    def kudurru(self, *args: str, stdin: str = "") -> str:
        """What a command says that runs in the container; it has to end well."""
        done = subprocess.run(
            [*self.composed.inside, *command_line(*args)],
            input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            env=environment(**self.variables),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def composed(folder: Path) -> Iterator[Composed]:
    """The project with its database and secrets; nodes and dnsdist are started by the test."""
    if os.geteuid() != 0:
        absent("a network of its own and its ports need root")
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("secrets"))
    subprocess.run([folder / "secrets.sh"], check=True)
    _for_the_test(folder)
    with ExitStack() as stack:
        found = Composed(folder, stack)
        found.postgres()
        yield found


def _for_the_test(folder: Path) -> None:
    """What the project has otherwise: dnsperf is one client that asks more than one may; and on a
    busy machine an answer that is late is neither lost nor the sign of a broken node."""
    with (folder / "cluster.yaml").open("a") as settings:
        settings.write(f"ratelimit.exempt: [127.0.0.0/8, {CLIENT}/32]\n")
    file = folder / "dnsdist.conf"
    text = file.read_text()
    assert "checkTimeout = 1000," in text
    file.write_text(
        text.replace("checkTimeout = 1000,", "checkTimeout = 5000,") + "setUDPTimeout(10)\n"
    )
