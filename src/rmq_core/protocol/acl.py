"""Signatures of requests: HMAC-SHA1 over the header's values in the order of their names, then the body."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Collection, Mapping
from typing import Final

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""Left out by brokers of 4.9, and by those of 5.x for clients of version 399 and below."""


def signature(
    ext: Mapping[str, str], body: bytes | memoryview, secret_key: str, *, exclude: Collection[str] = ()
) -> str:
    """The value of the field `Signature` for these fields and this body; a `Signature` in them does not count."""
    names = sorted((name for name in ext if name != SIGNATURE and name not in exclude), key=_java_order)
    digest = hmac.new(_encode(secret_key), digestmod=hashlib.sha1)
    digest.update(_encode("".join([ext[name] for name in names])))
    digest.update(body)
    return base64.b64encode(digest.digest()).decode("ascii")


def verify(
    ext: Mapping[str, str], body: bytes | memoryview, secret_key: str, *, exclude: Collection[str] = ()
) -> bool:
    """Whether `Signature` was made with this key. Takes the same time wherever the two differ."""
    given = ext.get(SIGNATURE)
    if given is None:
        return False
    return hmac.compare_digest(_encode(given), _encode(signature(ext, body, secret_key, exclude=exclude)))


def _encode(text: str) -> bytes:
    # Java writes a question mark for half a surrogate pair.
    return text.encode("utf-8", errors="replace")


def _java_order(name: str) -> bytes:
    # Java compares UTF-16 units, which puts characters beyond the first plane before some within it.
    return name.encode("utf-16-be", errors="surrogatepass")
