"""Users and policies (5.3), and the access configuration of 4.9."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import orjson

from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol.body import Body


@dataclass(frozen=True, slots=True)
class UserInfo(Body):
    """A user; userType is Super or Normal, userStatus enable or disable."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyEntryInfo(Body):
    """What may be done, or not, with a resource."""

    resource: str | None = None
    actions: tuple[str, ...] | None = None
    source_ips: tuple[str, ...] | None = None
    decision: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyInfo(Body):
    """Entries of one kind, Custom or Default."""

    policy_type: str | None = None
    entries: tuple[PolicyEntryInfo, ...] | None = None


@dataclass(frozen=True, slots=True)
class AclInfo(Body):
    """What a subject may do."""

    subject: str | None = None
    policies: tuple[PolicyInfo, ...] | None = None


@dataclass(frozen=True, slots=True)
class UserList(Body):
    """Users; a bare array on the wire."""

    users: tuple[UserInfo, ...] = ()

    @classmethod
    def from_json(cls, value: Any) -> Self:
        return cls(tuple(UserInfo.from_json(item) for item in _array(value)))

    def encode(self, *, standard: bool = False) -> bytes:
        return orjson.dumps([user.to_json() for user in self.users])


@dataclass(frozen=True, slots=True)
class AclList(Body):
    """Policies of several subjects; a bare array on the wire."""

    acls: tuple[AclInfo, ...] = ()

    @classmethod
    def from_json(cls, value: Any) -> Self:
        return cls(tuple(AclInfo.from_json(item) for item in _array(value)))

    def encode(self, *, standard: bool = False) -> bytes:
        return orjson.dumps([acl.to_json() for acl in self.acls])


def _array(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise RemoteProtocolError(f"{str(value)[:40]!r} is not an array")
    return value


@dataclass(frozen=True, slots=True)
class PlainAccessConfig(Body):
    """An account of 4.9 and its permissions."""

    access_key: str | None = None
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: tuple[str, ...] | None = None
    group_perms: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class AclConfig(Body):
    """All accounts of a 4.9 broker."""

    global_white_addrs: tuple[str, ...] | None = None
    plain_access_configs: tuple[PlainAccessConfig, ...] | None = None
