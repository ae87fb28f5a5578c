"""One row, online and offline, in Arrow and in Spark: names, types and order are fixed here."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from rmq_core.columnar import COLUMNS, row_schema
from rmq_spark.errors import Condition, SparkRocketMQError
from rmq_spark.options import parse
from rmq_spark.rows import checked_columns, spark_schema, spark_schema_of
from support.spark_world import broker_of_its_own, eventually, stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT = (
    "topic string, broker string, queueId int, queueOffset bigint, body binary, tags string, keys string, "
    "msgId string, bornTimestamp timestamp, storeTimestamp timestamp"
)
MORE = (
    "properties map<string,string>, offsetMsgId string, bornHost string, storeHost string, sysFlag int, flag int, "
    "reconsumeTimes int, bodyCrc int, commitLogOffset bigint, storeSize int, preparedTransactionOffset bigint"
)


def ddl(schema: Any) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)


def test_the_default_row_never_changes() -> None:
    """C169: state that queries keep must still fit after an upgrade."""
    assert ddl(spark_schema(parse({}))) == DEFAULT
    assert ddl(spark_schema(parse({"includeProperties": "true"}))) == f"{DEFAULT}, properties map<string,string>"
    assert ddl(spark_schema(parse({"columns": "all"}))) == f"{DEFAULT}, {MORE}"
    assert all(field.nullable for field in spark_schema(parse({"columns": "all"})))


def test_arrow_batches_have_the_types_that_spark_demands() -> None:
    """Spark refuses a batch whose schema differs in order, type or nullability."""
    assert to_arrow_schema(spark_schema_of(COLUMNS), timezone="UTC").equals(row_schema("all"))


def test_a_wrong_column_is_named_with_the_nearest() -> None:
    """By the option, and by a schema."""
    with pytest.raises(SparkRocketMQError, match="queueOffset") as error:
        spark_schema(parse({"columns": "queueOfset"}))
    assert error.value.condition is Condition.BAD_OPTION


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("queue int", "no column queue"),
        ("body string", "body is binary, and the schema says string"),
        ("queueId bigint", "queueId is int"),
        ("properties map<string,binary>", "properties is map<string,string>"),
    ],
)
def test_a_schema_must_be_part_of_the_row(spark: SparkSession, schema: str, text: str) -> None:
    """C167; a column that may not be null is refused too, as every one may be."""
    with pytest.raises(SparkRocketMQError, match=text) as error:
        checked_columns(_schema(schema), parse({}))
    assert error.value.condition is Condition.BAD_COLUMN
    subset = _schema("queueOffset bigint, body binary")
    assert checked_columns(subset, parse({})) == ("queueOffset", "body")
    strict = StructType().add("body", "binary", nullable=False)
    with pytest.raises(SparkRocketMQError, match="nullable"):
        checked_columns(strict, parse({}))
    with pytest.raises(SparkRocketMQError, match="give one of them"):
        checked_columns(_schema("body binary"), parse({"columns": "body,tags"}))


def _schema(text: str) -> StructType:
    made = StructType.fromDDL(text)
    assert isinstance(made, StructType)
    return made


def test_the_same_message_is_the_same_row_online_and_offline(spark: SparkSession, tmp_path: Path) -> None:
    """C173: all 21 columns of messages of many kinds; only `broker` has to be told to the offline reader."""
    texts = [
        "",
        "TAGS\x01a\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01ID\x02p\x01ü\x02",
        "p\x011\x02p\x012\x02",
        "broken\x02q\x01\x02",
    ]
    with broker_of_its_own(storePathRootDir=str(tmp_path)) as world:
        topic = world.topic(queues=2)
        for number, text in enumerate(texts):
            body = bytes([number, 255, 0]) * 50
            world.send(topic, [body], queue=number % 2, raw_properties=text, flag=number, reconsume_times=number)

        def load(**options: str) -> Any:
            everything = {"topic": topic, "columns": "all", **options}
            return spark.read.format("rocketmq").options(**everything).load()

        def offline() -> Any:
            return load(path=str(tmp_path), brokerName="embedded")

        online = load(nameServer=world.mq.name_server)
        assert online.count() == len(texts)
        eventually(lambda: stored(tmp_path, topic, len(texts)), "the queue's files to follow the log")
        assert online.schema == offline().schema
        ordered = [frame.orderBy("commitLogOffset").collect() for frame in (online, offline())]
    assert ordered[0] == ordered[1]
    assert [row["flag"] for row in ordered[0]] == [0, 1, 2, 3]


def test_what_travels_to_executors_is_small_and_plain() -> None:
    """Readers are pickled with every task: settings and columns, no connection."""
    from rmq_spark.batch_reader import RocketMQBatchReader
    from rmq_spark.file_reader import RocketMQFileReader
    from rmq_spark.options import Scope

    settings = parse({"nameServer": "n:1", "topic": "T"}, Scope.READ)
    for made in (RocketMQBatchReader(settings, ("body",)), RocketMQFileReader(settings, ("body",))):
        pickled = pickle.dumps(made)
        assert len(pickled) < 4000
        assert pickle.loads(pickled).__dict__ == made.__dict__
