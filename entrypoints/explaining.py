"""Explanations where no server runs: what one with these settings would do with a question."""

import asyncio
from collections.abc import Sequence

from kudurru.adapters.memory.neighbours import FixedNeighbours
from kudurru.domain.dns import names
from kudurru.domain.filtering.explain import Explanation
from kudurru.domain.settings import Settings
from kudurru.entrypoints.filtering import ExplainRequest, Onward, read_explanation
from kudurru.entrypoints.resolving import Resolving
from kudurru.entrypoints.wiring import Node
from kudurru.projections.pipeline.resolver import Way


def explain_unserved(
    node: Node, request: ExplainRequest, settings: Settings | None, now_us: int | None = None
) -> Explanation:
    """`settings` None: nobody said how the server is started, so its upstreams and who may recurse
    are open; zones of type Forward and policies are in the log. Nothing is sent to anybody. Raises
    Invalid for a request or upstreams that make no sense."""
    return asyncio.run(_explained(node, request, settings, now_us))


async def _explained(
    node: Node, request: ExplainRequest, settings: Settings | None, now_us: int | None
) -> Explanation:
    given = settings or Settings()
    resolving = Resolving(given.upstreams, given.resolver, given.cache, given.acl, node.clock)
    try:
        resolving.take_zones(node.zones.forwards)
        onward = resolving if settings is not None else _Unconfigured(resolving)
        return read_explanation(node, request, FixedNeighbours(), onward, now_us=now_us)
    finally:
        await resolving.close()


class _Unconfigured(Onward):
    """What the log alone says of where questions go."""

    def __init__(self, resolving: Resolving) -> None:
        self._resolving = resolving

    def admits(self, client: str) -> bool:
        del client
        return True

    def way_of(
        self, key: names.Name, rtype: int, client: str, upstreams: Sequence[str]
    ) -> tuple[Way, Sequence[str]]:
        del client
        way, asked = self._resolving.way_of(key, rtype, "127.0.0.1", upstreams)
        return (way, asked) if way == "special" or asked else ("forward", upstreams)
