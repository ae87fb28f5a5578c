"""The keyword arguments of every kind of client: declared once, checked, and shown to whoever asks for help."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

import rmq_core
from rmq_core import aio
from rmq_core.client.options import CLIENT_DEFAULTS, ClientArguments
from rmq_core.client.producer_options import ProducerArguments, ProducerOptions
from rmq_core.client.pull_options import (
    LiteArguments,
    LiteOptions,
    PullArguments,
    PullOptions,
    ScheduleArguments,
    ScheduleOptions,
)
from rmq_core.client.push_options import PushArguments, PushOptions

DECLARED: dict[str, tuple[type, type]] = {
    "Producer": (ProducerArguments, ProducerOptions),
    "TransactionProducer": (ProducerArguments, ProducerOptions),
    "PushConsumer": (PushArguments, PushOptions),
    "LitePullConsumer": (LiteArguments, LiteOptions),
    "PullConsumer": (PullArguments, PullOptions),
    "PullSchedule": (ScheduleArguments, ScheduleOptions),
}
FORMS = [rmq_core, aio]


def make(form: Any, name: str, **arguments: Any) -> Any:
    if name == "TransactionProducer":
        arguments = {"topics": ["Orders"], "check": print, **arguments}
    return getattr(form, name)("some-group", **{"name_server": "127.0.0.1:1", **arguments})


@pytest.mark.parametrize("name", DECLARED)
def test_what_type_checkers_know_is_what_is_declared(name: str) -> None:
    """Compares names and types of the TypedDict with those of the options, and looks for each in the meanings."""
    arguments, options = DECLARED[name]
    known = {key: getattr(kind, "__forward_arg__", kind) for key, kind in arguments.__annotations__.items()}
    own = {key: kind for key, kind in known.items() if key not in ClientArguments.__annotations__}
    assert own == {each.name: each.type for each in fields(options)}
    assert set(ClientArguments.__annotations__) == set(CLIENT_DEFAULTS)


@pytest.mark.parametrize("name", [*DECLARED, "Admin"])
def test_help_shows_every_argument_with_its_default_and_meaning(name: str) -> None:
    """The signature and the text of both forms."""
    shown = [inspect.signature(getattr(form, name)) for form in FORMS]
    assert shown[0] == shown[1]
    assert not any(each.kind is each.VAR_KEYWORD for each in shown[0].parameters.values())
    assert shown[0].parameters["name_server"].default is None
    if name in DECLARED:
        for each in fields(DECLARED[name][1]):
            assert shown[0].parameters[each.name].default == each.default
    for form in FORMS:
        text = inspect.getdoc(getattr(form, name).__init__)
        assert text is not None
        for key in shown[0].parameters:
            assert key in ("group", "topics", "timeout_ms") or key in text, key


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("name", "argument"),
    [(name, each.name) for name, (_, options) in DECLARED.items() for each in fields(options)]
    + [("Producer", each) for each in ClientArguments.__annotations__],
)
def test_a_value_of_a_wrong_type_is_refused_by_name(form: Any, name: str, argument: str) -> None:
    """Gives every argument of every client something that it cannot be."""
    with pytest.raises((TypeError, ValueError), match=argument):
        make(form, name, **{argument: object()} if argument != "topics" else {argument: 7})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("name", "written", "meant"),
    [
        ("Producer", "time_out_ms", "timeout_ms"),
        ("TransactionProducer", "in_flight", "in_flight_max"),
        ("PushConsumer", "concurency", "concurrency"),
        ("LitePullConsumer", "autocommit", "auto_commit"),
        ("PullConsumer", "name_servers", "name_server"),
        ("PullSchedule", "namespaces", "namespace"),
    ],
)
def test_a_name_that_does_not_exist_is_refused_with_the_nearest_one(
    form: Any, name: str, written: str, meant: str
) -> None:
    """Writes each as somebody might, and something that is near to nothing."""
    with pytest.raises(TypeError, match=f"{written}.*did you mean '{meant}'"):
        make(form, name, **{written: 1})
    with pytest.raises(TypeError, match=r"'zzz'; there are .*name_server"):
        make(form, name, zzz=1)
