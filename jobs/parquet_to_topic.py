"""Send rows of Parquet files as messages, such as an archive that `jobs.topic_to_parquet` made.

A file needs a column `body`, or --body says how to make it. Columns tags, keys, properties, shardingKey,
delayTimeLevel, deliverTime and flag are sent as what they are. Rows of an archive keep their order: those of one
queue go to one queue, and say in ORIGIN_ properties where they came from.

  python -m jobs.parquet_to_topic --input archive/orders --topic OrdersAgain --where "day >= '2026-11-01'"
  spark-submit jobs/parquet_to_topic.py --input people.parquet --topic People --body "to_json(struct(*))" --keys id
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rmq_spark import job, resending
from rmq_spark.options import Scope, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EXPRESSIONS = ("body", "keys", "tags", "sharding_key")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 once every row is acknowledged by a broker."""
    parser = job.parser(__doc__, prog="parquet_to_topic")
    parser.add_argument("--input", required=True, help="Parquet file or folder")
    parser.add_argument("--topic", required=True, help="topic to send to")
    parser.add_argument("--where", help="only rows for which this SQL expression holds")
    parser.add_argument("--body", help="SQL expression for the body, as in to_json(struct(*))")
    parser.add_argument("--keys", help="SQL expression for the keys")
    parser.add_argument("--tags", help="SQL expression for the tags")
    parser.add_argument("--sharding-key", help="SQL expression: rows with an equal value go to one queue")
    parser.add_argument("--rate", type=job.positive, help="messages a second at most")
    job.add_cluster(parser)
    given = parser.parse_args(arguments)
    options = {"topic": given.topic, **job.cluster_options(given)}
    settings = parse(options, Scope.WRITE)
    with job.spark_session(f"Parquet to {given.topic}") as spark:
        rows = _messages(spark.read.parquet(given.input), given)
        if {"broker", "queueId", "queueOffset"} <= set(rows.columns):
            count = resending.queue_count(settings, given.topic)
            rows = _in_order(resending.in_their_queues(resending.with_origin(rows), count))
        counted = job.Counted(resending.throttled(rows, given.rate))
        with job.progress_shown(spark, given.topic):
            counted.rows.write.format("rocketmq").options(**options).mode("append").save()
        counted.told(f"messages sent to {given.topic}")
    return 0


def _messages(rows: DataFrame, given: argparse.Namespace) -> DataFrame:
    from pyspark.sql import functions as f

    if given.where:
        rows = rows.where(given.where)
    made = {name: f.expr(getattr(given, name)) for name in _EXPRESSIONS if getattr(given, name)}
    names = {"sharding_key": "shardingKey"}
    columns = {
        names.get(name, name): each if name == "body" else each.cast("string") for name, each in made.items()
    }
    if "body" not in rows.columns and "body" not in columns:
        raise job.JobError(
            f'{given.input} has no column body; say how to make it, as in --body "to_json(struct(*))" '
            f"(there are {', '.join(rows.columns)})"
        )
    return rows.withColumns(columns)


def _in_order(rows: DataFrame) -> DataFrame:
    """The rows of each queue of the archive in one task, in their order."""
    place = [name for name in ("topic", "broker", "queueId") if name in rows.columns]
    return rows.repartition(*place).sortWithinPartitions(*place, "queueOffset")


if __name__ == "__main__":
    sys.exit(job.exit_code(main))
