"""Time zones of this host; where it has none, of the package tzdata."""

from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


def find_time_zone(name: str) -> ZoneInfo | None:
    """None for a name that is not known here."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError, ValueError):  # a folder, a name with ".."
        return None
