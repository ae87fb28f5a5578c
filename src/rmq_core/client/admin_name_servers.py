"""Administration of name servers: their settings, the values they keep, and brokers' permission to be written."""

from __future__ import annotations

from collections.abc import Mapping

from rmq_core.client.admin_brokers import AdminBrokers, settings_text
from rmq_core.config import parse_properties
from rmq_core.errors import BrokerError
from rmq_core.protocol import bodies as b
from rmq_core.protocol import requests as r
from rmq_core.protocol.codes import ResponseCode


class AdminNameServers(AdminBrokers):
    """Name servers. What is stored goes to every one of them, what is looked up is asked of any."""

    async def name_servers(self) -> tuple[str, ...]:
        """Their addresses."""
        return await (await self._use()).name_servers.known()

    async def name_server_config(self) -> dict[str, dict[str, str]]:
        """The settings of each name server, by Java's names."""
        answers = await self._ask_all(r.GetNamesrvConfig())
        return {address: parse_properties(answer.body.decode()) for address, answer in answers.items()}

    async def update_name_server_config(self, settings: Mapping[str, str | int | bool]) -> None:
        """Change settings of every name server while it runs; they write them into their files too."""
        await self._ask_all(r.UpdateNamesrvConfig(), settings_text(settings))

    async def kv(self, namespace: str, key: str) -> str | None:
        """A value that name servers keep; None where there is none."""
        try:
            return (await self._ask(r.GetKvConfig(namespace, key))).header.value
        except BrokerError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            return None

    async def kv_namespace(self, namespace: str) -> dict[str, str]:
        """All values of a namespace."""
        try:
            answer = await self._ask(r.GetKvlistByNamespace(namespace))
        except BrokerError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            return {}
        return b.KVTable.decode(answer.body).table

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Keep a value on every name server."""
        for what, text in (("namespace", namespace), ("key", key), ("value", value)):
            if not isinstance(text, str) or not text:
                raise ValueError(f"{what} must be text, and not empty")
        await self._ask_all(r.PutKvConfig(namespace, key, value))

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Forget a value on every name server."""
        await self._ask_all(r.DeleteKvConfig(namespace, key))

    async def wipe_write_permission(self, broker: str) -> dict[str, int]:
        """Let nobody send to a broker any more; how many topics that concerns, by name server."""
        answers = await self._ask_all(r.WipeWritePermOfBroker(broker))
        return {address: answer.header.wipe_topic_count for address, answer in answers.items()}

    async def add_write_permission(self, broker: str) -> dict[str, int]:
        """Let clients send to a broker again; how many topics that concerns, by name server."""
        answers = await self._ask_all(r.AddWritePermOfBroker(broker))
        return {address: answer.header.add_topic_count for address, answer in answers.items()}
