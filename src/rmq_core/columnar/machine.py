"""What compiled loops need of the processor and cannot say in Python: unaligned words, copies, many bytes at once.

Nothing here judges a position. The loops do, before they call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numba
import numba.extending
from llvmlite import binding
from llvmlite import ir as _ir
from numba.core import cgutils as _cgutils

# numba tells too little of its types to be checked.
ir: Any = _ir
types: Any = numba.types
config: Any = numba.config
cgutils: Any = _cgutils

AnyLoop = TypeVar("AnyLoop", bound=Callable[..., Any])

_KINDS: Final = {
    "bytes": types.Array(types.uint8, 1, "C", readonly=True),
    "longs": types.Array(types.int64, 1, "C", readonly=True),
    "bytes_out": types.Array(types.uint8, 1, "C"),
    "bools_out": types.Array(types.bool_, 1, "C"),
    "ints_out": types.Array(types.int32, 1, "C"),
    "longs_out": types.Array(types.int64, 1, "C"),
    "int_rows_out": types.Array(types.int32, 2, "C"),
    "spans_out": types.Array(types.int64, 2, "C"),
    "words_out": types.Array(types.uint64, 1, "C"),
    "int": types.int64,
    "word": types.uint64,
    "bool": types.bool_,
    "none": types.void,
    "two_ints": types.UniTuple(types.int64, 2),
    "three_words": types.UniTuple(types.uint64, 3),
}


def compiled(result: str, *arguments: str, is_part: bool = False) -> Callable[[AnyLoop], AnyLoop]:
    """Compile a function for these kinds of arguments, or take it from the cache.

    is_part: it becomes part of whatever calls it. A call costs as much as many of these functions.
    """
    signature = _KINDS[result](*(_KINDS[name] for name in arguments))
    return cast("Callable[[AnyLoop], AnyLoop]", numba.njit(signature, cache=True, nogil=True, forceinline=is_part))


def machine_code(function: Callable[..., Any]) -> Any:
    """Something for compiled loops to call, which says how it is done."""
    return cast("Any", numba.extending.intrinsic)(function)


def _address(context: Any, builder: Any, kind: Any, array: Any, position: Any, *, bits: int) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [position]), ir.IntType(bits).as_pointer())


def _load(context: Any, builder: Any, signature: Any, arguments: Any, bits: int) -> Any:
    loaded = builder.load(_address(context, builder, signature.args[0], *arguments, bits=bits))
    loaded.align = 1
    return loaded


@machine_code
def load_word(_typing: Any, array: Any, position: Any) -> Any:
    """Eight bytes, the first of them lowest."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _load(context, builder, signature, arguments, 64)

    return types.uint64(array, types.int64), generate


@machine_code
def load_long(_typing: Any, array: Any, position: Any) -> Any:
    """Eight bytes as a big-endian number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bswap(_load(context, builder, signature, arguments, 64))

    return types.int64(array, types.int64), generate


@machine_code
def load_int(_typing: Any, array: Any, position: Any) -> Any:
    """Four bytes as a big-endian number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        swapped = builder.bswap(_load(context, builder, signature, arguments, 32))
        return builder.sext(swapped, ir.IntType(64))

    return types.int64(array, types.int64), generate


@machine_code
def copy(_typing: Any, target: Any, to: Any, source: Any, start: Any, size: Any) -> Any:
    """Copy bytes from one array to another."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        into = _address(context, builder, signature.args[0], arguments[0], arguments[1], bits=8)
        out_of = _address(context, builder, signature.args[2], arguments[2], arguments[3], bits=8)
        cgutils.raw_memcpy(builder, into, out_of, arguments[4], 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


@machine_code
def trailing_zeros(_typing: Any, word: Any) -> Any:
    """How many bits below the lowest that is set; the word is not zero."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


_BLOCK: Final = ir.VectorType(ir.IntType(8), 64)


def _block(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    start = builder.bitcast(builder.gep(data, [arguments[1]]), _BLOCK.as_pointer())
    return builder.load(start, align=1)


@machine_code
def find_bytes(_typing: Any, array: Any, position: Any, byte: Any) -> Any:
    """Which of 64 bytes are equal to this one, as a bit for each, the first of them lowest."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one = builder.insert_element(
            ir.Constant(_BLOCK, ir.Undefined), arguments[2], ir.Constant(ir.IntType(32), 0)
        )
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), 64), None)
        all_equal = builder.shuffle_vector(one, ir.Constant(_BLOCK, ir.Undefined), zeros)
        found = builder.icmp_unsigned("==", _block(context, builder, signature, arguments), all_equal)
        return builder.bitcast(found, ir.IntType(64))

    return types.uint64(array, types.int64, types.uint8), generate


@machine_code
def find_high(_typing: Any, array: Any, position: Any) -> Any:
    """Which of 64 bytes are not ASCII, as a bit for each."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block = _block(context, builder, signature, arguments)
        return builder.bitcast(builder.icmp_signed("<", block, ir.Constant(_BLOCK, None)), ir.IntType(64))

    return types.uint64(array, types.int64), generate


@machine_code
def find_unequal(_typing: Any, array: Any, position: Any, other: Any) -> Any:
    """Which of 64 bytes differ from those at another position, as a bit for each."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one = _block(context, builder, signature, arguments)
        two = _block(context, builder, signature, (arguments[0], arguments[2]))
        return builder.bitcast(builder.icmp_unsigned("!=", one, two), ir.IntType(64))

    return types.uint64(array, types.int64, types.int64), generate


@machine_code
def prefetch(_typing: Any, array: Any, position: Any) -> Any:
    """Have the bytes at a position at hand soon, wherever it is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], *arguments, bits=8)
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


_WORDS: Final = ir.VectorType(ir.IntType(64), 2)
CAN_FOLD: Final = (
    binding.get_host_cpu_features().get("pclmul", False) and config.CPU_NAME is None and config.CPU_FEATURES is None
)
"""The processor multiplies polynomials, which makes a CRC of sixteen bytes at a time."""


def _words(low: int, high: int) -> Any:
    return ir.Constant(_WORDS, [low, high])


class _Folding:
    """Steps of "Fast CRC computation using PCLMULQDQ" for the reflected polynomial 0xEDB88320."""

    _FOLD: Final = _words(0x01751997D0, 0x00CCAA009E)
    _FOLD_LAST: Final = _words(0x0163CD6124, 0)
    _BARRETT: Final = _words(0x01DB710641, 0x01F7011641)
    _LOW_HALVES: Final = _words(0xFFFFFFFF, 0xFFFFFFFF)

    def __init__(self, builder: Any) -> None:
        self._builder = builder
        kind = ir.FunctionType(_WORDS, [_WORDS, _WORDS, ir.IntType(8)])
        self._function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.pclmulqdq")

    def multiply(self, one: Any, other: Any, halves: int) -> Any:
        """The product of a half of each; a digit of halves is 1 for the higher one, the first that of the other."""
        return self._builder.call(self._function, [one, other, ir.IntType(8)(halves)])

    def add(self, state: Any, block: Any) -> Any:
        """The state behind a block of sixteen bytes."""
        products = self.multiply(state, self._FOLD, 0x00), self.multiply(state, self._FOLD, 0x11)
        return self._builder.xor(self._builder.xor(*products), block)

    def reduce(self, state: Any) -> Any:
        """The CRC that a state stands for."""
        builder, whole = self._builder, ir.IntType(128)

        def shifted(words: Any, bits: int) -> Any:
            return builder.bitcast(builder.lshr(builder.bitcast(words, whole), whole(bits)), _WORDS)

        state = builder.xor(shifted(state, 64), self.multiply(state, self._FOLD, 0x10))
        low = self.multiply(builder.and_(state, self._LOW_HALVES), self._FOLD_LAST, 0x00)
        state = builder.xor(shifted(state, 32), low)
        part = self.multiply(builder.and_(state, self._LOW_HALVES), self._BARRETT, 0x10)
        part = self.multiply(builder.and_(part, self._LOW_HALVES), self._BARRETT, 0x00)
        return builder.and_(builder.extract_element(shifted(builder.xor(state, part), 32), _lane(0)), _CRC_BITS)


_CRC_BITS: Final = ir.IntType(64)(0xFFFFFFFF)


def _lane(number: int) -> Any:
    return ir.IntType(32)(number)


@machine_code
def fold_crc(_typing: Any, array: Any, start: Any, blocks: Any, crc: Any) -> Any:
    """A CRC, not inverted, continued over one or more blocks of sixteen bytes; only where CAN_FOLD says so."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if not CAN_FOLD:
            return arguments[3]
        folding = _Folding(builder)

        def block(number: Any) -> Any:
            at = builder.add(arguments[1], builder.shl(number, number.type(4)))
            address = _address(context, builder, signature.args[0], arguments[0], at, bits=64)
            return builder.load(builder.bitcast(address, _WORDS.as_pointer()), align=1)

        first = builder.insert_element(_words(0, 0), arguments[3], _lane(0))
        state = cgutils.alloca_once_value(builder, builder.xor(block(arguments[2].type(0)), first))
        with cgutils.for_range(builder, builder.sub(arguments[2], arguments[2].type(1))) as loop:
            following = block(builder.add(loop.index, loop.index.type(1)))
            builder.store(folding.add(builder.load(state), following), state)
        return folding.reduce(builder.load(state))

    return types.uint64(array, types.int64, types.int64, types.uint64), generate
