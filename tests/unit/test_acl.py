"""Signatures of requests."""

from __future__ import annotations

import base64
import hashlib
import hmac

from hypothesis import given
from hypothesis import strategies as st

from rmq_core.protocol import acl

texts = st.text()


def plain(content: bytes, secret_key: str) -> str:
    return base64.b64encode(hmac.new(secret_key.encode(), content, hashlib.sha1).digest()).decode()


def test_values_are_signed_in_the_order_of_their_names() -> None:
    """Given in another order; capitals come before small letters, and the signature itself does not count."""
    ext = {"b": "2", "a": "1", "AccessKey": "me", "Signature": "x", "B": "3"}
    assert acl.signature(ext, b"body", "secret") == plain(b"me312body", "secret")


def test_names_are_ordered_as_java_orders_them() -> None:
    """By UTF-16 units, U+1F600 comes before U+FF5E."""
    assert acl.signature({"～": "2", "😀": "1"}, b"", "k") == plain(b"12", "k")


def test_left_out_fields_do_not_count() -> None:
    """As a 4.9 broker leaves out one that its clients sign, so that the two differ."""
    ext = {"topic": "T", acl.UNIQUE_KEY_QUERY: "true"}
    ext[acl.SIGNATURE] = acl.signature(ext, b"", "k")
    assert acl.verify(ext, b"", "k")
    assert not acl.verify(ext, b"", "k", exclude={acl.UNIQUE_KEY_QUERY})
    assert acl.signature(ext, b"", "k", exclude={acl.UNIQUE_KEY_QUERY}) == plain(b"T", "k")


@given(st.dictionaries(texts, texts), st.binary(), texts)
def test_what_was_signed_verifies(ext: dict[str, str], body: bytes, secret_key: str) -> None:
    """Any fields, body and key; then a changed body, a changed key, and no signature at all."""
    ext.pop(acl.SIGNATURE, None)
    assert not acl.verify(ext, body, secret_key)
    ext[acl.SIGNATURE] = acl.signature(ext, body, secret_key)
    assert acl.verify(ext, memoryview(body), secret_key)
    assert not acl.verify(ext, body + b"x", secret_key)
    assert not acl.verify(ext, body, secret_key + "x")


@given(st.text(st.characters(categories=["Cs", "Ll"])))
def test_no_text_makes_verification_fail_otherwise(text: str) -> None:
    """Half surrogate pairs and other letters in name, value, key and signature."""
    assert not acl.verify({text: text, acl.SIGNATURE: text}, b"", text)
