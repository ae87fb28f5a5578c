"""Send messages of a topic again, to another topic, here or in another cluster: a range, or a window of time.

What is sent is fixed when the job starts. Each queue keeps its order: queue n goes to queue n of the target, modulo
its number of queues. Where messages came from is kept in ORIGIN_ properties; a replay of a replay keeps the first
origin.

  python -m jobs.replay --topic Orders --to-topic Test --start 2026-11-01T08:00 --end 2026-11-01T09:00 --rate 500
  spark-submit jobs/replay.py --topic Orders --to-topic Orders --to-name-server dr:9876 --tags "paid || shipped"
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rmq_spark import job, resending
from rmq_spark.options import Scope, parse


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 once every message is acknowledged by the target."""
    parser = job.parser(__doc__, prog="replay")
    parser.add_argument("--topic", required=True, help="topic to read")
    parser.add_argument("--to-topic", required=True, help="topic to send to")
    parser.add_argument("--to-name-server", help="name server of the other cluster (default: the same cluster)")
    _add_range(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--tags", help="only messages with one of these tags, as in a || b")
    what.add_argument("--sql", help="only messages for which this SQL92 expression over their properties holds")
    parser.add_argument("--where", help="only rows for which this Spark SQL expression holds")
    parser.add_argument(
        "--spread", action="store_true", help="use all queues of the target; queues lose their order"
    )
    parser.add_argument("--rate", type=job.positive, help="messages a second at most")
    parser.add_argument("--dry-run", action="store_true", help="count the messages, and send nothing")
    parser.add_argument(
        "--to-option", action="append", default=[], metavar="NAME=VALUE", type=job.option, help="option of the sink"
    )
    job.add_cluster(parser)
    given = parser.parse_args(arguments)
    if given.to_topic == given.topic and given.to_name_server in (None, given.name_server):
        parser.error("--to-topic is the topic that is read; give another topic, or --to-name-server")
    target = {
        **job.cluster_options(given, name_server=given.to_name_server),
        "topic": given.to_topic,
        **dict(given.to_option),
    }
    settings = parse(target, Scope.WRITE)
    with job.spark_session(f"replay {given.topic}") as spark:
        rows = spark.read.format("rocketmq").options(**_source(given)).load()
        if given.where:
            rows = rows.where(given.where)
        if given.dry_run:
            job.show(f"{rows.count()} messages would be sent to {given.to_topic}")
            return 0
        rows = resending.with_origin(rows)
        if given.spread:
            rows = rows.drop("queueId")
        else:
            rows = resending.in_their_queues(rows, resending.queue_count(settings, given.to_topic))
        counted = job.Counted(resending.throttled(rows, given.rate))
        with job.progress_shown(spark, given.topic):
            counted.rows.write.format("rocketmq").options(**target).mode("append").save()
        counted.told(f"messages sent to {given.to_topic}")
    return 0


def _add_range(parser: argparse.ArgumentParser) -> None:
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--start", type=job.moment, help="messages stored at this time or later")
    start.add_argument("--start-offsets", metavar="JSON", help="offsets per topic, broker and queue, or earliest")
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--end", type=job.moment, help="messages stored before this time")
    end.add_argument("--end-offsets", metavar="JSON", help="offsets per topic, broker and queue, or latest")


def _source(given: argparse.Namespace) -> dict[str, str]:
    options = {
        "topic": given.topic,
        "columns": resending.SENT_COLUMNS,
        "startingOffsetsByTimestampStrategy": "latest",
        **job.cluster_options(given),
    }
    if given.start:
        options["startingTimestamp"] = job.milliseconds(given.start)
    if given.end:
        options["endingTimestamp"] = job.milliseconds(given.end)
    others = {
        "startingOffsets": given.start_offsets,
        "endingOffsets": given.end_offsets,
        "tags": given.tags,
        "sql": given.sql,
    }
    return options | {name: value for name, value in others.items() if value}


if __name__ == "__main__":
    sys.exit(job.exit_code(main))
