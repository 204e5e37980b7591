"""What a start asks of checkpoints that lie outside of the log: is this still the log?

They are where `audit.checkpoint.publish` sends them, and in `DIR/checkpoint`, a copy that whoever
puts an older `log.db` into the directory leaves as it is.
"""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from kudurru.adapters.data_dir import DataDir
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.adapters.publishing import published_in
from kudurru.adapters.signing import KeyFolder, check_signature
from kudurru.domain.chain import origin_of
from kudurru.domain.checkpoint import KeyChain
from kudurru.domain.epochs import epoch_began
from kudurru.domain.errors import KudurruError, LogDamaged
from kudurru.domain.events import SIGNING_KEY
from kudurru.domain.ports import Entropy, VerifiableLog
from kudurru.domain.published import Published, difference, read_published
from kudurru.domain.signed_note import VerifierKey
from kudurru.entrypoints.checkpoints import ZONE_TARGET

log = logging.getLogger("kudurru.checkpoints")


def first_difference(
    directory: DataDir, event_log: VerifiableLog, targets: Sequence[str], entropy: Entropy
) -> LogDamaged | None:
    """What checkpoints outside show of a log that is whole in itself. What cannot be read says
    nothing: a folder of another machine may be away. A log in memory is another one each time.
    Raises: StorageFailed."""
    if isinstance(event_log, MemoryEventLog):
        return None
    keys = list(_keys_of(directory, event_log, entropy))
    for found in _published(directory.checkpoint, targets, event_log.log_id):
        try:
            damage = difference(event_log, found, keys, check_signature)
        except LogDamaged as holes:
            return holes
        if damage is not None:
            return damage
    return None


def _published(copy: Path, targets: Sequence[str], log_id: str) -> Iterator[Published]:
    for target in (str(copy), *targets):
        if target.startswith(ZONE_TARGET):
            continue  # it is a record in the log itself
        try:
            texts = published_in(target, log_id)
        except KudurruError as error:
            log.warning("the log is not compared with its published checkpoint: %s", error)
            continue
        for path, text in texts:
            found = read_published(text, str(path))
            if found is None:
                log.warning("%s is no checkpoint, the log is not compared with it", path)
            else:
                yield found


def _keys_of(
    directory: DataDir, event_log: VerifiableLog, entropy: Entropy
) -> Iterator[VerifierKey]:
    """Keys that may have signed in this epoch: those that the log says, and those at hand, as a log
    that was set back may not say of the newest."""
    origin = origin_of(event_log.log_id, event_log.epoch)
    chain = KeyChain(origin, check_signature)
    for event in event_log.read(epoch_began(event_log), key=SIGNING_KEY):
        chain.adopt(event.seq, event.body)
        if chain.current is not None:
            yield chain.current
    folder = KeyFolder(directory.keys, origin, entropy)
    for key in (folder.read(), folder.read_next()):
        if key is not None:
            yield key.verifier
