"""The query log in SQLite: a file of its own, written by a process of its own.

`store` writes, `reader` answers, `child` is the process that holds the store and `process` starts
it and hands it what was noted.
"""
