"""Write a store directory as Parquet, without a broker: a running one's, a crashed one's, a copy in object storage.

Files are partitioned by topic and day (of UTC). Damaged records are skipped and counted in the executors' logs, or
fail the job with --on-corrupt fail.

  python -m jobs.store_to_parquet --store /var/rocketmq/store --output archive
  spark-submit jobs/store_to_parquet.py --store s3://bucket/broker-a/store --topic Orders --output s3a://bucket/orders
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rmq_spark import job


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 once everything is written."""
    parser = job.parser(__doc__, prog="store_to_parquet")
    parser.add_argument("--store", required=True, help="store directory, or a URL that fsspec knows")
    parser.add_argument("--output", required=True, help="folder for the Parquet files")
    parser.add_argument("--topic", help="only this topic, by its queues (default: the whole commit log)")
    parser.add_argument("--start", type=job.moment, help="only messages stored at this time or later")
    parser.add_argument("--end", type=job.moment, help="only messages stored before this time")
    parser.add_argument("--broker-name", help="what the column broker shows")
    parser.add_argument("--on-corrupt", choices=("skip", "fail"), default="skip", help="default: %(default)s")
    parser.add_argument(
        "--mode",
        choices=("errorifexists", "append", "overwrite"),
        default="errorifexists",
        help="default: %(default)s",
    )
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", type=job.option, help="any other option"
    )
    given = parser.parse_args(arguments)
    options = {"columns": "all", "onCorrupt": given.on_corrupt, **dict(given.option)}
    if given.topic:
        options["topic"] = given.topic
    if given.start:
        options["startingTimestamp"] = job.milliseconds(given.start)
    if given.end:
        options["endingTimestamp"] = job.milliseconds(given.end)
    if given.broker_name:
        options["brokerName"] = given.broker_name
    with job.spark_session("store to Parquet") as spark:
        rows = spark.read.format("rocketmq").options(**options).load(given.store)
        counted = job.Counted(rows.selectExpr("*", "to_date(storeTimestamp) AS day"))
        with job.progress_shown(spark, given.store):
            counted.rows.write.partitionBy("topic", "day").mode(given.mode).parquet(given.output)
        counted.told("messages written")
    return 0


if __name__ == "__main__":
    sys.exit(job.exit_code(main))
