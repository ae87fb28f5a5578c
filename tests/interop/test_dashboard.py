"""The methods of MQAdminExt that RocketMQ's Dashboard calls.

They go to our broker and to Apache's 5.3.3, and the results have the same shape.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from interop.artifacts import ROCKETMQ, java_class_path
from interop.clients import CLIENTS
from interop.driver import Driver, DriverError
from interop.servers import Server, running
from interop.test_mqadmin import BROKER, prepare
from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol import fastjson
from rmq_core.protocol.request import REQUESTS
from support.recorder import Recorder, recording

HERE: Final = Path(__file__).parent
VERSION: Final = ROCKETMQ[-1]
FAR: Final = 32_503_680_000_000
"""A time that has not come, in milliseconds."""
TOPIC_CONFIG: Final = {"topicName": "Made", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}
GROUP_CONFIG: Final = {"groupName": "MadeGroup", "retryMaxTimes": 3, "retryQueueNums": 2}

CALLS: Final[list[tuple[str, list[Any]]]] = [
    ("examineBrokerClusterInfo", []),
    ("fetchBrokerRuntimeStats", ["{broker}"]),
    ("getBrokerConfig", ["{broker}"]),
    ("updateBrokerConfig", ["{broker}", {"maxMessageSize": "4194304"}]),
    ("viewBrokerStatsData", ["{broker}", "TOPIC_PUT_NUMS", "Orders"]),
    ("viewBrokerStatsData", ["{broker}", "GROUP_GET_NUMS", "Orders@Orders"]),
    ("viewBrokerStatsData", ["{broker}", "TOPIC_PUT_NUMS", "Nowhere"]),
    ("getNameServerAddressList", []),
    ("fetchAllTopicList", []),
    ("fetchTopicsByCLuster", ["DefaultCluster"]),
    ("examineTopicRouteInfo", ["Orders"]),
    ("examineTopicRouteInfo", ["Nowhere"]),
    ("examineTopicStats", ["Orders"]),
    ("examineTopicStats", ["Nowhere"]),
    ("examineTopicConfig", ["{broker}", "Orders"]),
    ("examineTopicConfig", ["{broker}", "Nowhere"]),
    ("getAllTopicConfig", ["{broker}", 5000]),
    ("getUserTopicConfig", ["{broker}", True, 5000]),
    ("getTopicClusterList", ["Orders"]),
    ("createAndUpdateTopicConfig", ["{broker}", TOPIC_CONFIG]),
    ("createOrUpdateOrderConf", ["Made", "judged:3", True]),
    ("getKVConfig", ["ORDER_TOPIC_CONFIG", "Made"]),
    ("getKVConfig", ["ORDER_TOPIC_CONFIG", "Nowhere"]),
    ("getKVListByNamespace", ["ORDER_TOPIC_CONFIG"]),
    ("deleteKvConfig", ["ORDER_TOPIC_CONFIG", "Made"]),
    ("queryTopicConsumeByWho", ["Orders"]),
    ("queryTopicConsumeByWho", ["Idle"]),
    ("queryConsumeTimeSpan", ["Orders", "Offline"]),
    ("getAllSubscriptionGroup", ["{broker}", 5000]),
    ("getUserSubscriptionGroup", ["{broker}", 5000]),
    ("examineSubscriptionGroupConfig", ["{broker}", "Orders"]),
    ("createAndUpdateSubscriptionGroupConfig", ["{broker}", GROUP_CONFIG]),
    ("examineSubscriptionGroupConfig", ["{broker}", "MadeGroup"]),
    ("deleteSubscriptionGroup", ["{broker}", "MadeGroup", True]),
    ("examineConsumeStats", ["Orders"]),
    ("examineConsumeStats", ["Offline", "Orders"]),
    ("examineConsumeStats", ["Nobody"]),
    ("fetchConsumeStatsInBroker", ["{broker}", False, 5000]),
    ("examineConsumerConnectionInfo", ["Orders"]),
    ("examineConsumerConnectionInfo", ["Offline"]),
    ("getConsumerRunningInfo", ["Orders", "{client_id}", False]),
    ("getConsumeStatus", ["Orders", "Orders", "{client_id}"]),
    ("examineProducerConnectionInfo", ["Maker", "Idle"]),
    ("examineProducerConnectionInfo", ["Nobody", "Idle"]),
    ("getAllProducerInfo", ["{broker}"]),
    ("queryMessage", ["Orders", "key3", 32, 0, FAR]),
    ("queryMessage", ["Orders", "nobody", 32, 0, FAR]),
    ("viewMessage", ["Orders", "{msg_id}"]),
    ("viewMessage", ["Orders", "{offset_msg_id}"]),
    ("messageTrackDetail", ["Orders", "{msg_id}"]),
    ("consumeMessageDirectly", ["Orders", "{client_id}", "Orders", "{msg_id}"]),
    ("maxOffset", [{"topic": "Orders", "brokerName": BROKER, "queueId": 1}]),
    ("minOffset", [{"topic": "Orders", "brokerName": BROKER, "queueId": 1}]),
    ("earliestMsgStoreTime", [{"topic": "Orders", "brokerName": BROKER, "queueId": 1}]),
    ("searchOffset", [{"topic": "Orders", "brokerName": BROKER, "queueId": 1}, FAR]),
    ("resetOffsetByTimestamp", ["Orders", "Orders", 0, True]),
    ("resetOffsetByTimestampOld", ["Offline", "Orders", 0, True]),
    ("resetOffsetNew", ["Offline", "Orders", FAR]),
    ("wipeWritePermOfBroker", ["{name_server}", BROKER]),
    ("addWritePermOfBroker", ["{name_server}", BROKER]),
    ("cleanExpiredConsumerQueueByAddr", ["{broker}"]),
    ("cleanUnusedTopicByAddr", ["{broker}"]),
    ("deleteTopicInBroker", [["{broker}"], "Made"]),
    ("deleteTopicInNameServer", [["{name_server}"], "Made"]),
]
OPEN: Final = {"fetchBrokerRuntimeStats", "getBrokerConfig"}
"""Tables with keys of each program's own: ours may have more, and lacks those here."""
WIRE_DIFFERENCES: Final[dict[str, str]] = tomllib.loads((HERE / "wire.toml").read_text())["differences"]
"""Requests whose answers differ, by name, with the reason."""
LACKS: Final = {
    "getBrokerConfig": {
        "brokerIP2",  # the address for replication
        "rocketmqHome",  # there is no folder of the program
    }
}


@dataclass(frozen=True, slots=True)
class Side:
    """One server, with the Dashboard's calls on it."""

    server: Server
    dashboard: Driver
    words: dict[str, str]
    names: Recorder
    """What runs between the Dashboard and the name server."""
    broker: Recorder
    """What runs between it and the broker, where a method names the broker."""

    def call(self, method: str, arguments: list[Any]) -> Any:
        """The result, or the exception that the Dashboard gets."""
        try:
            result = self.dashboard.ask(method, arguments=self._filled(arguments))
        except DriverError as error:
            return str(error).partition(";")[0]
        return None if result is None else fastjson.loads(result.encode())

    def _filled(self, value: Any) -> Any:
        if isinstance(value, str):
            return value.format(**{**self.words, "broker": self.broker.address, "name_server": self.names.address})
        return [self._filled(each) for each in value] if isinstance(value, list) else value


def shape(value: Any, words: dict[str, str]) -> Any:
    """A result without its values: the keys of objects, the kinds of what they hold, the lengths of lists."""
    if isinstance(value, dict):
        return {_named(key, words): shape(held, words) for key, held in value.items()}
    if isinstance(value, list):
        return sorted((shape(each, words) for each in value), key=repr)
    if isinstance(value, bool) or value is None:
        return value
    return "number" if isinstance(value, int | float) else "text"


def _named(key: str, words: dict[str, str]) -> str:
    for name in ("client_id", "offset_msg_id", "msg_id", "broker", "name_server", "home"):
        key = key.replace(words[name], f"<{name}>")
    return key


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """Ours and Apache's in an equal state."""
    home = tmp_path_factory.mktemp("dashboard")
    client = CLIENTS[f"java-{VERSION}-json"]
    java = ["java", "-Xmx256m", "-cp", java_class_path(VERSION), "Dashboard"]
    with (
        running("ours", home / "ours", brokerName=BROKER) as ours,
        running(f"apache-{VERSION}", home / "theirs", brokerName=BROKER) as theirs,
        client.start(ours.name_server) as our_member,
        client.start(theirs.name_server) as their_member,
        recording(ours.name_server) as our_names,
        recording(ours.broker) as our_broker,
        recording(theirs.name_server) as their_names,
        recording(theirs.broker) as their_broker,
        Driver([*java, our_names.address]) as our_dashboard,
        Driver([*java, their_names.address]) as their_dashboard,
    ):
        yield (
            Side(ours, our_dashboard, prepare(ours, our_member), our_names, our_broker),
            Side(theirs, their_dashboard, prepare(theirs, their_member), their_names, their_broker),
        )


@pytest.fixture(scope="module")
def results(sides: tuple[Side, Side]) -> list[tuple[Any, Any]]:
    """What every call gave, on ours and on Apache's."""
    ours, theirs = sides
    return [(ours.call(method, arguments), theirs.call(method, arguments)) for method, arguments in CALLS]


@pytest.mark.parametrize("number", range(len(CALLS)), ids=lambda number: " ".join(map(str, CALLS[number])))
def test_the_dashboard_gets_the_same(sides: tuple[Side, Side], results: list[tuple[Any, Any]], number: int) -> None:
    """Calls one method on both; exceptions have one code, results one shape."""
    method = CALLS[number][0]
    ours, theirs = results[number]
    if isinstance(theirs, str) or isinstance(ours, str):
        assert ours == theirs
        return
    our_shape, their_shape = (shape(result, side.words) for result, side in zip((ours, theirs), sides, strict=True))
    if method in OPEN:
        our_keys, their_keys = ({*_table(result)} for result in (our_shape, their_shape))
        assert their_keys - our_keys == LACKS.get(method, set())
        return
    assert our_shape == their_shape


@pytest.mark.usefixtures("results")
@pytest.mark.parametrize("which", ["names", "broker"])
def test_answers_on_the_wire_have_the_same_fields(sides: tuple[Side, Side], which: str) -> None:
    """For each request that both servers got: the code of the answer, its header fields, the shape of its body."""
    ours, theirs = (_answers(getattr(side, which), side.words) for side in sides)
    assert ours.keys() == theirs.keys()
    assert len(ours) >= (5 if which == "names" else 15)
    different = {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]}
    assert different.keys() - WIRE_DIFFERENCES.keys() == set(), different


def _answers(recorder: Recorder, words: dict[str, str]) -> dict[str, list[Any]]:
    """By request: each answer's code, the names of its fields, and what its body is like."""
    answers: dict[str, list[Any]] = {}
    for recorded in recorder.recorded():
        answer = recorded.answer
        described = (answer.code, sorted(answer.ext or ()), _body(answer.body, words))
        answers.setdefault(REQUESTS[recorded.request.code].__name__, []).append(described)
    return {name: _without_repeats(each) for name, each in answers.items()}


def _body(body: bytes, words: dict[str, str]) -> Any:
    try:
        return shape(fastjson.loads(body), words) if body else "nothing"
    except RemoteProtocolError:
        return "records, or text"


def _without_repeats(answers: list[Any]) -> list[Any]:
    """The Dashboard asks for some things again and again, by the clock."""
    return [each for number, each in enumerate(answers) if each not in answers[:number]]


def _table(result: dict[str, Any]) -> dict[str, Any]:
    table: dict[str, Any] = result.get("table", result)
    return table
