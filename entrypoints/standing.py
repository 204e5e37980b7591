"""What a node is among those that have its log: it leads, it follows, or it refuses to write."""

from collections.abc import Callable, Sequence
from typing import Literal

from kudurru.domain.errors import Follows
from kudurru.entrypoints.wiring import Node


class Standing:
    """Of one process."""

    def __init__(self, name: str, instance: str, node: Node) -> None:
        """`instance` is a name that no other process has."""
        self.name = name
        self.instance = instance
        self._node = node
        self.above: Callable[[], Sequence[str]] = tuple
        """Instances of the nodes that this one follows, the nearest first."""

    def instances(self) -> list[str]:
        return [self.instance, *self.above()]

    def state(self) -> tuple[Literal["leads", "follows", "refuses"], str]:
        """And why it does not write."""
        error = self._node.why_not_writable
        if error is None:
            return "leads", ""
        return "follows" if isinstance(error, Follows) else "refuses", str(error)
