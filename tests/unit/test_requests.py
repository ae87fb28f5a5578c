"""Declared requests and replies: what they carry, what they refuse, and what clients of other makes send."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_core.errors import LocalProtocolError, RemoteProtocolError
from rmq_core.protocol import requests
from rmq_core.protocol.codes import Language
from rmq_core.protocol.command import Command, FrameDecoder, decode_command, encode_command
from rmq_core.protocol.fields import MISSING, FieldPlan, field_plans
from rmq_core.protocol.request import ENVELOPE_FIELDS, REQUESTS, Header, NoFields, Request, java_name
from support.headers import commands, headers, replies

# Other tests declare requests of their own.
REQUEST_TYPES = [
    request
    for _, request in sorted(REQUESTS.items())
    if request.__module__.startswith("rmq_core.protocol.requests.")
]
DECLARED = [pytest.param(request, id=java_name(request)) for request in REQUEST_TYPES]
HEADERS = sorted(
    {header for request in REQUEST_TYPES for header in (request, request.reply)}, key=lambda cls: cls.__name__
)


def frame(header: str, body: bytes = b"") -> bytes:
    """A frame as clients write it by hand."""
    text = header.encode()
    return struct.pack(">ii", 4 + len(text) + len(body), len(text)) + text + body


def read(request: type[Request[Any]], ext_fields: str) -> Any:
    """The typed header of a request whose extFields are this JSON text."""
    command = decode_command(frame(f'{{"code":{request.code},"opaque":1,"extFields":{ext_fields}}}'))
    return request.from_ext(command.ext or {})


def bytewise(data: bytes) -> bytes | None:
    decoder = FrameDecoder()
    for index in range(len(data)):
        assert decoder.next() is None
        decoder.feed(data[index : index + 1])
    return decoder.next()


def survives(command: Command, header: type[Header]) -> None:
    data = encode_command(command)
    assert bytewise(data) == data
    decoded = decode_command(data)
    assert decoded == command
    assert (header.from_ext(decoded.ext or {}).to_ext() or None) == command.ext


@pytest.mark.parametrize("request_type", DECLARED)
def test_every_request_and_reply_survives_the_wire(request_type: type[Request[Any]]) -> None:
    """Fills all fields with hard values, in both header encodings, read whole and byte by byte."""

    @settings(max_examples=4, deadline=None, database=None)
    @given(commands(request_type), replies(request_type))
    def check(request: Command, reply: Command) -> None:
        survives(request, request_type)
        survives(reply, request_type.reply)

    check()


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(HEADERS).flatmap(headers))
def test_typed_values_are_the_same_on_the_other_side(header: Header) -> None:
    """Compares values, not texts: a field read as another type or under another name would differ."""
    assert type(header).from_ext(header.to_ext()) == header


def test_every_request_is_exported_under_its_name() -> None:
    """Looks for a declaration that `requests` does not hand out."""
    for request in REQUEST_TYPES:
        assert getattr(requests, request.__name__) is request
        assert request.__name__ in requests.__all__


def test_no_header_takes_a_name_twice_or_one_of_the_envelope() -> None:
    """Two fields of one wire name would overwrite each other; envelope fields belong to nobody."""
    for header in HEADERS:
        names = [plan.wire_name for plan in field_plans(header)]
        assert len(names) == len(set(names)), header
        assert not set(names) & set(ENVELOPE_FIELDS), header


def test_a_code_declared_twice_fails() -> None:
    """Declares GET_MAX_OFFSET again under another name."""
    with pytest.raises(TypeError, match=r"30 is declared by GetMaxOffset and by .*Again"):

        @dataclass(frozen=True, slots=True)
        class Again(Request[NoFields]):
            code: ClassVar = 30

    assert REQUESTS[30] is requests.GetMaxOffset


def fields_of_all() -> Iterator[tuple[type[Header], FieldPlan]]:
    for header in HEADERS:
        for plan in field_plans(header):
            yield header, plan


def plain_ext(header: type[Header]) -> dict[str, str]:
    """A text for every field that its type accepts."""
    return {plan.wire_name: "true" if plan.type is bool else "1" for plan in field_plans(header)}


def test_a_missing_required_field_is_named() -> None:
    """Leaves each required field of each header out; each optional one may be missing."""
    for header, plan in fields_of_all():
        ext = plain_ext(header)
        del ext[plan.wire_name]
        if plan.default is MISSING:
            with pytest.raises(RemoteProtocolError, match=f"the field {plan.wire_name} is missing"):
                header.from_ext(ext)
        else:
            assert getattr(header.from_ext(ext), plan.name) is None


def test_a_number_that_is_none_is_named() -> None:
    """Writes text, fractions, blanks, foreign digits and too large numbers into each number of each header."""
    for header, plan in fields_of_all():
        if plan.type is int:
            limit = 1 << (plan.bits - 1)
            for text in ("x", "1.5", " 1", "1_0", "٣", "--1", "+", str(limit), str(-limit - 1), "9" * 5000):
                with pytest.raises(RemoteProtocolError, match=f"the field {plan.wire_name}: "):
                    header.from_ext({**plain_ext(header), plan.wire_name: text})


def test_a_number_too_large_for_its_field_is_not_sent() -> None:
    """A queue id of 33 bits."""
    with pytest.raises(LocalProtocolError, match="queueId"):
        requests.GetMaxOffset(topic="T", queue_id=2**31).to_ext()


# What clients in other languages send.


def test_header_fields_may_be_numbers_and_booleans() -> None:
    """Text, numbers and booleans mixed within one frame, as ali-ons and the C++ clients write them."""
    pull = read(
        requests.PullMessage,
        '{"consumerGroup":"CG","topic":"T","queueId":0,"queueOffset":"0","maxMsgNums":32,"sysFlag":6,'
        '"commitOffset":0,"suspendTimeoutMillis":20000,"subVersion":"1700000000000","subscription":"*"}',
    )
    assert (pull.queue_id, pull.queue_offset, pull.sub_version) == (0, 0, 1_700_000_000_000)
    send = read(
        requests.SendMessageV2,
        '{"a":"PG","b":"T","c":"TBW102","d":4,"e":0,"f":0,"g":1700000000000,"h":0,"i":"","j":0,"k":false,"m":true}',
    )
    assert (send.unit_mode, send.batch, send.properties) == (False, True, "")


@pytest.mark.parametrize("ext", ['"extFields":{},', '"extFields":null,', ""])
def test_header_fields_may_be_empty_null_or_absent(ext: str) -> None:
    """Heartbeats of ali-ons, rocketmq-nodejs and pyrocketmq."""
    command = decode_command(frame(f'{{"code":34,{ext}"flag":0,"opaque":2}}', b"{}"))
    assert not command.ext
    assert requests.HeartBeat.from_ext(command.ext or {}) == requests.HeartBeat()


def test_null_fields_count_as_absent() -> None:
    """Some JSON writers keep nulls."""
    assert read(requests.GetMaxOffset, '{"topic":"T","queueId":1,"committed":null}').committed is None
    with pytest.raises(RemoteProtocolError, match="topic"):
        read(requests.GetMaxOffset, '{"topic":null,"queueId":1}')


@pytest.mark.parametrize(
    ("text", "language"),
    [('"PYTHON"', Language.PYTHON), ("3", Language.PYTHON), ('"COBOL"', Language.OTHER), ("99", Language.OTHER)],
)
def test_the_language_may_be_a_number_or_unknown(text: str, language: Language) -> None:
    """pyrocketmq writes 3 and calls itself version 1."""
    command = decode_command(frame(f'{{"code":105,"language":{text},"version":1,"opaque":1,"flag":0}}'))
    assert (command.language, command.version) == (language, 1)


def test_header_and_body_may_end_in_a_newline() -> None:
    """Old C++ clients end both with one."""
    body = b'{"clientID":"c","producerDataSet":[{"groupName":"PG"}],"consumerDataSet":[]}\n'
    command = decode_command(frame('{"code":34,"flag":0,"language":"CPP","opaque":1,"version":63}\n', body))
    assert command.body == body
    assert requests.HeartBeat.body.decode(command.body).client_id == "c"


@pytest.mark.parametrize(("flag", "is_oneway"), [(0, False), (2, True)])
def test_only_the_flag_says_that_no_answer_is_wanted(flag: int, is_oneway: bool) -> None:
    """ali-ons and old C++ clients send commits with flag 0 and are answered; rocketmq-nodejs with flag 2."""
    ext = '{"consumerGroup":"CG","topic":"T","queueId":"0","commitOffset":"5"}'
    command = decode_command(frame(f'{{"code":15,"extFields":{ext},"flag":{flag},"opaque":9,"version":63}}'))
    assert (command.is_oneway, command.is_response) == (is_oneway, False)
    assert requests.UpdateConsumerOffset.from_ext(command.ext or {}).commit_offset == 5


def test_a_message_may_be_sent_back_with_three_fields() -> None:
    """Old C++ clients name group, position and delay, nothing else."""
    back = read(requests.ConsumerSendMsgBack, '{"group":"CG","offset":"4711","delayLevel":"0"}')
    assert back == requests.ConsumerSendMsgBack(log_offset=4711, group="CG", delay_level=0)
    assert back.to_ext() == {"group": "CG", "offset": "4711", "delayLevel": "0"}


@pytest.mark.parametrize("decision", [0, 8, 12])
def test_an_old_client_may_decide_a_transaction(decision: int) -> None:
    """Old C++ clients write 0 and 1 for booleans, and an empty transaction id the first time."""
    end = read(
        requests.EndTransaction,
        '{"producerGroup":"PG","tranStateTableOffset":"3","commitLogOffset":"99","fromTransactionCheck":"1",'
        f'"msgId":"7F000001","transactionId":"","commitOrRollback":"{decision}"}}',
    )
    assert (end.commit_or_rollback, end.transaction_id) == (decision, "")
    assert end.from_transaction_check is False


@pytest.mark.parametrize(
    ("text", "value"),
    [('"true"', True), ('"TRUE"', True), ("true", True), ('"1"', False), ("1", False), ('"no"', False)],
)
def test_a_boolean_is_true_only_where_it_says_so(text: str, value: bool) -> None:
    """As Java's parseBoolean: the "1" of old C++ clients is false."""
    header = read(requests.GetMaxOffset, f'{{"topic":"T","queueId":"0","committed":{text}}}')
    assert header.committed is value


def test_a_batch_is_marked_by_the_word_true() -> None:
    """Old C++ clients send a batch as code 10 with batch "1", which Java does not take for one."""
    fields = '"producerGroup":"PG","topic":"T","defaultTopic":"TBW102","defaultTopicQueueNums":"4","queueId":"0",'
    fields += '"sysFlag":"0","bornTimestamp":"1","flag":"0","properties":"","reconsumeTimes":"0","unitMode":"0"'
    assert read(requests.SendMessage, f'{{{fields},"batch":"1"}}').batch is False
    letters = '"a":"PG","b":"T","c":"TBW102","d":"4","e":"0","f":"0","g":"1","h":"0"'
    assert read(requests.SendBatchMessage, f'{{{letters},"m":"true"}}').batch is True


@pytest.mark.parametrize(("sys_flag", "may_wait", "timeout_ms"), [(6, True, 15000), (4, False, 20000)])
def test_a_pull_says_whether_it_waits(sys_flag: int, may_wait: bool, timeout_ms: int) -> None:
    """Push consumers pull with suspend and subscription, pull consumers with subscription only."""
    pull = read(
        requests.PullMessage,
        '{"consumerGroup":"CG","topic":"T","queueId":"0","queueOffset":"0","maxMsgNums":"32","commitOffset":"0",'
        f'"sysFlag":"{sys_flag}","suspendTimeoutMillis":{timeout_ms},"subscription":"*","subVersion":"0"}}',
    )
    assert bool(pull.sys_flag & 2) is may_wait
    assert pull.sys_flag & 4
    assert pull.suspend_timeout_millis == timeout_ms
