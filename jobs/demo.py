"""The whole product in two minutes: what `make demo` runs, on a broker and a store of its own.

Orders are produced, a streaming query counts them and writes the counts back as messages, a plain consumer prints
these; the group's lag is shown before and after; then the broker's files are read without the broker. Nothing is
left running, and nothing is left on disk.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from rmq_core import Admin, LitePullConsumer, Message, Producer, embedded
from rmq_spark import job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmq_core.embedded_broker import EmbeddedBroker

ORDERS, COUNTS, GROUP = "Orders", "OrderCounts", "spark-orders"
STATES = ("paid", "shipped", "returned")
SHOPS = ("Berlin", "Lisbon", "Osaka", "Quito")
WAIT_S = 60
console = Console(highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 once every step has shown what it should."""
    parser = job.parser(__doc__, prog="demo")
    parser.add_argument("--orders", type=job.positive, default=20_000, help="how many (default: %(default)s)")
    given = parser.parse_args(arguments)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rmq-demo-") as folder, embedded(Path(folder, "store")) as mq:
        step(f"A broker with its name server, in a process of its own: {mq.name_server}")
        mq.create_topic(ORDERS, queues=4)
        mq.create_topic(COUNTS, queues=1)
        produce(mq, given)
        with job.spark_session("demo") as spark:
            aggregate(spark, mq, Path(folder, "checkpoint"), given)
            show_counts(mq, given)
            show_store(spark, mq, given)
    step(f"Done in {time.monotonic() - started:.0f} s; nothing is left running, and the store is gone")
    return 0


def step(text: str) -> None:
    console.print(f"\n[bold]▸ {text}[/bold]")


def produce(mq: EmbeddedBroker, given: argparse.Namespace) -> None:
    """Send orders, those of one customer in their order."""
    step(f"Producing {given.orders:,} orders to the topic {ORDERS}")
    pick = random.Random(42)
    begun = time.monotonic()
    with Producer("shop", name_server=mq.name_server) as producer:
        for first in range(0, given.orders, 500):
            batch = [
                Message(ORDERS, order(pick, number), tags=pick.choice(STATES), keys=f"order-{number}")
                for number in range(first, min(first + 500, given.orders))
            ]
            producer.send_batch(batch)
    seconds = time.monotonic() - begun
    console.print(f"  {given.orders:,} messages in {seconds:.1f} s, {given.orders / seconds:,.0f} a second")


def order(pick: random.Random, number: int) -> bytes:
    """The body of an order."""
    value = {"id": number, "shop": pick.choice(SHOPS), "amount": round(pick.uniform(5, 500), 2)}
    return json.dumps(value).encode()


def show_lag(mq: EmbeddedBroker, when: str) -> int:
    """Print how far the group is behind, queue by queue."""
    table = Table("queue", "end", "read", "lag", "oldest unread", title=f"Lag of {GROUP} on {ORDERS} {when}")
    with Admin(name_server=mq.name_server) as admin:
        lag = admin.lag(GROUP, topic=ORDERS)
    for each in lag:
        age = "" if each.oldest_unread_age is None else f"{each.oldest_unread_age.total_seconds():.1f} s"
        table.add_row(str(each.queue.queue_id), f"{each.end:,}", f"{each.committed:,}", f"{each.count:,}", age)
    console.print(table)
    return lag.count


def aggregate(spark: SparkSession, mq: EmbeddedBroker, checkpoint: Path, given: argparse.Namespace) -> None:
    """Count orders by shop and state in a streaming query, and write the result back as messages."""
    from pyspark.sql import functions as f

    step(f"A group is born: {GROUP} starts at the first message of {ORDERS}, and has read nothing")
    with Admin(name_server=mq.name_server) as admin:
        admin.create_group(GROUP)
        admin.reset_offsets(GROUP, ORDERS, to="earliest")
    show_lag(mq, "before")
    step(f"Spark streams {ORDERS}, counts by shop and state, and writes to {COUNTS}")
    # The default of 200 is for clusters; here each would be a task that writes nothing.
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    options = {"nameServer": mq.name_server}
    orders = spark.readStream.format("rocketmq").options(**options, topic=ORDERS, group=GROUP).load()
    parsed = orders.select(
        "tags", f.from_json(f.col("body").cast("string"), "shop string, amount double").alias("o")
    )
    counts = parsed.groupBy("o.shop", "tags").agg(
        f.count("*").alias("orders"), f.round(f.sum("o.amount"), 2).alias("amount")
    )
    result = counts.select(
        f.to_json(f.struct("shop", "tags", "orders", "amount")).alias("body"), "tags", f.col("shop").alias("keys")
    )
    query = (
        result.writeStream.format("rocketmq")
        .options(**options, topic=COUNTS, checkpointLocation=str(checkpoint))
        .outputMode("complete")
        .queryName("orders by shop")
        .trigger(availableNow=True)
        .start()
    )
    job.run_stream(query, ORDERS)
    read = sum(each["numInputRows"] for each in query.recentProgress)
    console.print(f"  {read:,} orders read in {len(query.recentProgress)} micro-batch(es)")
    if read != given.orders:
        raise job.JobError(f"the query read {read} of {given.orders} orders")
    if (left := show_lag(mq, "after")) != 0:
        raise job.JobError(f"the group is {left} messages behind after the query has read all")


def show_counts(mq: EmbeddedBroker, given: argparse.Namespace) -> None:
    """Print what the query wrote, as a plain consumer gets it."""
    step(f"A plain Python consumer reads {COUNTS}")
    wanted = len(SHOPS) * len(STATES)
    table = Table("shop", "state", "orders", "amount")
    found: list[dict[str, Any]] = []
    with LitePullConsumer("counter", name_server=mq.name_server, start_from="earliest") as consumer:
        consumer.subscribe(COUNTS)
        deadline = time.monotonic() + WAIT_S
        while len(found) < wanted and time.monotonic() < deadline:
            found += [json.loads(message.body) for message in consumer.poll(timeout_ms=1_000)]
    for each in sorted(found, key=lambda row: (row["shop"], row["tags"])):
        table.add_row(each["shop"], each["tags"], f"{each['orders']:,}", f"{each['amount']:,.2f}")
    console.print(table)
    if sum(each["orders"] for each in found) != given.orders:
        raise job.JobError(f"the counts do not add up to {given.orders} orders: {found}")


def show_store(spark: SparkSession, mq: EmbeddedBroker, given: argparse.Namespace) -> None:
    """Read the commit log from its files."""
    from pyspark.sql import functions as f

    mq.close()
    step("The broker is stopped; Spark reads its files")
    log = spark.read.format("rocketmq").option("columns", "topic,queueId,body,storeTimestamp,storeSize")
    rows = log.load(str(mq.store_path)).where(f.col("topic").isin(ORDERS, COUNTS))
    summary = rows.groupBy("topic").agg(
        f.count("*").alias("messages"),
        f.countDistinct("queueId").alias("queues"),
        f.round(f.avg(f.length("body")), 1).alias("mean body"),
        f.sum("storeSize").alias("bytes"),
        f.min("storeTimestamp").alias("first"),
    )
    table = Table("topic", "messages", "queues", "mean body", "bytes in the log", "first")
    total = 0
    for row in summary.orderBy(f.desc("messages")).collect():
        total += row["messages"]
        table.add_row(
            row["topic"], f"{row['messages']:,}", str(row["queues"]), f"{row['mean body']:.1f}",
            f"{row['bytes']:,}", f"{row['first']:%H:%M:%S}",
        )  # fmt: skip
    console.print(table)
    if total != given.orders + len(SHOPS) * len(STATES):
        raise job.JobError(f"{total} messages were found in the files")


if __name__ == "__main__":
    sys.exit(job.exit_code(main))
