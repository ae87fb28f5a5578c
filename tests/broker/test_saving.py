"""Tables that cannot be written for a while: the broker goes on, says so, and writes them once that is possible."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from rmq_core.protocol import requests as r
from support.brokers import broker_cluster, run

OFTEN: dict[str, Any] = {
    "flush_consumer_offset_interval": 20,
    "flush_delay_offset_interval": 20,
    "message_delay_level": "1s",
}


def test_progress_that_cannot_be_saved_is_saved_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Directories stand where the files are written first: one line for each failure, and no stack."""
    config = tmp_path / "broker-a" / "config"
    blockers = [config / f"{name}.json.tmp" for name in ("consumerOffset", "delayOffset")]

    def errors() -> set[str]:
        return {
            record.getMessage().partition(" cannot")[0] for record in caplog.records if record.levelname == "ERROR"
        }

    def saved(name: str) -> Any:
        path = config / name
        return orjson.loads(path.read_bytes())["offsetTable"] if path.exists() else {}

    async def main() -> None:
        async with broker_cluster(tmp_path, **OFTEN) as cluster:
            client = cluster.client()
            for blocker in blockers:
                blocker.mkdir(parents=True)
            await client.send("Orders", properties={"DELAY": "1"})
            await client.heartbeat(consumers={"CG": {"Orders": "*"}})
            await client.call(r.UpdateConsumerOffset("CG", "Orders", 0, 1))
            while len(errors()) < 2:
                await asyncio.sleep(0.01)
            assert errors() == {"ConsumerOffsetManager", "the progress of delayed messages"}
            assert not any(record.exc_info for record in caplog.records)
            for blocker in blockers:
                blocker.rmdir()
            while saved("consumerOffset.json").get("Orders@CG") != {"0": 1} or saved("delayOffset.json") != {
                "1": 1
            }:
                await asyncio.sleep(0.01)
            assert await client.messages("Orders")

    run(main(), timeout_s=120)
