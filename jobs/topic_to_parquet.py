"""Archive a topic as Parquet: a streaming query that appends what arrives, partitioned by day (of UTC).

It goes on where it stopped, by its checkpoint, and each message is in the archive once. Progress is stored as that
of a consumer group, so that lag and resets work as for any other group. Every column of a message is kept:
`python -m jobs.parquet_to_topic` sends an archive again.

  python -m jobs.topic_to_parquet --topic Orders --output archive/orders --once
  spark-submit jobs/topic_to_parquet.py --topic Orders --output s3a://bucket/orders --interval "1 minute"
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rmq_spark import job


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 once everything there was is archived, or the query was asked to stop."""
    parser = job.parser(__doc__, prog="topic_to_parquet")
    parser.add_argument("--topic", required=True, help="topics to archive, with commas between them")
    parser.add_argument("--output", required=True, help="folder of the archive")
    parser.add_argument("--checkpoint", help="folder of the query's state (default: _checkpoint in the archive)")
    parser.add_argument("--group", help="consumer group (default: archive-<topic>)")
    parser.add_argument(
        "--starting",
        choices=("group", "earliest", "latest"),
        default="group",
        help="where a new archive starts; a group without progress starts at the first message (default: group)",
    )
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--once", action="store_true", help="archive what is there, and end")
    when.add_argument("--interval", default="1 minute", help="time between two files (default: %(default)s)")
    parser.add_argument("--max-messages", type=job.positive, help="messages in a micro-batch at most")
    job.add_cluster(parser)
    given = parser.parse_args(arguments)
    group = given.group or "archive-" + given.topic.replace(",", "-")
    options = {
        "subscribe": given.topic,
        "group": group,
        "startingOffsets": given.starting,
        "fallbackOffsets": "earliest",
        "columns": "all",
        **job.cluster_options(given),
    }
    if given.max_messages:
        options["maxOffsetsPerTrigger"] = str(given.max_messages)
    with job.spark_session(f"archive {given.topic}") as spark:
        rows = spark.readStream.format("rocketmq").options(**options).load()
        writer = (
            rows.selectExpr("*", "to_date(storeTimestamp) AS day")
            .writeStream.format("parquet")
            .partitionBy("day")
            .option("path", given.output)
            .option("checkpointLocation", given.checkpoint or given.output.rstrip("/") + "/_checkpoint")
            .queryName(f"archive {given.topic}")
        )
        writer = writer.trigger(availableNow=True) if given.once else writer.trigger(processingTime=given.interval)
        job.say(f"archiving {given.topic} to {given.output} as group {group}")
        job.run_stream(writer.start(), given.topic)
    return 0


if __name__ == "__main__":
    sys.exit(job.exit_code(main))
