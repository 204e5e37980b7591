"""From a node that follows to one that is written to.

A promotion begins an epoch, as going on from a backup does: what the leader took after the newest
row here is lost, and no position means two things. The epoch is durable before the node says that
it follows nobody; dying in between leaves a node that follows, is refused by its old leader, and
can be promoted again.
"""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.data_dir import open_data_dir
from kudurru.adapters.sqlite.lock import DirectoryLock
from kudurru.domain.chain import origin_of
from kudurru.domain.codec import canonical
from kudurru.domain.epochs import EpochBody
from kudurru.domain.errors import Conflict, KudurruError, NotFound, StorageFailed
from kudurru.domain.events import EPOCH_KEY, LOG_EPOCH, ChangeSet, Event, Recorded, Who
from kudurru.domain.lineage import began, why_not_ours
from kudurru.domain.object_store import CONTROLLER
from kudurru.domain.ports import Upkeep, VerifiableLog
from kudurru.domain.settings import FollowSettings
from kudurru.entrypoints.checkpoints import tell_key
from kudurru.entrypoints.directory import open_checkpointer, open_log
from kudurru.entrypoints.follow_place import followed, forget_place
from kudurru.entrypoints.hot_settings import checkpoint_policy
from kudurru.entrypoints.others import Heard, ask_all
from kudurru.entrypoints.service import Promoted, PromoteRequest
from kudurru.entrypoints.wiring import Node

if TYPE_CHECKING:
    from kudurru.entrypoints.following import Following
    from kudurru.entrypoints.parts import Parts

log = logging.getLogger("kudurru.follow")


async def promote(
    parts: "Parts", following: "Following", request: PromoteRequest, who: Who
) -> Promoted:
    """See `entrypoints.promoting`. Raises: Conflict; what the log does."""
    node, settings = parts.node, following.settings
    read: VerifiableLog = node.log  # type: ignore[assignment]  # every log of ours is
    url = following.url
    heard = await asyncio.to_thread(ask_all, (url, *settings.peers), settings)
    instance = parts.standing.instance
    warnings = check_promotion(read, heard, instance, force=request.force)
    await following.end()
    try:
        first = await parts.writer.begin_epoch(partial(begin_epoch, node, who))
        forget_place(following.copy.path)
    except KudurruError:
        following.begin_again()
        raise
    node.follows = None
    origin = origin_of(read.log_id, read.epoch)
    log.warning("promoted: this node goes on from %s as %s", url, origin)
    try:
        _begin_signing(parts)
    except StorageFailed as error:
        warnings.append(f"nothing is signed here: {error}")
    following.promoted()
    parts.writer.request_stamp()
    return Promoted(origin=origin, position=first.seq, followed=url, warnings=warnings)


def _begin_signing(parts: "Parts") -> None:
    policy = checkpoint_policy(parts.settings.current)
    parts.checkpointer = open_checkpointer(parts.directory, parts.node, policy)
    parts.writer.sign_with(parts.checkpointer)
    parts.checkpointer.recount()
    tell_key(parts.checkpointer)


def promote_directory(
    data: Path, settings: FollowSettings, request: PromoteRequest, who: Who
) -> Promoted:
    """Of a directory that no server holds; the next one signs. Raises as `promote`; Busy when
    another process holds it after all."""
    directory = open_data_dir(data)
    with (
        DirectoryLock.acquire(directory.lock, now_us=SystemClock().now_us()),
        open_log(directory, create=False) as read,
    ):
        node = Node(read, SystemClock(), SystemEntropy())
        node.follows = followed(directory)
        url = check_follows(node)
        heard = ask_all((url, *settings.peers), settings)
        warnings = check_promotion(read, heard, "", force=request.force)
        first = begin_epoch(node, who)[0]
        forget_place(directory.follow)
        origin = origin_of(read.log_id, read.epoch)
    return Promoted(origin=origin, position=first.seq, followed=url, warnings=warnings)


def check_promotion(
    read: VerifiableLog, heard: Iterable[Heard], instance: str, *, force: bool
) -> list[str]:
    """What to know before a promotion, in sentences. Raises: Conflict when it would make a second
    node that is written to."""
    ours, warnings = began(read), []
    for one in heard:
        about = one.about
        if about is None:
            text = f"{one.url} could not be asked: {one.error}"
            if not force:
                raise Conflict(
                    f"{text}. If it takes writes, two logs would go on from here. When you know "
                    "that it does not and will not, give --force"
                )
            warnings.append(text)
        elif about.instances[0] == instance or about.log_id != read.log_id:
            continue
        elif why := why_not_ours(ours, about.epochs, one.url):
            raise Conflict(f"{why}: follow it with `kudurru serve --follow {one.url}`")
        elif about.state == "leads":
            if not force:
                raise Conflict(
                    f"{one.url} takes writes, and two logs would go on from here: stop it first, "
                    "or give --force if it is to be left behind"
                )
            warnings.append(f"{one.url} takes writes and is left behind: stop it")
    return warnings


def begin_epoch(node: Node, who: Who) -> list[Recorded]:
    """Append the event that begins one. Blocking; the views do not have it yet. Raises: what the
    log does."""
    read: VerifiableLog = node.log  # type: ignore[assignment]  # every log of ours is
    newest, now_us = read.newest_checkpoint(), node.clock.now_us()
    before, after = (origin_of(read.log_id, epoch) for epoch in (read.epoch, read.epoch + 1))
    body = canonical(EpochBody(before, after, newest.note if newest is not None else ""))
    version = read.stream_version(EPOCH_KEY) + 1
    event = Event(LOG_EPOCH, EPOCH_KEY, version, "/", CONTROLLER, body)
    change_set = ChangeSet((event,), msgspec.structs.replace(who, wall=now_us))
    at_us, upkeep = node.time_for_events_us(now_us), Upkeep(epoch=read.epoch + 1)
    return read.append_signed([change_set], at_us, None, upkeep, head_seq=int(read.head().seq))


def check_follows(node: Node) -> str:
    """URL of the leader. Raises: NotFound where there is none; what is wrong with the log."""
    if node.why_not_whole is not None:
        raise node.why_not_whole
    if node.follows is None:
        raise NotFound("this node follows nobody: it is the one that is written to")
    if not node.log.head().seq:
        raise Conflict(f"nothing of {node.follows.leader} is here yet, to go on from")
    return node.follows.leader
