"""Sets up the programs' own log on stderr: text for people or JSON, without control characters in either."""

import json
import logging
import sys
from datetime import UTC, datetime


class TextLines(logging.Formatter):
    """Formats log records for people, one event per line.

    Text from outside cannot begin a line or colour the terminal.
    """

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        lines = [harmless(line) for line in record.getMessage().split("\n")]
        if record.exc_info:
            lines += [harmless(line) for line in self.formatException(record.exc_info).split("\n")]
        first, *more = lines
        return "\n".join([f"{at} {level}{first}", *(f"         {line}" for line in more)])


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "at": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=True)


def harmless(line: str) -> str:
    return "".join(char if char.isprintable() or char == "\t" else f"\\x{ord(char):02x}" for char in line)


def set_up_logging(form: str | None, *, verbose: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("simpletuner_fleet").setLevel(logging.DEBUG if verbose else logging.INFO)
    for chatty in ("httpx2", "httpcore2", "httpx", "httpcore", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
