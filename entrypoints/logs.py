"""The program's own log on stderr: one record per line, `key=value` or JSON."""

import logging
import sys
from datetime import UTC, datetime

import msgspec

from kudurru.entrypoints.escaping import escape, plain_json


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        return " ".join(f"{name}={_quoted(value)}" for name, value in fields.items())


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return plain_json(msgspec.json.encode(_fields(record)).decode())


def _fields(record: logging.LogRecord) -> dict[str, str]:
    moment = datetime.fromtimestamp(record.created, UTC)
    fields = {
        "time": moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "level": record.levelname.lower(),
        "component": record.name,
        "msg": record.getMessage(),
    }
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        fields["err"] = f"{type(error).__name__}: {error}"
        fields["where"] = _where(error)
    return fields


def _where(error: BaseException) -> str:
    """The innermost frame: what a report needs, on one line."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None:
        return ""
    return f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}"


def _quoted(text: str) -> str:
    plain = escape(text)
    if plain and not set(plain) & set(' "='):
        return plain
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def start(level: str, form: str) -> None:
    """`level` and `form` as the settings log.level and log.format have them."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], force=True)
    set_level(level)
    logging.getLogger("apscheduler").setLevel("ERROR")  # not of every job that ran


def set_level(level: str) -> None:
    """As the setting log.level has it."""
    logging.getLogger().setLevel(level.upper())
    # aioquic tells of every connection and of every fault of a client: anybody could fill the log.
    logging.getLogger("quic").setLevel(logging.DEBUG if level == "debug" else logging.CRITICAL)
