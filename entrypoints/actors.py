"""Who does something, as the kernel says: names from the environment prove nothing."""

import pwd


def actor_of(uid: int) -> str:
    """`user:NAME` of a user id, `user:ID` where it has no name."""
    try:
        return f"user:{pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user:{uid}"
