"""What compiled loops need of the processor and cannot say in Python: unaligned words, copies, many bytes at once.

Nothing here judges a position. The loops do, before they call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numba
import numba.extending
from llvmlite import ir as _ir
from numba.core import cgutils as _cgutils

# numba tells too little of its types to be checked.
ir: Any = _ir
types: Any = numba.types
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
