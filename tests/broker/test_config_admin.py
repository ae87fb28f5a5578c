"""The settings of a running broker: shown, changed, kept, refused; and what later features answer meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from rmq_core.broker.configuration import edited, store_changes
from rmq_core.config import parse_properties, read_properties
from rmq_core.errors import BrokerError
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import DataVersion, TopicRouteData
from rmq_core.protocol.request import REQUESTS
from support.brokers import Client, Cluster, broker_cluster, run


async def code_of(call: Any) -> int:
    try:
        await call
    except BrokerError as error:
        assert error.remark
        return error.code
    return 0


async def update(client: Client, text: str | bytes) -> int:
    body = text if isinstance(text, bytes) else text.encode()
    return await code_of(client.call(r.UpdateBrokerConfig(), body))


async def shown(client: Client) -> dict[str, str]:
    return parse_properties((await client.call(r.GetBrokerConfig())).body.decode())


def test_a_change_takes_effect_and_is_kept_in_the_file(tmp_path: Path) -> None:
    """The broker refuses larger messages at once; the file has the change, its comments and its other lines."""

    async def main() -> None:
        file = tmp_path / "broker.conf"
        file.write_text("# ours\nbrokerName = broker-a\nmaxMessageSize=1000000\nnoSuchKey=kept\n")
        async with broker_cluster(tmp_path, broker_config_path=str(file)) as cluster:
            client = cluster.client()
            before = (await client.call(r.GetBrokerConfig())).header.version
            await client.send("T", bytes(1000))
            assert await update(client, "maxMessageSize=100\nlongPollingEnable=false\n") == 0
            assert await code_of(client.send("T", bytes(1000))) == 13
            settings = await shown(client)
            assert (settings["maxMessageSize"], settings["longPollingEnable"]) == ("100", "false")
            assert settings["listenPort"]
            after = (await client.call(r.GetBrokerConfig())).header.version
            counters = [DataVersion.from_json(orjson.loads(each)).counter for each in (before, after)]
            assert counters[1] == counters[0] + 1
        text = file.read_text()
        assert text.startswith("# ours\nbrokerName = broker-a\nmaxMessageSize=100\nnoSuchKey=kept\n")
        assert read_properties(file)["longPollingEnable"] == "false"

    run(main())


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("rocketmqHome=/x\n", 16),
        ("brokerConfigPath=/x\nmaxMessageSize=7\n", 16),
        ("configBlackList=\n", 16),
        ("secretKey=1\n", 16),
        ("maxMessageSize=many\n", 1),
        ("maxMessageSize=7\nbrokerPermission=9\n", 1),
        ("maxMessageSize=7\nstorePathRootDir=/x\n", 1),
        ("listenPort=1\n", 1),
        ("namesrvAddr=nonsense\n", 1),
        ("namesrvAddr=127.0.0.1:9876;127.0.0.1:65536\n", 1),
        ("namesrvAddr=:9876\n", 1),
        ("a=\\u12\n", 1),
        (b"\xff\xfe", 1),
        ("noSuchKey=1\n", 0),
        ("", 0),
    ],
)
def test_a_change_that_may_not_be_changes_nothing(tmp_path: Path, text: str | bytes, code: int) -> None:
    """The black list, bad values, keys that are read only at start, and text that cannot be read."""

    async def main() -> None:
        black = "secretKey;configBlackList"
        async with broker_cluster(tmp_path, config_black_list=black) as cluster:
            client = cluster.client()
            before = await shown(client)
            assert await update(client, text) == code
            assert await shown(client) == before

    run(main())


async def route_perm(cluster: Cluster) -> int:
    answer = await cluster.name_client().call(r.GetRouteinfoByTopic("T"))
    return TopicRouteData.decode(answer.body).queue_datas[0].perm


def test_a_change_of_the_permission_reaches_producers_at_once(tmp_path: Path) -> None:
    """Name servers are told without waiting for the next registration."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            await client.send("T")
            assert await route_perm(cluster) == 6
            version = cluster.broker.topics.data_version
            assert await update(client, "brokerPermission=4") == 0
            assert cluster.broker.topics.data_version.counter == version.counter + 1
            while await route_perm(cluster) != 4:
                await asyncio.sleep(0.001)
            assert await update(client, "brokerPermission=2") == 0
            assert await code_of(client.pull("T")) == 16

    run(main())


def test_a_change_counts_for_topics_that_were_sent_to_before(tmp_path: Path) -> None:
    """An ordered topic of a broker that is not writable refuses messages, and so does a broker before its time."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            await client.call(r.UpdateAndCreateTopic("Ordered", 2, 2, 6, "SINGLE_TAG", order=True))
            plain = {"UNIQ_KEY": "7F0000011BE75FFD2B275A74C96C0000", "TAGS": "a"}
            await client.send("Ordered", properties=plain)
            assert await update(client, "brokerPermission=4") == 0
            assert await code_of(client.send("Ordered", properties=plain)) == 16
            assert await update(client, "brokerPermission=6") == 0
            assert await code_of(client.send("Ordered", properties=plain)) == 0
            assert await update(client, "startAcceptSendRequestTimeStamp=9000000000000") == 0
            assert await code_of(client.send("Ordered", properties=plain)) == 1

    run(main())


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """The change holds until the next start, and the caller knows; asked again, it is written."""

    async def main() -> None:
        folder = tmp_path / "conf"
        folder.mkdir()
        (folder / "broker.conf").mkdir()
        async with broker_cluster(tmp_path, broker_config_path=str(folder / "broker.conf")) as cluster:
            client = cluster.client()
            with pytest.raises(BrokerError, match="until the next start only"):
                await client.call(r.UpdateBrokerConfig(), b"maxMessageSize=100")
            assert (await shown(client))["maxMessageSize"] == "100"
            (folder / "broker.conf").rmdir()
            assert await update(client, "maxMessageSize=100") == 0
            assert read_properties(folder / "broker.conf") == {"maxMessageSize": "100"}

    run(main())


def test_changes_at_one_time_are_all_kept_in_the_file(tmp_path: Path) -> None:
    """Each is written beside the loop, into the file that the one before left."""
    names = ("maxMessageSize", "forwardTimeout", "shortPollingTimeMills", "splitMetadataSize")

    async def main() -> None:
        file = tmp_path / "broker.conf"
        file.write_text("brokerName=broker-a\n")
        async with broker_cluster(tmp_path, broker_config_path=str(file)) as cluster:
            clients = [cluster.client() for _ in names]
            for value in range(3100, 3120):
                changes = (update(*each) for each in zip(clients, (f"{n}={value}" for n in names), strict=True))
                assert await asyncio.gather(*changes) == [0] * len(names)
                assert read_properties(file) == {"brokerName": "broker-a", **dict.fromkeys(names, str(value))}

    run(main())


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    """The password of the TLS key stays out of the answer."""

    async def main() -> None:
        async with broker_cluster(tmp_path, tls_server_key_password="hunter2") as cluster:
            answer = await cluster.client().call(r.GetBrokerConfig())
            assert b"hunter2" not in answer.body

    run(main())


@pytest.mark.parametrize(
    "text",
    [
        "a=1\n",
        "# a=0\n  a : 1\nb=2",
        "a 1\nb=2\n",
        "",
        "b=2\na=\\\n  1\n",
        "a=1\r\nb=2\r\n",
        "ab=3\n",
        "a=1\na=0\n",
    ],
)
def test_other_lines_of_a_settings_file_stay(tmp_path: Path, text: str) -> None:
    """Separators of all kinds, continued lines, repeated keys, a last line without an end."""
    file = tmp_path / "some.conf"
    file.write_bytes(text.encode())
    before = parse_properties(text)
    store_changes(file, {"a": "new value", "c": "ü"})
    assert read_properties(file) == {**before, "a": "new value", "c": "ü"}
    assert ("# a=0" in file.read_text()) == ("# a=0" in text)
    assert edited("a=1\n", {"a": "2"}) == "a=2\n"


def test_clean_up_requests_are_done(tmp_path: Path) -> None:
    """Old files go; with nothing old, nothing does."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            await client.send("T", b"kept")
            await client.call(r.DeleteExpiredCommitlog())
            await client.call(r.CleanExpiredConsumequeue())
            assert [each.body for each in await client.messages("T")] == [b"kept"]

    run(main())


def test_limits_of_cold_reads_are_kept_and_shown(tmp_path: Path) -> None:
    """Set, shown, removed; bad ones are refused."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()

            async def limits() -> Any:
                return orjson.loads((await client.call(r.GetColdDataFlowCtrInfo())).body)["configTable"]

            await client.call(r.UpdateColdDataFlowCtrConfig(), b"G=1024\nH=7\n")
            assert await limits() == {"G": 1024, "H": 7}
            await client.call(r.RemoveColdDataFlowCtrConfig(), b"G")
            assert await limits() == {"H": 7}
            assert await code_of(client.call(r.UpdateColdDataFlowCtrConfig(), b"G=fast")) == 1
            for mode, code in (("0", 0), ("1", 0), ("2", 29), (None, 29)):
                assert await code_of(client.call(r.SetCommitlogReadMode(mode))) == code

    run(main())


def test_features_that_come_later_are_answered_as_such(tmp_path: Path) -> None:
    """POP and 4.9's accounts are not supported; the timer, users and controllers are not enabled."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            connection = await cluster.client().channel.connect()
            dispatcher = cluster.apps[0].dispatcher
            for code in (50, 51, 52, 53, 54, 401, *range(200050, 200057), 200151):
                assert code in REQUESTS
                assert code not in dispatcher.handlers
            client = Client(cluster.client().channel)
            for request in (r.GetTimerCheckPoint(), r.GetTimerMetrics(), r.GetBrokerEpochCache()):
                assert await code_of(client.call(request)) == 1
            for auth in (r.AuthGetUser("u"), r.AuthListUser(), r.AuthDeleteAcl("User:u"), r.AuthListAcl()):
                assert await code_of(client.call(auth)) == 1
            assert await code_of(client.call(r.RecallMessage("T", "handle"))) == 16
            assert (await client.call(r.CheckRocksdbCqWriteProgress("T", 0))).body == b'{"checkStatus":2}'
            assert (await client.call(r.ResetMasterFlushOffset(0))).code == 0
            assert connection.is_open

    run(main())


def test_every_request_code_of_tools_is_served_or_known(tmp_path: Path) -> None:
    """No handler serves a code that is not declared, and none that tools send is forgotten."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            dispatcher = cluster.apps[0].dispatcher
            served = dispatcher.handlers.keys() | dispatcher.hot.keys()
            assert served <= REQUESTS.keys()
            tools = {
                12,
                17,
                18,
                21,
                25,
                26,
                28,
                33,
                200,
                201,
                202,
                203,
                204,
                207,
                208,
                215,
                222,
                223,
                225,
                300,
                303,
            }
            tools |= {305, 306, 307, 308, 309, 314, 315, 316, 317, 321, 323, 328, 329, 343, 345, 351, 352, 353, 354}
            tools |= {
                355,
                400,
                402,
                513,
                907,
                908,
                1007,
                2001,
                2002,
                2003,
                2004,
                *range(3001, 3011),
                60,
                61,
                45,
                43,
            }
            assert tools - served == set()

    run(main())
