"""The API against its own OpenAPI document, by a program that knows nothing else of it."""

import http.client
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox.program import command, environment, serving

CALLS_MIN = 2_000
MINUTES = 10
"""At most: it takes one or two of CPU."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(MINUTES * 60 + 120)]

CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance",
    "response_schema_conformance", "ignored_auth", "unsupported_method",
)  # fmt: skip


def document_of(address: str) -> Any:
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request("GET", "/api/v1/openapi.json")
    document = json.loads(connection.getresponse().read())
    connection.close()
    return document


def without_streams(document: Any) -> Any:
    """A watch has no end, nor has the log for those that follow."""
    del document["paths"]["/api/v1/log/rows"]
    for path in document["paths"].values():
        for operation in path.values():
            operation["parameters"] = [
                one
                for one in operation.get("parameters", ())
                if one["name"] not in ("watch", "resourceVersion")
            ]
    return document


def test_thousands_of_calls_find_no_fault_and_no_answer_of_another_shape(tmp_path: Path) -> None:
    """schemathesis makes requests of the document's shapes, and of none; every answer has to be
    one that the document has. The log is whole afterwards, and its views are as replayed."""
    data = tmp_path / "data"
    made = command("token", "create", "root", "--role", "admin", "--data", data, "-o", "json")
    with serving(data, "--demo") as server:
        address = server.addresses["http"]
        file = tmp_path / "openapi.json"
        file.write_text(json.dumps(without_streams(document_of(address))))
        done = subprocess.run(
            [
                sys.executable, "-m", "schemathesis.cli", "run", str(file), "--url", f"http://{address}/",
                "--header", f"Authorization: Bearer {made.json()['token']}",
                # It does not ask again where a kept connection was closed for idleness meanwhile.
                "--header", "Connection: close",
                "--checks", ",".join(CHECKS),
                "--phases", "coverage,fuzzing",
                "--max-examples", "15",
                "--seed", "20261129",
                # Threads of it that parse Python at the same time raise SystemError in CPython 3.11
                # ("AST constructor recursion depth mismatch").
                "--workers", "1",
                "--request-timeout", "60",
                "--generation-database", "none",
                "--suppress-health-check", "all",
                "--no-color",
                "--exclude-operation-id", "delete-tokens-name",  # its own may be among them
                "--exclude-operation-id", "patch-settings",  # could switch off what is tried
                "--exclude-operation-id", "post-query",  # it makes no DNS messages
            ],
            capture_output=True, text=True, timeout=MINUTES * 60, cwd=tmp_path, check=False,
            env=environment(),
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        calls = sum(int(found) for found in re.findall(r"(\d+) generated", done.stdout))
        print(done.stdout[-1500:])
        assert calls >= CALLS_MIN
        assert command("replay", "--verify", "--data", data).code == 0
    assert command("audit", "verify", "--level", "state", "--data", data).code == 0
