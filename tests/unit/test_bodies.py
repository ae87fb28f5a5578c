"""JSON bodies: the texts of Java, leniency in reading, and what no input may do."""

from __future__ import annotations

import contextlib
import struct
import zlib
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol import bodies as declared
from rmq_core.protocol import fastjson
from rmq_core.protocol.bodies import (
    AclList,
    BatchAckMessageRequestBody,
    BrokerStatsData,
    ClusterInfo,
    ConsumeFromWhere,
    ConsumerData,
    ConsumerOffsetSerializeWrapper,
    ConsumeStats,
    ConsumeType,
    DataVersion,
    HeartbeatData,
    KVTable,
    LockBatchRequestBody,
    MessageModel,
    QueryAssignmentResponseBody,
    QueryConsumeQueueResponseBody,
    RegisterBrokerBody,
    ResetOffsetBody,
    SubscriptionData,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicFilterType,
    TopicList,
    TopicQueueMappingInfo,
    TopicRouteData,
    UserInfo,
    UserList,
)
from rmq_core.protocol.body import Body
from rmq_core.protocol.codes import V4_9_4, V5_3_3
from rmq_core.protocol.fields import field_plans
from rmq_core.protocol.message import MessageQueue
from support import strategies

CLASSES: list[type[Body]] = [
    value
    for name in declared.__all__
    if isinstance(value := getattr(declared, name), type) and issubclass(value, Body)
]
every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
# Strategies for the larger declarations take a while to build the first time.
calmly = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])

SUBSCRIPTION = (
    '{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG","subString":"TagA || TagB",'
    '"subVersion":1700000000000,"tagsSet":["TagA","TagB"],"topic":"TopicTest"}'
)
VERSION = '{"counter":0,"stateVersion":0,"timestamp":1700000000000}'
TOPIC = (
    '{"attributes":{"message.type":"FIFO"},"order":false,"perm":6,"readQueueNums":4,'
    '"topicFilterType":"SINGLE_TAG","topicName":"TopicTest","topicSysFlag":0,"writeQueueNums":4}'
)
GROUP = (
    '{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,'
    '"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"CG","groupRetryPolicy":'
    '{"type":"CUSTOMIZED"},"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,'
    '"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}'
)
QUEUE = '{"brokerName":"broker-a","queueId":0,"topic":"TopicTest"}'
BROKER = (
    '{"brokerAddrs":{0:"10.0.0.2:10911",1:"10.0.0.3:10911"},"brokerName":"broker-a","cluster":"DefaultCluster",'
    '"enableActingMaster":false}'
)
STATS = '{"avgpt":0.0,"sum":0,"tps":0.0}'
LOCK = f'{{"clientId":"cid","consumerGroup":"CG","mqSet":[{QUEUE}],"onlyThisBroker":false}}'
MODE = '{"consumerGroup":"CG","mode":"POP","popShareQueueNum":-1,"topic":"TopicTest"}'
CONSUME_STATS = (
    f'{{"consumeTps":1.5,"offsetTable":{{{QUEUE}:{{"brokerOffset":10,"consumerOffset":8,'
    '"lastTimestamp":1700000000000,"pullOffset":9}}}'
)
CONNECTION = '{"clientAddr":"10.0.0.1:50000","clientId":"10.0.0.1@123#456","language":"JAVA","version":479}'
USER = '{"password":"pw","userStatus":"enable","userType":"Normal","username":"alice"}'
ACL = (
    '{"policies":[{"entries":[{"actions":["Pub","Sub"],"decision":"Allow","resource":"Topic:*",'
    '"sourceIps":["192.168.0.0/24"]}],"policyType":"Custom"}],"subject":"User:alice"}'
)

TEXTS: dict[str, str] = {
    "HeartbeatData": (
        '{"clientID":"10.0.0.1@123#456","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        '"consumeType":"CONSUME_PASSIVELY","groupName":"CG","messageModel":"CLUSTERING",'
        f'"subscriptionDataSet":[{SUBSCRIPTION}],"unitMode":false}}],"heartbeatFingerprint":0,'
        '"producerDataSet":[{"groupName":"PG"}],"withoutSub":false}'
    ),
    "CheckClientRequestBody": f'{{"clientId":"cid","group":"CG","subscriptionData":{SUBSCRIPTION}}}',
    "TopicRouteData": (
        f'{{"brokerDatas":[{BROKER}],"filterServerTable":{{}},"queueDatas":[{{"brokerName":"broker-a","perm":6,'
        '"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    ),
    "TopicConfig": TOPIC,
    "TopicConfigSerializeWrapper": f'{{"dataVersion":{VERSION},"topicConfigTable":{{"TopicTest":{TOPIC}}}}}',
    "SubscriptionGroupConfig": GROUP,
    "SubscriptionGroupWrapper": (
        f'{{"dataVersion":{VERSION},"forbiddenTable":{{"CG":{{"T":4}}}},"subscriptionGroupTable":{{"CG":{GROUP}}}}}'
    ),
    "RegisterBrokerBody": (
        f'{{"filterServerList":[],"topicConfigSerializeWrapper":{{"dataVersion":{VERSION},'
        f'"mappingDataVersion":{VERSION},"topicConfigTable":{{"TopicTest":{TOPIC}}},'
        '"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}}'
    ),
    "ClusterInfo": (
        f'{{"brokerAddrTable":{{"broker-a":{BROKER}}},"clusterAddrTable":{{"DefaultCluster":["broker-a"]}}}}'
    ),
    "TopicStatsTable": (
        f'{{"offsetTable":{{{QUEUE}:{{"lastUpdateTimestamp":0,"maxOffset":10,"minOffset":0}},'
        '{"brokerName":"broker-a","queueId":1,"topic":"TopicTest"}:'
        '{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0}},"topicPutTps":0.0}'
    ),
    "ConsumeStats": CONSUME_STATS,
    "ConsumeStatsList": (
        f'{{"brokerAddr":"10.0.0.2:10911","consumeStatsList":[{{"CG":[{CONSUME_STATS}]}}],'
        '"totalDiff":2,"totalInflightDiff":1}'
    ),
    "ConsumerOffsetSerializeWrapper": f'{{"dataVersion":{VERSION},"offsetTable":{{"TopicTest@CG":{{0:5,1:6}}}}}}',
    "DelayOffsetSerializeWrapper": f'{{"dataVersion":{VERSION},"offsetTable":{{1:0,2:5}}}}',
    "ResetOffsetBody": f'{{"offsetTable":{{{QUEUE}:100}}}}',
    "ResetOffsetBodyForC": (
        '{"offsetTable":[{"brokerName":"broker-a","offset":100,"queueId":0,"topic":"TopicTest"}]}'
    ),
    "GetConsumerStatusBody": f'{{"consumerTable":{{"cid":{{{QUEUE}:5}}}},"messageQueueTable":{{{QUEUE}:5}}}}',
    "QueryCorrectionOffsetBody": '{"correctionOffsets":{0:5,1:9223372036854775807}}',
    "QueryConsumeTimeSpanBody": (
        '{"consumeTimeSpanSet":[{"consumeTimeStamp":0,"delayTime":0,"maxTimeStamp":0,'
        f'"messageQueue":{QUEUE},"minTimeStamp":0}}]}}'
    ),
    "ConsumerConnection": (
        f'{{"connectionSet":[{CONNECTION}],"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        '"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
        f'"subscriptionTable":{{"TopicTest":{SUBSCRIPTION}}}}}'
    ),
    "ProducerConnection": f'{{"connectionSet":[{CONNECTION}]}}',
    "ProducerTableInfo": (
        '{"data":{"PG":[{"clientId":"cid","language":"JAVA","lastUpdateTimestamp":1700000000000,'
        '"remoteIP":"10.0.0.1:500","version":479}]}}'
    ),
    "GetConsumerListByGroupResponseBody": '{"consumerIdList":["a","b"]}',
    "LockBatchRequestBody": LOCK,
    "UnlockBatchRequestBody": LOCK,
    "LockBatchResponseBody": f'{{"lockOKMQSet":[{QUEUE}]}}',
    "QueryAssignmentRequestBody": (
        '{"clientId":"cid","consumerGroup":"CG","messageModel":"CLUSTERING","strategyName":"AVG","topic":"TopicTest"}'
    ),
    "QueryAssignmentResponseBody": (
        '{"messageQueueAssignments":[{"messageQueue":{"brokerName":"broker-a","queueId":-1,"topic":"TopicTest"},'
        '"mode":"POP"}]}'
    ),
    "SetMessageRequestModeRequestBody": MODE,
    "MessageRequestModeSerializeWrapper": f'{{"messageRequestModeMap":{{"TopicTest":{{"CG":{MODE}}}}}}}',
    "ConsumerRunningInfo": (
        f'{{"mqPopTable":{{{QUEUE}:{{"droped":false,"lastPopTimestamp":0,"waitAckCount":0}}}},'
        f'"mqTable":{{{QUEUE}:{{"cachedMsgCount":0,"cachedMsgMaxOffset":0,"cachedMsgMinOffset":0,'
        '"cachedMsgSizeInMiB":0,"commitOffset":0,"droped":false,"lastConsumeTimestamp":0,"lastLockTimestamp":0,'
        '"lastPullTimestamp":0,"locked":false,"transactionMsgCount":0,"transactionMsgMaxOffset":0,'
        '"transactionMsgMinOffset":0,"tryUnlockTimes":0}},"properties":{"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"},'
        '"statusTable":{"TopicTest":{"consumeFailedMsgs":0,"consumeFailedTPS":0.0,"consumeOKTPS":0.0,'
        f'"consumeRT":0.0,"pullRT":0.0,"pullTPS":0.0}}}},"subscriptionSet":[{SUBSCRIPTION}],"userConsumerInfo":{{}}}}'
    ),
    "ConsumeMessageDirectlyResult": (
        '{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"remark":"x","spentTimeMills":3}'
    ),
    "GroupList": '{"groupList":["CG"]}',
    "TopicList": '{"brokerAddr":"10.0.0.2:10911","topicList":["TopicTest"]}',
    "KVTable": '{"table":{"k":"v"}}',
    "GroupForbidden": '{"group":"CG","readable":true,"topic":"TopicTest"}',
    "BrokerStatsData": f'{{"statsDay":{STATS},"statsHour":{STATS},"statsMinute":{STATS}}}',
    "QuerySubscriptionResponseBody": f'{{"group":"CG","subscriptionData":{SUBSCRIPTION},"topic":"TopicTest"}}',
    "QueryConsumeQueueResponseBody": (
        '{"filterData":"x","maxQueueIndex":0,"minQueueIndex":0,"queueData":[{"eval":false,"physicOffset":1,'
        f'"physicSize":2,"tagsCode":3}}],"subscriptionData":{SUBSCRIPTION}}}'
    ),
    "CreateTopicListRequestBody": f'{{"topicConfigList":[{TOPIC}]}}',
    "SubscriptionGroupList": f'{{"groupConfigList":[{GROUP}]}}',
    "GetBrokerMemberGroupResponseBody": (
        '{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.2:10911"},"brokerName":"broker-a","cluster":"DefaultCluster"}}'
    ),
    "HARuntimeInfo": (
        '{"haClientRuntimeInfo":{"lastReadTimestamp":0,"lastWriteTimestamp":0,"masterFlushOffset":0,"maxOffset":0,'
        '"transferredByteInSecond":0},"haConnectionInfo":[{"addr":"10.0.0.3:1","diff":0,"inSync":false,'
        '"slaveAckOffset":0,"transferFromWhere":0,"transferredByteInSecond":0}],"inSyncSlaveNums":0,"master":true,'
        '"masterCommitLogMaxOffset":0}'
    ),
    "EpochEntryCache": (
        '{"brokerId":0,"brokerName":"b","clusterName":"c","epochList":[{"endOffset":9223372036854775807,"epoch":1,'
        '"startOffset":0}],"maxOffset":5}'
    ),
    "TimerMetrics": f'{{"dataVersion":{VERSION},"timingCount":{{"T":{{"count":3,"timeStamp":1700000000000}}}}}}',
    "BatchAckMessageRequestBody": (
        '{"acks":[{"b":"BQI=","c":"CG","it":60000,"pt":1700000000000,"q":1,"r":"0","rq":3,"so":100,"t":"TopicTest"}],'
        '"brokerName":"broker-a"}'
    ),
    "UserInfo": USER,
    "AclInfo": ACL,
    "UserList": f"[{USER}]",
    "AclList": f"[{ACL}]",
    "AclConfig": (
        '{"globalWhiteAddrs":["10.*"],"plainAccessConfigs":[{"accessKey":"k","admin":false,'
        '"defaultGroupPerm":"SUB","defaultTopicPerm":"DENY","groupPerms":["g=SUB"],"secretKey":"s",'
        '"topicPerms":["t=PUB"],"whiteRemoteAddress":""}]}'
    ),
    "SyncStateSet": '{"syncStateSet":[0,1],"syncStateSetEpoch":2}',
}


def named(name: str) -> type[Body]:
    return next(cls for cls in CLASSES if cls.__name__ == name)


@pytest.mark.parametrize("name", TEXTS)
def test_texts_of_java_come_out_as_they_went_in(name: str) -> None:
    """Every byte counts: order of fields, absent fields, keys without quotes; also behind a trailing newline."""
    text = TEXTS[name].encode()
    body = named(name).decode(text)
    assert body.encode() == text
    assert named(name).decode(memoryview(text + b"\n")) == body


@pytest.mark.parametrize("name", TEXTS)
def test_standard_form_is_json_with_the_same_content(name: str) -> None:
    """Reads it with a parser that knows no dialect."""
    cls = named(name)
    body = cls.decode(TEXTS[name].encode())
    standard = body.encode(standard=True)
    assert orjson.loads(standard) == fastjson.loads(TEXTS[name].encode())
    assert cls.decode(standard) == body


def test_standard_form_quotes_numeric_and_object_keys() -> None:
    """Exact texts, as clients of 5.x are sent them."""
    route = TopicRouteData.decode(TEXTS["TopicRouteData"].encode())
    assert b'"brokerAddrs":{"0":"10.0.0.2:10911","1":"10.0.0.3:10911"}' in route.encode(standard=True)
    reset = ResetOffsetBody({MessageQueue("T", "b", 0): 7})
    key = '"{\\"brokerName\\":\\"b\\",\\"queueId\\":0,\\"topic\\":\\"T\\"}"'
    assert reset.encode(standard=True) == f'{{"offsetTable":{{{key}:7}}}}'.encode()


def test_bodies_of_older_peers_gain_nothing() -> None:
    """Texts of 4.9, which lack the fields of 5.x, written again."""
    for cls, text in (
        (DataVersion, '{"counter":1,"timestamp":2}'),
        (ConsumerOffsetSerializeWrapper, '{"offsetTable":{"T@G":{0:5}}}'),
        (LockBatchRequestBody, f'{{"clientId":"c","consumerGroup":"G","mqSet":[{QUEUE}]}}'),
        (QueryAssignmentResponseBody, "{}"),
        (TopicList, '{"topicList":[]}'),
        (HeartbeatData, '{"clientID":"c","consumerDataSet":[],"producerDataSet":[{"groupName":"PG"}]}'),
    ):
        assert cls.decode(text.encode()).encode() == text.encode()


def test_numbers_may_be_text_and_text_may_be_numbers() -> None:
    """Go's tag codes, numbers in quotes, a whole number as a fraction, and the other way round."""
    subscription = SubscriptionData.decode(b'{"codeSet":["1","-2"],"subVersion":" 7 ","topic":5,"subString":true}')
    assert subscription == SubscriptionData("5", "true", code_set=(1, -2), sub_version=7)
    assert DataVersion.decode(b'{"counter":3.0}').counter == 3
    assert ConsumeStats.decode(b'{"consumeTps":"1.5"}').consume_tps == 1.5
    assert TopicConfig.decode(b'{"topicName":"T","order":"TRUE"}').order is True
    assert KVTable.decode(b'{"table":{"a":1,"b":false}}').table == {"a": "1", "b": "false"}


@pytest.mark.parametrize("model", ['"clustering"', '"CLUSTERING"', '"Clustering"', "1"])
def test_enums_come_in_any_case_and_by_ordinal(model: str) -> None:
    """Each spelling that clients use; ordinals are Java's."""
    text = f'{{"groupName":"g","messageModel":{model},"consumeType":0,"consumeFromWhere":4}}'
    consumer = ConsumerData.decode(text.encode())
    assert consumer.message_model is MessageModel.CLUSTERING
    assert consumer.consume_type is ConsumeType.CONSUME_ACTIVELY
    assert consumer.consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


def test_ordinals_are_those_of_java() -> None:
    """The order of the members is what an ordinal means."""
    assert [member.name for member in MessageModel] == ["BROADCASTING", "CLUSTERING"]
    assert [member.name for member in ConsumeType][:2] == ["CONSUME_ACTIVELY", "CONSUME_PASSIVELY"]


def test_unknown_fields_and_nulls_count_as_absent() -> None:
    """A null in every position: field, item of an array, value of a map."""
    text = b'{"clientID":"c","new":{"a":[1]},"producerDataSet":[null,{"groupName":"p"}],"consumerDataSet":null}'
    heartbeat = HeartbeatData.decode(text)
    assert [producer.group_name for producer in heartbeat.producer_data_set] == ["p"]
    assert heartbeat.consumer_data_set == ()
    assert KVTable.decode(b'{"table":{"a":null,"b":"c"}}').table == {"b": "c"}
    queue = b'{"queueData":[{"bitMap":null,"eval":false,"msg":null,"physicOffset":1}]}'
    data = QueryConsumeQueueResponseBody.decode(queue).queue_data
    assert data is not None
    assert data[0].physic_offset == 1


def test_a_heartbeat_with_its_subscriptions_misnamed_is_still_a_heartbeat() -> None:
    """pyrocketmq writes subscriptionData for subscriptionDataSet."""
    text = f'{{"clientID":"c","consumerDataSet":[{{"groupName":"g","subscriptionData":[{SUBSCRIPTION}]}}]}}'
    (consumer,) = HeartbeatData.decode(text.encode()).consumer_data_set
    assert consumer.group_name == "g"
    assert consumer.subscription_data_set == ()


def test_references_are_followed_and_never_written() -> None:
    """What Java writes where one object stands twice."""
    text = f'{{"statsDay":{STATS},"statsHour":{{"$ref":"$.statsDay"}}}}'
    stats = BrokerStatsData.decode(text.encode())
    assert stats.stats_hour == stats.stats_day is not None
    assert stats.encode() == f'{{"statsDay":{STATS},"statsHour":{STATS}}}'.encode()


@pytest.mark.parametrize(
    "text",
    [
        f'{{"offsetTable":{{{QUEUE}:5}}}}',
        '{"offsetTable" : { {"topic": "TopicTest", "queueId": "0", "brokerName": "broker-a"} : 5 } }',
        orjson.dumps({"offsetTable": {QUEUE: 5}}).decode(),
    ],
)
def test_object_keys_are_read_in_all_three_forms(text: str) -> None:
    """As objects, with blanks and in another order, and as text."""
    assert ResetOffsetBody.decode(text.encode()).offset_table == {MessageQueue("TopicTest", "broker-a", 0): 5}


def test_numeric_keys_are_read_quoted_and_unquoted() -> None:
    """Both forms of the same table."""
    for key in ("0", '"0"'):
        text = f'{{"brokerAddrTable":{{"b":{{"brokerAddrs":{{{key}:"a:1"}},"brokerName":"b"}}}}}}'
        table = ClusterInfo.decode(text.encode()).broker_addr_table
        assert table is not None
        assert table["b"].broker_addrs == {0: "a:1"}


@pytest.mark.parametrize(
    ("cls", "text"),
    [
        (HeartbeatData, "[]"),
        (HeartbeatData, "7"),
        (HeartbeatData, "{}"),
        (HeartbeatData, '{"clientID":{"a":1}}'),
        (HeartbeatData, '{"clientID":"c","producerDataSet":{}}'),
        (HeartbeatData, '{"clientID":"c","heartbeatFingerprint":2147483648}'),
        (HeartbeatData, '{"clientID":"c","heartbeatFingerprint":"1_0"}'),
        (ConsumerData, '{"groupName":"g","messageModel":2}'),
        (ConsumerData, '{"groupName":"g","messageModel":"NONE"}'),
        (ConsumerData, '{"groupName":"g","messageModel":-1}'),
        (DataVersion, '{"counter":1.5}'),
        (DataVersion, '{"counter":9223372036854775808}'),
        (ConsumeStats, '{"consumeTps":"NaN"}'),
        (ConsumeStats, '{"consumeTps":[]}'),
        (ResetOffsetBody, '{"offsetTable":{"x":1}}'),
        (ResetOffsetBody, '{"offsetTable":{"{}":1}}'),
        (ResetOffsetBody, '{"offsetTable":{7:1}}'),
        (ConsumerOffsetSerializeWrapper, '{"offsetTable":{"T@G":{"x":1}}}'),
        (KVTable, '{"table":[]}'),
        (BatchAckMessageRequestBody, '{"acks":[{"b":"*"}]}'),
        (BatchAckMessageRequestBody, '{"acks":[{"b":7}]}'),
        (BatchAckMessageRequestBody, '{"acks":["x"]}'),
        (UserList, "{}"),
        (AclList, "[1]"),
    ],
)
def test_values_of_another_type_are_refused(cls: type[Body], text: str) -> None:
    """One field that cannot be what it is declared as."""
    with pytest.raises(RemoteProtocolError):
        cls.decode(text.encode())


def test_acknowledgements_are_read_under_short_and_long_names() -> None:
    """The same acknowledgement in both spellings, and the offsets that its bits mean."""
    short = BatchAckMessageRequestBody.decode(TEXTS["BatchAckMessageRequestBody"].encode())
    text = (
        '{"acks":[{"bitSet":"BQI=","consumerGroup":"CG","invisibleTime":60000,"popTime":1700000000000,"queueId":1,'
        '"retry":"0","reviveQueueId":3,"startOffset":100,"topic":"TopicTest"}],"brokerName":"broker-a"}'
    )
    assert BatchAckMessageRequestBody.decode(text.encode()) == short
    assert short.acks[0].offsets == (100, 102, 109)


def test_lists_of_users_are_bare_arrays() -> None:
    """Empty and not, with and without the standard form."""
    assert UserList().encode() == b"[]"
    assert UserList((UserInfo("alice"),)).encode(standard=True) == b'[{"username":"alice"}]'
    assert UserList.decode(b"[]") == UserList()


REGISTRATION = RegisterBrokerBody(
    TopicConfigSerializeWrapper(
        {
            "A": TopicConfig("A", 4, 8, 6, TopicFilterType.MULTI_TAG, attributes={"k": "with a blank"}),
            "B": TopicConfig("B", attributes={}),
        },
        DataVersion(1, 2, 3),
        topic_queue_mapping_info_map={"A": TopicQueueMappingInfo("A", "b", curr_id_map={0: 1})},
    ),
    ("10.0.0.1:1",),
)


def test_the_compressed_registration_has_the_layout_of_java() -> None:
    """Takes the stream apart by hand; a sender of 4.9 writes neither attributes nor mappings."""
    inflated = zlib.decompress(REGISTRATION.encode_compressed(version=V4_9_4))
    parts: list[int | bytes] = [
        b'{"counter":2,"stateVersion":3,"timestamp":1}',
        2,
        b"A 4 8 6 MULTI_TAG",
        b"B 16 16 6 SINGLE_TAG",
        b'["10.0.0.1:1"]',
    ]
    assert inflated == layout(*parts)
    parts[2:4] = [b'A 4 8 6 MULTI_TAG {"k":"with a blank"}', b"B 16 16 6 SINGLE_TAG {}"]
    mapping = b'{"bname":"b","currIdMap":{0:1},"epoch":0,"topic":"A","totalQueues":0}'
    assert zlib.decompress(REGISTRATION.encode_compressed(version=V5_3_3)) == layout(*parts, 1, mapping)


def layout(*parts: int | bytes) -> bytes:
    return b"".join(
        struct.pack(">i", part) if isinstance(part, int) else struct.pack(">i", len(part)) + part for part in parts
    )


def test_the_compressed_registration_comes_back() -> None:
    """In both versions; 4.9 loses the attributes and mappings that it does not have."""
    data = REGISTRATION.encode_compressed(version=V5_3_3)
    assert RegisterBrokerBody.decode_compressed(data, version=V5_3_3, size_max=10_000) == REGISTRATION
    data = REGISTRATION.encode_compressed(version=V4_9_4)
    wrapper = RegisterBrokerBody.decode_compressed(
        data, version=V4_9_4, size_max=10_000
    ).topic_config_serialize_wrapper
    assert wrapper.topic_config_table["B"] == TopicConfig("B")
    assert wrapper.topic_queue_mapping_info_map is None


def test_inflation_stops_at_its_limit() -> None:
    """Just under, at and over the limit, no room at all, and a bomb of a gigabyte."""
    data = REGISTRATION.encode_compressed(version=V5_3_3)
    size = len(zlib.decompress(data))
    for size_max in (size, size + 1):
        RegisterBrokerBody.decode_compressed(data, version=V5_3_3, size_max=size_max)
    for size_max in (0, 1, size - 1):
        with pytest.raises(RemoteProtocolError, match="more than"):
            RegisterBrokerBody.decode_compressed(data, version=V5_3_3, size_max=size_max)
    bomb = zlib.compressobj(9)
    packed = b"".join(bomb.compress(bytes(1 << 20)) for _ in range(64)) + bomb.flush()
    with pytest.raises(RemoteProtocolError, match="more than"):
        RegisterBrokerBody.decode_compressed(packed, version=V5_3_3, size_max=1_000)


VERSION_BYTES = VERSION.encode()


@pytest.mark.parametrize(
    "inflated",
    [
        b"",
        b"\x00",
        layout(2**31 - 1),
        layout(-1),
        layout(b""),
        layout(VERSION_BYTES),
        layout(VERSION_BYTES, 2**31 - 1),
        layout(VERSION_BYTES, 1, b"A 4 8 6"),
        layout(VERSION_BYTES, 1, b"A 4 8 6 NONE", b"[]"),
        layout(VERSION_BYTES, 1, b"A 4 x 6 SINGLE_TAG", b"[]"),
        layout(VERSION_BYTES, 1, b"A 4 8 6 SINGLE_TAG {", b"[]"),
        layout(VERSION_BYTES, 0, b"{}"),
        layout(VERSION_BYTES, 0, b"[[]]"),
        layout(VERSION_BYTES, 0, b"[]", 5),
        layout(VERSION_BYTES, 0, b"[]", 1, b"[]"),
    ],
)
def test_broken_compressed_registrations_are_refused(inflated: bytes) -> None:
    """Lengths and counts that lie, lines that are no topic, and parts that are no JSON."""
    with pytest.raises(RemoteProtocolError):
        RegisterBrokerBody.decode_compressed(zlib.compress(inflated), version=V5_3_3, size_max=10_000)


def test_every_cut_of_a_compressed_registration_is_refused() -> None:
    """Cuts the stream, and the inflated bytes, at every position."""
    data = REGISTRATION.encode_compressed(version=V5_3_3)
    inflated = zlib.decompress(data)
    # Without its last part the body is that of an older sender.
    complete = len(inflated) - len(
        layout(1, b'{"bname":"b","currIdMap":{0:1},"epoch":0,"topic":"A","totalQueues":0}')
    )
    for cut in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            RegisterBrokerBody.decode_compressed(data[:cut], version=V5_3_3, size_max=10_000)
    for cut in set(range(len(inflated))) - {complete}:
        with pytest.raises(RemoteProtocolError):
            RegisterBrokerBody.decode_compressed(zlib.compress(inflated[:cut]), version=V5_3_3, size_max=10_000)


@calmly
@given(st.data(), st.binary(max_size=40))
def test_any_compressed_bytes_give_a_body_or_a_protocol_error(data: st.DataObject, noise: bytes) -> None:
    """Noise, compressed noise, and a registration with noise in one place."""
    inflated = zlib.decompress(REGISTRATION.encode_compressed(version=V5_3_3))
    at = data.draw(st.integers(0, len(inflated)))
    for attempt in (
        noise,
        zlib.compress(noise),
        zlib.compress(inflated[:at] + noise + inflated[at + len(noise) :]),
    ):
        with contextlib.suppress(RemoteProtocolError):
            RegisterBrokerBody.decode_compressed(attempt, version=V5_3_3, size_max=10_000)


@every_class
@calmly
@given(data=st.data())
def test_every_body_round_trips(cls: type[Body], data: st.DataObject) -> None:
    """Generated values of each declaration, through both forms."""
    body = data.draw(strategies.bodies(cls))
    assert cls.decode(body.encode()) == body
    assert cls.decode(body.encode(standard=True)) == body


@every_class
@calmly
@given(data=st.data())
def test_any_json_gives_a_body_or_a_protocol_error(cls: type[Body], data: st.DataObject) -> None:
    """Random JSON as the whole body and as its fields, and a cut through a body that was right."""
    names = st.sampled_from([plan.wire_name for plan in field_plans(cls)])
    value: Any = data.draw(strategies.json_values | st.dictionaries(names, strategies.json_values, max_size=4))
    whole = data.draw(strategies.bodies(cls)).encode()
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    for text in (orjson.dumps(value), orjson.dumps([value]), cut, data.draw(st.binary(max_size=30))):
        with contextlib.suppress(RemoteProtocolError):
            cls.decode(text)
