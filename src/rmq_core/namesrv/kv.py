"""Key-value settings by namespace, kept in a JSON file. The one thing that a name server remembers.

Writes  The table changes first, the file follows before the caller is answered; writes go one after another. Who
        finds nothing to change waits for the changes of others.
Crash   The file is replaced as a whole and the one before it stays as .bak.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson

from rmq_core.errors import RemoteProtocolError
from rmq_core.files import read_or_backup, replace_file
from rmq_core.protocol import fastjson

ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"

Table = dict[str, dict[str, str]]


class KvSettings:
    """namespace → key → value."""

    def __init__(self, path: str | Path) -> None:
        """Raises RocketMQError where the file and its backup are unreadable."""
        self._path = Path(path)
        self._table: Table = read_or_backup(self._path, _parse) or {}
        self._writing = asyncio.Lock()
        self._changes = self._stored_changes = 0

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All values of a namespace, which may have lost its last one; None where it never had any."""
        values = self._table.get(namespace)
        return None if values is None else dict(values)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Raises OSError where the file cannot be written; the value holds until the next start then."""
        self._table.setdefault(namespace, {})[key] = value
        self._changes += 1
        await self._store()

    async def delete(self, namespace: str, key: str) -> None:
        """Forget a value, if there is one. Raises OSError as put() does."""
        self._changes += self._table.get(namespace, {}).pop(key, None) is not None
        await self._store()

    async def _store(self) -> None:
        async with self._writing:
            if self._stored_changes < self._changes:
                changes, data = self._changes, orjson.dumps({"configTable": self._table})
                await asyncio.to_thread(replace_file, self._path, data)
                self._stored_changes = changes


def _parse(data: bytes) -> Table:
    value = fastjson.loads(data)
    table = value.get("configTable") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(table or {}, dict):
        raise RemoteProtocolError("not a table of settings")
    return {
        str(namespace): {str(key): str(item) for key, item in values.items()}
        for namespace, values in (table or {}).items()
        if isinstance(values, dict)
    }
