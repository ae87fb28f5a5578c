"""Look at the dead letters of a consumer group, export them, or send them again.

report   counts by origin, tag and hour, and the newest ones
export   writes them as Parquet, JSON or CSV
resend   sends them to the topic they came from, or to another one, with their ORIGIN_ properties. What was sent
         again is remembered as the progress of a group of its own, and not sent a second time unless asked for.

  python -m jobs.dead_letters report --group billing
  python -m jobs.dead_letters export --group billing --output letters --format json
  spark-submit jobs/dead_letters.py resend --group billing --where "tags = 'paid'"
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rmq_core.client.queue_client import QueueClient
from rmq_core.errors import BrokerError, NoRouteError
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.message import MessageQueue, dlq_topic
from rmq_spark import job, resending
from rmq_spark.offsets import QueueOffsets, nested
from rmq_spark.options import Scope, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def resent_group(group: str) -> str:
    """The group whose progress tells what was sent again."""
    return f"RESENT-{group}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 once it is done, also where there are no dead letters."""
    parser = job.parser(__doc__, prog="dead_letters")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("report", "count them"), ("export", "write them to files"), ("resend", "send them again")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--group", required=True, help="the consumer group that failed to consume them")
        command.add_argument("--where", help="only rows for which this SQL expression holds")
        job.add_cluster(command)
        if name == "export":
            command.add_argument("--output", required=True, help="folder to write to")
            command.add_argument("--format", choices=("parquet", "json", "csv"), default="parquet")
        if name == "resend":
            command.add_argument("--to-topic", help="topic to send to (default: where each came from)")
            command.add_argument("--again", action="store_true", help="also those that were sent again before")
            command.add_argument("--rate", type=job.positive, help="messages a second at most")
    given = parser.parse_args(arguments)
    with job.spark_session(f"dead letters of {given.group}") as spark, _client(given) as client:
        topic = dlq_topic(given.group)
        try:
            queues = client.queues(topic)
        except NoRouteError:
            job.say(f"group {given.group} has no dead letters: there is no topic {topic}")
            return 0
        start, end = _range(client, queues, given)
        rows = _rows(spark, given, topic, start, end)
        if given.command == "report":
            report(rows)
        elif given.command == "export":
            export(spark, rows, given.output, given.format)
        else:
            _make_sure_of_group(client, start)
            resend(spark, rows, given)
            client.commit(end)
    return 0


def _client(given: argparse.Namespace) -> QueueClient:
    settings = parse({"topic": dlq_topic(given.group), **job.cluster_options(given)}, Scope.READ)
    return QueueClient(settings.client_options(), group=resent_group(given.group))


def _make_sure_of_group(client: QueueClient, start: QueueOffsets) -> None:
    """Store where the job starts: what cannot be remembered had better not be sent."""
    from rmq_core.client.blocking.admin import Admin

    try:
        client.commit(start)
    except BrokerError as error:
        if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            raise
        options = client.options
        with Admin(
            name_server=list(options.name_servers),
            namespace=options.namespace,
            credentials=options.credentials,
            tls=options.tls or False,
            broker_address_map=options.broker_address_map,
        ) as admin:
            admin.create_group(client.group)
        client.commit(start)


def _range(
    client: QueueClient, queues: Sequence[MessageQueue], given: argparse.Namespace
) -> tuple[QueueOffsets, QueueOffsets]:
    start, end = client.min_offsets(queues), client.max_offsets(queues)
    if given.command == "resend" and not given.again:
        for queue, done in client.group_offsets(queues).items():
            start[queue] = min(max(start[queue], done or 0), end[queue])
    return start, end


def _rows(
    spark: SparkSession, given: argparse.Namespace, topic: str, start: QueueOffsets, end: QueueOffsets
) -> DataFrame:
    import json

    from pyspark.sql import functions as f

    options = {
        "topic": topic,
        "columns": resending.SENT_COLUMNS,
        "startingOffsets": json.dumps(nested(start)),
        "endingOffsets": json.dumps(nested(end)),
        **job.cluster_options(given),
    }
    of = f.col("properties")
    origin = f.coalesce(of["DLQ_ORIGIN_TOPIC"], of["ORIGIN_TOPIC"], of["RETRY_TOPIC"], of["REAL_TOPIC"])
    msg_id = f.coalesce(of["DLQ_ORIGIN_MESSAGE_ID"], of["ORIGIN_MSG_ID"], of["ORIGIN_MESSAGE_ID"], f.col("msgId"))
    rows = spark.read.format("rocketmq").options(**options).load()
    rows = rows.withColumns({"originTopic": origin, "originMsgId": msg_id})
    return rows.where(given.where) if given.where else rows


def report(rows: DataFrame) -> None:
    """Print how many there are, where they came from, and the newest."""
    from pyspark.sql import functions as f

    rows = rows.cache()
    try:
        found = rows.groupBy("originTopic", "tags").agg(
            f.count("*").alias("count"),
            f.min("storeTimestamp").alias("first"),
            f.max("storeTimestamp").alias("last"),
        )
        hour = f.date_trunc("hour", "storeTimestamp").alias("hour")
        by_hour = rows.groupBy(hour).count().orderBy("hour").collect()
        newest = rows.orderBy(f.desc("storeTimestamp")).limit(5).collect()
        job.show(f"{rows.count()} dead letters")
        _table(
            ("from topic", "tags", "count", "first", "last"),
            [tuple(row) for row in found.orderBy(f.desc("count")).collect()],
        )
        _table(("hour", "count"), [tuple(row) for row in by_hour])
        _table(
            ("stored", "from topic", "message id", "keys", "body"),
            [
                (row["storeTimestamp"], row["originTopic"], row["originMsgId"], row["keys"], _short(row["body"]))
                for row in newest
            ],
        )
    finally:
        rows.unpersist()


def _short(body: bytes) -> str:
    text = bytes(body).decode("utf-8", "replace").replace("\n", " ")
    return text if len(text) <= 60 else text[:59] + "…"


def _table(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*names)
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row))
    Console().print(table)


def export(spark: SparkSession, rows: DataFrame, output: str, kind: str) -> None:
    """Write them to files; JSON and CSV have the body as text and the properties as JSON."""
    from pyspark.sql import functions as f

    if kind != "parquet":
        rows = rows.withColumn("body", f.decode("body", "UTF-8"))
    if kind == "csv":
        rows = rows.withColumn("properties", f.to_json("properties"))
    counted = job.Counted(rows)
    with job.progress_shown(spark, output):
        counted.rows.write.format(kind).option("header", "true").mode("errorifexists").save(output)
    counted.told(f"dead letters written to {output}")


def resend(spark: SparkSession, rows: DataFrame, given: argparse.Namespace) -> None:
    """Send them again. Raises JobError where it is not known where one came from."""
    from pyspark.sql import functions as f

    target = job.cluster_options(given)
    if given.to_topic:
        target["topic"] = given.to_topic
    else:
        lost = rows.where("originTopic IS NULL").count()
        if lost:
            raise job.JobError(f"{lost} dead letters do not say which topic they came from; give --to-topic")
    # Their origin is the topic that they came from; that they were dead letters is not worth keeping.
    first = rows.withColumns({"topic": f.col("originTopic"), "msgId": f.col("originMsgId")})
    sent = resending.with_origin(first.drop("broker", "queueId", "queueOffset"))
    counted = job.Counted(resending.throttled(sent, given.rate))
    with job.progress_shown(spark, f"resend {given.group}"):
        counted.rows.write.format("rocketmq").options(**target).mode("append").save()
    counted.told("dead letters sent again")


if __name__ == "__main__":
    sys.exit(job.exit_code(main))
