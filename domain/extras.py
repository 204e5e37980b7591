"""What is not installed: how to get an extra of this package."""


def how_to_install(extra: str) -> str:
    """For the end of a sentence. From the source: no registry has the package yet."""
    return f"`pip install '.[{extra}]'` in the folder of its source"
