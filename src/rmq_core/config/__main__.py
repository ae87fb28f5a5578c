"""`python -m rmq_core.config` prints docs/config.md."""

from __future__ import annotations

import inspect
import sys

from rmq_core.config import (
    BrokerSettings,
    ClientSettings,
    Key,
    NamesrvSettings,
    ServerSettings,
    Settings,
    StoreSettings,
    keys_of,
)

DOCUMENTED: tuple[type[Settings], ...] = (
    NamesrvSettings,
    BrokerSettings,
    ServerSettings,
    StoreSettings,
    ClientSettings,
)

HEAD = """\
# Configuration

This file is generated: `python -m rmq_core.config > docs/config.md`.

Settings have the names and defaults of Apache RocketMQ. They come from a properties file (`-c FILE`) and from
the command line (`--key value`, `--key=value`, `key=value`), which wins. `-p` prints what is in force, except
for secrets. A bad value stops the program; an unknown key is reported and kept. *Live* settings can be changed
by request while the program runs. `~`, `$HOME` and `${user.home}` in paths stand for the home directory.
"""


def document() -> str:
    """The whole of docs/config.md."""
    return "\n".join([HEAD, *(_section(settings) for settings in DOCUMENTED)])


def _section(settings: type[Settings]) -> str:
    lines = [
        f"## {settings.__name__}",
        "",
        inspect.getdoc(settings) or "",
        "",
        "| Key | Default | Live | Meaning |",
        "|---|---|---|---|",
        *(_row(each) for each in keys_of(settings)),
    ]
    return "\n".join(lines) + "\n"


def _row(each: Key) -> str:
    default = each.format(each.default)
    words = [each.text, each.allowed(), "Secret." if each.secret else ""]
    cells = [
        f"`{each.name}`",
        f"`{default}`" if default else "",
        "yes" if each.live else "",
        " ".join(word for word in words if word),
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(document())
