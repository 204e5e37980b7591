"""The resolver put together from settings: what stays and what goes when they change."""

import asyncio
from collections.abc import Awaitable, Callable

from kudurru.adapters.clock import SystemClock
from kudurru.domain.dns import names
from kudurru.domain.settings import (
    AclSettings,
    CacheSettings,
    ResolverSettings,
    Upstream,
    UpstreamSettings,
)
from kudurru.entrypoints.resolving import Resolving

ONE, TWO, THREE, FOUR = (Upstream(f"192.0.2.{i}") for i in range(1, 5))


def settings(*default: Upstream, **options: object) -> UpstreamSettings:
    return UpstreamSettings(groups={"default": default}, **options)  # type: ignore[arg-type]


def configure(resolving: Resolving, upstreams: UpstreamSettings) -> None:
    resolving.configure(upstreams, ResolverSettings(), CacheSettings(), AclSettings())


def labels(resolving: Resolving) -> set[str]:
    """Upstreams that the metrics name."""
    return {one.labels[0] for one in resolving.samples() if one.name == "upstream_healthy"}


def run(scenario: Callable[[Resolving], Awaitable[None]], upstreams: UpstreamSettings) -> None:
    async def main() -> None:
        resolving = Resolving(
            upstreams, ResolverSettings(), CacheSettings(), AclSettings(), SystemClock()
        )
        try:
            await scenario(resolving)
        finally:
            await resolving.close()

    asyncio.run(main())


def test_an_upstream_that_is_gone_takes_its_metrics_with_it() -> None:
    async def scenario(resolving: Resolving) -> None:
        assert labels(resolving) == {ONE, TWO, THREE}
        configure(resolving, settings(ONE, FOUR))
        assert labels(resolving) == {ONE, FOUR}

    run(scenario, settings(ONE, TWO, fallback=(THREE,)))


def test_an_upstream_that_stays_keeps_what_is_known_of_it() -> None:
    async def scenario(resolving: Resolving) -> None:
        (before,) = resolving.resolver.routes()
        configure(resolving, settings(ONE, TWO))
        (after,) = resolving.resolver.routes()
        assert after.group.upstreams[0] is before.group.upstreams[0]
        assert after.scope != before.scope
        configure(resolving, settings(ONE))
        assert resolving.resolver.routes()[0].scope == before.scope  # its answers count again

    run(scenario, settings(ONE))


def test_zones_and_policies_have_upstreams_while_they_are_there() -> None:
    async def scenario(resolving: Resolving) -> None:
        apex = names.key(names.from_text("corp.example"))
        resolving.take_zones({apex: (TWO,)})
        assert resolving.route_of((THREE,)) is not None
        assert labels(resolving) == {ONE, TWO, THREE}
        resolving.take_zones({})
        assert labels(resolving) == {ONE, THREE}

    run(scenario, settings(ONE))


def test_a_zone_whose_upstream_makes_no_sense_is_left_out() -> None:
    async def scenario(resolving: Resolving) -> None:
        good, bad = (names.key(names.from_text(text)) for text in ("a.example", "b.example"))
        resolving.take_zones({good: (TWO,), bad: ("ftp://x",)})
        (default, *_) = resolving.resolver.routes()
        assert resolving.resolver.route_for(good, None) is not default
        assert resolving.resolver.route_for(bad, None) is default

    run(scenario, settings(ONE))
