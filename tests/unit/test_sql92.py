"""SQL92 filters. The expected results were printed by Apache RocketMQ's own parser and evaluator."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol import sql92
from rmq_core.protocol.sql92 import EvaluationError, SqlSyntaxError, compile_sql

PROPERTIES = {"a": "5", "s": "abc", "t": "true", "d": "5.0", "neg": "-3", "e": "", "q": "it's"}


def outcome(expression: str, properties: dict[str, str] = PROPERTIES) -> str:
    """TRUE, FALSE, NULL, ERROR, or REFUSED where the text does not compile."""
    try:
        compiled = compile_sql(expression)
    except SqlSyntaxError:
        return "REFUSED"
    try:
        result = compiled.evaluate(properties)
    except EvaluationError:
        assert not compiled.matches(properties)
        return "ERROR"
    assert compiled.matches(properties) is (result is True)
    return {True: "TRUE", False: "FALSE", None: "NULL"}[result]


def table(text: str) -> list[tuple[str, str]]:
    rows = [line.rsplit("->", 1) for line in text.strip().splitlines()]
    return [(expression.strip(), expected.strip()) for expression, expected in rows]


@pytest.mark.parametrize(
    ("expression", "expected"),
    table("""
    a = 5                           -> TRUE
    a=5.0                           -> TRUE
    a > '4'                         -> REFUSED
    missing <> 'x'                  -> NULL
    e IS NULL                       -> FALSE
    a BETWEEN -1 AND 9              -> TRUE
    missing NOT IN ('x')            -> NULL
    missing NOT CONTAINS 'z'        -> FALSE
    t = TRUE                        -> TRUE
    t                               -> FALSE
    NOT (a > 9)                     -> TRUE
    a > 4 AND missing = 'x'         -> NULL
    a > 9 AND missing = 'x'         -> FALSE
    a > s                           -> ERROR
    - a < 0                         -> NULL
    a > 0.0                         -> REFUSED
    a = 5L                          -> TRUE
    a = 5 garbage                   -> TRUE
    (a = 5                          -> REFUSED
    a = NULL                        -> REFUSED
    a>=5 and s='abc' or a>100       -> TRUE
    a = 99999999999999999999        -> REFUSED
    a BETWEEN '1' AND '9'           -> REFUSED
    a.b = 5                         -> REFUSED
    s = 'abc' = TRUE                -> TRUE
    d = 5                           -> ERROR
    d = 5.0                         -> TRUE
    s > 'a'                         -> REFUSED
    missing IS NULL                 -> TRUE
    a BETWEEN 5 AND 1               -> REFUSED
    a NOT BETWEEN 6 AND 9           -> TRUE
    a IN (1,2)                      -> REFUSED
    s CONTAINS ''                   -> FALSE
    TRUE = t                        -> ERROR
    TRUE                            -> TRUE
    NOT a > 9                       -> REFUSED
    a > 4 OR missing = 'x'          -> TRUE
    a > 9 OR missing='x'            -> NULL
    a > d                           -> FALSE
    neg = -3                        -> TRUE
    a > .5                          -> TRUE
    a = 007                         -> FALSE
    a = 5 ##                        -> REFUSED
    5 = a                           -> TRUE
    a != 6                          -> REFUSED
    q = 'it''s'                     -> TRUE
    s = 5                           -> ERROR
    s BETWEEN 1 AND 2               -> ERROR
    a-b = 5                         -> FALSE
    A = 5                           -> NULL
    """),
)
def test_apaches_published_cases_come_out_the_same(expression: str, expected: str) -> None:
    """One case for every rule that surprises: types, NULL, ignored rests, early refusals."""
    assert outcome(expression) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a\t=\n5\r\f", "TRUE"),
        ("a /* = 6 ** / */ = -- seven\n 5", "TRUE"),
        ("a = -- seven\r5", "TRUE"),
        ("a = --5", "TRUE"),  # no line end, so no comment: two minus signs
        ("a = 5 -- no line end", "TRUE"),
        ("/**/a = 5/***/", "TRUE"),
        ("a = 5 /* no end", "REFUSED"),
        ("a = 5 /* */ */", "REFUSED"),
        ("nOt (a = 6) aNd Not (s = 'x') oR fAlSe", "TRUE"),
        ("a bEtWeEn 1 aNd 9 and s iN ('abc') and missing iS nUlL and tRuE", "TRUE"),
        ("s cOnTaInS 'b' and s sTaRtSwItH 'a' and s eNdSwItH 'c'", "TRUE"),
        ("NOTE IS NULL AND ORDER_1 IS NULL AND $in IS NULL AND _is IS NULL", "TRUE"),
        ("a = 0L", "FALSE"),  # 0, and the name L is the ignored rest
        ("a = 5l", "TRUE"),
        ("a = 5.", "TRUE"),
        ("a = 5.E0", "TRUE"),
        ("a = .5e+1", "TRUE"),
        ("a = 50E-1", "TRUE"),
        ("a = 005.0", "TRUE"),
        ("a = 5e", "TRUE"),  # 5, and the name e
        ("a = 5 .", "REFUSED"),
        ("s = 'abc", "REFUSED"),
        ("s = 'a''", "REFUSED"),
        ("e = ''", "TRUE"),
        ("q = 'it''s' AND '''' <> ''", "TRUE"),
        ("s = \"abc\"", "REFUSED"),
        ("é = 5", "REFUSED"),
        ("ıs = 5", "REFUSED"),
        ("a \u017f", "REFUSED"),
        ("a\u00a0= 5", "REFUSED"),
        ("a = ٥", "REFUSED"),
        ("a == 5", "REFUSED"),
        ("a * 1 = 5", "REFUSED"),
        ("a < > 5", "REFUSED"),
        ("a <> 6", "TRUE"),
    ],
)  # fmt: skip
def test_tokens_are_cut_as_apache_cuts_them(expression: str, expected: str) -> None:
    """Comments with and without an end, number forms, quotes, letters that only look like keywords."""
    assert outcome(expression) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    table("""
    a = 5 )                         -> TRUE
    a = 5 5                         -> TRUE
    a = 5 'x' , (                   -> TRUE
    a = 5 TRUE                      -> TRUE
    a = 5 (                         -> TRUE
    s LIKE 'a%'                     -> FALSE
    a = 5 ) AND                     -> TRUE
    a = 5 AND                       -> REFUSED
    a = 5 OR )                      -> REFUSED
    a = 5 NOT garbage               -> REFUSED
    a = 5 IS garbage                -> REFUSED
    a = 5 IS NOT garbage            -> REFUSED
    a = 5 =                         -> REFUSED
    a BETWEEN 1 OR 2                -> REFUSED
    a BETWEEN 1                     -> REFUSED
    a IN 'x'                        -> REFUSED
    a IN ()                         -> REFUSED
    a IN ('x',)                     -> REFUSED
    a IN ('x'                       -> REFUSED
    s CONTAINS q                    -> REFUSED
    s NOT STARTSWITH                -> REFUSED
    (a = 5 garbage)                 -> REFUSED
    ()                              -> REFUSED
    )                               -> REFUSED
    """),
)
def test_a_rest_is_ignored_only_where_nothing_was_begun(expression: str, expected: str) -> None:
    """A token that cannot go on ends the expression; one that can must be followed by the remainder."""
    assert outcome(expression) == expected


@pytest.mark.parametrize("expression", ["a = 5 garbage ##", "a = 5 ) 'x", "t x y !", "TRUE 1 2 /* 3"])
def test_an_ignored_rest_must_still_be_made_of_tokens(expression: str) -> None:
    """Nonsense two and more tokens behind the expression, where Apache no longer looks: it is a mistake."""
    assert outcome(expression) == "REFUSED"


@pytest.mark.parametrize("expression", ["", " ", "\n", "/* a = 5 */", "-- a = 5\n"])
def test_an_empty_expression_is_refused(expression: str) -> None:
    """Nothing at all, and nothing but what is skipped."""
    with pytest.raises(SqlSyntaxError, match="unexpected the end"):
        compile_sql(expression)


@pytest.mark.parametrize(
    ("expression", "expected"),
    table("""
    a = 5 OR a = 6 AND a = 7        -> TRUE
    (a = 5 OR a = 6) AND a = 7      -> FALSE
    NOT (a = 6) AND TRUE            -> TRUE
    NOT a = 5                       -> FALSE
    NOT TRUE = FALSE                -> TRUE
    NOT NOT TRUE                    -> TRUE
    a > 4 = TRUE                    -> TRUE
    TRUE = a > 4                    -> TRUE
    a = 5 IS NULL                   -> FALSE
    missing = 5 IS NULL             -> TRUE
    missing IS NULL IS NOT NULL     -> TRUE
    a BETWEEN 1 AND 9 AND a = 6     -> FALSE
    a BETWEEN 1 AND 9 = TRUE        -> TRUE
    a > 4 > 3                       -> REFUSED
    + a = + + 5                     -> TRUE
    (((a))) IN ('5')                -> TRUE
    +a IN ('5')                     -> TRUE
    """),
)
def test_operators_bind_as_apache_binds_them(expression: str, expected: str) -> None:
    """Each pair of neighbouring levels, with a result that the other order would change."""
    assert outcome(expression) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    table("""
    a < TRUE                        -> REFUSED
    a < NULL                        -> REFUSED
    NULL < a                        -> REFUSED
    'x' >= a                        -> REFUSED
    a <= (s = 'abc')                -> REFUSED
    (s = 'abc') <= a                -> REFUSED
    a BETWEEN 1 AND 'x'             -> REFUSED
    a NOT BETWEEN TRUE AND 9        -> REFUSED
    'x' BETWEEN 1 AND 9             -> REFUSED
    a BETWEEN NULL AND 9            -> REFUSED
    a BETWEEN 5.5 AND 5             -> REFUSED
    a BETWEEN 5 AND 5.0             -> TRUE
    a BETWEEN 3000000000 AND 5      -> REFUSED
    a NOT BETWEEN 9 AND 1           -> TRUE
    a BETWEEN 9 AND -1              -> FALSE
    a BETWEEN missing AND 9         -> NULL
    a BETWEEN d AND 9               -> TRUE
    5 BETWEEN 1 AND 9               -> TRUE
    NULL = a                        -> REFUSED
    a <> NULL                       -> REFUSED
    TRUE = 5                        -> REFUSED
    TRUE = 'x'                      -> REFUSED
    FALSE <> 5                      -> REFUSED
    5 = TRUE                        -> FALSE
    'true' = TRUE                   -> TRUE
    TRUE <> FALSE                   -> TRUE
    'x' IN ('x')                    -> REFUSED
    5 NOT IN ('x')                  -> REFUSED
    -a IN ('x')                     -> REFUSED
    (a = 5) IN ('x')                -> REFUSED
    5                               -> REFUSED
    'abc'                           -> REFUSED
    -a                              -> REFUSED
    a = 5 AND 5                     -> REFUSED
    'x' OR a = 5                    -> REFUSED
    NOT 5                           -> REFUSED
    NOT -a                          -> REFUSED
    NULL                            -> NULL
    NOT NULL                        -> NULL
    NULL IS NULL                    -> TRUE
    5 IS NOT NULL                   -> TRUE
    """),
)
def test_types_are_checked_when_compiling(expression: str, expected: str) -> None:
    """Literals of the wrong type on either side, beside forms that look as wrong and are accepted."""
    assert outcome(expression) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    table("""
    a = 2147483647                  -> FALSE
    a = 9223372036854775807         -> FALSE
    a = 9223372036854775808         -> REFUSED
    a > -9223372036854775808        -> REFUSED
    a = 1e308                       -> FALSE
    a = 1e309                       -> REFUSED
    a > 4.9E-324                    -> TRUE
    a > 1E-400                      -> REFUSED
    a = 0e5                         -> REFUSED
    9007199254740993 = 9007199254740992.0 -> TRUE
    9007199254740993 = 9007199254740992   -> FALSE
    5 = 5.0                         -> TRUE
    3000000000 > 5                  -> TRUE
    5 < 3000000000.5                -> TRUE
    - - 5 = a                       -> TRUE
    a > - 'x'                       -> NULL
    - 'x' = a                       -> NULL
    a = - 'x'                       -> FALSE
    - 'x' = - a                     -> TRUE
    -(a > s) IS NULL                -> ERROR
    missing > -(a > s)              -> NULL
    missing = -(a > s)              -> ERROR
    """),
)
def test_numbers_have_the_ranges_and_widths_of_java(expression: str, expected: str) -> None:
    """The edges of 32 bits, 64 bits and doubles; widening that loses a digit; minus before a text."""
    assert outcome(expression) == expected


@pytest.mark.parametrize(
    ("value", "expression", "expected"),
    [
        ("+5", "x = 5", "TRUE"),
        ("005", "x = 5", "TRUE"),
        ("٥", "x = 5", "TRUE"),
        ("\U0001d7d3", "x = 5", "ERROR"),
        (" 5", "x = 5", "ERROR"),
        ("1_0", "x = 10", "ERROR"),
        ("", "x = 5", "ERROR"),
        ("-", "x = 5", "ERROR"),
        ("9" * 5000, "x = 5", "ERROR"),
        ("2147483648", "x > 5", "ERROR"),
        ("-2147483648", "x < 5", "TRUE"),
        ("2147483648", "x > 5.0", "TRUE"),
        ("2147483648", "x = 2147483648", "TRUE"),
        ("5", "x < 2147483648", "TRUE"),
        ("9223372036854775808", "x > 2147483648", "ERROR"),
        ("-2147483648", "x = -2147483648", "TRUE"),
        (" 5\t", "x = 5.0", "TRUE"),
        ("\u00a05", "x = 5.0", "ERROR"),
        ("5f", "x = 5.0", "TRUE"),
        ("5D", "5.0 = x", "TRUE"),
        ("0x1.4p2", "x = 5.0", "TRUE"),
        ("-0x1p99999", "x < 1.0", "TRUE"),
        ("0x5", "x = 5.0", "ERROR"),
        ("1_0", "x = 10.0", "ERROR"),
        ("٥", "x = 5.0", "ERROR"),
        ("nan", "x > 5.0", "ERROR"),
        ("inf", "x > 5.0", "ERROR"),
        ("NaN", "x > 5.0", "TRUE"),
        ("NaN", "x > y", "TRUE"),
        ("NaN", "x >= x AND x <= x", "TRUE"),
        ("-Infinity", "x < 5.0", "TRUE"),
        ("1e999", "x > 5.0 AND x < z", "TRUE"),
        ("-0.0", "x < zero", "TRUE"),
        ("TrUe", "x = TRUE", "TRUE"),
        ("yes", "x = FALSE", "TRUE"),
        ("true", "x = (gone = 5)", "FALSE"),
    ],
)
def test_property_texts_are_read_as_java_reads_numbers(value: str, expression: str, expected: str) -> None:
    """Texts that Python and Java read differently: spaces, underscores, digits of other scripts, NaN."""
    assert outcome(expression, {"x": value, "y": "Infinity", "z": "NaN", "zero": "0"}) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    table("""
    missing = 'x'                   -> NULL
    'x' = missing                   -> FALSE
    'x' <> missing                  -> TRUE
    a = missing                     -> FALSE
    missing = gone                  -> TRUE
    missing <> gone                 -> FALSE
    missing < 5                     -> NULL
    5 < missing                     -> NULL
    missing >= a                    -> NULL
    a >= missing                    -> NULL
    missing BETWEEN 1 AND 9         -> NULL
    missing NOT BETWEEN 1 AND 9     -> NULL
    missing IN ('x')                -> NULL
    missing IS NOT NULL             -> FALSE
    missing CONTAINS 'x'            -> FALSE
    missing STARTSWITH 'x'          -> FALSE
    missing NOT STARTSWITH 'x'      -> FALSE
    missing ENDSWITH 'x'            -> FALSE
    missing NOT ENDSWITH 'x'        -> FALSE
    missing                         -> NULL
    NOT missing                     -> NULL
    NOT t                           -> TRUE
    TRUE = missing                  -> FALSE
    (missing = 5) = t               -> NULL
    (a = 5) = 5                     -> FALSE
    5 = (a = 5)                     -> FALSE
    t = (a = 5)                     -> TRUE
    (a = 5) = t                     -> ERROR
    """),
)
def test_missing_properties_and_mixed_types_give_apaches_result(expression: str, expected: str) -> None:
    """A missing property on each side of every operator, conditions compared with texts and numbers."""
    assert outcome(expression) == expected


LOGIC = {"TRUE": "TRUE", "FALSE": "FALSE", "NULL": "NULL", "ERROR": "(a > s)"}


@pytest.mark.parametrize("left", LOGIC)
@pytest.mark.parametrize("right", LOGIC)
def test_logic_is_three_valued_and_stops_when_decided(left: str, right: str) -> None:
    """All pairs, the error among them: it shows whether the right side was evaluated."""

    def expected(decided_by: str, otherwise: str) -> str:
        if left in ("ERROR", decided_by):
            return left
        if right in ("ERROR", decided_by):
            return right
        return "NULL" if "NULL" in (left, right) else otherwise

    assert outcome(f"{LOGIC[left]} AND {LOGIC[right]}") == expected("FALSE", "TRUE")
    assert outcome(f"{LOGIC[left]} OR {LOGIC[right]}") == expected("TRUE", "FALSE")
    negated = {"TRUE": "FALSE", "FALSE": "TRUE"}.get(left, left)
    assert outcome(f"NOT {LOGIC[left]}") == negated


@pytest.mark.parametrize(
    ("expression", "expected"),
    table("""
    s CONTAINS 'bc'                 -> TRUE
    s CONTAINS 'B'                  -> FALSE
    s NOT CONTAINS 'x'              -> TRUE
    s NOT CONTAINS ''               -> FALSE
    s STARTSWITH 'ab'               -> TRUE
    s STARTSWITH 'b'                -> FALSE
    s STARTSWITH ''                 -> FALSE
    s NOT STARTSWITH 'b'            -> TRUE
    s ENDSWITH 'bc'                 -> TRUE
    s ENDSWITH 'b'                  -> FALSE
    s NOT ENDSWITH 'c'              -> FALSE
    s NOT ENDSWITH ''               -> FALSE
    'abc' CONTAINS 'b'              -> TRUE
    5 CONTAINS '5'                  -> FALSE
    5 NOT CONTAINS 'x'              -> FALSE
    (a = 5) NOT CONTAINS 'x'        -> FALSE
    (a > s) CONTAINS 'x'            -> ERROR
    (a > s) CONTAINS ''             -> FALSE
    s IN ('x', 'abc')               -> TRUE
    s NOT IN ('x', 'abc')           -> FALSE
    s IN ('ABC')                    -> FALSE
    d IN ('5')                      -> FALSE
    q IN ('a','b','c','d','it''s')  -> TRUE
    """),
)
def test_searches_compare_texts_exactly(expression: str, expected: str) -> None:
    """Case, position, empty texts, operands that are no text, lists below and above five entries."""
    assert outcome(expression) == expected


def test_system_properties_are_properties() -> None:
    """TAGS and KEYS are names like any other."""
    compiled = compile_sql("TAGS IN ('TagA', 'TagB') AND KEYS IS NOT NULL")
    assert compiled.matches({"TAGS": "TagB", "KEYS": "k"})
    assert not compiled.matches({"TAGS": "TagB"})


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("a = 5 ##", "no token begins with '##' at character 7"),
        ("a = 5 AND", "unexpected the end"),
        ("a = 5 OR )", r"unexpected '\)' at character 10"),
        ("a > 'x' OR b", "'x' cannot stand beside >, before 'OR b' at character 9"),
        ("a BETWEEN 5 AND 1", "BETWEEN 5 AND 1 holds for nothing, before the end"),
        ("a = NULL", "IS NULL"),
        ("-1 IN ('x')", "IN needs a property on its left, not -1"),
    ],
)
def test_a_refusal_says_what_and_where(expression: str, message: str) -> None:
    """A lexical, a syntax and a type error, each at a known place."""
    with pytest.raises(SqlSyntaxError, match=message) as caught:
        compile_sql(expression)
    assert isinstance(caught.value, RemoteProtocolError)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 5000 + "a = 5" + ")" * 5000,
        "(" * 5000,
        "NOT " * 4000 + "t",
        "a = " + "-" * 5000 + "5",
        "a = " * 4000 + "a",
        "(a = 5 AND " * 1000 + "TRUE" + ")" * 1000,
        "a IS NULL" + " IS NULL" * 1500,
        "a = 5" + " " * sql92.LENGTH_MAX,
        "a IN (" + "'x'," * sql92.LENGTH_MAX + "'y')",
    ],
)
def test_endless_nesting_and_length_are_refused(expression: str) -> None:
    """Everything that could pile up, far beyond the depth at which Python's own stack would end."""
    with pytest.raises(SqlSyntaxError):
        compile_sql(expression)


def test_nesting_up_to_the_limit_is_evaluated() -> None:
    """The deepest parentheses and the deepest chain of NOT that compile, and one more of each."""
    inside = sql92.DEPTH_MAX - 2
    assert outcome("(" * inside + "a = 5" + ")" * inside) == "TRUE"
    assert outcome("(" * (inside + 1) + "a = 5" + ")" * (inside + 1)) == "REFUSED"
    assert outcome("NOT " * (sql92.DEPTH_MAX - 1) + "TRUE") == "FALSE"
    assert outcome("NOT " * sql92.DEPTH_MAX + "TRUE") == "REFUSED"


def test_long_flat_expressions_are_no_nesting() -> None:
    """A thousand terms on one level, as generated filters have them."""
    assert outcome(" OR ".join(f"a = {n}" for n in range(6, 1006)) + " OR a = 5") == "TRUE"
    assert outcome("a IN (" + ",".join(f"'{n}'" for n in range(1000)) + ")") == "TRUE"


def test_a_compiled_expression_is_kept() -> None:
    """The second compilation of a text gives the same object."""
    assert compile_sql("a = 5 AND s = 'kept'") is compile_sql("a = 5 AND s = 'kept'")


WORDS = st.sampled_from(
    re.findall(
        r"\S+",
        """a s t d neg e q missing 5 0 0L 3000000000 5.5 .5 0.0 1e400 'abc' '' '5' ' TRUE FALSE NULL NOT AND OR
        IN IS BETWEEN CONTAINS STARTSWITH ENDSWITH = <> < <= > >= ( ) , + - -- /* */ ! # .""",
    )
    + re.findall(r"[^;]+", "\n;IS NULL;IS NOT NULL;BETWEEN 1 AND 9;IN ('x');a > 4;s = 'abc'")
)
VALUES = st.text(max_size=8) | st.from_regex(r"[+-]?[0-9.xXpPeEfdNaIity]{0,8}", fullmatch=True)


@given(st.text(max_size=40))
def test_any_text_is_compiled_or_refused(text: str) -> None:
    """Random characters: SqlSyntaxError, or a filter that gives a result; no other exception."""
    outcome(text)


@given(st.lists(WORDS, max_size=14), st.dictionaries(st.sampled_from("astdeq"), VALUES))
def test_any_words_are_compiled_or_refused_and_matching_never_raises(
    words: list[str], properties: dict[str, str]
) -> None:
    """Random tokens over random properties reach deep into the grammar and the comparisons."""
    outcome(" ".join(words), properties)


@given(VALUES, VALUES)
def test_comparisons_of_any_values_never_raise_through_matches(first: str, second: str) -> None:
    """Every comparison that reads numbers, over texts close to numbers."""
    for other in ("y", "5", "5.5", "3000000000", "-5"):
        for sign in ("=", "<>", "<", "<=", ">", ">="):
            outcome(f"x {sign} {other}", {"x": first, "y": second})
            outcome(f"{other} {sign} x", {"x": first, "y": second})
