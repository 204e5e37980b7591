"""What nodes campaign for, by name."""

from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.kinds.meta import is_dns_label

NAME_MAX = 40
"""Characters: it becomes a part of names that may have 63 (a Lease, a file)."""


def checked_role(name: str) -> str:
    """The name of an election. Raises: Invalid for what is no DNS label (RFC 1123) of 40."""
    if len(name) > NAME_MAX or not is_dns_label(name):
        fault = f"{name!r} is no name of 1 to {NAME_MAX} lower-case letters, digits and '-'"
        raise Invalid("elector", [Cause("", fault)])
    return name
