"""How Spark and users find the format: by itself, in SQL, through session(), and what the doctor says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pyspark_rocketmq
import rmq_spark
from rmq_spark import doctor
from rmq_spark.__main__ import main
from support.spark_world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_format_is_there_without_registration(spark: SparkSession, world: World) -> None:
    """C170: read and SQL by the short name; nothing was registered in this session."""
    topic = world.topic(queues=2)
    world.send(topic, ["a", "b", "c"], queues=2)
    assert spark.read.format("rocketmq").options(**world.options, topic=topic).load().count() == 3
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders USING rocketmq "
        f"OPTIONS (nameServer '{world.mq.name_server}', topic '{topic}')"
    )
    found = spark.sql("SELECT CAST(body AS STRING) AS text, queueId FROM orders ORDER BY text").collect()
    assert [tuple(row) for row in found] == [("a", 0), ("b", 1), ("c", 0)]


def test_session_returns_the_running_one(spark: SparkSession) -> None:
    """A notebook that has a session must not get another one."""
    assert rmq_spark.session() is spark


def test_a_local_session_keeps_little_state() -> None:
    """As many partitions as cores on this machine, Spark's own number on a cluster."""
    partitions = "spark.sql.shuffle.partitions"
    assert rmq_spark._liked("local[*]")[partitions] == str(os.cpu_count())
    assert partitions not in rmq_spark._liked("spark://here:7077")


def test_importing_the_package_points_spark_at_this_python() -> None:
    """In a fresh process with both variables unset, and with one of them set by the user."""
    program = "import os, rmq_spark; print(os.environ['PYSPARK_PYTHON'], os.environ['PYSPARK_DRIVER_PYTHON'])"
    bare = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    for given, expected in (({}, [sys.executable] * 2), ({"PYSPARK_PYTHON": "/x"}, ["/x", sys.executable])):
        said = subprocess.run(
            [sys.executable, "-c", program], env={**bare, **given}, capture_output=True, text=True, check=True
        )
        assert said.stdout.split() == expected


def test_the_module_that_spark_imports_is_light_and_needs_nothing_of_ours() -> None:
    """It is imported in every session, before anybody wants the format."""
    program = "import pyspark_rocketmq, sys; print([m for m in sys.modules if m.startswith(('rmq_', 'numba'))])"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_an_older_spark_is_told_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if 4.1 were installed: a sentence, and not an error from deep inside."""
    import pyspark

    monkeypatch.setattr(pyspark, "__version__", "4.1.2")
    with pytest.raises(RuntimeError, match=r"needs PySpark 4\.2 or newer; this is 4\.1\.2|and this is 4\.1\.2"):
        pyspark_rocketmq.DefaultSource({})
    assert pyspark_rocketmq.DefaultSource.name() == "rocketmq"


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("no such thing", None),
    ],
)
def test_javas_version_is_read_from_what_it_says(said: str, version: int | None) -> None:
    """Old and new ways of counting."""
    assert doctor.java_version(said) == version


def test_the_doctor_finds_a_healthy_cluster(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Java, packages, interpreter, name server, broker and topic; without a session of its own."""
    topic = world.topic(queues=2)
    arguments = ["doctor", "-n", world.mq.name_server, "-t", topic, "--without-spark"]
    code = main(arguments)
    said = capsys.readouterr().out
    assert code == 0, said
    assert "BAD" not in said
    assert "Java" in said
    assert f"broker embedded/0 answers at {world.mq.address}" in said
    assert f"topic {topic} has 2 queues" in said


def test_the_doctor_says_what_is_wrong_and_what_to_do(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No Java; an interpreter without the package; a broker behind another address; nobody at the name server."""
    elsewhere = ["doctor", "--without-spark", "-n"]
    assert main([*elsewhere, world.mq.name_server, "--broker-address-map", f"{world.mq.address}=127.0.0.1:1"]) == 1
    assert "brokerIP1" in capsys.readouterr().out
    assert main([*elsewhere, "127.0.0.1:1"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().out
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    assert main(["doctor", "--without-spark"]) == 1
    assert "cannot import rmq_spark" in capsys.readouterr().out
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert main(["doctor", "--without-spark"]) == 1
    assert "install a JDK" in capsys.readouterr().out


def test_the_doctor_looks_the_format_up_in_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the session that runs; it must not be stopped by the check."""
    findings = list(doctor.check_lookup())
    assert [finding.is_good for finding in findings] == [True]
    assert "finds the format rocketmq (10 columns)" in findings[0].text
    assert spark.range(3).count() == 3
