"""Settings: their declarations, Java's properties text, the command line, and the files made from them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.config import (
    BROKER_DEFAULTS,
    NAMESRV_DEFAULTS,
    USAGE,
    BrokerSettings,
    ClientSettings,
    NamesrvSettings,
    ServerSettings,
    Settings,
    StoreSettings,
    UnknownKey,
    expand_path,
    format_properties,
    key,
    keys_of,
    load,
    no_effect,
    parse_arguments,
    parse_properties,
    read_properties,
    update_all,
)
from rmq_core.config.__main__ import DOCUMENTED, document
from rmq_core.errors import ConfigError
from support.golden import exchanges

ROOT = Path(__file__).parents[2]
GET_BROKER_CONFIG = 26
GET_NAMESRV_CONFIG = 319
INSTALLATION_KEYS = {"rocketmqHome", "kvConfigPath", "configStorePath", "listenPort"}


class Role(Enum):
    ASYNC_MASTER = 0
    SLAVE = 1


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(kw_only=True)
class SampleSettings(Settings):
    """One setting of each kind."""

    retention_hours: int = key(72, "Age.", name="fileReservedTime", at_least=1, live=True)
    listen_port: int = key(0, "Port.", at_least=0, at_most=65535)
    disk_ratio: float = key(0.75, "Share.", at_least=0, at_most=1, live=True)
    auto_create: bool = key(True, "Create.", live=True)
    broker_role: Role = key(Role.ASYNC_MASTER, "Role.")  # noqa: RUF009
    colour: Colour = key(Colour.RED, "Colour.", live=True)  # noqa: RUF009
    level: str = key("low", "Level.", one_of=("low", "high"))
    home_path: str | None = key(None, "Home.")
    limit: int | None = key(None, "Limit.", at_least=1)
    pass_word: str = key("", "Word.", secret=True, one_of=("", "open"))
    threads: int = no_effect(8, "Threads.")


@dataclass(kw_only=True)
class OtherSettings(Settings):
    """Shares a file with the sample."""

    broker_name: str = key("broker-a", "Name.", live=True)
    listen_port: int = key(1, "Port.")
    size_min: int = key(0, "Smallest.", live=True)
    size_max: int = key(5, "Largest.", at_most=9, live=True)

    def check_together(self) -> None:
        if self.size_max < self.size_min:
            raise ConfigError("sizeMax", self.size_max, "must be at least sizeMin")


def sample_file(name: str) -> list[dict[str, str]]:
    """The properties of a file in conf/ as it is, and with every commented-out setting switched on."""
    lines = (ROOT / "conf" / name).read_text(encoding="utf-8").splitlines()
    switched_on = [line.removeprefix("# ") if "=" in line else line for line in lines]
    return [parse_properties("\n".join(lines)), parse_properties("\n".join(switched_on))]


def recorded_configurations(code: int, version: str = "") -> list[str]:
    """Bodies with which Apache's programs answered a request for their configuration, each once."""
    bodies = [
        each.response.body.decode()
        for each in exchanges()
        if each.code == code and each.response and each.response.body and each.server.endswith(version)
    ]
    return list(dict.fromkeys(bodies))


# Properties text


JAVA_TEXTS = [
    ("a=b", {"a": "b"}),
    ("a:b", {"a": "b"}),
    ("a b", {"a": "b"}),
    ("a \t:\f b c ", {"a": "b c "}),
    ("a = = b", {"a": "= b"}),
    ("a::b", {"a": ":b"}),
    ("a", {"a": ""}),
    ("=b", {"": "b"}),
    ("# a=b\n ! c=d\n\n \t\ne=f", {"e": "f"}),
    ("a=#b", {"a": "#b"}),
    ("# a\\\nb=c", {"b": "c"}),
    ("a=b,\\\n    c,\\\r\n\td", {"a": "b,c,d"}),
    ("a=b\\\n# c", {"a": "b# c"}),
    ("a=b\\\n\nc=d", {"a": "b", "c": "d"}),
    ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
    ("a=b\\", {"a": "b"}),
    ("\\\n\\\na=b", {"a": "b"}),
    ("\\\n\n", {}),
    ("a=1\ra=2\r\na=3", {"a": "3"}),
    (r"a\=b\:c\ d=\q\t\n\r\f\\", {"a=b:c d": "q\t\n\r\f\\"}),
    (r"\#a=\u4f60\u597D", {"#a": "你好"}),
    (r"a=\uD83D\uDE00", {"a": "😀"}),
    ("a=你好\u2028x\x0by", {"a": "你好\u2028x\x0by"}),
]


@pytest.mark.parametrize(("text", "expected"), JAVA_TEXTS)
def test_properties_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    """Every separator, comment, continuation and escape of java.util.Properties."""
    assert parse_properties(text) == expected


@pytest.mark.parametrize(
    ("line", "value"), [(r"b=\u12", r"\u12"), (r"b=\uD83", r"\uD83"), (r"b=x\u00g1y", r"\u00g1"), (r"b=\u", r"\u")]
)
def test_a_bad_escape_is_reported_with_file_and_line(line: str, value: str) -> None:
    """The bad line stands behind a comment and a continued line, so counting logical lines is not enough."""
    with pytest.raises(ConfigError, match=r"broker\.conf line 4: \\u needs four hexadecimal digits") as caught:
        parse_properties(f"# head\na=1,\\\n  2\n{line}\nc=3", file="broker.conf")
    assert (caught.value.key, caught.value.value) == ("b", value)


@pytest.mark.parametrize("text", [r"a=\uD83D", r"a=\uDE00\uD83D", r"\uD800=b"])
def test_half_a_surrogate_pair_is_refused(text: str) -> None:
    """Such text could not be encoded again when it is sent or written."""
    with pytest.raises(ConfigError, match="x line 1: half of a surrogate pair"):
        parse_properties(text, file="x")


@given(st.dictionaries(st.text(max_size=12), st.text(max_size=12)))
def test_written_properties_read_back_the_same(properties: dict[str, str]) -> None:
    """Any key and value: separators, blanks at the ends, controls, other scripts; the text is plain ASCII."""
    text = format_properties(properties)
    assert text.isascii()
    assert parse_properties(text) == properties


@given(st.text(alphabet="a=: \t\\\n\r\f#!u0d8é\x00", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Random text gives properties, which survive a round trip, or ConfigError."""
    try:
        properties = parse_properties(text)
    except ConfigError:
        return
    assert parse_properties(format_properties(properties)) == properties


def test_recorded_configurations_are_written_byte_for_byte() -> None:
    """Read each answer of a 5.3.3 name server or broker, turn its order round and write it again."""
    bodies = [
        body for code in (GET_NAMESRV_CONFIG, GET_BROKER_CONFIG) for body in recorded_configurations(code, "5.3.3")
    ]
    assert bodies
    for body in bodies:
        assert format_properties(dict(reversed(parse_properties(body).items()))) == body


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing file, a directory, bytes that are not UTF-8 on line 3, and a name no file can have."""
    latin = tmp_path / "latin.conf"
    latin.write_bytes(b"a=1\r\nb=2\nc=\xe9\n")
    with pytest.raises(ConfigError, match=r"latin\.conf: line 3 is not UTF-8"):
        read_properties(latin)
    for path in (tmp_path / "missing.conf", tmp_path, "nul\0byte"):
        with pytest.raises(ConfigError, match="cannot be read") as caught:
            read_properties(path)
        assert caught.value.value == path


def test_a_byte_order_mark_is_not_part_of_the_first_key(tmp_path: Path) -> None:
    """Editors on Windows write one."""
    file = tmp_path / "a.conf"
    file.write_bytes(b"\xef\xbb\xbflistenPort=1\r\n")
    assert read_properties(file) == {"listenPort": "1"}


# Declarations


def test_defaults_are_the_declared_ones() -> None:
    """Nothing given: attributes carry the defaults with their types."""
    sample = SampleSettings()
    assert (sample.retention_hours, sample.disk_ratio, sample.broker_role) == (72, 0.75, Role.ASYNC_MASTER)
    assert (sample.home_path, sample.limit, sample.auto_create) == (None, None, True)


def test_values_are_read_by_type() -> None:
    """Each kind in the spelling of a Java file: blanks around, case of booleans, enum names and texts."""
    sample = SampleSettings.from_properties(
        {
            "fileReservedTime": " +48 ",
            "diskRatio": "5e-1",
            "autoCreate": "FALSE",
            "brokerRole": "SLAVE",
            "colour": "blue",
            "level": "high",
            "homePath": "/x",
            "limit": "7",
            "passWord": "open",
        }
    )
    assert sample == SampleSettings(
        retention_hours=48,
        disk_ratio=0.5,
        auto_create=False,
        broker_role=Role.SLAVE,
        colour=Colour.BLUE,
        level="high",
        home_path="/x",
        limit=7,
        pass_word="open",
    )
    assert SampleSettings.from_properties({"limit": "", "homePath": " "}) == SampleSettings()


BAD_TEXTS = [
    ("fileReservedTime", "0", "must be at least 1"),
    ("fileReservedTime", "", "must be a whole number of at most 64 bits"),
    ("fileReservedTime", "7.5", "must be a whole number of at most 64 bits"),
    ("fileReservedTime", "1_000", "must be a whole number of at most 64 bits"),
    ("fileReservedTime", "٧", "must be a whole number of at most 64 bits"),
    ("fileReservedTime", "9223372036854775808", "must be a whole number of at most 64 bits"),
    ("fileReservedTime", "9" * 5000, "must be a whole number of at most 64 bits"),
    ("listenPort", "-1", "must be at least 0"),
    ("listenPort", "65536", "must be at most 65535"),
    ("diskRatio", "1.5", "must be at most 1"),
    ("diskRatio", "nan", "must be a number"),
    ("diskRatio", "1e999", "must be a number"),
    ("autoCreate", "yes", "must be true or false"),
    ("brokerRole", "slave", "must be one of ASYNC_MASTER, SLAVE"),
    ("colour", "green", "must be one of red, blue"),
    ("level", "middle", "must be one of low, high"),
    ("limit", "0", "must be at least 1"),
]


@pytest.mark.parametrize(("name", "text", "reason"), BAD_TEXTS)
def test_a_bad_value_names_key_value_and_reason(name: str, text: str, reason: str) -> None:
    """Wrong types, values outside their range and outside their list, on the way in and at run time."""
    for attempt in (SampleSettings.from_properties, SampleSettings().update):
        with pytest.raises(ConfigError) as caught:
            attempt({name: text})
        error = caught.value
        assert (error.key, error.reason) == (name, reason)
        assert str(error) == f"{name}={error.value}: {reason}"
        assert str(error.value) in (text, str(float("inf")))


BAD_VALUES: list[tuple[str, object, str]] = [
    ("retention_hours", True, "fileReservedTime"),
    ("retention_hours", "72", "fileReservedTime"),
    ("retention_hours", None, "fileReservedTime"),
    ("retention_hours", 1 << 63, "fileReservedTime"),
    ("retention_hours", 0, "fileReservedTime"),
    ("disk_ratio", float("nan"), "diskRatio"),
    ("disk_ratio", 10**400, "diskRatio"),
    ("auto_create", 1, "autoCreate"),
    ("broker_role", "SLAVE", "brokerRole"),
    ("home_path", Path("/x"), "homePath"),
    ("level", "middle", "level"),
]


@pytest.mark.parametrize(("attribute", "value", "name"), BAD_VALUES)
def test_the_constructor_checks_too(attribute: str, value: object, name: str) -> None:
    """Values that no text could give, and the Java name in the error."""
    arguments: dict[str, object] = {attribute: value}
    with pytest.raises(ConfigError) as caught:
        SampleSettings(**arguments)  # type: ignore[arg-type]
    assert (caught.value.key, caught.value.value) == (name, value)


@pytest.mark.parametrize("settings", [*DOCUMENTED, SampleSettings])
def test_every_setting_refuses_what_its_declaration_excludes(settings: type[Settings]) -> None:
    """For each declared key: a word for a number, one below and one above its range, a stranger to its list."""
    for each in keys_of(settings):
        bad = ["word"] if each.kind is not str else []
        bad += [str(each.at_least - 1)] if each.at_least is not None else []
        bad += [str(each.at_most + 1)] if each.at_most is not None else []
        bad += ["stranger"] if each.one_of is not None else []
        for text in bad:
            with pytest.raises(ConfigError) as caught:
                settings.from_properties({each.name: text})
            shown = "******" if each.secret else text
            assert caught.value.key == each.name
            assert str(caught.value.value).removesuffix(".0") == shown.removesuffix(".0")
            assert caught.value.reason.startswith("must be ")


def test_settings_survive_a_round_trip_through_text() -> None:
    """Every kind away from its default, unknown keys and a secret among them."""
    sample = SampleSettings(
        retention_hours=1,
        disk_ratio=0.1,
        auto_create=False,
        broker_role=Role.SLAVE,
        colour=Colour.BLUE,
        home_path="C:\\data dir\\ü",
        limit=3,
        pass_word="open",
        unknown={"storePathRootDir": "/data", "x y": "=1"},
    )
    assert SampleSettings.from_properties(parse_properties(sample.to_text(secrets=True))) == sample


def test_secrets_are_not_shown() -> None:
    """The text for answers, repr, errors; also a password that was written under a misspelt key."""
    server = ServerSettings.from_properties({"tls.server.keyPassword": "hush", "tls.server.keyPasswort": "hush"})
    assert server.tls_server_key_password == "hush"
    assert server.to_text(secrets=True).count("hush") == 2
    for text in (repr(server), server.to_text()):
        assert "hush" not in text
    with pytest.raises(ConfigError) as caught:
        SampleSettings.from_properties({"passWord": "hush"})
    assert "hush" not in str(caught.value)


# Several classes, one file


def test_unknown_keys_are_kept_and_reported_with_the_nearest_name() -> None:
    """A slip of the pen, and a key of another program that resembles nothing."""
    sample, unknown = load({"fileReservdTime": "1", "zzz": "2", "listenPort": "3"}, SampleSettings)
    assert unknown == [UnknownKey("fileReservdTime", "fileReservedTime"), UnknownKey("zzz", None)]
    assert [str(each) for each in unknown] == [
        "unknown setting fileReservdTime; did you mean fileReservedTime?",
        "unknown setting zzz",
    ]
    assert sample.unknown == {"fileReservdTime": "1", "zzz": "2"}
    assert sample.to_properties().items() >= sample.unknown.items()
    assert sample.listen_port == 3


def test_a_key_of_one_class_is_not_unknown_to_the_other() -> None:
    """One file for two classes: a key of each, one of both, one of neither."""
    properties = {"brokerName": "b", "fileReservedTime": "5", "listenPort": "7", "nobody": "x"}
    sample, other, unknown = load(properties, SampleSettings, OtherSettings)
    assert (sample.retention_hours, sample.listen_port) == (5, 7)
    assert (other.broker_name, other.listen_port) == ("b", 7)
    assert [each.name for each in unknown] == ["nobody"]
    assert {**sample.to_properties(), **other.to_properties()}.items() >= properties.items()


def test_a_program_brings_its_own_defaults() -> None:
    """They replace the class's default, and give way to what is configured."""
    for properties, port in (({}, 9876), ({"listenPort": "19876"}, 19876)):
        _, server, unknown = load(properties, NamesrvSettings, ServerSettings, defaults=NAMESRV_DEFAULTS)
        assert (server.listen_port, unknown) == (port, [])


# Run-time changes


def test_live_settings_change_in_place_and_are_named() -> None:
    """Changed, unchanged and unknown keys together; only the changed ones are named."""
    sample = SampleSettings()
    changed = sample.update(
        {"autoCreate": "false", "colour": "blue", "fileReservedTime": "72", "listenPort": "0", "nobody": "1"}
    )
    assert changed == ["autoCreate", "colour"]
    assert (sample.auto_create, sample.colour, sample.unknown) == (False, Colour.BLUE, {})
    assert sample.update({"threads": "4"}) == ["threads"]


def test_a_refused_change_changes_nothing() -> None:
    """A good value comes first: beside a bad one, one that needs a restart, and bad ones of another class."""
    sample, other = SampleSettings(), OtherSettings()
    for properties, name in (
        ({"fileReservedTime": "1", "diskRatio": "2"}, "diskRatio"),
        ({"fileReservedTime": "1", "listenPort": "5"}, "listenPort"),
        ({"fileReservedTime": "1", "sizeMax": "10"}, "sizeMax"),
        ({"fileReservedTime": "1", "sizeMin": "6"}, "sizeMax"),
    ):
        with pytest.raises(ConfigError) as caught:
            update_all(properties, sample, other)
        assert caught.value.key == name
        assert (sample, other) == (SampleSettings(), OtherSettings())
    assert update_all({"fileReservedTime": "1", "brokerName": "b"}, sample, other) == [
        "fileReservedTime",
        "brokerName",
    ]


def test_a_key_that_is_read_at_start_says_so() -> None:
    """The port of a running server."""
    with pytest.raises(ConfigError, match="listenPort=5: is read only at start: change the file and restart"):
        ServerSettings().update({"listenPort": "5"})


# The declared classes, and what is made from them


def test_limits_of_output_do_not_contradict_each_other() -> None:
    """The hard limit below the soft one."""
    with pytest.raises(ConfigError, match="outputHardLimitBytes=10: must be at least outputSoftLimitBytes=1048576"):
        ServerSettings.from_properties({"outputHardLimitBytes": "10"})


def test_enforced_tls_needs_a_certificate() -> None:
    """Found before anything listens."""
    with pytest.raises(ConfigError, match=r"tls\.server\.mode=enforcing: needs tls\.server\.certPath"):
        ServerSettings(tls_server_mode="enforcing")
    ServerSettings(tls_server_mode="enforcing", tls_server_cert_path="server.pem")


@pytest.mark.parametrize("body", recorded_configurations(GET_NAMESRV_CONFIG))
def test_a_recorded_name_server_configuration_loads_whole(body: str) -> None:
    """What Apache's name servers answered: no unknown key, and each of their keys and values comes back."""
    recorded = parse_properties(body)
    namesrv, server, unknown = load(recorded, NamesrvSettings, ServerSettings, defaults=NAMESRV_DEFAULTS)
    assert unknown == []
    assert {**namesrv.to_properties(), **server.to_properties()}.items() >= recorded.items()


def test_defaults_are_those_of_apache() -> None:
    """Against what a 5.3.3 name server and broker answered, for which only the places of files were configured."""
    checked: set[str] = set()
    for code, classes in (
        (GET_NAMESRV_CONFIG, (NamesrvSettings, ServerSettings)),
        (GET_BROKER_CONFIG, (ClientSettings, ServerSettings)),
    ):
        # The first of each: a later name server had acting masters switched on.
        recorded = parse_properties(recorded_configurations(code, "5.3.3")[0])
        compared = [each for settings in classes for each in keys_of(settings) if each.name in recorded]
        for each in compared:
            if each.name not in INSTALLATION_KEYS:
                assert each.format(each.default) == recorded[each.name], each.name
                checked.add(each.name)
    assert {"serverSocketBacklog", "configBlackList", "useTLS", "clientWorkerThreads"} <= checked


def test_every_setting_has_a_text_that_is_a_sentence() -> None:
    """So that docs/config.md reads well."""
    for settings in DOCUMENTED:
        for each in keys_of(settings):
            assert each.text.endswith("."), each.name


def test_config_md_is_fresh() -> None:
    """The file in the tree against what the declarations say now."""
    assert (ROOT / "docs" / "config.md").read_text(encoding="utf-8") == document(), (
        "run: python -m rmq_core.config > docs/config.md"
    )


def test_sample_files_load_without_unknown_keys() -> None:
    """conf/namesrv.conf as it is, and with every commented-out setting switched on."""
    for properties in sample_file("namesrv.conf"):
        namesrv, _, unknown = load(properties, NamesrvSettings, ServerSettings)
        assert unknown == []
        assert namesrv == NamesrvSettings()
    assert len(properties) > 10


def test_the_sample_file_of_a_broker_shows_its_defaults() -> None:
    """conf/broker.conf: what is commented out must be the default of today; only names and certificates differ."""
    classes = BrokerSettings, ServerSettings, StoreSettings, ClientSettings
    defaults = {each.name: each.format(each.default) for settings in classes for each in keys_of(settings)}
    defaults |= BROKER_DEFAULTS
    for properties in sample_file("broker.conf"):
        *_, unknown = load(properties, *classes, defaults=BROKER_DEFAULTS)
        assert unknown == []
        own = {name for name in properties if properties[name] != defaults[name]}
        assert own <= {"brokerName", "namesrvAddr", "tls.server.certPath", "tls.server.keyPath"}
    assert len(properties) > 25


# Paths and the command line


def test_the_home_directory_is_expanded_at_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every spelling, and look-alikes that stay as they are."""
    monkeypatch.setenv("HOME", "/home/\\1")
    for text in ("~/a", "$HOME/a", "${HOME}/a", "${user.home}/a"):
        assert expand_path(text) == Path("/home/\\1/a")
    assert expand_path("~") == Path("/home/\\1")
    for text in ("/a~/b", "~nobody/a", "$HOMEWORK/a", "/plain"):
        assert expand_path(text) == Path(text)
    assert expand_path(NamesrvSettings().kv_config_path) == Path("/home/\\1/namesrv/kvConfig.json")


COMMAND_LINES = [
    ([], {}),
    (["listenPort=1"], {"listenPort": "1"}),
    (["--listenPort", "1"], {"listenPort": "1"}),
    (["--listenPort=1", "listenPort=2"], {"listenPort": "2"}),
    (["--limit", "-1"], {"limit": "-1"}),
    (["a=b=c", "--d=e=f", "g="], {"a": "b=c", "d": "e=f", "g": ""}),
    (["-n", "h1:9876;h2:9876"], {"namesrvAddr": "h1:9876;h2:9876"}),
    (["--tls.server.mode", "disabled"], {"tls.server.mode": "disabled"}),
]


@pytest.mark.parametrize(("argv", "expected"), COMMAND_LINES)
def test_settings_are_read_from_the_command_line(argv: Sequence[str], expected: dict[str, str]) -> None:
    """Each form, also with = and - in the value."""
    assert parse_arguments(argv).properties == expected


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    """Wherever -c stands, and by its long name."""
    file = tmp_path / "a.conf"
    file.write_text("listenPort=1\nbindAddress=127.0.0.1\n")
    for argv in (["-c", str(file), "listenPort=2"], ["--listenPort=2", f"--configFile={file}"]):
        arguments = parse_arguments(argv)
        assert arguments.file == str(file)
        assert arguments.properties == {"listenPort": "2", "bindAddress": "127.0.0.1"}


def test_help_and_print_are_asked_for_by_either_name() -> None:
    """Help is given even where the file named beside it does not exist."""
    for argv in (["-h"], ["--help"], ["-c", "missing.conf", "-h"]):
        assert parse_arguments(argv).is_help_wanted
    for flag in ("-p", "-m", "--printConfigItem", "--printImportantConfig"):
        arguments = parse_arguments([flag, "a=1"])
        assert (arguments.is_print_wanted, arguments.is_help_wanted, arguments.properties) == (
            True,
            False,
            {"a": "1"},
        )
    assert "-c, --configFile FILE" in USAGE.format(program="mqnamesrv")


@pytest.mark.parametrize(
    "argv", [["-c"], ["--listenPort"], ["listenPort"], ["-x"], ["-x=1"], ["=1"], ["--=1"], ["--", "1"]]
)
def test_an_argument_that_means_nothing_is_refused(argv: list[str]) -> None:
    """Missing values, missing keys, unknown options."""
    with pytest.raises(ConfigError) as caught:
        parse_arguments(argv)
    assert caught.value.key == argv[0]


# The store


def test_store_defaults_are_those_of_the_sheet() -> None:
    """One key of each family: paths, sizes, flushing, reading, index, retention, delay, replication."""
    assert {
        "storePathRootDir": "$HOME/store",
        "mappedFileSizeCommitLog": "1073741824",
        "mappedFileSizeConsumeQueue": "6000000",
        "flushDiskType": "ASYNC_FLUSH",
        "flushIntervalCommitLog": "500",
        "maxMessageSize": "4194304",
        "maxTransferCountOnMessageInMemory": "32",
        "maxHashSlotNum": "5000000",
        "maxIndexNum": "20000000",
        "deleteWhen": "04",
        "fileReservedTime": "72",
        "logicalDiskSpaceCleanForciblyThreshold": "0.8",
        "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "brokerRole": "ASYNC_MASTER",
        "timerCongestNumEachSlot": "2147483647",
    }.items() <= StoreSettings().to_properties().items()
    assert "storePathCommitLog" not in StoreSettings().to_properties()


def test_store_defaults_are_those_of_apache() -> None:
    """Against what a 5.3.3 broker answered; it had its own places, delay levels and a Bloom filter of 112 bits."""
    own = {"storePathRootDir", "storePathCommitLog", "messageDelayLevel", "bitMapLengthConsumeQueueExt"}
    recorded = parse_properties(recorded_configurations(GET_BROKER_CONFIG, "5.3.3")[0])
    compared = [each for each in keys_of(StoreSettings) if each.name in recorded and each.name not in own]
    assert len(compared) > 160
    for each in compared:
        assert each.format(each.default) == recorded[each.name], each.name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mappedFileSizeCommitLog", "2147483648"),
        ("mappedFileSizeCommitLog", "0"),
        ("mappedFileSizeConsumeQueue", "1M"),
        ("flushDiskType", "sync_flush"),
        ("brokerRole", "MASTER"),
        ("maxIndexNum", "1"),
        ("maxIndexNum", "106374183"),
        ("diskMaxUsedSpaceRatio", "101"),
        ("fileReservedTime", "-1"),
        ("haListenPort", "65536"),
        ("deleteWhen", "24"),
        ("deleteWhen", ""),
        ("deleteWhen", "4,5"),
        ("timerCheckMetricsWhen", "5h"),
        ("messageDelayLevel", "1s  5s"),
        ("messageDelayLevel", "1s 5"),
        ("messageDelayLevel", ""),
    ],
)
def test_a_bad_setting_of_the_store_is_refused(name: str, text: str) -> None:
    """Beside the ranges: index files that Java could not address, hours and delays that mean nothing."""
    with pytest.raises(ConfigError) as caught:
        StoreSettings.from_properties({name: text})
    assert caught.value.key == name


def test_store_settings_at_their_limits_are_accepted() -> None:
    """The last values before each refusal, and the forms that lists may have."""
    StoreSettings.from_properties({"maxIndexNum": "106374180", "maxHashSlotNum": "1", "deleteWhen": "0;23; 4;"})
    StoreSettings.from_properties({"messageDelayLevel": "1d", "diskMaxUsedSpaceRatio": "99"})


# The broker


def test_broker_defaults_are_those_of_the_sheet() -> None:
    """One key of each family: identity, registration, topics, pulls, filters, offsets, transactions."""
    broker = BrokerSettings()
    assert {
        "brokerClusterName": "DefaultCluster",
        "brokerName": socket.gethostname(),
        "brokerId": "0",
        "registerNameServerPeriod": "30000",
        "registerBrokerTimeoutMills": "24000",
        "brokerPermission": "6",
        "autoCreateTopicEnable": "true",
        "defaultTopicQueueNums": "8",
        "shortPollingTimeMills": "1000",
        "slaveReadEnable": "false",
        "consumerFallbehindThreshold": "17179869184",
        "maxErrorRateOfBloomFilter": "20",
        "flushConsumerOffsetInterval": "5000",
        "transactionTimeOut": "6000",
        "transactionCheckInterval": "30000",
        "transactionMetricFlushInterval": "10000",
        "popConsumerFSServiceInit": "true",
        "usePIDColdCtrStrategy": "true",
        "brokerElectionPriority": "2147483647",
        "configBlackList": "configBlackList;brokerConfigPath",
    }.items() <= broker.to_properties().items()
    assert (broker.broker_ip1, broker.broker_ip2, broker.namesrv_addr) == (None, None, None)


def test_broker_defaults_are_those_of_apache() -> None:
    """Against what a 5.3.3 broker on two processors answered; it had its own names, transactions and filters."""
    own = {"brokerClusterName", "brokerName", "brokerIP1", "brokerIP2", "namesrvAddr", "rocketmqHome"}
    own |= {"transactionCheckInterval", "transactionTimeOut", "enablePropertyFilter", "recallMessageEnable"}
    own |= {"transactionMetricFlushInterval"}  # Later versions store these counts less often.
    recorded = parse_properties(recorded_configurations(GET_BROKER_CONFIG, "5.3.3")[0])
    compared = [each for each in keys_of(BrokerSettings) if each.name in recorded and each.name not in own]
    assert len(compared) > 180
    for each in compared:
        assert each.format(each.default) == recorded[each.name], each.name


@pytest.mark.parametrize("body", recorded_configurations(GET_BROKER_CONFIG))
def test_a_recorded_broker_configuration_loads_whole(body: str) -> None:
    """What Apache's brokers answered: every value comes back, and only a misspelt key of their file is unknown."""
    recorded = parse_properties(body)
    *settings, unknown = load(
        recorded, BrokerSettings, ServerSettings, StoreSettings, ClientSettings, defaults=BROKER_DEFAULTS
    )
    assert {(each.name, each.nearest) for each in unknown} <= {
        ("mapedFileSizeCommitLog", "mappedFileSizeCommitLog")
    }
    given_back: dict[str, str] = {}
    for each in settings:
        given_back |= each.to_properties()
    assert given_back.items() >= recorded.items()


APACHE_SAMPLES = [
    "brokerClusterName=DefaultCluster brokerName=broker-a brokerId=0 deleteWhen=04 fileReservedTime=48 "
    "brokerRole=ASYNC_MASTER flushDiskType=ASYNC_FLUSH",
    "brokerClusterName=DefaultCluster brokerName=broker-a brokerId=1 deleteWhen=04 fileReservedTime=48 "
    "brokerRole=SLAVE flushDiskType=ASYNC_FLUSH",
    "brokerClusterName=RaftCluster brokerName=RaftNode00 listenPort=30911 namesrvAddr=127.0.0.1:9876 "
    "storePathRootDir=/data/node00 storePathCommitLog=/data/node00/commitlog enableDLegerCommitLog=true "
    "dLegerGroup=RaftNode00 dLegerPeers=n0-127.0.0.1:40911;n1-127.0.0.1:40912 dLegerSelfId=n0 "
    "sendMessageThreadPoolNums=16",
    "brokerClusterName=DefaultCluster brokerName=broker-a brokerId=-1 brokerRole=SLAVE deleteWhen=04 "
    "enableControllerMode=true controllerAddr=127.0.0.1:9877;127.0.0.1:9878 storePathEpochFile=/data/epoch "
    "allAckInSyncStateSet=true listenPort=30911 fileReservedTime=48",
]


@pytest.mark.parametrize("sample", APACHE_SAMPLES)
def test_the_keys_of_apaches_sample_files_are_known(sample: str) -> None:
    """Keys of the samples for a master, a slave, DLedger and the controller, from 4.9 to 5.x."""
    properties = parse_properties(sample.replace(" ", "\n"))
    broker, server, store, unknown = load(
        properties, BrokerSettings, ServerSettings, StoreSettings, defaults=BROKER_DEFAULTS
    )
    assert unknown == []
    assert (broker.to_properties() | store.to_properties() | server.to_properties()).items() >= properties.items()
    assert server.listen_port == int(properties.get("listenPort", "10911"))


def test_a_key_belongs_to_one_part_of_a_broker() -> None:
    """A key that two classes declare could differ between them after a run-time change."""
    classes = BrokerSettings, ServerSettings, StoreSettings, ClientSettings
    names = [each.name for settings in classes for each in keys_of(settings)]
    assert len(names) == len(set(names))


def test_a_broker_is_named_after_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name, an empty one, a given one, and a machine without a name."""
    monkeypatch.setattr(socket, "gethostname", lambda: "orange")
    assert BrokerSettings().broker_name == "orange"
    assert BrokerSettings.from_properties({"brokerName": " "}).broker_name == "orange"
    assert BrokerSettings.from_properties({"brokerName": "broker-a"}).broker_name == "broker-a"
    monkeypatch.setattr(socket, "gethostname", lambda: "")
    assert BrokerSettings().broker_name == "DEFAULT_BROKER"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("brokerId", "-2"),
        ("brokerPermission", "8"),
        ("defaultTopicQueueNums", "0"),
        ("maxErrorRateOfBloomFilter", "100"),
        ("defaultMessageRequestMode", "PUSH"),
        ("metricsPort", "65536"),
        ("longPollsMax", "0"),
        ("popFromRetryProbability", "101"),
        ("consumerFallbehindThreshold", "16G"),
        ("autoCreateTopicEnable", "1"),
    ],
)
def test_a_bad_setting_of_the_broker_is_refused(name: str, text: str) -> None:
    """One beyond each kind of limit, and words for numbers."""
    with pytest.raises(ConfigError) as caught:
        BrokerSettings.from_properties({name: text})
    assert caught.value.key == name


def test_who_a_broker_is_does_not_change_while_it_runs() -> None:
    """Identity is refused together with a live key, which then keeps its value too."""
    broker = BrokerSettings(broker_name="broker-a")
    for name in ("brokerName", "brokerClusterName", "brokerId", "brokerIP1", "flushConsumerOffsetInterval"):
        with pytest.raises(ConfigError, match="read only at start"):
            broker.update({"brokerPermission": "4", name: "7"})
    assert broker == BrokerSettings(broker_name="broker-a")
    assert broker.update({"brokerPermission": "4", "transactionCheckMax": "3"}) == [
        "brokerPermission",
        "transactionCheckMax",
    ]
    assert (broker.broker_permission, broker.transaction_check_max) == (4, 3)
