"""What is stored beside the rows of a log, and no row leads to: verification follows the rows, so
it never sees a name or a tile that none of them asks for. The next append would stumble over it.

SQLite and PostgreSQL understand the same statements.
"""

from collections.abc import Callable, Sequence
from typing import Any

from kudurru.domain.errors import ADVICE, LogDamaged
from kudurru.domain.tree import HASH_SIZE, TILE_HEIGHT, TILE_WIDTH

Ask = Callable[[str], Sequence[Sequence[Any]]]

_ORPHANS = """
    SELECT min(id) FROM streams
    WHERE NOT EXISTS (SELECT 1 FROM log WHERE log.stream = streams.id)"""
_SCOPES = "SELECT max(id) FROM scopes"
_TILES = "SELECT level, max(idx) FROM tiles GROUP BY level ORDER BY level"
_WIDTHS = f"""
    SELECT level, idx FROM tiles
    WHERE length(hashes) <> width * {HASH_SIZE} OR width < 1 OR width > {TILE_WIDTH}
       OR level = 0 AND width < {TILE_WIDTH}
    ORDER BY level, idx LIMIT 1"""  # noqa: S608  # of constants


def check_tables(ask: Ask, newest: Callable[[], int]) -> None:
    """`newest` gives the position of the head; it is asked last, as others may append meanwhile.

    Raises: LogDamaged of kind `entry` for names, `tree` for tiles.
    """
    orphan, scope = ask(_ORPHANS)[0][0], ask(_SCOPES)[0][0]
    tiles, odd = ask(_TILES), ask(_WIDTHS)
    size = newest()
    if orphan is not None:
        message = f"a stream is written down that no row is of, with id {orphan}"
        raise LogDamaged("entry", min(orphan, size), f"{message}; {ADVICE}")
    if scope is not None and scope > size:
        message = f"a scope is written down that no row is of, with id {scope}"
        raise LogDamaged("entry", size, f"{message}; {ADVICE}")
    for level, index in tiles:
        if index * TILE_WIDTH >= size >> TILE_HEIGHT * level or level < 0:
            message = f"tile {index} of level {level} is of more than the {size} rows there are"
            raise LogDamaged("tree", size, f"{message}; {ADVICE}")
    for level, index in odd:
        position = (index << TILE_HEIGHT * (level + 1)) + 1
        message = f"tile {index} of level {level} is not as wide as it says"
        raise LogDamaged("tree", position, f"{message}; {ADVICE}")
