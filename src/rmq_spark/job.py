"""What the jobs of the command line have in common: options of a cluster, progress, exit codes.

Exit   0 done; 1 it failed, with one sentence on stderr; 2 the command line is wrong; 130 interrupted.
Keys   of a cluster come from ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY: a command line is seen by everybody.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from rmq_core.client.options import NAME_SERVER_DEFAULT, NAME_SERVER_VARIABLE
from rmq_core.errors import RocketMQError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FAILED, WRONG, INTERRUPTED = 1, 2, 130
ACCESS_KEY: Final = "ROCKETMQ_ACCESS_KEY"
SECRET_KEY: Final = "ROCKETMQ_SECRET_KEY"
_LINE_S: Final = 5.0
_CONDITION: Final = re.compile(r"\[ROCKETMQ_[A-Z_]+\] [^\n]*")


class JobError(RocketMQError):
    """The job cannot be done; the text says why."""


def say(text: str) -> None:
    """A line of progress; standard output stays for results."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def show(text: str) -> None:
    """A line of the result."""
    print(text, flush=True)  # noqa: T201


def exit_code(main: Callable[[Sequence[str] | None], int]) -> int:
    """Run a job as a program: what it raises becomes a sentence and a code."""
    try:
        return main(None)
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except Exception as error:
        say(f"failed: {reason(error)}")
        return FAILED


def reason(error: BaseException) -> str:
    """One sentence: errors of the connector arrive inside those of Spark, with both stacks."""
    found = _CONDITION.search(str(error))
    if found is not None:
        return found[0]
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0]}" if first else type(error).__name__


# The command line


def parser(doc: str | None, *, prog: str) -> argparse.ArgumentParser:
    """A parser whose help is the job's own description."""
    return argparse.ArgumentParser(
        prog=f"python -m jobs.{prog}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_cluster(target: argparse.ArgumentParser) -> None:
    """The options that say where brokers are."""
    default = os.environ.get(NAME_SERVER_VARIABLE) or NAME_SERVER_DEFAULT
    group = target.add_argument_group("cluster")
    group.add_argument("-n", "--name-server", default=default, help="host:port;host:port (default: %(default)s)")
    group.add_argument("--namespace", help="namespace of topics and groups")
    group.add_argument("--tls", action="store_true", help="speak TLS")
    group.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        type=option,
        help="any other option of the format rocketmq; may be given several times",
    )


def option(given: str) -> tuple[str, str]:
    """NAME=VALUE."""
    name, equals, value = given.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{given!r} is not NAME=VALUE")
    return name, value


def moment(given: str) -> datetime:
    """A time with a zone; one without counts as UTC."""
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{given!r} is no time; give it as in 2026-11-01 or 2026-11-01T12:30:00+01:00"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def milliseconds(when: datetime) -> str:
    """As options of the format take a time."""
    return str(round(when.timestamp() * 1000))


def positive(given: str) -> int:
    """A whole number above zero."""
    if not given.isdecimal() or not int(given):
        raise argparse.ArgumentTypeError(f"{given!r} is no whole number above zero")
    return int(given)


def cluster_options(given: argparse.Namespace, *, name_server: str | None = None) -> dict[str, str]:
    """Options of the format for the cluster of the command line, or for another one with the same trust."""
    options = {"nameServer": name_server or given.name_server}
    if given.namespace:
        options["namespace"] = given.namespace
    if given.tls:
        options["tls"] = "true"
    if os.environ.get(ACCESS_KEY):
        options |= {"accessKey": os.environ[ACCESS_KEY], "secretKey": os.environ.get(SECRET_KEY, "")}
    return options | dict(given.option)


# Spark


@contextlib.contextmanager
def spark_session(name: str) -> Iterator[SparkSession]:
    """The running session, or one that ends with the block. Times of day are those of UTC."""
    from pyspark.sql import SparkSession

    import rmq_spark

    running = SparkSession.getActiveSession()
    session = rmq_spark.session(name, **{"spark.ui.showConsoleProgress": "false"})
    if running is None:
        with contextlib.suppress(Exception):  # Spark Connect has no log level to set
            session.sparkContext.setLogLevel("ERROR")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        yield session
    finally:
        if running is None:
            session.stop()


@contextlib.contextmanager
def progress_shown(session: SparkSession, what: str) -> Iterator[None]:
    """Say from time to time how many tasks of the block's Spark jobs are done."""
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(session, what, over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(session: SparkSession, what: str, over: threading.Event) -> None:
    started = time.monotonic()
    while not over.wait(_LINE_S):
        tasks = ""
        with contextlib.suppress(Exception):  # without a SparkContext (Connect) the time alone is shown
            tracker = session.sparkContext.statusTracker()
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            done = sum(each.numCompletedTasks for each in stages if each is not None)
            tasks = f", {done} of {sum(each.numTasks for each in stages if each is not None)} tasks"
        say(f"{what}: {time.monotonic() - started:,.0f} s{tasks}")


class Counted:
    """Counts the rows of a DataFrame on their way, without reading them twice."""

    def __init__(self, rows: DataFrame) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        self._seen = Observation()
        self.rows = rows.observe(self._seen, f.count(f.lit(1)).alias("rows"))
        self._started = time.monotonic()

    def told(self, what: str) -> int:
        """Say how many there were, and how fast; to be called once they were written."""
        count = int(self._seen.get["rows"])
        seconds = max(time.monotonic() - self._started, 0.001)
        say(f"{count:,} {what} in {seconds:,.1f} s, {count / seconds:,.0f} a second")
        return count


def run_stream(query: StreamingQuery, what: str) -> None:
    """Wait for a query and say what each micro-batch did; SIGINT and SIGTERM stop it in good order."""
    stop = threading.Event()
    with _told_by_signals(stop):
        shown = -1
        while query.isActive and not stop.is_set():
            query.awaitTermination(1)
            shown = _say_new(query, what, shown)
        if stop.is_set():
            say("stopping")
            query.stop()
        _say_new(query, what, shown)
    if (error := query.exception()) is not None:
        raise error


def _say_new(query: StreamingQuery, what: str, shown: int) -> int:
    for each in query.recentProgress:
        if each["batchId"] > shown and each["numInputRows"]:
            shown = each["batchId"]
            say(f"{what}: micro-batch {shown}, {each['numInputRows']:,} rows")
    return shown


@contextlib.contextmanager
def _told_by_signals(stop: threading.Event) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def tell(number: int, frame: FrameType | None) -> None:
        stop.set()

    before: dict[int, Any] = {each: signal.signal(each, tell) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
