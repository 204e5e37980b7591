"""A server at an address that its machine gets later, in a network of its own."""

import sys
from pathlib import Path

import pytest

from tests.network_apart import ran_apart

PROGRAM = """
import subprocess, sys
from pathlib import Path
from tests.blackbox.program import command, serving

ADDRESS = sys.argv[3]
engine = f"--engine={sys.argv[2]}"
asked = {"KUDURRU__LISTENERS__FREEBIND": "true"}
with serving(Path(sys.argv[1]), "--demo", engine, dns_at=f"{ADDRESS}:5300", env=asked) as at:
    ops = ("--ops", at.addresses["ops"])
    print(command("healthcheck", *ops).code)
    subprocess.run(["ip", "address", "add", ADDRESS, "dev", "lo"], check=True)
    print(at.texts("www.demo.example"))
    print(command("healthcheck", *ops).code)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such option")
@pytest.mark.parametrize("engine", ["native", "python"])
@pytest.mark.parametrize("address", ["192.0.2.77"])
def test_a_server_is_ready_before_its_address_is_there_and_answers_at_it_then(
    engine: str, address: str, tmp_path: Path
) -> None:
    done = ran_apart([], PROGRAM, str(tmp_path / "data"), engine, address)
    assert done.stdout.splitlines() == ["0", "['192.0.2.80']", "0"], done.stderr
