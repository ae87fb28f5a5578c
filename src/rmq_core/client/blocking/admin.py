"""Administration, blocking: the same calls as rmq_core.client.admin, on the loop thread of the process."""

from __future__ import annotations

from typing import Unpack

from rmq_core.client.admin import Admin as AsyncAdmin
from rmq_core.client.admin_base import TIMEOUT_MS, admin_options
from rmq_core.client.blocking.admin_servers import BlockingServers
from rmq_core.client.options import ClientArguments, shows


class Admin(BlockingServers):
    """Manage a cluster: `with Admin() as admin: admin.create_topic("Orders", queues=8)`."""

    @shows(ClientArguments)
    def __init__(self, *, timeout_ms: int = TIMEOUT_MS, **client: Unpack[ClientArguments]) -> None:
        options = admin_options(timeout_ms, client)  # now: the coroutine form is made at first use
        super().__init__(lambda: AsyncAdmin(timeout_ms=timeout_ms, **client))
        self._where = options.address_server or ";".join(options.name_servers)

    def __repr__(self) -> str:
        return f"<Admin of {self._where}>"
