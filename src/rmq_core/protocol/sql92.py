"""SQL92 filters over message properties, as Apache RocketMQ reads and evaluates them.

Text     Everything must be made of known tokens, but only the longest run of tokens that continues an
         expression is read: `a = 5 garbage` means `a = 5`, while `a = 5 AND` lacks something.
Types    Properties are strings or missing; numbers stand only in the expression. So the type of every
         operand is known when it is compiled, and each comparison becomes one closure made for its types.
Results  TRUE, FALSE, NULL, or an error where a property cannot be read as the number it is compared with.
         Only TRUE matches.
Limits   LENGTH_MAX and DEPTH_MAX bound the work and the stack that a stranger's text can cost.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cache, lru_cache
from typing import Any

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol.filter import java_trim

LENGTH_MAX = 16_384
"""How many characters an expression may have."""

DEPTH_MAX = 200
"""How deep conditions may nest; terms joined by AND or OR stay on one level."""

GRAMMAR = r"""
?selector: any_of
?any_of: all_of (_OR all_of)*
?all_of: equality (_AND equality)*
?equality: comparison
    | equality "=" comparison               -> equal
    | equality "<>" comparison              -> not_equal
    | equality _IS _NULL                    -> is_null
    | equality _IS _NOT _NULL               -> is_not_null
?comparison: unary
    | comparison ORDER unary                -> order
    | comparison SEARCH STRING              -> search
    | comparison _NOT SEARCH STRING         -> not_search
    | comparison _BETWEEN unary _AND unary  -> between
    | comparison _NOT _BETWEEN unary _AND unary -> not_between
    | comparison _IN "(" strings ")"        -> is_in
    | comparison _NOT _IN "(" strings ")"   -> not_in
strings: STRING ("," STRING)*
?unary: primary
    | "+" unary
    | MINUS unary                           -> negative
    | _NOT unary                            -> negation
?primary: STRING                            -> string
    | DECIMAL                               -> decimal
    | FLOAT                                 -> double
    | _TRUE                                 -> true
    | _FALSE                                -> false
    | _NULL                                 -> null
    | NAME                                  -> named
    | "(" any_of ")"                        -> group

ORDER: /<(?!>)=?|>=?/
STRING: /'(?:''|[^'])*'/
DECIMAL: /0|[1-9][0-9]*[lL]?/
FLOAT.1: /[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
NAME: /[A-Za-z_$][A-Za-z0-9_$]*/
%declare _OR _AND _IS _NOT _NULL _BETWEEN _IN _TRUE _FALSE SEARCH
%ignore /[ \t\n\r\f]+/
// A run of `-` is one token, and a comment looks quickly for its end of line: a long run without one would
// otherwise be searched to the end of the text from each of its characters.
MINUS: /-+/
LINE_COMMENT.1: /--(?=[^\n]*+\n|[^\r]*+\r)[^\n\r]*+[\n\r]/
BLOCK_COMMENT: /\/\*[\s\S]*?\*\//
%ignore LINE_COMMENT
%ignore BLOCK_COMMENT
"""

_KEYWORDS = {
    "OR": "_OR",
    "AND": "_AND",
    "IS": "_IS",
    "NOT": "_NOT",
    "NULL": "_NULL",
    "BETWEEN": "_BETWEEN",
    "IN": "_IN",
    "TRUE": "_TRUE",
    "FALSE": "_FALSE",
    "CONTAINS": "SEARCH",
    "STARTSWITH": "SEARCH",
    "ENDSWITH": "SEARCH",
}
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_SEARCHES: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}

Lookup = Callable[[str], str | None]
Evaluate = Callable[[Lookup], Any]


class SqlSyntaxError(RemoteProtocolError):
    """The text is not an SQL92 filter; correct it where the message says."""


class EvaluationError(RemoteProtocolError):
    """The filter cannot be decided for these properties, so it does not match."""


class _RefusedError(Exception):
    """What the grammar allows and the types do not; the parser adds where."""


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """A compiled expression."""

    text: str
    _evaluate: Evaluate

    def evaluate(self, properties: Mapping[str, str]) -> bool | None:
        """TRUE, FALSE or NULL as True, False or None. Raises EvaluationError where there is no result."""
        result: bool | None = self._evaluate(properties.get)
        return result

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether the result is TRUE; an evaluation error is no match."""
        try:
            return self._evaluate(properties.get) is True
        except EvaluationError:
            return False


@lru_cache(maxsize=100)
def compile_sql(text: str) -> SqlFilter:
    """Compile an expression. Raises SqlSyntaxError, which says what is wrong and where."""
    if len(text) > LENGTH_MAX:
        raise SqlSyntaxError(f"SQL92 filter of {len(text)} characters; at most {LENGTH_MAX} are read")
    parser: Any = _parser().parse_interactive(text)
    position = 0
    try:
        # All tokens come first: what follows the expression is ignored, but must be made of tokens too.
        for token in list(parser.lexer_thread.lex(parser.parser_state)):
            position = token.start_pos
            try:
                parser.feed_token(token)
            except UnexpectedToken:
                break
        else:
            position = len(text)
        root = _condition(parser.feed_eof())
    except UnexpectedCharacters as unexpected:
        place = _place(text, unexpected.pos_in_stream or 0)
        raise SqlSyntaxError(f"SQL92 filter: no token begins with {place}") from None
    except UnexpectedToken:
        raise SqlSyntaxError(f"SQL92 filter: unexpected {_place(text, position)}") from None
    except _RefusedError as refused:
        raise SqlSyntaxError(f"SQL92 filter: {refused}, before {_place(text, position)}") from None
    return SqlFilter(text, root.evaluate)


def _place(text: str, position: int) -> str:
    if position >= len(text):
        return "the end"
    return f"{text[position : position + 20]!r} at character {position + 1}"


@cache
def _parser() -> Lark:
    # Built on first use: it takes longer than all other imports of this package together.
    return Lark(
        GRAMMAR,
        parser="lalr",
        lexer="basic",
        start="selector",
        transformer=_Compiler(),
        lexer_callbacks={"NAME": _keyword_or_name},
    )


def _keyword_or_name(token: Token) -> Token:
    keyword = _KEYWORDS.get(token.upper())
    return token if keyword is None else Token.new_borrow_pos(keyword, token, token)


class _Kind(Enum):
    STRING = auto()
    INT = auto()
    LONG = auto()
    DOUBLE = auto()
    BOOLEAN = auto()


_NUMBERS = (_Kind.INT, _Kind.LONG, _Kind.DOUBLE)


@dataclass(frozen=True, slots=True)
class _Node:
    """An operand. `value` is that of a literal or a negated number, `name` that of a property.

    Whether something is a literal matters beside its value: what Apache checks when it compiles it checks
    for literals alone, and `-1` is none.
    """

    kind: _Kind
    evaluate: Evaluate
    depth: int = 1
    is_literal: bool = False
    value: str | int | float | bool | None = None
    name: str | None = None

    def __str__(self) -> str:
        if self.name is not None:
            return self.name
        if self.is_literal or self.kind in _NUMBERS:
            return "NULL" if self.value is None else repr(self.value)
        return "a condition" if self.kind is _Kind.BOOLEAN else "a negated text"


def _literal(kind: _Kind, value: str | int | float | bool | None) -> _Node:
    return _Node(kind, lambda lookup: value, is_literal=True, value=value)


def _deeper(*nodes: _Node) -> int:
    depth = max(node.depth for node in nodes) + 1
    if depth > DEPTH_MAX:
        raise _RefusedError(f"conditions nest deeper than {DEPTH_MAX}")
    return depth


def _boolean(evaluate: Evaluate, *operands: _Node) -> _Node:
    return _Node(_Kind.BOOLEAN, evaluate, _deeper(*operands))


def _condition(node: _Node) -> _Node:
    """The node as a condition: properties are strings, and a string is never TRUE."""
    if node.kind is _Kind.BOOLEAN:
        return node
    if node.name is None:
        raise _RefusedError(f"{node} is not a condition")
    name = node.name
    return _boolean(lambda lookup: None if lookup(name) is None else False, node)


@v_args(inline=True)
class _Compiler(Transformer[Token, _Node]):
    """Turns each rule of the grammar, as soon as it is recognised, into a node."""

    def any_of(self, *terms: _Node) -> _Node:
        return _join([_condition(term) for term in terms], decided_by=True)

    def all_of(self, *terms: _Node) -> _Node:
        return _join([_condition(term) for term in terms], decided_by=False)

    def equal(self, left: _Node, right: _Node) -> _Node:
        return _equal(left, right)

    def not_equal(self, left: _Node, right: _Node) -> _Node:
        return _negation(_equal(left, right))

    def is_null(self, operand: _Node) -> _Node:
        inner = operand.evaluate
        return _boolean(lambda lookup: inner(lookup) is None, operand)

    def is_not_null(self, operand: _Node) -> _Node:
        inner = operand.evaluate
        return _boolean(lambda lookup: inner(lookup) is not None, operand)

    def order(self, left: _Node, sign: Token, right: _Node) -> _Node:
        return _order(left, str(sign), right)

    def search(self, operand: _Node, word: Token, wanted: Token) -> _Node:
        return _search(operand, word.upper(), _unquote(wanted), found=True)

    def not_search(self, operand: _Node, word: Token, wanted: Token) -> _Node:
        return _search(operand, word.upper(), _unquote(wanted), found=False)

    def between(self, operand: _Node, low: _Node, high: _Node) -> _Node:
        terms = [_order(operand, ">=", low), _order(operand, "<=", high)]
        if low.is_literal and high.is_literal and not _compare_numbers(low, operator.le, high):
            raise _RefusedError(f"BETWEEN {low} AND {high} holds for nothing")
        return _join(terms, decided_by=False)

    def not_between(self, operand: _Node, low: _Node, high: _Node) -> _Node:
        return _join([_order(operand, "<", low), _order(operand, ">", high)], decided_by=True)

    def strings(self, *tokens: Token) -> frozenset[str]:
        return frozenset(map(_unquote, tokens))

    def is_in(self, operand: _Node, strings: frozenset[str]) -> _Node:
        return _is_in(operand, strings, found=True)

    def not_in(self, operand: _Node, strings: frozenset[str]) -> _Node:
        return _is_in(operand, strings, found=False)

    def negative(self, signs: Token, operand: _Node) -> _Node:
        for _ in signs:
            operand = _negative(operand)
        return operand

    def negation(self, operand: _Node) -> _Node:
        return _negation(_condition(operand))

    def string(self, token: Token) -> _Node:
        return _literal(_Kind.STRING, _unquote(token))

    def decimal(self, token: Token) -> _Node:
        digits = token.rstrip("lL")
        if len(digits) > 19 or (value := int(digits)) >= 1 << 63:
            raise _RefusedError("the number does not fit into 64 bits")
        return _literal(_Kind.INT if value < 1 << 31 else _Kind.LONG, value)

    def double(self, token: Token) -> _Node:
        value = float(token)
        if not 0.0 < value < math.inf:
            raise _RefusedError(f"{token[:30]} is not within the positive numbers of 64-bit floating point")
        return _literal(_Kind.DOUBLE, value)

    def true(self) -> _Node:
        return _literal(_Kind.BOOLEAN, True)

    def false(self) -> _Node:
        return _literal(_Kind.BOOLEAN, False)

    def null(self) -> _Node:
        return _literal(_Kind.BOOLEAN, None)

    def named(self, token: Token) -> _Node:
        name = str(token)
        return _Node(_Kind.STRING, lambda lookup: lookup(name), name=name)

    def group(self, inner: _Node) -> _Node:
        return replace(inner, depth=_deeper(inner))


def _unquote(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _join(terms: list[_Node], *, decided_by: bool) -> _Node:
    """OR, decided by the first TRUE, or AND, decided by the first FALSE; otherwise NULL if any is NULL."""
    undecided = not decided_by
    evaluates = tuple(term.evaluate for term in terms)

    def joined(lookup: Lookup) -> bool | None:
        result: bool | None = undecided
        for evaluate in evaluates:
            value: bool | None = evaluate(lookup)
            if value is decided_by:
                return value
            if value is None:
                result = None
        return result

    return _boolean(joined, *terms)


def _negation(operand: _Node) -> _Node:
    inner = operand.evaluate

    def negated(lookup: Lookup) -> bool | None:
        value: bool | None = inner(lookup)
        return None if value is None else not value

    return _boolean(negated, operand)


def _negative(operand: _Node) -> _Node:
    depth = _deeper(operand)
    if operand.kind in _NUMBERS:
        assert isinstance(operand.value, int | float)
        value = -operand.value
        return _Node(operand.kind, lambda lookup: value, depth, value=value)
    inner = operand.evaluate

    def nothing(lookup: Lookup) -> None:
        # Evaluated all the same, for the error that it may raise.
        inner(lookup)

    return _Node(_Kind.STRING, nothing, depth)


def _search(operand: _Node, word: str, wanted: str, *, found: bool) -> _Node:
    if not wanted:
        return _boolean(lambda lookup: False, operand)
    inner, test = operand.evaluate, _SEARCHES[word]

    def searched(lookup: Lookup) -> bool:
        value = inner(lookup)
        return isinstance(value, str) and test(value, wanted) is found

    return _boolean(searched, operand)


def _is_in(operand: _Node, strings: frozenset[str], *, found: bool) -> _Node:
    if operand.name is None:
        raise _RefusedError(f"IN needs a property on its left, not {operand}")
    name = operand.name

    def listed(lookup: Lookup) -> bool | None:
        value = lookup(name)
        return None if value is None else (value in strings) is found

    return _boolean(listed, operand)


def _order(left: _Node, sign: str, right: _Node) -> _Node:
    for operand in (left, right):
        if operand.kind is _Kind.BOOLEAN or (operand.is_literal and operand.kind is _Kind.STRING):
            raise _RefusedError(f"{operand} cannot stand beside {sign}")
    compare, first, second = _ORDERS[sign], left.evaluate, right.evaluate
    if left.kind in _NUMBERS and right.kind in _NUMBERS:
        answer = _compare_numbers(left, compare, right)
        return _boolean(lambda lookup: answer, left, right)
    if right.kind in _NUMBERS:
        read, bound = _READERS[right.kind], _rank(right)

        def ordered(lookup: Lookup) -> bool | None:
            value = first(lookup)
            return None if value is None else compare(read(value), bound)

    elif left.kind in _NUMBERS:
        read, bound = _READERS[left.kind], _rank(left)

        def ordered(lookup: Lookup) -> bool | None:
            value = second(lookup)
            return None if value is None else compare(bound, read(value))

    else:

        def ordered(lookup: Lookup) -> bool | None:
            if (value := first(lookup)) is None or (other := second(lookup)) is None:
                return None
            return compare(_read_double(value), _read_double(other))

    return _boolean(ordered, left, right)


def _equal(left: _Node, right: _Node) -> _Node:
    for operand in (left, right):
        if operand.is_literal and operand.value is None:
            raise _RefusedError("NULL cannot be compared; write IS NULL")
    if left.is_literal and right.is_literal and left.kind is _Kind.BOOLEAN is not right.kind:
        raise _RefusedError(f"{left} cannot be compared with {right}")
    first, second, same = left.evaluate, right.evaluate, _sameness(left, right)
    if left.name is not None and right.is_literal:
        name, constant = left.name, right.value

        def equal_to_constant(lookup: Lookup) -> bool | None:
            value = lookup(name)
            return None if value is None else same(value, constant)

        return _boolean(equal_to_constant, left, right)

    def equal(lookup: Lookup) -> bool | None:
        value, other = first(lookup), second(lookup)
        if value is None:
            return True if other is None else None
        return False if other is None else same(value, other)

    return _boolean(equal, left, right)


def _sameness(left: _Node, right: _Node) -> Callable[[Any, Any], bool]:
    """How two values of these types, neither of them NULL, are compared by `=`."""
    if left.kind in _NUMBERS and right.kind in _NUMBERS:
        answer = _compare_numbers(left, operator.eq, right)
        return lambda value, other: answer
    if left.kind is right.kind:
        return operator.eq
    if left.kind is _Kind.STRING and right.kind in _NUMBERS:
        read, bound = _READERS[right.kind], _rank(right)
        return lambda value, other: bool(read(value) == bound)
    if left.kind in _NUMBERS and right.kind is _Kind.STRING:
        read, bound = _READERS[left.kind], _rank(left)
        return lambda value, other: bool(read(other) == bound)
    if left.kind is _Kind.STRING:
        return lambda value, other: (value.lower() == "true") is other
    if right.kind is _Kind.STRING:
        return _refuse_text_after_boolean
    return lambda value, other: False


def _refuse_text_after_boolean(value: bool, other: str) -> bool:
    raise EvaluationError(f"{value} cannot be compared with the text {other[:30]!r}; put the property first")


def _rank(number: _Node) -> Any:
    """What a number is compared by."""
    return _rank_double(float(number.value)) if number.kind is _Kind.DOUBLE else number.value  # type: ignore[arg-type]


def _rank_double(value: float) -> tuple[bool, float, float]:
    """Java's order of doubles: -0.0 comes before 0.0, and NaN, equal to itself, after all others."""
    return (True, 0.0, 0.0) if math.isnan(value) else (False, value, math.copysign(1.0, value))


def _compare_numbers(left: _Node, compare: Callable[[Any, Any], bool], right: _Node) -> bool:
    first, second = left.value, right.value
    assert isinstance(first, int | float)
    assert isinstance(second, int | float)
    if _Kind.DOUBLE in (left.kind, right.kind):
        # Widened first, as Java does, where Python would compare an integer with a float exactly.
        return compare(float(first), float(second))
    return compare(first, second)


_is_integer = re.compile(r"[+-]?\d+").fullmatch
_is_double = re.compile(
    r"""[+-]?(?:NaN|Infinity|(?:
            (?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?
          | (?P<hex>0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)
        )[fFdD]?)""",
    re.VERBOSE,
).fullmatch


def _read_int(text: str) -> int:
    return _read_integer(text, 1 << 31)


def _read_long(text: str) -> int:
    return _read_integer(text, 1 << 63)


def _read_integer(text: str, limit: int) -> int:
    # Java reads digits of every script, but only those of one UTF-16 unit.
    if _is_integer(text) and (text.isascii() or max(text) <= "\uffff"):
        try:
            value = int(text)
        except ValueError:  # more digits than Python converts
            value = limit
        if -limit <= value < limit:
            return value
    raise EvaluationError(f"{text[:30]!r} is not an integer of {limit.bit_length()} bits")


def _read_double(text: str) -> tuple[bool, float, float]:
    trimmed = java_trim(text)
    form = _is_double(trimmed)
    if form is None:
        raise EvaluationError(f"{text[:30]!r} is not a number")
    digits = trimmed[:-1] if trimmed[-1] in "fFdD" else trimmed
    if form["hex"] is None:
        return _rank_double(float(digits))
    try:
        return _rank_double(float.fromhex(digits))
    except OverflowError:
        return _rank_double(-math.inf if digits[0] == "-" else math.inf)


_READERS: dict[_Kind, Callable[[str], Any]] = {
    _Kind.INT: _read_int,
    _Kind.LONG: _read_long,
    _Kind.DOUBLE: _read_double,
}
