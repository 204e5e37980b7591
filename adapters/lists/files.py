"""What is kept of lists in the data directory, under `lists/`.

    bodies/<sha256>   texts as they were fetched, the last good one of each source
    table             what names are looked up in, see `tables`
    sources.json      what is known of each source: when, with which ETag, how it went
    incoming/         what is on its way; emptied at each start

All of it can be fetched again. Files are 0600 in folders of 0700, and each is whole or not there.
"""

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from kudurru.adapters.data_dir import sync_folder
from kudurru.adapters.lists.tables import open_table, put_in_place
from kudurru.adapters.secret_files import write_private
from kudurru.domain.lists.table import Table
from kudurru.domain.reconcile.blocklists import SourceState, without_copy

_STATES_MAX = 32 << 20

States = dict[str, SourceState]
_decode_states = msgspec.json.Decoder(dict[str, SourceState])


class ListFiles:
    """The folder `lists/` of a node. One process at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.table_path = path / "table"
        self._bodies = path / "bodies"
        self._incoming = path / "incoming"
        self._number = 0

    def open(self) -> None:
        """Make the folders, and clear what a run before left half done. Raises OSError."""
        for folder in (self._path, self._bodies):
            folder.mkdir(mode=0o700, exist_ok=True)
        shutil.rmtree(self._incoming, ignore_errors=True)
        self._incoming.mkdir(mode=0o700, exist_ok=True)

    def new_path(self) -> Path:
        """A path for something that comes in."""
        self._number += 1
        return self._incoming / str(self._number)

    # --- texts --------------------------------------------------------------------------

    def body_path(self, digest: str) -> Path:
        return self._bodies / digest

    def keep_body(self, incoming: Path, digest: str) -> None:
        """Take in a text that is durable at `incoming`. Durable when it returns. Raises
        OSError."""
        incoming.replace(self.body_path(digest))
        sync_folder(self._bodies)

    def drop_bodies(self, but: Collection[str]) -> None:
        """Delete texts that nobody wants any more. What cannot be deleted stays for the next
        time."""
        for path in self._bodies.iterdir():
            if path.name not in but:
                path.unlink(missing_ok=True)

    # --- states -------------------------------------------------------------------------

    def read_states(self) -> States:
        """States of sources by id; none where the file is missing or damaged, and without their
        copies where those are missing: then they are fetched again."""
        try:
            octets = (self._path / "sources.json").read_bytes()[:_STATES_MAX]
            states = _decode_states.decode(octets)
        except (OSError, msgspec.MsgspecError):
            return {}
        return {
            id_: without_copy(state) if state.digest and not self._is_there(state.digest) else state
            for id_, state in states.items()
        }

    def _is_there(self, digest: str) -> bool:
        return digest.isalnum() and self.body_path(digest).is_file()

    def write_states(self, states: Mapping[str, SourceState]) -> None:
        """Durable when it returns. Raises OSError."""
        write_private(self._path / "sources.json", msgspec.json.encode(dict(states)))

    # --- the table ----------------------------------------------------------------------

    def open_table(self) -> Table | None:
        """None when there is none. Raises Unusable."""
        return open_table(self.table_path)

    def keep_table(self, incoming: Path) -> None:
        """Put a table that was written at `incoming` in place. Raises OSError."""
        put_in_place(incoming, self.table_path)
