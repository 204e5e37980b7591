"""kudurru: a DNS platform whose every change is an event in a hash-chained, append-only log."""

__version__ = "0.1.0"
