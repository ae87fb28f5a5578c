"""Tag expressions and tag codes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol.filter import java_string_hash, java_trim, parse_tags, tags_code


def hash_by_definition(text: str) -> int:
    hashed = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(encoded), 2):
        hashed = (31 * hashed + int.from_bytes(encoded[index : index + 2], "big")) % (1 << 32)
    return hashed - (1 << 32) if hashed >= 1 << 31 else hashed


@pytest.mark.parametrize(
    ("text", "hashed"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("a||b", 3012833),
        ("订单", 1129459),
        ("标签", 857175),
        ("😀", 1772899),
        ("TopicA#key1", 641858179),
        ("TopicTest#7F0000010000", -889979726),
        ("polygenelubricants", -2147483648),
    ],
)
def test_hash_is_the_one_java_computes(text: str, hashed: int) -> None:
    """Values that Java printed: both signs, the smallest integer, other scripts, a surrogate pair."""
    assert java_string_hash(text) == hashed
    assert tags_code(text) == hashed


@given(st.text(st.characters(), max_size=300) | st.text("ab", min_size=60, max_size=200))
def test_hash_follows_the_definition_at_every_length(text: str) -> None:
    """Any text, lone surrogates included, around and beyond the length of a chunk."""
    assert java_string_hash(text) == hash_by_definition(text)


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_nothing_and_star_match_every_message(expression: str | None) -> None:
    """The three ways to ask for everything, against any code, any tag and no tag."""
    everything = parse_tags(expression)
    assert everything.matches_all
    assert (everything.text, everything.tags, everything.codes) == ("*", frozenset(), frozenset())
    assert everything.matches_code(0)
    assert everything.matches_code(-(1 << 63))
    assert everything.matches_tag("TagA")
    assert everything.matches_tag(None)


def test_tags_are_split_trimmed_and_freed_of_empty_parts() -> None:
    """Java's trim takes control characters and leaves the no-break space; one bar does not split."""
    expression = parse_tags("TagA||\t TagB \x00|| ||\u00a0||x|y||TagA")
    assert expression.tags == {"TagA", "TagB", "\u00a0", "x|y"}
    assert expression.codes == {java_string_hash(tag) for tag in expression.tags}
    assert expression.text == "TagA||\t TagB \x00|| ||\u00a0||x|y||TagA"
    assert not expression.matches_all


@pytest.mark.parametrize("expression", ["||", " ", " || ", "||||", "\n||\t"])
def test_an_expression_without_a_tag_is_refused(expression: str) -> None:
    """Not empty, and yet nothing is left after splitting."""
    with pytest.raises(RemoteProtocolError, match="names no tag"):
        parse_tags(expression)


def test_star_beside_other_tags_is_an_ordinary_tag() -> None:
    """Only the whole expression `*` means everything."""
    expression = parse_tags("*||TagA")
    assert not expression.matches_all
    assert expression.matches_tag("*")
    assert not expression.matches_tag("TagB")


def test_codes_are_compared_as_32_bits() -> None:
    """The queue holds sign-extended 64-bit codes; high bits that differ must not matter."""
    expression = parse_tags("polygenelubricants || TagA")
    for high in (0, 1 << 32, -1 << 32, 1 << 62):
        assert expression.matches_code(high + (1 << 31))
        assert expression.matches_code(high + 2598919)
        assert not expression.matches_code(high + 2598920)
    assert not expression.matches_code(0)


def test_equal_hashes_pass_the_code_and_not_the_tag() -> None:
    """`Aa` and `BB` have one hash: the broker lets both through, the client tells them apart."""
    expression = parse_tags("Aa")
    assert expression.matches_code(tags_code("BB"))
    assert expression.matches_tag("Aa")
    assert not expression.matches_tag("BB")
    assert not expression.matches_tag(None)


@given(st.text(" \t*|aB\u3000", max_size=12))
def test_any_expression_is_read_or_refused(text: str) -> None:
    """Random bars, spaces and stars: every tag named matches by code and by tag."""
    try:
        expression = parse_tags(text)
    except RemoteProtocolError:
        assert text
        assert not any(map(java_trim, text.split("||")))
        return
    assert expression.matches_all == (text in ("", "*"))
    for tag in expression.tags:
        assert tag == java_trim(tag) != ""
        assert expression.matches_tag(tag)
        assert expression.matches_code(tags_code(tag))
