"""Asks name servers: stays with one while it answers, goes to the next one where it does not.

With an address server the list is fetched over HTTP before the first question and again every two minutes; a fetch
that fails leaves the list as it was.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import random
import urllib.request
from collections.abc import Callable
from typing import Any, TypeVar

from rmq_core.clock import Clock
from rmq_core.errors import CallTimeoutError, ConnectError
from rmq_core.net.calls import Answer
from rmq_core.net.channel import Channel
from rmq_core.protocol.request import Header, Request

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=Header)
_FETCH_TIMEOUT_S = 3
_LIST_SIZE_MAX = 1 << 16


class NameServers:
    """The name servers of a client."""

    def __init__(
        self,
        addresses: tuple[str, ...],
        channel: Callable[[str], Channel],
        clock: Clock,
        *,
        address_server: str | None = None,
        unit_name: str = "",
    ) -> None:
        self.addresses = addresses
        self._channel = channel
        self._clock = clock
        self._address_server = address_server
        self._unit_name = unit_name
        self._chosen = random.choice(addresses) if addresses else ""

    def __repr__(self) -> str:
        return f"NameServers({';'.join(self.addresses)})"

    async def call(self, request: Request[R], body: bytes = b"", *, timeout_ms: float = 3_000) -> Answer[R]:
        """Ask one of them; the time-out covers all attempts.

        Raises BrokerError where one answers with an error, and ConnectError naming all that were tried.
        """
        addresses = await self.known()
        start = addresses.index(self._chosen) if self._chosen in addresses else 0
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        failures = []
        for number in range(len(addresses)):
            address = addresses[(start + number) % len(addresses)]
            remaining_ms = deadline_ms - self._clock.monotonic_ms()
            share_ms = remaining_ms / (len(addresses) - number)
            if share_ms <= 0:
                break
            try:
                answer = await self._channel(address).call(request, body, timeout_ms=share_ms)
            except (ConnectError, CallTimeoutError) as error:
                failures.append(f"{address}: {error}")
                continue
            self._chosen = address
            return answer
        raise ConnectError(f"no name server answers ({'; '.join(failures)})")

    async def call_each(
        self, request: Request[R], body: bytes = b"", *, timeout_ms: float = 3_000
    ) -> dict[str, Answer[R]]:
        """Ask every one of them; the answers by address. Raises what the first failing call raises, after all."""
        addresses = await self.known()
        calls = [self._channel(address).call(request, body, timeout_ms=timeout_ms) for address in addresses]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return {
            address: answer
            for address, answer in zip(addresses, answers, strict=True)
            if isinstance(answer, Answer)
        }

    async def call_all(self, request: Request[Any], body: bytes = b"", *, timeout_ms: float = 3_000) -> None:
        """Tell every one of them. Raises what the first failing call raises, after all were tried."""
        await self.call_each(request, body, timeout_ms=timeout_ms)

    async def known(self) -> tuple[str, ...]:
        """Their addresses. Raises ConnectError where the address server has not given any yet."""
        if not self.addresses:
            await self.refresh()
        if not self.addresses:
            raise ConnectError(f"no name server is known: {self._address_server} gave none")
        return self.addresses

    async def refresh(self) -> None:
        """Ask the address server, where there is one."""
        if self._address_server is None:
            return
        try:
            addresses = await asyncio.to_thread(fetch_name_servers, self._address_server, self._unit_name)
        except (OSError, ValueError) as error:
            logger.warning("the address server %s does not answer: %s", self._address_server, error)
            return
        if addresses and addresses != self.addresses:
            logger.info("name servers: %s", ";".join(addresses))
            self.addresses = addresses


def fetch_name_servers(url: str, unit_name: str = "") -> tuple[str, ...]:
    """What an address server says; units have lists of their own. Raises OSError and ValueError."""
    from rmq_core.client.options import parse_name_servers

    if unit_name:
        url += f"-{unit_name}?nofix=1"
    try:
        with urllib.request.urlopen(url, timeout=_FETCH_TIMEOUT_S) as answer:
            return parse_name_servers(answer.read(_LIST_SIZE_MAX).decode().strip())
    except http.client.HTTPException as error:
        raise OSError(f"{url} does not speak HTTP: {error!r}") from error
