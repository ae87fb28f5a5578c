"""How far consumer groups are behind: per group, topic and queue, with the age of the oldest unread message.

Prints a table; --html and --png write a chart, --json the figures. With limits it can be a check for a monitor: it
ends with 3 where a group is over one.

  python -m jobs.backlog_report --html backlog.html
  python -m jobs.backlog_report --group billing --max-lag 10000 --max-age 600
"""

from __future__ import annotations

import argparse
import html
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmq_core.client.blocking.admin import Admin
from rmq_core.errors import BrokerError
from rmq_core.protocol.codes import ResponseCode
from rmq_spark import job
from rmq_spark.options import Scope, parse

if TYPE_CHECKING:
    from rmq_core.client.admin_results import QueueLag

OVER_LIMIT = 3
_CHARTED = 30


@dataclass(frozen=True, slots=True)
class Backlog:
    """One group on one queue."""

    group: str
    topic: str
    broker: str
    queue_id: int
    end: int
    committed: int
    lag: int
    oldest_unread_s: float | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0, or 3 where a group is over a limit."""
    parser = job.parser(__doc__, prog="backlog_report")
    parser.add_argument(
        "--group", action="append", help="only this group; may be given several times (default: all)"
    )
    parser.add_argument("--topic", help="only this topic")
    parser.add_argument("--html", type=Path, help="write a page with a chart and the table")
    parser.add_argument("--png", type=Path, help="write a chart (needs matplotlib)")
    parser.add_argument("--json", type=Path, help="write the figures")
    parser.add_argument("--queues", action="store_true", help="print a line for each queue, not for each topic")
    parser.add_argument("--max-lag", type=job.positive, help="messages that a group may be behind")
    parser.add_argument("--max-age", type=job.positive, help="seconds that a message may be unread")
    job.add_cluster(parser)
    given = parser.parse_args(arguments)
    found = backlogs(given)
    _print(found, by_queue=given.queues)
    if given.json:
        given.json.write_text(json.dumps([_as_dict(each) for each in found], indent=1) + "\n")
    if given.html:
        given.html.write_text(page(found))
    if given.png:
        chart(found, given.png)
    over = over_limits(found, max_lag=given.max_lag, max_age_s=given.max_age)
    for line in over:
        job.say(line)
    return OVER_LIMIT if over else 0


def backlogs(given: argparse.Namespace) -> list[Backlog]:
    """The figures of the wanted groups. Raises JobError for a group that no broker knows."""
    options = parse({"topic": "any", **job.cluster_options(given)}, Scope.READ).client_options()
    found: list[Backlog] = []
    with Admin(
        name_server=list(options.name_servers),
        namespace=options.namespace,
        credentials=options.credentials,
        tls=options.tls or False,
        broker_address_map=options.broker_address_map,
    ) as admin:
        known = admin.groups()
        groups = given.group or known
        if unknown := sorted(set(groups) - set(known)):
            raise job.JobError(f"no broker knows the group {', '.join(unknown)}; there are {', '.join(known)}")
        for number, group in enumerate(groups, 1):
            job.say(f"group {number} of {len(groups)}: {group}")
            try:
                lag = admin.lag(group, topic=given.topic)
            except BrokerError as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
                continue  # a group that has read nothing yet, or whose topic was deleted
            found += [_backlog(group, each) for each in lag]
    return sorted(found, key=lambda each: (each.group, each.topic, each.broker, each.queue_id))


def _backlog(group: str, lag: QueueLag) -> Backlog:
    age = lag.oldest_unread_age
    queue = lag.queue
    seconds = None if age is None else age.total_seconds()
    return Backlog(
        group, queue.topic, queue.broker_name, queue.queue_id, lag.end, lag.committed, lag.count, seconds
    )


def summed(found: Sequence[Backlog]) -> dict[tuple[str, str], tuple[int, float | None, int]]:
    """Lag, age of the oldest message, and number of queues by group and topic."""
    table: dict[tuple[str, str], tuple[int, float | None, int]] = {}
    for each in found:
        lag, age, queues = table.get((each.group, each.topic), (0, None, 0))
        ages = [value for value in (age, each.oldest_unread_s) if value is not None]
        table[each.group, each.topic] = (lag + each.lag, max(ages, default=None), queues + 1)
    return table


def over_limits(found: Sequence[Backlog], *, max_lag: int | None, max_age_s: int | None) -> list[str]:
    """A line for each group and topic that is over a limit."""
    lines = []
    for (group, topic), (lag, age, _) in summed(found).items():
        if max_lag is not None and lag > max_lag:
            lines.append(f"{group} is {lag:,} messages behind on {topic}, more than {max_lag:,}")
        if max_age_s is not None and age is not None and age > max_age_s:
            lines.append(f"{group} has messages of {topic} unread for {_duration(age)}, longer than {max_age_s} s")
    return lines


def _as_dict(each: Backlog) -> dict[str, Any]:
    return {name: getattr(each, name) for name in Backlog.__slots__}


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _print(found: Sequence[Backlog], *, by_queue: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("group", "topic", "queue" if by_queue else "queues", title="Backlog")
    for name in ("lag", "oldest unread"):
        table.add_column(name, justify="right")
    if by_queue:
        for each in found:
            queue = f"{each.broker} {each.queue_id}"
            table.add_row(each.group, each.topic, queue, f"{each.lag:,}", _duration(each.oldest_unread_s))
    else:
        for (group, topic), (lag, age, queues) in summed(found).items():
            table.add_row(group, topic, str(queues), f"{lag:,}", _duration(age))
    Console().print(table)


# Charts


def _bars(found: Sequence[Backlog]) -> list[tuple[str, int, float | None]]:
    bars = [(f"{group} · {topic}", lag, age) for (group, topic), (lag, age, _) in summed(found).items()]
    return sorted(bars, key=lambda bar: -bar[1])[:_CHARTED]


def page(found: Sequence[Backlog]) -> str:
    """A page of its own, with bars and the table of all queues."""
    bars = _bars(found)
    most = max((lag for _, lag, _ in bars), default=0) or 1
    lines = "".join(
        f'<tr><td>{html.escape(name)}</td><td class="n">{lag:,}</td><td class="n">{_duration(age)}</td>'
        f'<td><svg width="420" height="14"><rect width="{420 * lag / most:.1f}" height="14"/></svg></td></tr>'
        for name, lag, age in bars
    )
    queues = "".join(
        f"<tr><td>{html.escape(each.group)}</td><td>{html.escape(each.topic)}</td>"
        f'<td>{html.escape(each.broker)} {each.queue_id}</td><td class="n">{each.lag:,}</td>'
        f'<td class="n">{_duration(each.oldest_unread_s)}</td></tr>'
        for each in found
    )
    style = (
        "body{font:14px sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:left}.n{text-align:right}"
        "rect{fill:#2a78c2}tr:nth-child(even){background:#f4f6f8}"
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Backlog</title><style>{style}</style>'
        f"<h1>Backlog</h1><p>{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC</p>"
        f"<table><tr><th>group and topic</th><th>lag</th><th>oldest unread</th><th></th></tr>{lines}</table>"
        f"<h2>Queues</h2><table><tr><th>group</th><th>topic</th><th>queue</th><th>lag</th>"
        f"<th>oldest unread</th></tr>{queues}</table></html>\n"
    )


def chart(found: Sequence[Backlog], target: Path) -> None:
    """The same bars as a picture. Raises JobError without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise job.JobError("--png needs matplotlib: pip install matplotlib; --html needs nothing") from None
    mpl.use("Agg")
    from matplotlib import pyplot

    bars = _bars(found)[::-1]
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.35 * max(len(bars), 1)))
    drawn = axes.barh([name for name, _, _ in bars], [lag for _, lag, _ in bars], color="#2a78c2")
    axes.bar_label(drawn, [f" {lag:,}  {_duration(age)}" for _, lag, age in bars])
    axes.set_xlabel("unread messages")
    axes.set_title("Backlog")
    axes.margins(x=0.2)
    figure.tight_layout()
    figure.savefig(target)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(job.exit_code(main))
