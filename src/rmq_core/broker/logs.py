"""How a program logs: one line for each event, as text or JSON, set up by a TOML file such as conf/logging.toml.

The file is what logging.config.dictConfig takes. Without one, lines of text go to standard error. Libraries and
embedded brokers leave logging alone: only programs call configure().
"""

from __future__ import annotations

import logging
import logging.config
import time
import tomllib
from pathlib import Path
from typing import Any, Final

import orjson

from rmq_core.errors import ConfigError

TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"


class JsonLines(logging.Formatter):
    """A log record as one line of JSON: time, level, logger, event, and the error where there was one."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.gmtime(record.created)
        event: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', moment)}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
        }
        if record.exc_info:
            event["error"] = self.formatException(record.exc_info)
        return orjson.dumps(event).decode()


def configure(path: str | Path | None = None) -> None:
    """Set logging up as a TOML file says. Raises ConfigError where that cannot be done."""
    if path is None:
        logging.basicConfig(level=logging.INFO, format=TEXT)
        return
    try:
        settings = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, **settings})
    except (OSError, ValueError, TypeError, AttributeError, ImportError) as error:
        raise ConfigError("loggingConfig", str(path), f"cannot be used: {error}") from error
