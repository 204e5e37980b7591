"""A list that is updated again and again, to be recorded at the system calls:
`python -m tests.simulation.list_workload FOLDER`."""

import hashlib
import sys
from pathlib import Path

from kudurru.adapters.lists.child import do
from kudurru.adapters.lists.files import ListFiles
from kudurru.adapters.lists.jobs import Build, Built, Failed, Fetch, Fetched, Request, Text
from kudurru.domain.lists.rules import Context
from kudurru.domain.objects import Key
from kudurru.domain.reconcile.blocklists import NEVER_FETCHED, Arrived, after

FOLDER = "lists"
VERSIONS = (1, 2, 3)
LIST = Key("BlockList/default/one")


def text_of(version: int) -> str:
    return "".join(f"v{version}-{i}.example\n" for i in range(40 * version))


def update(files: ListFiles, version: int) -> None:
    """What a keeper does when a text comes. Raises OSError."""
    origin = files.new_path()
    origin.write_text(text_of(version))
    spool = files.new_path()
    request = Request(f"file:{origin}", 1 << 20)
    fetched = do(Fetch(request, str(spool), Context(), had_entries=True, seconds=60))
    if isinstance(fetched, Failed):
        raise OSError(fetched.why)
    assert isinstance(fetched, Fetched)
    files.keep_body(spool, fetched.digest)
    state = after(NEVER_FETCHED, Arrived(fetched.digest, fetched.facts), 1)
    files.write_states({"auto one": state})
    path = files.new_path()
    body = files.body_path(fetched.digest)
    assert fetched.digest == hashlib.sha256(text_of(version).encode()).hexdigest()
    text = Text(LIST, 0, str(version), Context(), str(body), fetched.digest)
    built = do(Build((text,), 1, str(path)))
    if isinstance(built, Failed):
        raise OSError(built.why)
    assert isinstance(built, Built)
    files.keep_table(path)
    files.drop_bodies({fetched.digest})


if __name__ == "__main__":
    found = ListFiles(Path(sys.argv[1]) / FOLDER)
    found.open()
    for number in VERSIONS:
        update(found, number)
