"""`python -m rmq_core.store`, also `mqstore`: look into a store directory, check it, repair it, export it."""

from __future__ import annotations

import base64
import contextlib
import itertools
import logging
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import typer
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn
from rich.table import Table

from rmq_core.columnar import kernels, row_schema
from rmq_core.errors import RocketMQError
from rmq_core.store.reader import StoreReader, open_store
from rmq_core.store.repair import DELAY_LEVELS, RepairOptions, repair
from rmq_core.store.verify import verify

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)

Store = Annotated[str, typer.Argument(help="Directory of a store, or a URL that fsspec knows.")]
Folder = Annotated[Path, typer.Argument(help="Directory of a store.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object for each line.")]
Topic = Annotated[str | None, typer.Option(help="Only this topic.")]
Queue = Annotated[int | None, typer.Option(help="Only this queue.")]
From = Annotated[str | None, typer.Option("--from", help="Stored at or after this time (ISO 8601; else local).")]
To = Annotated[str | None, typer.Option("--to", help="Stored before this time.")]
Log = Annotated[list[str] | None, typer.Option("--commit-log", help="Folder of the log, if not in the store.")]
_LOAD_FROM = 256 << 20
_COMPILE_FROM = 1 << 30
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


CAT_COLUMNS = (
    "commitLogOffset", "topic", "queueId", "queueOffset", "storeTimestamp", "msgId", "tags", "keys", "body",
)  # fmt: skip


def _print_json(value: Any) -> None:
    sys.stdout.write(orjson.dumps(value, default=_plain).decode() + "\n")


def _plain(value: Any) -> Any:
    """Bodies as text where they are text, else in base64 with that said before it."""
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(value).decode()}"


def _time(text: str | None) -> datetime | None:
    """A time without a zone is of this machine's."""
    if text is None:
        return None
    try:
        if text.isdecimal():  # milliseconds, as brokers write them
            return _EPOCH + timedelta(milliseconds=int(text))
        time = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is no time such as 2026-11-01T12:00:00+01:00") from None
    return time if time.tzinfo else time.astimezone()


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        justify: JustifyMethod = "left" if column in ("topic", "problem", "file") else "right"
        table.add_column(column, justify=justify, overflow="fold")
    return table


@contextlib.contextmanager
def _progress(text: str, *, is_quiet: bool) -> Iterator[Callable[[int, int], None]]:
    if is_quiet or not err.is_terminal:
        yield lambda done, total: None
        return
    with Progress("{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=err) as bar:
        task = bar.add_task(text)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _use_compiled_loops(*folders: Path) -> None:
    """Where there is much to do. Loading takes half a second; compiling, once on a machine, half a minute."""
    size = sum(path.stat().st_blocks * 512 for folder in folders for path in folder.glob("[0-9]*"))
    if size <= _LOAD_FROM or not kernels.are_wanted():
        return
    logging.getLogger(kernels.__name__).setLevel(logging.ERROR)  # without them it is only slower
    if not kernels.load(may_compile=False) and size > _COMPILE_FROM:
        err.print("compiling loops for this machine, once; RMQ_COMPILED=0 turns that off", highlight=False)
        kernels.load()


@app.command()
def info(store: Store, commit_log: Log = None, as_json: Json = False) -> None:
    """What a directory holds: log, topics, queues, messages."""
    with open_store(store, commit_log=commit_log or ()) as reader:
        found = reader.topics(sizes=False)
        log = reader.log
        summary = {
            "store": store,
            "logFiles": len(log.starts),
            "logFileSize": log.size,
            "firstOffset": log.first,
            "topics": len({each.topic for each in found}),
            "queues": len(found),
            "messages": sum(each.count for each in found),
            "earliest": min((each.first_time for each in found if each.first_time), default=None),
            "latest": max((each.last_time for each in found if each.last_time), default=None),
        }
    if as_json:
        _print_json(summary)
        return
    for name, value in summary.items():
        out.print(f"{name:12} {value}", highlight=False, markup=False)


@app.command("ls")
def list_queues(store: Store, topic: Topic = None, commit_log: Log = None, as_json: Json = False) -> None:
    """Every queue with its range of offsets, its times and its size."""
    with open_store(store, commit_log=commit_log or ()) as reader:
        if topic is not None:
            reader.queue_ranges(topic)  # says which topics there are, if not this one
        found = [each for each in reader.topics() if topic in (None, each.topic)]
    if as_json:
        for each in found:
            _print_json(
                {
                    "topic": each.topic,
                    "queueId": each.queue_id,
                    "minOffset": each.min_offset,
                    "maxOffset": each.max_offset,
                    "earliest": each.first_time,
                    "latest": each.last_time,
                    "bytes": each.size_bytes,
                }
            )
        return
    table = _table(store, "topic", "queue", "min", "max", "messages", "bytes", "earliest", "latest")
    for each in found:
        row = (
            each.queue_id, each.min_offset, each.max_offset, each.count, each.size_bytes, each.first_time,
            each.last_time,
        )  # fmt: skip
        table.add_row(escape(each.topic), *("" if value is None else str(value) for value in row))
    out.print(table)


@app.command()
def cat(
    store: Store,
    topic: Topic = None,
    queue: Queue = None,
    start: From = None,
    end: To = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=0, help="At most so many messages.")] = None,
    commit_log: Log = None,
    as_json: Json = False,
) -> None:
    """The messages of a topic, or of the whole log in its order."""
    with open_store(store, commit_log=commit_log or ()) as reader:
        batches = reader.to_batches(
            topic, queue=queue, start=_time(start), end=_time(end), columns=CAT_COLUMNS, include_properties=as_json
        )
        rows = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
        for row in itertools.islice(rows, count):
            if as_json:
                _print_json({**row, "properties": dict(row["properties"])})
                continue
            place = f"{row['topic']}/{row['queueId']}@{row['queueOffset']}"
            body = row["body"][:200].decode("utf-8", "replace")
            body = "".join(each if each.isprintable() else "." for each in body)
            out.print(f"{row['storeTimestamp']} {place} {row['tags'] or '-'} {body}", highlight=False, markup=False)
        _tell_damage(reader)


def _tell_damage(reader: StoreReader) -> None:
    for damage in reader.report.damages:
        err.print(f"passed over: {damage.start} to {damage.end} of the log: {damage.reason}", markup=False)
    for gone in reader.report.removed:
        err.print(f"removed meanwhile: {gone.topic}/{gone.queue_id} from {gone.start} to {gone.end}", markup=False)


@app.command("verify")
def verify_store(store: Folder, commit_log: Log = None, as_json: Json = False) -> None:
    """Check every record, queue entry and index entry; the exit code is 1 where something does not agree."""
    _use_compiled_loops(*(Path(each) for each in commit_log or [str(store / "commitlog")]))
    with _progress("verifying", is_quiet=as_json) as on_progress:
        found = verify(store, commit_log=commit_log or (), on_progress=on_progress)
    if as_json:
        problems = [{"file": each.path, "offset": each.offset, "problem": each.text} for each in found.problems]
        _print_json(
            {
                "isClean": found.is_clean,
                "records": found.records,
                "entries": found.entries,
                "indexEntries": found.index_entries,
                "logEnd": found.log_end,
                "problems": problems,
                "notes": found.notes,
            }
        )
    else:
        if found.problems:
            table = _table("problems", "file", "offset", "problem")
            for each in found.problems:
                table.add_row(escape(each.path), str(each.offset), escape(each.text))
            out.print(table)
        for note in found.notes:
            out.print(f"note: {note}", highlight=False, markup=False)
        verdict = "clean" if found.is_clean else f"{len(found.problems)} problems"
        out.print(
            f"{verdict}: {found.records} records, {found.entries} queue entries, {found.index_entries} index "
            f"entries; the log ends at {found.log_end}",
            highlight=False,
        )
    if not found.is_clean:
        raise typer.Exit(1)


@app.command("repair")
def repair_store(
    store: Folder,
    to: Annotated[Path | None, typer.Option(help="Write a repaired copy there and leave the store alone.")] = None,
    truncate: Annotated[
        bool, typer.Option(help="Make zero what stands behind the last record of the log.")
    ] = False,
    delay_levels: Annotated[str, typer.Option(help="messageDelayLevel of the broker.")] = DELAY_LEVELS,
    queue_file_size: Annotated[
        int | None, typer.Option(min=20, help="mappedFileSizeConsumeQueue of the broker, if no file shows it.")
    ] = None,
    index_shape: Annotated[
        tuple[int, int] | None, typer.Option(help="maxHashSlotNum and maxIndexNum, if no file shows them.")
    ] = None,
    commit_log: Log = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Build queues and index again from the log."""
    if to is None and not yes:
        typer.confirm(f"Replace the consume queues and the index of {store}?", abort=True)
    _use_compiled_loops(*(Path(each) for each in commit_log or [str(store / "commitlog")]))
    with _progress("repairing", is_quiet=as_json) as on_progress:
        options = RepairOptions(truncate, delay_levels, queue_file_size, index_shape)
        done = repair(store, to=to, commit_log=commit_log or (), options=options, on_progress=on_progress)
    if as_json:
        damages = [{"start": each.start, "end": each.end, "reason": each.reason} for each in done.damages]
        summary = {"store": str(done.root), "records": done.records, "queues": done.queues, "logEnd": done.log_end}
        _print_json({**summary, "isTailClean": done.is_tail_clean, "damages": damages})
        return
    for damage in done.damages:
        err.print(f"passed over: {damage.start} to {damage.end} of the log: {damage.reason}", markup=False)
    if not done.is_tail_clean:
        err.print(f"something stands behind the end of the log at {done.log_end}; --truncate makes it zero")
    out.print(f"{done.root}: {done.queues} queues and the index built from {done.records} records", highlight=False)


@app.command()
def export(
    store: Store,
    target: Annotated[Path, typer.Argument(help="Parquet file to write.")],
    topic: Topic = None,
    queue: Queue = None,
    start: From = None,
    end: To = None,
    columns: Annotated[str | None, typer.Option(help='Names separated by commas, or "all".')] = None,
    commit_log: Log = None,
    as_json: Json = False,
) -> None:
    """Write messages to a Parquet file."""
    chosen = columns if columns in (None, "all") else [each.strip() for each in str(columns).split(",")]
    with open_store(store, commit_log=commit_log or ()) as reader:
        batches = reader.to_batches(topic, queue=queue, start=_time(start), end=_time(end), columns=chosen)
        rows = _write_parquet(target, batches, row_schema(chosen))
        _tell_damage(reader)
    if as_json:
        _print_json({"file": str(target), "rows": rows})
    else:
        out.print(f"{target}: {rows} rows", highlight=False, markup=False)


def _write_parquet(target: Path, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> int:
    """Write a file that is there only when it is whole; returns its rows."""
    part = target.with_name(target.name + ".part")
    rows = 0
    try:
        with pq.ParquetWriter(part, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return rows


def main() -> None:
    """Run the program; what goes wrong is one sentence."""
    try:
        app()
    except (RocketMQError, OSError, ValueError) as error:
        err.print(f"mqstore: {error}", style="red", markup=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
