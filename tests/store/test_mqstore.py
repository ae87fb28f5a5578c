"""The program mqstore: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from rmq_core.store.__main__ import app
from rmq_core.store.verify import verify
from support.stores import open_store, put

RUNNER = CliRunner()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    store = open_store(tmp_path / "store")
    for number in range(30):
        put(store, number, topic="Orders" if number % 3 else "Events", queue_id=number % 2)
        store.end_pass()
    store.close()
    return tmp_path / "store"


def run(*arguments: object, code: int = 0, stdin: str | None = None) -> str:
    result = RUNNER.invoke(app, [str(each) for each in arguments], input=stdin, env={"COLUMNS": "200"})
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def rows(*arguments: object) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in run(*arguments, "--json").splitlines()]


def process(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rmq_core.store", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def tear(root: Path) -> Path:
    path = max((root / "commitlog").iterdir())
    data = path.read_bytes()
    used = len(data.rstrip(b"\0"))
    path.write_bytes(data[: used - 60].ljust(len(data), b"\0"))
    return path


def test_info_and_ls_show_the_queues(root: Path) -> None:
    """Compares the tables' numbers, and those of the JSON."""
    (summary,) = rows("info", root)
    assert (summary["messages"], summary["topics"], summary["queues"], summary["logFiles"]) == (30, 2, 4, 2)
    assert "messages     30" in run("info", root)
    listed = rows("ls", root)
    assert [(row["topic"], row["queueId"], row["maxOffset"]) for row in listed] == [
        ("Events", 0, 5), ("Events", 1, 5), ("Orders", 0, 10), ("Orders", 1, 10),
    ]  # fmt: skip
    assert all(row["bytes"] > 0 and row["earliest"] for row in listed)
    assert "Orders" in run("ls", root, "--topic", "Orders")
    assert "Events" not in run("ls", root, "--topic", "Orders")


def test_cat_prints_messages_of_a_topic_a_queue_and_the_log(root: Path) -> None:
    """Reads all, some, and none; a body that is no text must not reach the terminal."""
    assert len(rows("cat", root)) == 30
    found = rows("cat", root, "--topic", "Orders", "--queue", 1, "-n", 3)
    assert [row["body"][:8] for row in found] == ["00000001", "00000005", "00000007"]
    assert found[0]["properties"]["KEYS"] == "k1 all"
    assert "Orders/1@0" in run("cat", root, "--topic", "Orders")
    stored = found[0]["storeTimestamp"]
    assert rows("cat", root, "--to", stored) == []
    assert len(rows("cat", root, "--from", stored)) == 30
    assert len(rows("cat", root, "--from", "0", "--to", "2100-01-01T00:00:00")) == 30
    assert "is no time" in run("cat", root, "--from", "soon", code=2)


def test_a_body_that_is_no_text_is_printed_safely(tmp_path: Path) -> None:
    """Puts bytes that are no UTF-8, and an escape sequence."""
    store = open_store(tmp_path / "store")
    for body in (b"\xff\xfe", b"\x1b[31mred"):
        store.put("T", 0, body, b"", born_time_ms=1, born_host=b"\x7f\0\0\x01\0\0\0\x01")
    store.end_pass()
    store.close()
    assert [row["body"] for row in rows("cat", tmp_path / "store")] == ["base64://4=", "\x1b[31mred"]
    assert "\x1b" not in run("cat", tmp_path / "store")


def test_export_writes_parquet_or_nothing(root: Path, tmp_path: Path) -> None:
    """Exports a topic, the whole log with chosen columns, and with a column that there is not."""
    target = tmp_path / "orders.parquet"
    assert "20 rows" in run("export", root, target, "--topic", "Orders")
    assert pq.read_table(target).num_rows == 20
    (done,) = rows("export", root, target, "--columns", "topic, queueOffset")
    assert done["rows"] == 30
    assert pq.read_table(target).schema.names == ["topic", "queueOffset"]
    (none,) = rows("export", root, target, "--from", "2100-01-01T00:00:00")
    assert none["rows"] == 0
    assert pq.read_table(target).num_rows == 0
    before = target.read_bytes()
    assert process("export", root, target, "--columns", "topik").returncode == 2
    assert target.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["orders.parquet", "store"]


def test_the_exit_code_of_verify_says_whether_all_is_well(root: Path, tmp_path: Path) -> None:
    """Runs real processes: on a good directory, a torn one, and none."""
    good = process("verify", root)
    assert (good.returncode, good.stderr) == (0, "")
    assert "clean: 30 records, 30 queue entries, 90 index entries" in good.stdout
    path = tear(root)
    bad = process("verify", root, "--json")
    assert bad.returncode == 1
    report = orjson.loads(bad.stdout)
    assert not report["isClean"]
    assert report["problems"][0]["file"] == str(path.relative_to(root))
    assert report["problems"][0]["offset"] > 0
    assert process("verify", root).returncode == 1
    none = process("verify", tmp_path / "nowhere")
    assert none.returncode == 2
    assert none.stderr.startswith("mqstore: ")
    assert none.stderr.count("\n") == 1
    assert process("nonsense").returncode == 2
    assert process("--help").returncode == 0


def test_repair_asks_before_it_changes_a_directory(root: Path) -> None:
    """Says no, then yes; then verify has nothing to say."""
    tear(root)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    run("repair", root, "--truncate", code=1, stdin="n\n")
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    assert "29 records" in run("repair", root, "--truncate", stdin="y\n")
    assert verify(root).is_clean


def test_repair_into_a_copy_leaves_the_store_alone(root: Path, tmp_path: Path) -> None:
    """Repairs a torn directory elsewhere, and refuses a place that is taken."""
    tear(root)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    target = tmp_path / "mended"
    (done,) = rows("repair", root, "--to", target, "--truncate")
    assert (done["records"], done["queues"], done["isTailClean"]) == (29, 4, True)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    assert verify(target).is_clean
    result = process("repair", root, "--to", target)
    assert result.returncode == 2
    assert "already exists" in result.stderr


def test_repair_refuses_a_directory_that_is_in_use(root: Path) -> None:
    """Holds the store open in this process and repairs it from another."""
    store = open_store(root)
    result = process("repair", root, "--yes")
    store.close()
    assert result.returncode == 2
    assert "in use" in result.stderr
    assert verify(root).is_clean


def test_a_log_in_other_folders_is_named_on_the_command_line(root: Path, tmp_path: Path) -> None:
    """Moves the log out of the store."""
    shutil.move(root / "commitlog", tmp_path / "log")
    result = process("info", root)
    assert result.returncode == 2
    assert "storePathCommitLog" in result.stderr
    assert rows("info", root, "--commit-log", tmp_path / "log")[0]["messages"] == 30
    run("verify", root, "--commit-log", tmp_path / "log")
    run("repair", root, "--commit-log", tmp_path / "log", "--yes")
    run("verify", root, "--commit-log", tmp_path / "log")
    run("repair", root, "--commit-log", tmp_path / "log", "--to", tmp_path / "copy")
    run("verify", tmp_path / "copy")


def test_the_guides_examples_run(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs each block that names the store, in order, where a directory `store` is."""
    text = (Path(__file__).parents[2] / "docs" / "store.md").read_text()
    blocks = re.findall(r"```(python|bash)\n(.*?)```", text, re.DOTALL)
    blocks = [block for block in blocks if re.search(r"open_store|mqstore|\bstore\.", block[1])]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    commands = 0
    for kind, block in blocks:
        if kind == "python":
            exec(block, names)
            continue
        for line in block.splitlines():
            if line.startswith("mqstore "):
                shutil.rmtree(tmp_path / "mended", ignore_errors=True)
                run(*shlex.split(line, comments=True)[1:])
                commands += 1
    assert names["table"].num_rows == 20
    assert commands >= 3
    capsys.readouterr()
