"""The kinds of objects: their shape, their validation, their registry."""
