"""The checks of `python -m rmq_spark doctor`: each says what it found, and what to do if that is not good."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rmq_core.client.queue_client import QueueClient
from rmq_core.errors import BrokerError, RocketMQError
from rmq_core.net.blocking import BlockingChannel
from rmq_core.protocol.requests import GetBrokerRuntimeInfo
from rmq_spark.options import Scope, parse

JAVA_OLDEST: Final = 17
SPARK_OLDEST: Final = (4, 2)
TIMEOUT_MS: Final = 3_000


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    is_good: bool
    text: str


def run(*, name_server: str | None, topic: str | None, broker_address_map: str, with_spark: bool) -> int:
    """Print every finding; 0 where all are good."""
    checks: list[Callable[[], Iterator[Finding]]] = [check_java, check_packages, check_interpreter]
    if with_spark:
        checks.append(check_lookup)
    if name_server is not None:
        checks.append(lambda: check_cluster(name_server, topic, broker_address_map))
    is_good = True
    for check in checks:
        for finding in check():
            print(f"{'ok  ' if finding.is_good else 'BAD '} {finding.text}", flush=True)  # noqa: T201
            is_good &= finding.is_good
            if not finding.is_good and check is check_java:
                return 1  # nothing of Spark would start
    return 0 if is_good else 1


def check_java() -> Iterator[Finding]:
    """Spark needs a JDK, and takes that of JAVA_HOME before that of the PATH."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    where = "JAVA_HOME" if home else "PATH"
    if program is None or shutil.which(program) is None:
        yield Finding(False, f"no Java in the {where}: install a JDK of version {JAVA_OLDEST} or newer")
        return
    said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    version = java_version(said)
    if version is None or version < JAVA_OLDEST:
        shown = said.strip().splitlines()[0] if said.strip() else "it says nothing"
        yield Finding(False, f"{program} ({shown}): Spark needs Java {JAVA_OLDEST} or newer")
        return
    yield Finding(True, f"Java {version} ({program}, by {where})")


def java_version(said: str) -> int | None:
    """The main version in what `java -version` says: 17 of 17.0.15, 8 of 1.8.0."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if found is None:
        return None
    return int(found[2]) if found[1] == "1" and found[2] else int(found[1])


def check_packages() -> Iterator[Finding]:
    """What the connector imports."""
    if importlib.util.find_spec("pyspark") is None:
        yield Finding(False, "PySpark is not installed here: pip install 'rmq-spark[local]'")
    else:
        import pyspark

        found = pyspark.__version__
        is_new = tuple(int(part) for part in found.split(".")[:2]) >= SPARK_OLDEST
        yield Finding(is_new, f"PySpark {found}" + ("" if is_new else ": the format needs 4.2 or newer"))
    if importlib.util.find_spec("numba") is None:
        yield Finding(True, "no numba: rows are decoded by numpy, slower (pip install 'rmq-spark[fast]')")
    else:
        yield Finding(True, "numba is installed: compiled loops decode rows")


def check_interpreter() -> Iterator[Finding]:
    """Spark starts the Python of PYSPARK_PYTHON for everything that is written in Python."""
    for name in ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"):
        given = os.environ[name]  # rmq_spark sets it where it is unset
        program = shutil.which(given)
        if program is None:
            yield Finding(False, f"{name}={given} is no program; unset it, or give the path of a Python")
            continue
        if program == sys.executable:
            yield Finding(True, f"{name} is this Python, {program}")
            continue
        test = "import pyspark_rocketmq, rmq_spark, sys; print('%d.%d' % sys.version_info[:2])"
        said = subprocess.run([program, "-c", test], capture_output=True, text=True, check=False)
        if said.returncode:
            reason = (said.stderr.strip().splitlines() or ["it fails"])[-1]
            yield Finding(
                False, f"{name}={program} cannot import rmq_spark ({reason}); unset it, or install it there"
            )
        elif said.stdout.strip() != f"{sys.version_info.major}.{sys.version_info.minor}":
            yield Finding(
                False, f"{name}={program} is Python {said.stdout.strip()}, and this one is another version"
            )
        else:
            yield Finding(True, f"{name}={program} has rmq_spark")


def check_lookup() -> Iterator[Finding]:
    """Whether Spark finds the format by itself."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from rmq_spark import session

    running = SparkSession.getActiveSession()
    spark = session("rmq-spark doctor")
    try:
        loaded = spark.read.format("rocketmq").option("nameServer", "127.0.0.1:1").option("topic", "doctor").load()
        yield Finding(True, f"Spark {spark.version} finds the format rocketmq ({len(loaded.columns)} columns)")
    except PySparkException as error:
        first = (str(error).strip().splitlines() or ["it fails"])[0]
        yield Finding(
            False,
            f"Spark does not find the format rocketmq: {first}. A broken module called pyspark_… hides "
            "all formats; rmq_spark.register(spark) is the way around",
        )
    finally:
        if running is None:
            spark.stop()


def check_cluster(name_server: str, topic: str | None, broker_address_map: str) -> Iterator[Finding]:
    """Whether name servers answer, and brokers at the addresses that they announce."""
    options = {"nameServer": name_server, "topic": topic or "TBW102", "fetchRetries": "1"}
    if broker_address_map:
        options["brokerAddressMap"] = broker_address_map
    try:
        settings = parse(options, Scope.READ)
        with QueueClient(settings.client_options(), fetch_retries=1) as client:
            brokers = client.brokers()
            yield Finding(bool(brokers), f"name server {name_server} knows {len(brokers)} brokers")
            for name, addresses in sorted(brokers.items()):
                for broker_id, announced in sorted(addresses.items()):
                    yield _broker(client, f"{name}/{broker_id}", announced)
            if topic is not None:
                queues = client.queues(topic)
                latest = client.max_offsets(queues)
                yield Finding(True, f"topic {topic} has {len(queues)} queues and ends at {sum(latest.values())}")
    except RocketMQError as error:
        yield Finding(False, str(error))


def _broker(client: QueueClient, name: str, announced: str) -> Finding:
    """Whether a broker answers at the address that it announces, or at the one to use in its place."""
    used = client.options.reachable(announced)
    shown = announced if used == announced else f"{announced}, reached at {used}"
    channel = BlockingChannel(used, connect_timeout_ms=TIMEOUT_MS, tls=client.options.tls)
    try:
        channel.call(GetBrokerRuntimeInfo(), timeout_ms=TIMEOUT_MS)
    except BrokerError:
        pass  # it refuses to say more, and so it is there
    except RocketMQError as error:
        return Finding(
            False,
            f"broker {name} announces {shown} and does not answer there: {error}. If it runs behind another "
            "address (Docker, VPN), set its brokerIP1, or brokerAddressMap here",
        )
    finally:
        channel.close()
    return Finding(True, f"broker {name} answers at {shown}")
