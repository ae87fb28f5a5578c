"""Every option of the format `rocketmq`, once: name, type, default, where it holds, and what it means.

Declared  As a field of Settings; its name is the field's in camelCase. The guide's table is made of the
          declarations: `python -m rmq_spark.options docs/spark.md` renews it.
Checked   By parse(), before anything is sent: names without case, then values, then what contradicts what. The
          first fault raises BAD_OPTION with the option and its value; an unknown name is told the nearest one.
Settings  travel to executors: plain values only, no connection and no TLS context.
"""
# ruff: noqa: RUF009 - option() and its like are dataclasses.field() in other words

from __future__ import annotations

import dataclasses
import difflib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from rmq_core.client.options import ClientOptions, Credentials, client_options
from rmq_core.errors import ConfigError
from rmq_core.net.tls import TlsFiles, client_context
from rmq_core.protocol.message import TOOLS_GROUP, MessageQueue
from rmq_spark import option_values as values
from rmq_spark.errors import Condition, SparkRocketMQError, bad_option
from rmq_spark.offsets import QueueOffsets

T = TypeVar("T")


class Scope(StrEnum):
    """What a DataFrame does with the format."""

    READ = "read"
    STREAM = "stream"
    WRITE = "write"
    STREAM_WRITE = "streamWrite"
    OFFLINE = "offline"


_READERS: Final = frozenset({Scope.READ, Scope.STREAM})
_WRITERS: Final = frozenset({Scope.WRITE, Scope.STREAM_WRITE})
_ONLINE: Final = _READERS | _WRITERS
_ALL: Final = frozenset(Scope)
_BATCH: Final = frozenset({Scope.READ})
_STREAM: Final = frozenset({Scope.STREAM})
_OFFLINE: Final = frozenset({Scope.OFFLINE})

DEFAULT_MAX_TRIGGER_DELAY_MS: Final = 15 * 60_000


@dataclass(frozen=True, slots=True)
class Option:
    """One declared option."""

    name: str
    attribute: str
    kind: str
    """What it takes, in words."""
    default: object
    shown_default: str
    scopes: frozenset[Scope]
    text: str
    parse: Callable[[str], Any]


def option(
    default: T,
    text: str,
    *,
    kind: str,
    parse: Callable[[str], Any],
    scopes: frozenset[Scope],
    shown_default: str | None = None,
    secret: bool = False,
) -> T:
    """Declare one option as a field of Settings."""
    metadata = {"text": text, "kind": kind, "parse": parse, "scopes": scopes, "shown_default": shown_default}
    if isinstance(default, dict):
        return cast(T, field(default_factory=dict, metadata=metadata))
    return field(default=default, repr=not secret, metadata=metadata)


def _flag(default: bool, text: str, scopes: frozenset[Scope]) -> bool:
    return option(default, text, kind="true or false", parse=values.boolean, scopes=scopes)


def _text(text: str, scopes: frozenset[Scope], *, secret: bool = False) -> str | None:
    default: str | None = None
    return option(default, text, kind="text", parse=values.text, scopes=scopes, secret=secret)


def _count(default: int, text: str, scopes: frozenset[Scope], *, at_least: int = 1) -> int:
    parse = values.whole_number(at_least=at_least)
    return option(default, text, kind="whole number", parse=parse, scopes=scopes)


def _count_or_none(text: str, scopes: frozenset[Scope]) -> int | None:
    default: int | None = None
    return option(default, text, kind="whole number", parse=values.whole_number(at_least=1), scopes=scopes)


def _time(text: str, scopes: frozenset[Scope]) -> int | None:
    default: int | None = None
    return option(default, text, kind="milliseconds since 1970", parse=values.time_ms, scopes=scopes)


def _times(text: str, scopes: frozenset[Scope]) -> QueueOffsets | None:
    default: QueueOffsets | None = None
    return option(default, text, kind="JSON of times per queue", parse=values.times, scopes=scopes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of one DataFrame, checked."""

    # Where, and who

    name_server: str | None = option(
        None, "Name servers, as `host:port;host:port`.", kind="addresses", parse=values.text, scopes=_ONLINE
    )
    topic: str | None = option(
        None,
        "The topic to read. For a sink the topic of every row, whatever a column `topic` says. Offline: only the "
        "messages of this topic, by its queues.",
        kind="topic", parse=values.topic, scopes=_ALL,
    )  # fmt: skip
    subscribe: tuple[str, ...] = option(
        (), "Topics to read, in place of `topic`.", kind="topics with commas", parse=values.topics, scopes=_READERS
    )
    subscribe_pattern: str | None = option(
        None,
        "A regular expression: every topic whose whole name matches is read, in place of `topic`. Topics of "
        "RocketMQ itself, and those for retries and dead letters, never match.",
        kind="regular expression", parse=values.pattern, scopes=_READERS,
    )  # fmt: skip
    assign: tuple[MessageQueue, ...] = option(
        (),
        f"Exactly these queues, in place of `topic`: `{values.ASSIGN_EXAMPLE}`.",
        kind="JSON of queues", parse=values.assignment, scopes=_READERS,
    )  # fmt: skip
    group: str | None = option(
        None,
        "The consumer group of the query. A stream without one is no member of anything and stores no progress; "
        f"its pulls name the group `{TOOLS_GROUP}`, which every broker has.",
        kind="group", parse=values.group, scopes=_READERS,
    )  # fmt: skip
    tags: str | None = option(
        None,
        "Only messages with one of these tags, as `paid || shipped`; the broker filters. For a sink the tag of "
        "rows without one in a column `tags`.",
        kind="text", parse=values.text, scopes=_ONLINE,
    )  # fmt: skip
    sql: str | None = option(
        None,
        "Only messages for which this SQL92 expression over their properties holds; the broker filters and must "
        "allow it (`enablePropertyFilter`).",
        kind="SQL92", parse=values.text, scopes=_READERS,
    )  # fmt: skip

    # Where to start and where to end

    starting_offsets: str | QueueOffsets | None = option(
        None,
        "Where a new query starts: `group` is where the group stands, or JSON with every queue. Not used by a "
        "query that has a checkpoint; queues that appear later start at their first message.",
        kind="group, earliest, latest or JSON of offsets",
        parse=values.offsets("group", "earliest", "latest"), scopes=_READERS,
        shown_default="stream: `group` where there is one, else what `fallbackOffsets` says; batch: `earliest`",
    )  # fmt: skip
    fallback_offsets: str | None = option(
        None,
        "Where a queue starts in which the group has no progress yet.",
        kind="earliest or latest", parse=values.one_of("earliest", "latest"), scopes=_READERS,
        shown_default="stream: `latest`; batch: `earliest`",
    )  # fmt: skip
    starting_timestamp: int | None = _time(
        "Start at the first message stored at or after this time; beats the other starting options.",
        frozenset({Scope.READ, Scope.STREAM, Scope.OFFLINE}),
    )
    starting_offsets_by_timestamp: QueueOffsets | None = _times(
        f"The same with a time for every queue: `{values.TIMES_EXAMPLE}`; beats `startingOffsets`.", _READERS
    )
    starting_offsets_by_timestamp_strategy: str = option(
        "error",
        "What happens where a queue has no message at or after the start time: the query fails, or the queue "
        "starts at its end. An empty queue is no such case.",
        kind="error or latest", parse=values.one_of("error", "latest"), scopes=_READERS,
    )  # fmt: skip
    ending_offsets: str | QueueOffsets = option(
        "latest",
        "Where a batch ends, itself not included.",
        kind="latest or JSON of offsets", parse=values.offsets("latest", "earliest"), scopes=_BATCH,
    )  # fmt: skip
    ending_timestamp: int | None = _time(
        "End before the first message stored at or after this time; beats the other ending options.",
        frozenset({Scope.READ, Scope.OFFLINE}),
    )
    ending_offsets_by_timestamp: QueueOffsets | None = _times(
        "The same with a time for every queue; beats `endingOffsets`.", _BATCH
    )

    # How much at a time

    max_offsets_per_trigger: int | None = _count_or_none(
        "Messages in a micro-batch at most, divided over queues in proportion to their backlog.", _STREAM
    )
    min_offsets_per_trigger: int | None = _count_or_none(
        "Wait until so many messages are there, but no longer than `maxTriggerDelay`.", _STREAM
    )
    max_trigger_delay: int = option(
        DEFAULT_MAX_TRIGGER_DELAY_MS,
        "How long `minOffsetsPerTrigger` may hold a micro-batch back.",
        kind="duration", parse=values.duration_ms, scopes=_STREAM, shown_default="`15m`",
    )  # fmt: skip
    min_partitions: int | None = _count_or_none(
        "About how many tasks to make at least: large ranges are cut.", _READERS
    )
    max_records_per_partition: int | None = _count_or_none("Messages of a task at most.", _READERS)
    min_rows_per_partition: int = _count(
        10_000, "Ranges with fewer messages share a task: a task costs more than such a range.", _READERS
    )

    # What may happen

    fail_on_data_loss: bool = _flag(
        True,
        "Fail where messages that were to be read are gone (deleted by retention, or with their topic). Otherwise "
        "log a warning with the lost range and go on.",
        _READERS,
    )
    commit_offsets: bool = _flag(
        True, "Store the group's progress on the brokers behind each durable micro-batch.", _STREAM
    )
    shared_group: bool = _flag(
        False,
        "Start although the group has other members. The query is then no member itself: it reads every queue and "
        "only stores progress.",
        _STREAM,
    )
    on_group_reset: str = option(
        "follow",
        "What happens when an administrator moves the group while the query runs.",
        kind="follow, ignore or fail", parse=values.one_of("follow", "ignore", "fail"), scopes=_STREAM,
    )  # fmt: skip

    # Rows

    columns: str | tuple[str, ...] | None = option(
        None,
        "The columns of a row, in this order; only they are decoded.",
        kind="all, or columns with commas", parse=values.columns,
        scopes=_READERS | _OFFLINE, shown_default="the ten of the default row",
    )  # fmt: skip
    include_properties: bool = _flag(False, "Add the column `properties`, a map.", _READERS | _OFFLINE)

    # How messages are fetched

    fetch_buffer_bytes: int = option(
        32 << 20,
        "Bytes that a task holds in flight and decoded at most.",
        kind="bytes", parse=values.size_bytes, scopes=_READERS, shown_default="`32m`",
    )  # fmt: skip
    compiled: str = option(
        "auto",
        "Decode by compiled loops where numba is installed.",
        kind="auto or off", parse=values.one_of("auto", "off"), scopes=_READERS | _OFFLINE,
    )  # fmt: skip
    broker_address_map: dict[str, str] = option(
        {},
        "Addresses to use in place of those that brokers announce (Docker, VPN), as "
        "`172.17.0.2:10911=localhost:10911`.",
        kind="announced=reachable with commas", parse=values.address_map, scopes=_ONLINE, shown_default="",
    )  # fmt: skip
    pull_batch_size: int = option(
        10_000,
        "Messages asked for in one pull; brokers may give fewer.",
        kind="whole number", parse=values.whole_number(at_least=1, at_most=2**31 - 1), scopes=_READERS,
    )  # fmt: skip
    pull_timeout_ms: int = _count(20_000, "How long one pull may take.", _READERS)
    fetch_retries: int = _count(3, "How often routes and offsets are asked for before the query fails.", _READERS)
    fetch_retry_interval_ms: int = _count(1_000, "The pause between.", _READERS, at_least=0)
    read_from_slave: bool = _flag(False, "Pull from slaves where a broker has one.", _READERS)

    # Trust

    access_key: str | None = _text("Access key; needs `secretKey`.", _ONLINE)
    secret_key: str | None = _text("Secret key.", _ONLINE, secret=True)
    security_token: str | None = _text("Security token of temporary keys.", _ONLINE, secret=True)
    tls: bool = _flag(False, "Speak TLS.", _ONLINE)
    tls_ca_file: str | None = _text(
        "Certificates to trust, in place of those that the machine trusts; on every executor.", _ONLINE
    )
    tls_cert_file: str | None = _text("Certificate of the client; on every executor.", _ONLINE)
    tls_key_file: str | None = _text("Key of that certificate, where it is in a file of its own.", _ONLINE)
    namespace: str = option(
        "", "Namespace of topics and groups; rows show names without it.", kind="text", parse=values.text,
        scopes=_ONLINE, shown_default="",
    )  # fmt: skip

    # The sink

    keys: str | None = _text("Keys of rows without a column `keys`, with blanks between them.", _WRITERS)
    producer_group: str = option(
        "rmq-spark-sink", "The producer group of messages.", kind="group", parse=values.group, scopes=_WRITERS
    )
    send_timeout_ms: int = _count(3_000, "How long one send may take.", _WRITERS)
    retries: int = _count(2, "How often a failed send is tried again.", _WRITERS, at_least=0)
    batch_size: int = _count(1_000, "Messages in one send at most.", _WRITERS)
    wait_store: bool = _flag(
        True, "Whether a broker answers only after the flush and replication that it is set up for.", _WRITERS
    )
    compression: str = option(
        "none",
        "How bodies above 4 KB are compressed.",
        kind="none, zlib, lz4 or zstd", parse=values.one_of("none", "zlib", "lz4", "zstd"), scopes=_WRITERS,
    )  # fmt: skip
    order_by: str | None = _text(
        "A column: rows with an equal value in it go to the same queue, in order, as if it were `shardingKey`.",
        _WRITERS,
    )

    # Offline

    path: str | None = option(
        None,
        "A store directory, or a URL that fsspec knows; the same as `.load(path)`. Options `fs.*` go to fsspec.",
        kind="path", parse=values.raw_text, scopes=_OFFLINE,
    )  # fmt: skip
    queue_id: int | None = option(
        None, "Only this queue of `topic`.", kind="whole number", parse=values.whole_number(at_least=0),
        scopes=_OFFLINE,
    )  # fmt: skip
    broker_name: str | None = option(
        None, "What the column `broker` shows: files need not know it.", kind="text", parse=values.text,
        scopes=_OFFLINE, shown_default="what the files say",
    )  # fmt: skip
    commit_log_path: tuple[str, ...] = option(
        (),
        "The folders of `storePathCommitLog`, where they are not `commitlog` in the store.",
        kind="paths with commas", parse=values.words, scopes=_OFFLINE,
    )  # fmt: skip
    split_bytes: int = option(
        128 << 20, "About how much of the log a task reads.", kind="bytes", parse=values.size_bytes,
        scopes=_OFFLINE, shown_default="`128m`",
    )  # fmt: skip
    on_corrupt: str = option(
        "skip", "Whether damaged records are skipped and counted in the log, or fail the query.",
        kind="skip or fail", parse=values.one_of("skip", "fail"), scopes=_OFFLINE,
    )  # fmt: skip

    # Not options themselves

    scope: Scope | None = None
    """What the options were checked for; None while that is not known."""
    given: frozenset[str] = frozenset()
    """Names of the options that the user gave."""
    file_options: dict[str, Any] = field(default_factory=dict, repr=False)
    """What fsspec is told."""

    def client_options(self) -> ClientOptions:
        """The options of a client. Made where it is used: a TLS context cannot travel.

        Raises SparkRocketMQError (BAD_OPTION) for what only this machine can tell, such as a missing file.
        """
        credentials = None
        if self.access_key is not None and self.secret_key is not None:
            credentials = Credentials(self.access_key, self.secret_key, self.security_token)
        try:
            return client_options(
                {
                    "name_server": self.name_server,
                    "namespace": self.namespace,
                    "credentials": credentials,
                    "tls": client_context(self._tls_files(), verify_server=True) if self.tls else False,
                    "broker_address_map": self.broker_address_map,
                }
            )
        except ValueError as error:
            raise SparkRocketMQError(Condition.BAD_OPTION, str(error)) from None
        except ConfigError as error:
            raise bad_option(_OF_TLS.get(error.key, "tls"), error.value, error.reason) from None

    def connection_key(self) -> tuple[Any, ...]:
        """Equal for settings that may share connections."""
        return (
            self.name_server, self.namespace, self.group, self.access_key, self.secret_key,
            self.security_token, self.tls, self.tls_ca_file, self.tls_cert_file, self.tls_key_file,
            tuple(sorted(self.broker_address_map.items())), self.pull_timeout_ms, self.fetch_retries,
            self.fetch_retry_interval_ms,
            self.read_from_slave,
        )  # fmt: skip

    def _tls_files(self) -> TlsFiles:
        return TlsFiles(
            certificate=self.tls_cert_file or "", key=self.tls_key_file or "", trusted=self.tls_ca_file or ""
        )


_OF_TLS: Final = {"tls.client.certPath": "tlsCertFile", "tls.client.trustCertPath": "tlsCaFile"}


def _option_name(attribute: str) -> str:
    first, *others = attribute.split("_")
    return first + "".join(word.capitalize() for word in others)


def _declared() -> tuple[Option, ...]:
    found = []
    for each in dataclasses.fields(Settings):
        meta = each.metadata
        if not meta:
            continue
        default = {} if each.default is dataclasses.MISSING else each.default
        shown = meta["shown_default"]
        if shown is None:
            shown = "" if default in (None, ()) else f"`{json.dumps(default)}`".replace('"', "")
        found.append(
            Option(
                _option_name(each.name),
                each.name,
                meta["kind"],
                default,
                shown,
                meta["scopes"],
                meta["text"],
                meta["parse"],
            )
        )
    return tuple(found)


OPTIONS: Final[tuple[Option, ...]] = _declared()
_BY_NAME: Final = {each.name.lower(): each for each in OPTIONS}

_FILE_PREFIX: Final = "fs."
_OF_SPARK: Final = frozenset(
    {
        "checkpointlocation",
        "queryname",
        "outputmode",
        "asyncprogresstrackingenabled",
        "asyncprogresstrackingcheckpointintervalms",
        "_asyncprogresstrackingoverridesinksupportcheck",
    }
)
"""What Spark itself reads, and passes on to every format."""

_ELSEWHERE: Final = {
    "kafka.bootstrap.servers": "name servers are given by nameServer",
    "kafka.group.id": "the group is given by group",
    "groupidprefix": "there is no such need here, as reads name their queues; give a group, or none",
    "includeheaders": "properties are a column: includeProperties=true",
    "maxbytespertrigger": "brokers count messages and not bytes: maxOffsetsPerTrigger",
    "subexpression": "tags are given by tags",
    "paths": "give one path; every store has one DataFrame, and union() puts them together",
}
_IGNORED_IN_BATCH: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")


def parse(options: Mapping[str, str], scope: Scope | None = None) -> Settings:
    """The settings that options mean. Raises SparkRocketMQError (BAD_OPTION) at the first fault.

    Without a scope only what holds for every one is checked. With a path a batch read becomes an OFFLINE one.
    """
    from rmq_spark import option_checks

    found: dict[str, Any] = {}
    given: set[str] = set()
    file_options: dict[str, Any] = {}
    for name, text in options.items():
        lower = name.lower()
        if lower.startswith(_FILE_PREFIX):
            file_options[name[len(_FILE_PREFIX) :]] = _file_option(text)
        elif lower in _BY_NAME:
            declared = _BY_NAME[lower]
            try:
                found[declared.attribute] = declared.parse(text)
            except ValueError as error:
                shown = "…" if declared.attribute in _SECRETS else text
                raise bad_option(declared.name, shown, str(error)) from None
            given.add(declared.name)
        elif lower not in _OF_SPARK:
            raise _unknown(name, text)
    settings = Settings(**found, given=frozenset(given), file_options=file_options, scope=scope)
    return option_checks.check(settings)


_SECRETS: Final = frozenset(each.name for each in dataclasses.fields(Settings) if each.metadata and not each.repr)


def _file_option(text: str) -> Any:
    """true, numbers and JSON objects as what they are; anything else as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _unknown(name: str, text: str) -> SparkRocketMQError:
    elsewhere = _ELSEWHERE.get(name.lower())
    if elsewhere is None:
        near = difflib.get_close_matches(name.lower(), _BY_NAME, n=1, cutoff=0.0)
        elsewhere = f"there is no such option; the nearest is {_BY_NAME[near[0]].name}"
    return bad_option(name, text, elsewhere)


def table() -> str:
    """The options as a Markdown table."""
    lines = ["| Option | Where | Takes | Default | Meaning |", "|---|---|---|---|---|"]
    for each in OPTIONS:
        where = "all" if each.scopes == _ALL else ", ".join(scope for scope in Scope if scope in each.scopes)
        text = each.text.replace("|", "\\|")
        lines.append(f"| `{each.name}` | {where} | {each.kind} | {each.shown_default} | {text} |")
    return "\n".join(lines) + "\n"


def document(text: str) -> str:
    """The guide with the table of options and that of conditions as they are now."""
    for name, made in (("options", table()), ("conditions", conditions())):
        start = text.index("\n", text.index(f"<!-- {name}:")) + 1
        text = text[:start] + made + text[text.index("<!-- end -->", start) :]
    return text


def conditions() -> str:
    """The conditions of errors as a Markdown table."""
    lines = ["| Condition | Meaning |", "|---|---|", *(f"| {each.value} | {each.text} |" for each in Condition)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    guide = Path(sys.argv[1])
    guide.write_text(document(guide.read_text(encoding="utf-8")), encoding="utf-8")
