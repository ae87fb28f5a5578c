"""What must hold between options: which of them exclude, and which need one another.

Without a scope only that is checked which holds for every use of the format; with one, all. What depends on the
scope gets its default here.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from typing import Final

from rmq_core.client.options import parse_name_servers
from rmq_spark.errors import Condition, SparkRocketMQError, bad_option
from rmq_spark.offsets import EARLIEST, LATEST, QueueOffsets, check_same_queues, queue_name, queue_names
from rmq_spark.options import OPTIONS, Scope, Settings

_log: Final = logging.getLogger(__name__)
_READING: Final = (None, Scope.READ, Scope.STREAM, Scope.OFFLINE)
_TOPIC_OPTIONS: Final = ("topic", "subscribe", "subscribePattern", "assign")
_ONLY_IN_STREAMS: Final = frozenset({"maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"})


def check(settings: Settings) -> Settings:
    """The settings with the defaults of their scope. Raises SparkRocketMQError (BAD_OPTION)."""
    _check_always(settings)
    scope = settings.scope
    if settings.path is not None and scope is not None:
        if scope is not Scope.READ:
            raise bad_option(
                "path", settings.path, "a store directory can be read as a batch; streams and sinks need nameServer"
            )
        scope = Scope.OFFLINE
    if scope is None:
        return settings
    settings = dataclasses.replace(settings, scope=scope)
    _check_scopes(settings, scope)
    if scope is Scope.OFFLINE:
        return _checked_offline(settings)
    if settings.name_server is None:
        raise _missing("nameServer", "give it as host:port, or a path to read a store directory offline")
    if scope in (Scope.WRITE, Scope.STREAM_WRITE):
        return settings
    return _checked_reader(settings, scope)


def check_loaded(settings: Settings) -> None:
    """What every kind of reading needs, seen at load(). Raises SparkRocketMQError (BAD_OPTION)."""
    if settings.path is not None:
        return
    if settings.name_server is None:
        raise _missing("nameServer", "give it as host:port, or a path to read a store directory offline")
    _check_topics(settings)


def _missing(name: str, reason: str) -> SparkRocketMQError:
    return SparkRocketMQError(Condition.BAD_OPTION, f"option {name} is missing: {reason}", option=name)


def _conflict(names: Iterable[str], reason: str) -> SparkRocketMQError:
    listed = " and ".join(names)
    return SparkRocketMQError(Condition.BAD_OPTION, f"options {listed} contradict each other: {reason}")


# Whatever the scope


def _check_always(settings: Settings) -> None:
    if settings.path is not None:
        for each in OPTIONS:
            if each.name in settings.given and Scope.OFFLINE not in each.scopes:
                raise _conflict(["path", each.name], "a path is read offline, from files alone")
    if settings.name_server is not None:
        try:
            parse_name_servers(settings.name_server)
        except ValueError as error:
            raise bad_option("nameServer", settings.name_server, str(error)) from None
    _check_trust(settings)
    _check_filters(settings)
    least, most = settings.min_offsets_per_trigger, settings.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise _conflict(
            [f"minOffsetsPerTrigger={least}", f"maxOffsetsPerTrigger={most}"], "the least is more than the most"
        )
    if settings.group is None:
        if settings.starting_offsets == "group":
            raise _conflict(["startingOffsets=group"], "it needs the option group")
        for name in ("commitOffsets", "sharedGroup"):
            if name in settings.given and getattr(settings, _attribute(name)):
                raise _conflict([f"{name}=true"], "it needs the option group")
    if settings.queue_id is not None and settings.topic is None:
        raise _conflict(["queueId"], "a queue belongs to a topic: give the option topic")


def _attribute(name: str) -> str:
    return next(each.attribute for each in OPTIONS if each.name == name)


def _check_trust(settings: Settings) -> None:
    if (settings.access_key is None) != (settings.secret_key is None):
        raise _conflict(["accessKey", "secretKey"], "each needs the other")
    if settings.security_token is not None and settings.access_key is None:
        raise _conflict(["securityToken"], "it needs accessKey and secretKey")
    for name in ("tlsCaFile", "tlsCertFile", "tlsKeyFile"):
        if name in settings.given and not settings.tls:
            raise _conflict([name, "tls"], "files without tls=true would be of no use")
    if settings.tls_key_file is not None and settings.tls_cert_file is None:
        raise _conflict(["tlsKeyFile"], "a key needs its certificate: give the option tlsCertFile")


def _check_filters(settings: Settings) -> None:
    if settings.sql is None:
        return
    if settings.tags is not None:
        raise _conflict(["tags", "sql"], "a query filters by one of them; SQL can say TAGS = 'paid'")
    from rmq_core.protocol.sql92 import SqlSyntaxError, compile_sql

    try:
        compile_sql(settings.sql)
    except SqlSyntaxError as error:
        raise bad_option("sql", settings.sql, str(error)) from None


# One scope


def _check_scopes(settings: Settings, scope: Scope) -> None:
    for each in OPTIONS:
        if each.name not in settings.given or scope in each.scopes:
            continue
        if scope is Scope.READ and each.name in _ONLY_IN_STREAMS:
            _log.warning("option %s has no effect in a batch", each.name)
            continue
        where = ", ".join(known for known in Scope if known in each.scopes)
        raise SparkRocketMQError(
            Condition.BAD_OPTION, f"option {each.name} has no place here ({scope}): it is for {where}",
            option=each.name,
        )  # fmt: skip


def _checked_offline(settings: Settings) -> Settings:
    start, end = settings.starting_timestamp, settings.ending_timestamp
    if start is not None and end is not None and start > end:
        raise _conflict([f"startingTimestamp={start}", f"endingTimestamp={end}"], "the start is after the end")
    return settings


def _check_topics(settings: Settings) -> None:
    given = [name for name in _TOPIC_OPTIONS if name in settings.given]
    listed = f"{', '.join(_TOPIC_OPTIONS[:-1])} and {_TOPIC_OPTIONS[-1]}"
    if not given:
        raise SparkRocketMQError(Condition.BAD_OPTION, f"nothing says what to read: give one of {listed}")
    if len(given) > 1:
        raise _conflict(given, f"give only one of {listed}")


def _checked_reader(settings: Settings, scope: Scope) -> Settings:
    _check_topics(settings)
    _check_starts(settings, scope)
    if scope is Scope.READ:
        _check_ends(settings)
    for name in ("startingOffsets", "startingOffsetsByTimestamp", "endingOffsets", "endingOffsetsByTimestamp"):
        value = getattr(settings, _attribute(name))
        if settings.assign and isinstance(value, dict):
            check_same_queues(name, value, settings.assign)
    fallback = settings.fallback_offsets or ("earliest" if scope is Scope.READ else "latest")
    starting = settings.starting_offsets
    if starting is None:
        starting = "earliest" if scope is Scope.READ else "group" if settings.group is not None else fallback
    return dataclasses.replace(settings, starting_offsets=starting, fallback_offsets=fallback)


def _check_starts(settings: Settings, scope: Scope) -> None:
    starts = settings.starting_offsets
    if scope is not Scope.READ or settings.starting_timestamp is not None:
        return
    if settings.starting_offsets_by_timestamp is not None:
        return
    if starts == "latest":
        raise bad_option("startingOffsets", starts, "a batch cannot start at the latest offset: it would be empty")
    if isinstance(starts, dict):
        for queue, offset in starts.items():
            if offset == LATEST:
                raise bad_option(
                    "startingOffsets",
                    LATEST,
                    f"a batch cannot start at the latest offset, as {queue_name(queue)} does",
                )


def _check_ends(settings: Settings) -> None:
    ends = settings.ending_offsets
    if ends == "earliest":
        raise bad_option("endingOffsets", ends, "a batch cannot end at the earliest offset: it would be empty")
    if isinstance(ends, dict):
        for queue, offset in ends.items():
            if offset == EARLIEST:
                raise bad_option(
                    "endingOffsets",
                    EARLIEST,
                    f"a batch cannot end at the earliest offset, as {queue_name(queue)} does",
                )
    start_time, end_time = settings.starting_timestamp, settings.ending_timestamp
    if start_time is not None and end_time is not None and start_time > end_time:
        raise _conflict(
            [f"startingTimestamp={start_time}", f"endingTimestamp={end_time}"], "the start is after the end"
        )
    if start_time is None and end_time is None:
        _check_pairs(settings)


def _check_pairs(settings: Settings) -> None:
    """Starts and ends of single queues, where both are numbers of the same kind."""
    times = (settings.starting_offsets_by_timestamp, settings.ending_offsets_by_timestamp)
    if times[0] is not None and times[1] is not None:
        _check_pair(times[0], times[1], "OffsetsByTimestamp", "timestamp")
    starts, ends = settings.starting_offsets, settings.ending_offsets
    if times == (None, None) and isinstance(starts, dict) and isinstance(ends, dict):
        _check_pair(starts, ends, "Offsets", "offset")


def _check_pair(starts: QueueOffsets, ends: QueueOffsets, suffix: str, what: str) -> None:
    names = [f"starting{suffix}", f"ending{suffix}"]
    if set(starts) != set(ends):
        raise _conflict(names, f"one names {queue_names(starts)}, the other {queue_names(ends)}")
    for queue in sorted(starts):
        start, end = starts[queue], ends[queue]
        if 0 <= end < start:
            raise _conflict(
                names, f"{queue_name(queue)} has the starting {what} {start} and the ending {what} {end}"
            )
