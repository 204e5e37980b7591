"""Wiring and commands: the only place that knows everything."""
