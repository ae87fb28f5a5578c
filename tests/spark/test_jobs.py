"""The jobs of the command line, on a running broker: what they write, send, print, and how they end."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from jobs import backlog_report, dead_letters, demo, parquet_to_topic, replay, store_to_parquet, topic_to_parquet

from rmq_core.client.blocking.admin import Admin
from rmq_core.protocol.record import StoredRecord
from rmq_spark import job
from rmq_spark.errors import SparkRocketMQError
from support.sent import arrived
from support.spark_world import World, eventually, stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
JOBS = sorted(path.stem for path in (ROOT / "jobs").glob("*.py") if path.stem != "__init__")


def found(world: World, topic: str) -> list[StoredRecord]:
    return [record for records in arrived(world.mq.name_server, topic).values() for record in records]


def bodies(world: World, topic: str) -> list[str]:
    return sorted(record.body.decode() for record in found(world, topic))


def program(*arguments: str, timeout_s: int = 120) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return subprocess.run(
        arguments, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=timeout_s, check=False
    )


@pytest.mark.parametrize("name", JOBS)
def test_every_job_explains_itself(name: str) -> None:
    """Asks each for help, and with a word it does not know: 0 with its own description, and 2."""
    helped = program(sys.executable, "-m", f"jobs.{name}", "--help")
    assert helped.returncode == 0, helped.stderr
    doc = importlib.import_module(f"jobs.{name}").__doc__ or ""
    assert doc.strip().splitlines()[0] in helped.stdout
    assert program(sys.executable, "-m", f"jobs.{name}", "--no-such-option").returncode == 2


def test_an_archive_goes_on_where_it_stopped_and_can_be_sent_again(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    """Archives, sends more, archives again; then sends the archive to a topic with fewer queues."""
    topic, again = world.topic(queues=4), world.topic(queues=2)
    archive = str(tmp_path / "archive")
    arguments = ["--topic", topic, "--output", archive, "--once", "-n", world.mq.name_server]
    world.send(topic, [f"{n:02d}" for n in range(20)], properties=lambda n: {"TAGS": f"t{n % 2}", "KEYS": f"k{n}"})
    assert topic_to_parquet.main(arguments) == 0
    world.send(topic, [f"{n:02d}" for n in range(20, 30)], properties={"shop": "s7"})
    assert topic_to_parquet.main(arguments) == 0
    rows = spark.read.parquet(archive)
    assert sorted(bytes(row["body"]).decode() for row in rows.collect()) == [f"{n:02d}" for n in range(30)]
    day = datetime.now(UTC).date()
    assert {row["day"] for row in rows.select("day").collect()} <= {day, day - timedelta(days=1)}
    for queue, records in arrived(world.mq.name_server, topic).items():
        assert world.progress(f"archive-{topic}", topic, queue.queue_id) == len(records)

    sent = ["--input", archive, "--topic", again, "-n", world.mq.name_server]
    assert parquet_to_topic.main([*sent, "--where", "body < '25'"]) == 0
    queues = arrived(world.mq.name_server, again)
    for records in queues.values():
        by_origin: dict[str, list[str]] = {}
        for record in records:
            by_origin.setdefault(record.properties["ORIGIN_QUEUE_ID"], []).append(record.body.decode())
        assert all(order == sorted(order) for order in by_origin.values())
    again_sent = {record.body.decode(): record.properties for each in queues.values() for record in each}
    assert sorted(again_sent) == [f"{n:02d}" for n in range(25)]
    assert again_sent["03"]["ORIGIN_TOPIC"] == topic
    assert (again_sent["03"]["TAGS"], again_sent["03"]["KEYS"], again_sent["24"]["shop"]) == ("t1", "k3", "s7")


def test_any_parquet_file_can_become_messages(spark: SparkSession, world: World, tmp_path: Path) -> None:
    """Makes bodies, keys and tags by expressions; without a body the job says what is there."""
    topic = world.topic()
    spark.createDataFrame([(1, "Ada"), (2, "Bob")], "id int, name string").write.parquet(str(tmp_path / "people"))
    arguments = ["--input", str(tmp_path / "people"), "--topic", topic, "-n", world.mq.name_server]
    with pytest.raises(job.JobError, match=r"no column body.*there are id, name"):
        parquet_to_topic.main(arguments)
    made = ["--body", "to_json(struct(*))", "--keys", "id", "--tags", "lower(name)", "--sharding-key", "id % 2"]
    assert parquet_to_topic.main([*arguments, *made]) == 0
    seen = {record.body.decode(): record.properties for record in found(world, topic)}
    assert set(seen) == {'{"id":1,"name":"Ada"}', '{"id":2,"name":"Bob"}'}
    ada = seen['{"id":1,"name":"Ada"}']
    assert (ada["KEYS"], ada["TAGS"], ada["__SHARDINGKEY"]) == ("1", "ada", "1")


def test_a_store_is_written_without_a_broker(spark: SparkSession, world: World, tmp_path: Path) -> None:
    """Reads the running broker's directory: one topic, then all; a folder that is there is not overwritten."""
    topic = world.topic()
    world.send(topic, [f"{n}" for n in range(50)])
    eventually(lambda: stored(world.mq.store_path, topic, 50), "the queues' files to follow the log")
    output = str(tmp_path / "one")
    arguments = ["--store", str(world.mq.store_path), "--output", output, "--topic", topic, "--broker-name", "b"]
    assert store_to_parquet.main(arguments) == 0
    rows = spark.read.parquet(output).collect()
    assert sorted(int(bytes(row["body"])) for row in rows) == list(range(50))
    assert {(row["topic"], row["broker"]) for row in rows} == {(topic, "b")}
    with pytest.raises(Exception, match="PATH_ALREADY_EXISTS"):
        store_to_parquet.main(arguments)
    late = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    assert store_to_parquet.main([*arguments, "--mode", "overwrite", "--start", late]) == 0
    assert spark.read.schema("body binary").parquet(output).count() == 0


def test_a_replay_keeps_order_and_origin(spark: SparkSession, world: World) -> None:
    """Replays a window of time, and the replay once more; the second must name the first topic as its origin."""
    source, second, third = world.topic(queues=3), world.topic(queues=3), world.topic(queues=2)
    world.send(source, ["early"] * 3, queues=3)
    middle = max(record.store_time_ms for record in found(world, source)) + 1
    eventually(lambda: datetime.now(UTC).timestamp() * 1000 > middle, "the next millisecond")
    world.send(source, [f"{n:03d}" for n in range(90)], queues=3, properties=lambda n: {"TAGS": "red", "n": str(n)})
    start = datetime.fromtimestamp(middle / 1000, UTC).isoformat()
    common = ["-n", world.mq.name_server]
    assert replay.main(["--topic", source, "--to-topic", second, "--start", start, *common]) == 0
    assert replay.main(["--topic", second, "--to-topic", third, "--rate", "1000", *common]) == 0
    first, last = arrived(world.mq.name_server, second), arrived(world.mq.name_server, third)
    for queue, records in first.items():
        assert [int(r.body) % 3 for r in records] == [queue.queue_id] * 30
        assert [r.body for r in records] == sorted(r.body for r in records)
    properties = [record.properties for records in last.values() for record in records]
    assert len(properties) == 90
    assert {each["ORIGIN_TOPIC"] for each in properties} == {source}
    assert {each["TAGS"] for each in properties} == {"red"}
    assert sorted((each["ORIGIN_QUEUE_ID"], int(each["ORIGIN_QUEUE_OFFSET"])) for each in properties) == sorted(
        (str(queue), offset) for queue in range(3) for offset in range(1, 31)
    )
    assert datetime.fromisoformat(properties[0]["ORIGIN_STORE_TIMESTAMP"]).tzinfo is not None


def test_a_replay_counts_first_and_refuses_what_would_feed_itself(
    spark: SparkSession, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run sends nothing; the same topic in the same cluster, and wrong times, are refused with 2."""
    source, target = world.topic(), world.topic()
    world.send(source, ["a", "b"], properties={"TAGS": "red"})
    world.send(source, ["c"], properties={"TAGS": "blue"})
    common = ["--topic", source, "-n", world.mq.name_server]
    assert replay.main([*common, "--to-topic", target, "--tags", "red", "--dry-run"]) == 0
    assert "2 messages would be sent" in capsys.readouterr().out
    assert bodies(world, target) == []
    for wrong in (
        ["--to-topic", source],
        ["--to-topic", target, "--start", "yesterday"],
        ["--to-topic", target, "--rate", "0"],
    ):
        with pytest.raises(SystemExit) as ended:
            replay.main([*common, *wrong])
        assert ended.value.code == 2
    with pytest.raises(SparkRocketMQError, match=r"ROCKETMQ_BAD_OPTION.*batchSiz"):
        replay.main([*common, "--to-topic", target, "--to-option", "batchSiz=5"])


def test_a_rate_is_held(spark: SparkSession, world: World) -> None:
    """40 messages at 20 a second: by their store times they must take most of two seconds, in one queue's order."""
    source, target = world.topic(queues=1), world.topic(queues=1)
    world.send(source, [f"{n:02d}" for n in range(40)], queue=0)
    arguments = ["--topic", source, "--to-topic", target, "--rate", "20", "-n", world.mq.name_server]
    assert replay.main([*arguments, "--to-option", "batchSize=1"]) == 0
    assert [record.body for record in found(world, target)] == [b"%02d" % n for n in range(40)]


def read_by(world: World, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Let a group that is offline have read so far."""
    with Admin(name_server=world.mq.name_server) as admin:
        admin.create_group(group)
    world.set_progress(group, topic, offsets)


def dead_letter(world: World, group: str, body: str, **properties: str) -> None:
    world.send(f"%DLQ%{group}", [body], queue=0, properties={"UNIQ_KEY": f"ID-{body}", **properties})


def test_dead_letters_are_reported_exported_and_sent_again_once(
    spark: SparkSession, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three letters of two topics; resending twice must send each once, and a new one later."""
    group, paid, other = world.fresh("G"), world.topic(), world.topic()
    common = ["--group", group, "-n", world.mq.name_server]
    assert dead_letters.main(["report", *common]) == 0
    assert "no dead letters" in capsys.readouterr().err
    world.topic(queues=1, name=f"%DLQ%{group}")
    dead_letter(world, group, "one", RETRY_TOPIC=paid, TAGS="red", KEYS="k1", shop="s7", RECONSUME_TIME="3")
    dead_letter(world, group, "two", DLQ_ORIGIN_TOPIC=paid, DLQ_ORIGIN_MESSAGE_ID="ORIGINAL")
    dead_letter(world, group, "three", RETRY_TOPIC=other)
    assert dead_letters.main(["report", *common]) == 0
    said = capsys.readouterr().out
    assert "3 dead letters" in said
    assert paid in said
    assert "ORIGINAL" in said

    target = tmp_path / "letters"
    assert dead_letters.main(["export", *common, "--output", str(target), "--format", "json"]) == 0
    lines = [json.loads(line) for path in target.glob("*.json") for line in path.read_text().splitlines()]
    assert sorted((line["body"], line["originTopic"]) for line in lines) == [
        ("one", paid),
        ("three", other),
        ("two", paid),
    ]

    for _ in range(2):
        assert dead_letters.main(["resend", *common]) == 0
    sent = {record.body: record.properties for record in found(world, paid)}
    assert set(sent) == {b"one", b"two"}
    assert len(found(world, paid)) == 2
    assert bodies(world, other) == ["three"]
    one = sent[b"one"]
    assert (one["TAGS"], one["KEYS"], one["shop"], one["ORIGIN_TOPIC"]) == ("red", "k1", "s7", paid)
    assert one["ORIGIN_MSG_ID"] == "ID-one"
    assert "RECONSUME_TIME" not in one
    assert "RETRY_TOPIC" not in one
    assert sent[b"two"]["ORIGIN_MSG_ID"] == "ORIGINAL"
    dead_letter(world, group, "four", RETRY_TOPIC=paid)
    assert dead_letters.main(["resend", *common, "--where", "tags IS NULL"]) == 0
    assert bodies(world, paid) == ["four", "one", "two"]
    assert dead_letters.main(["resend", *common, "--again", "--to-topic", other]) == 0
    assert bodies(world, other) == ["four", "one", "three", "three", "two"]


def test_a_dead_letter_without_an_origin_is_not_lost(spark: SparkSession, world: World) -> None:
    """It cannot be sent to where it came from: the job says so, sends nothing, and remembers nothing."""
    group = world.fresh("G")
    world.topic(queues=1, name=f"%DLQ%{group}")
    dead_letter(world, group, "orphan")
    arguments = ["resend", "--group", group, "-n", world.mq.name_server]
    with pytest.raises(job.JobError, match="1 dead letters do not say"):
        dead_letters.main(arguments)
    topic = world.topic()
    assert dead_letters.main([*arguments, "--to-topic", topic]) == 0
    assert bodies(world, topic) == ["orphan"]


def test_a_backlog_is_reported_with_charts_and_limits(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A group that read 3 of 10 messages of a queue; the limits end the job with 3."""
    topic, group = world.topic(queues=2), world.fresh("G")
    world.send(topic, [b"x"] * 10, queue=0)
    world.send(topic, [b"x"] * 4, queue=1)
    read_by(world, group, topic, {0: 3, 1: 4})
    files = [
        "--html",
        str(tmp_path / "b.html"),
        "--png",
        str(tmp_path / "b.png"),
        "--json",
        str(tmp_path / "b.json"),
    ]
    common = ["--group", group, "--topic", topic, "-n", world.mq.name_server]
    assert backlog_report.main([*common, *files]) == 0
    assert group in capsys.readouterr().out
    figures = json.loads((tmp_path / "b.json").read_text())
    assert [(each["queue_id"], each["end"], each["committed"], each["lag"]) for each in figures] == [
        (0, 10, 3, 7), (1, 4, 4, 0),
    ]  # fmt: skip
    assert figures[0]["oldest_unread_s"] > 0
    assert figures[1]["oldest_unread_s"] is None
    page = (tmp_path / "b.html").read_text()
    assert f"{group} · {topic}" in page
    assert "<svg" in page
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
    assert backlog_report.main([*common, "--queues", "--max-lag", "7"]) == 0
    assert backlog_report.main([*common, "--max-lag", "6"]) == 3
    assert f"{group} is 7 messages behind on {topic}, more than 6" in capsys.readouterr().err
    with pytest.raises(job.JobError, match="no broker knows the group NoSuchGroup; there are .*" + group):
        backlog_report.main(["--group", "NoSuchGroup", "-n", world.mq.name_server])


def test_jobs_run_under_spark_submit_too(world: World, tmp_path: Path) -> None:
    """One by its file, which has nothing of the repository on its path."""
    topic, group = world.topic(queues=1), world.fresh("G")
    world.send(topic, [b"x"] * 5, queue=0)
    read_by(world, group, topic, {0: 1})
    target = tmp_path / "figures.json"
    submit = str(Path(sys.executable).parent / "spark-submit")
    ended = program(
        submit, "--master", "local[1]", str(ROOT / "jobs" / "backlog_report.py"), "--group", group,
        "--topic", topic, "-n", world.mq.name_server, "--json", str(target),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert [each["lag"] for each in json.loads(target.read_text())] == [4]


def test_the_demo_shows_what_it_promises_and_cleans_up(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs it with few orders; it checks its own figures. Its folder, and whatever is in it, must be gone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert demo.main(["--orders", "3000"]) == 0
    said = capsys.readouterr().out
    assert "3,000 messages in" in said
    assert said.count("Lag of spark-orders") == 2
    assert not list(tmp_path.iterdir())


def test_a_failed_job_says_one_sentence_and_ends_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    """An error of the connector inside two stacks, any other error, and an interrupt."""

    def fail(error: BaseException) -> int:
        def main(arguments: object) -> int:
            raise error

        return job.exit_code(main)

    nested = RuntimeError("Job aborted\n  at x\n[ROCKETMQ_UNREACHABLE] nobody answers\nTraceback …")
    assert fail(nested) == 1
    assert fail(job.JobError("no such thing")) == 1
    assert fail(KeyboardInterrupt()) == 130
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "failed: [ROCKETMQ_UNREACHABLE] nobody answers",
        "failed: JobError: no such thing",
        "interrupted",
    ]
