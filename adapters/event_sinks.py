"""Notices in the server's log, and to several sinks at once."""

import logging

from kudurru.domain.objects import ref_of
from kudurru.domain.ports import EventSink, Notice


class LogSink:
    """`EventSink` that writes a line for each."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log

    def post(self, notice: Notice) -> None:
        level = logging.WARNING if notice.type == "Warning" else logging.INFO
        self._log.log(level, "%s: %s: %s", ref_of(notice.key), notice.reason, notice.message)


class SeveralSinks:
    """`EventSink` that gives each notice to others."""

    def __init__(self, *sinks: EventSink) -> None:
        self._sinks = sinks

    def post(self, notice: Notice) -> None:
        for sink in self._sinks:
            sink.post(notice)
