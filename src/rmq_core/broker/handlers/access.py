"""Users, policies and accounts: this broker keeps none, and says so.

The accounts of 4.9 (codes 50 to 54) have no handler: they are answered as codes that are not supported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rmq_core.errors import BrokerError
from rmq_core.net.calls import Answer, Call
from rmq_core.net.dispatch import Handler, handles
from rmq_core.protocol import requests as r
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.request import NoFields, Request

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker


def _without_users(request: type[Request[Any]]) -> Handler:
    """The handler of a request about users or policies, for a broker without them."""

    @handles(request)
    async def refuse(broker: Broker, call: Call[Any]) -> Answer[NoFields]:
        remark = "authentication and authorization are not enabled on this broker: it has no users or policies"
        raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)

    return refuse


create_user = _without_users(r.AuthCreateUser)
update_user = _without_users(r.AuthUpdateUser)
delete_user = _without_users(r.AuthDeleteUser)
get_user = _without_users(r.AuthGetUser)
list_users = _without_users(r.AuthListUser)
create_policies = _without_users(r.AuthCreateAcl)
update_policies = _without_users(r.AuthUpdateAcl)
delete_policies = _without_users(r.AuthDeleteAcl)
get_policies = _without_users(r.AuthGetAcl)
list_policies = _without_users(r.AuthListAcl)
