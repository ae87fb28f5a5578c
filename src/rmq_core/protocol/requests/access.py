"""Who may do what: accounts of 4.9, users and policies of 5.3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rmq_core.protocol import bodies
from rmq_core.protocol.request import Header, NoFields, Request


@dataclass(frozen=True, slots=True)
class UpdateAndCreateAclConfig(Request[NoFields]):
    """Create or change an account."""

    code: ClassVar = 50
    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool | None = None
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteAclConfig(Request[NoFields]):
    """Delete an account."""

    code: ClassVar = 51
    access_key: str


@dataclass(frozen=True, slots=True)
class AclVersion(Header):
    """The versions of the account files."""

    version: str
    broker_name: str
    broker_addr: str
    cluster_name: str
    all_acl_file_version: str | None = None


@dataclass(frozen=True, slots=True)
class GetBrokerClusterAclInfo(Request[AclVersion]):
    """The versions of the account files."""

    code: ClassVar = 52
    reply: ClassVar = AclVersion


@dataclass(frozen=True, slots=True)
class UpdateGlobalWhiteAddrsConfig(Request[NoFields]):
    """Addresses that need no account."""

    code: ClassVar = 53
    global_white_addrs: str
    acl_file_full_path: str | None = None


@dataclass(frozen=True, slots=True)
class GetBrokerClusterAclConfig(Request[NoFields]):
    """All accounts."""

    code: ClassVar = 54
    reply_body: ClassVar = bodies.AclConfig


@dataclass(frozen=True, slots=True)
class AuthCreateUser(Request[NoFields]):
    """Create a user."""

    code: ClassVar = 3001
    body: ClassVar = bodies.UserInfo
    username: str | None = None


@dataclass(frozen=True, slots=True)
class AuthUpdateUser(Request[NoFields]):
    """Change a user."""

    code: ClassVar = 3002
    body: ClassVar = bodies.UserInfo
    username: str | None = None


@dataclass(frozen=True, slots=True)
class AuthDeleteUser(Request[NoFields]):
    """Delete a user."""

    code: ClassVar = 3003
    username: str | None = None


@dataclass(frozen=True, slots=True)
class AuthGetUser(Request[NoFields]):
    """One user."""

    code: ClassVar = 3004
    reply_body: ClassVar = bodies.UserInfo
    username: str | None = None


@dataclass(frozen=True, slots=True)
class AuthListUser(Request[NoFields]):
    """Users whose name contains the filter."""

    code: ClassVar = 3005
    reply_body: ClassVar = bodies.UserList
    filter: str | None = None


@dataclass(frozen=True, slots=True)
class AuthCreateAcl(Request[NoFields]):
    """Create policies."""

    code: ClassVar = 3006
    body: ClassVar = bodies.AclInfo
    subject: str | None = None


@dataclass(frozen=True, slots=True)
class AuthUpdateAcl(Request[NoFields]):
    """Change policies."""

    code: ClassVar = 3007
    body: ClassVar = bodies.AclInfo
    subject: str | None = None


@dataclass(frozen=True, slots=True)
class AuthDeleteAcl(Request[NoFields]):
    """Delete policies."""

    code: ClassVar = 3008
    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


@dataclass(frozen=True, slots=True)
class AuthGetAcl(Request[NoFields]):
    """The policies of a subject."""

    code: ClassVar = 3009
    reply_body: ClassVar = bodies.AclInfo
    subject: str | None = None


@dataclass(frozen=True, slots=True)
class AuthListAcl(Request[NoFields]):
    """Policies by parts of subject and resource."""

    code: ClassVar = 3010
    reply_body: ClassVar = bodies.AclList
    subject_filter: str | None = None
    resource_filter: str | None = None
