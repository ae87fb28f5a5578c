"""The settings of a running broker: read, changed, and written back to their file.

Checked   All of a request or nothing: a bad value, a key of the black list or one that is read only at start
          changes nothing. Keys that nobody knows are ignored, as Apache does.
Crash     The file is replaced as a whole, with the one before as .bak; comments and other lines stay.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rmq_core.broker.topics import next_version
from rmq_core.config import (
    expand_path,
    format_properties,
    parse_properties,
    read_properties,
    update_all,
)
from rmq_core.errors import BrokerError, ConfigError
from rmq_core.files import replace_file
from rmq_core.protocol.bodies import DataVersion
from rmq_core.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker

log = logging.getLogger(__name__)

ALWAYS_BLACK: Final = frozenset({"configBlackList", "brokerConfigPath", "rocketmqHome"})
PERMISSION: Final = "brokerPermission"


class Configuration:
    """What requests may see and change of the settings."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.version = next_version(DataVersion(0, 0, 0))
        self._storing = asyncio.Lock()
        self._unstored: dict[str, str] = {}
        """Changes that the file does not have yet."""
        self.cold_read_limits: dict[str, int] = {}
        """Bytes a second that groups may read of old messages: kept and shown, since tools set it."""

    def text(self) -> str:
        """All settings without their secrets, as properties text."""
        broker = self._broker
        parts = broker.client_settings, broker.server_settings, broker.store_settings, broker.settings
        return format_properties({name: value for each in parts for name, value in each.to_properties().items()})

    async def update(self, text: str) -> None:
        """Change settings from `key=value` lines. Raises BrokerError; nothing has changed then.

        Where only the file cannot be written, the change holds until the next start, and the error says so.
        """
        try:
            wanted = parse_properties(text)
        except ConfigError as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {error}") from None
        broker = self._broker
        black = {name.strip() for name in broker.settings.config_black_list.split(";")} | ALWAYS_BLACK
        if not black.isdisjoint(wanted):
            raise BrokerError(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        try:
            changed = update_all(
                wanted, broker.settings, broker.store_settings, broker.server_settings, broker.client_settings
            )
        except ConfigError as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        self._unstored |= {name: wanted[name] for name in changed}
        if changed:
            self._announce(changed, wanted)
        if self._unstored:
            await self._store()

    def _announce(self, changed: Iterable[str], wanted: Mapping[str, str]) -> None:
        broker = self._broker
        self.version = next_version(self.version)
        for name in changed:
            log.info("the setting %s is now %s", name, wanted[name])
        if PERMISSION in changed:
            broker.topics.touch()
            broker.registration.begin_all()

    async def _store(self) -> None:
        file = self._broker.settings.broker_config_path
        if file is None:
            names = ", ".join(self._unstored)
            log.warning("there is no settings file: %s changed until the next start only", names)
            self._unstored.clear()
            return
        try:
            async with self._storing:  # each change goes into the file that the one before left
                changes = dict(self._unstored)
                if changes:
                    await self._broker.run(store_changes, expand_path(file), changes)
                self._unstored = {key: each for key, each in self._unstored.items() if changes.get(key) != each}
        except (OSError, ConfigError) as error:
            remark = f"changed until the next start only: the settings file cannot be written: {error}"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark) from None


def store_changes(path: Path, changes: Mapping[str, str]) -> None:
    """Change values in a properties file and keep everything else as it is. Raises OSError or ConfigError."""
    text = path.read_text(encoding="utf-8-sig") if path.exists() else ""
    known = read_properties(path) if path.exists() else {}
    changed = edited(text, changes)
    if parse_properties(changed) != {**known, **changes}:
        # Something unusual, such as a key on a continued line: all settings are kept, its comments are not.
        changed = format_properties({**known, **changes})
    replace_file(path, changed.encode())


def edited(text: str, changes: Mapping[str, str]) -> str:
    """Properties text with other values for some keys; new ones come last."""
    for name, value in changes.items():
        line = format_properties({name: value})
        pattern = re.compile(rf"^[ \t\f]*{re.escape(name)}[ \t\f]*[=: \t\f].*(\n|\Z)", re.MULTILINE)
        if pattern.search(text):
            text = pattern.sub(lambda _, line=line: line, text)  # type: ignore[misc]
        else:
            text += ("" if not text or text.endswith("\n") else "\n") + line
    return text
