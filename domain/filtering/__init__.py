"""Filtering: whose queries a policy is about, and what becomes of them. Pure.

`clients` finds the groups of a client, `rules` matches names, `schedules` tells the time,
`policies` compiles Policy objects, `decision` holds the one function that decides, `answers` turns
a decision into an answer and `inspection` reads what forwarded answers have to be held against.
"""
