"""One function per request of a name server."""

from __future__ import annotations

import hashlib
import logging
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rmq_core.config import parse_properties, update_all
from rmq_core.errors import BrokerError, ConfigError, RemoteProtocolError
from rmq_core.namesrv.kv import ORDER_TOPIC_NAMESPACE
from rmq_core.namesrv.routes import LIVENESS_MS, Registration
from rmq_core.net.calls import DONE, Answer, Call
from rmq_core.net.dispatch import handles
from rmq_core.protocol import fastjson
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import (
    DataVersion,
    GetBrokerMemberGroupResponseBody,
    KVTable,
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicRouteData,
)
from rmq_core.protocol.codes import V4_9_4, ResponseCode
from rmq_core.protocol.request import NoFields

if TYPE_CHECKING:
    from rmq_core.namesrv.app import NameServer

logger = logging.getLogger(__name__)

HELP: Final = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
INFLATED_SIZE_MAX = 64 << 20
UNIT_FLAG, UNIT_SUBSCRIBED_FLAG = 1, 2


@handles(r.RegisterBroker)
async def register_broker(ns: NameServer, call: Call[r.RegisterBroker]) -> Answer[r.Registered]:
    header, body, now_ms = call.header, call.body, ns.clock.monotonic_ms()
    if header.body_crc32 and zlib.crc32(body) & 0x7FFFFFFF != header.body_crc32:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    digest = hashlib.blake2b(repr(header).encode() + body, digest_size=16).digest()
    live = ns.routes.live(header.cluster_name, header.broker_addr)
    if live is not None and live.digest == digest and header.broker_id == 0:
        # The table as it was: most registrations only say that the broker is alive.
        ns.routes.refresh(header.cluster_name, header.broker_addr, now_ms, call.connection)
        return Answer(r.Registered(), _order_topics(ns))
    content = _registered_body(call)
    registration = Registration(
        cluster=header.cluster_name,
        broker_name=header.broker_name,
        broker_id=header.broker_id,
        address=header.broker_addr,
        ha_address=header.ha_server_addr,
        topics=content.topic_config_serialize_wrapper,
        filter_servers=content.filter_server_list,
        enable_acting_master=header.enable_acting_master,
        timeout_ms=header.heartbeat_timeout_millis or LIVENESS_MS,
        zone=(call.command.ext or {}).get("__ZONE_NAME"),
    )
    registered = ns.routes.register(registration, now_ms, owner=call.connection, digest=digest)
    if registered is None:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, "register broker failed")
    reply = r.Registered(registered.master_ha_address or None, registered.master_address or None)
    return Answer(reply, _order_topics(ns))


def _registered_body(call: Call[r.RegisterBroker]) -> RegisterBrokerBody:
    body = call.body
    if not body:
        return RegisterBrokerBody()
    # 5.x brokers that compress leave the flag false; JSON never begins like a zlib stream.
    if call.header.compressed or body[0] == 0x78:
        return RegisterBrokerBody.decode_compressed(body, version=call.command.version, size_max=INFLATED_SIZE_MAX)
    value = fastjson.loads(body)
    if isinstance(value, dict) and "topicConfigTable" in value:  # as brokers before 3.0.11 wrote it
        return RegisterBrokerBody(TopicConfigSerializeWrapper.from_json(value))
    return RegisterBrokerBody.from_json(value)


def _order_topics(ns: NameServer) -> bytes:
    if not ns.settings.return_order_topic_config_to_broker:
        return b""
    table = ns.kv.namespace(ORDER_TOPIC_NAMESPACE)
    return b"" if table is None else KVTable(table).encode()


@handles(r.UnregisterBroker)
async def unregister_broker(ns: NameServer, call: Call[r.UnregisterBroker]) -> Answer[NoFields]:
    header = call.header
    if not ns.routes.goodbye(header.cluster_name, header.broker_addr, call.connection):
        logger.warning("the broker at %s is back already: its goodbye came too late", header.broker_addr)
    return DONE


@handles(r.QueryDataVersion)
async def query_data_version(ns: NameServer, call: Call[r.QueryDataVersion]) -> Answer[r.VersionChanged]:
    header = call.header
    ns.routes.refresh(header.cluster_name, header.broker_addr, ns.clock.monotonic_ms())
    live = ns.routes.live(header.cluster_name, header.broker_addr)
    version = DataVersion.decode(call.body) if call.body else DataVersion()
    if live is None:
        return Answer(r.VersionChanged(changed=True))
    return Answer(r.VersionChanged(changed=live.data_version != version), live.data_version.encode())


@handles(r.BrokerHeartbeat)
async def broker_heartbeat(ns: NameServer, call: Call[r.BrokerHeartbeat]) -> Answer[NoFields]:
    ns.routes.refresh(call.header.cluster_name, call.header.broker_addr, ns.clock.monotonic_ms())
    return DONE


@handles(r.GetRouteinfoByTopic)
async def get_routeinfo_by_topic(ns: NameServer, call: Call[r.GetRouteinfoByTopic]) -> Answer[NoFields]:
    if ns.is_warming_up:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, "name server not ready")
    topic = call.header.topic
    is_standard = bool(call.header.accept_standard_json_only) or call.command.version >= V4_9_4
    order = ns.kv.get(ORDER_TOPIC_NAMESPACE, topic) if ns.settings.order_message_enable else None
    if order is None:
        body = ns.routes.encoded_route(topic, standard=is_standard)
    else:
        route = ns.routes.route(topic)
        body = None if route is None else replace(route, order_topic_conf=order).encode(standard=is_standard)
    if body is None:
        remark = f"No topic route info in name server for the topic: {topic}\n{HELP}"
        raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, remark)
    return Answer(NoFields(), body)


@handles(r.GetBrokerClusterInfo)
async def get_broker_cluster_info(ns: NameServer, call: Call[r.GetBrokerClusterInfo]) -> Answer[NoFields]:
    return Answer(NoFields(), ns.routes.cluster_info().encode())


@handles(r.GetBrokerMemberGroup)
async def get_broker_member_group(ns: NameServer, call: Call[r.GetBrokerMemberGroup]) -> Answer[NoFields]:
    group = ns.routes.member_group(call.header.cluster_name, call.header.broker_name)
    return Answer(NoFields(), GetBrokerMemberGroupResponseBody(group).encode())


@handles(r.RegisterTopicInNamesrv)
async def register_topic_in_namesrv(ns: NameServer, call: Call[r.RegisterTopicInNamesrv]) -> Answer[NoFields]:
    if call.body:
        ns.routes.register_topic(call.header.topic, TopicRouteData.decode(call.body).queue_datas)
    return DONE


@handles(r.DeleteTopicInNamesrv)
async def delete_topic_in_namesrv(ns: NameServer, call: Call[r.DeleteTopicInNamesrv]) -> Answer[NoFields]:
    ns.routes.delete_topic(call.header.topic, call.header.cluster_name or None)
    return DONE


@handles(r.WipeWritePermOfBroker)
async def wipe_write_perm_of_broker(ns: NameServer, call: Call[r.WipeWritePermOfBroker]) -> Answer[r.Wiped]:
    return Answer(r.Wiped(ns.routes.wipe_write_permission(call.header.broker_name)))


@handles(r.AddWritePermOfBroker)
async def add_write_perm_of_broker(ns: NameServer, call: Call[r.AddWritePermOfBroker]) -> Answer[r.Added]:
    return Answer(r.Added(ns.routes.add_write_permission(call.header.broker_name)))


# Lists of topics


def _topic_list(ns: NameServer, topics: tuple[str, ...], address: str | None = None) -> Answer[NoFields]:
    if not ns.settings.enable_topic_list:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, "disable")
    return Answer(NoFields(), TopicList(topics, address).encode())


@handles(r.GetAllTopicListFromNameserver)
async def get_all_topics(ns: NameServer, call: Call[r.GetAllTopicListFromNameserver]) -> Answer[NoFields]:
    if not ns.settings.enable_all_topic_list:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, "disable")
    return Answer(NoFields(), TopicList(ns.routes.topics()).encode())


@handles(r.GetTopicsByCluster)
async def get_topics_by_cluster(ns: NameServer, call: Call[r.GetTopicsByCluster]) -> Answer[NoFields]:
    return _topic_list(ns, ns.routes.topics_of_cluster(call.header.cluster))


@handles(r.GetSystemTopicListFromNs)
async def get_system_topics(ns: NameServer, call: Call[r.GetSystemTopicListFromNs]) -> Answer[NoFields]:
    names, address = ns.routes.names()
    return Answer(NoFields(), TopicList(names, address).encode())


@handles(r.GetUnitTopicList)
async def get_unit_topics(ns: NameServer, call: Call[r.GetUnitTopicList]) -> Answer[NoFields]:
    return _topic_list(ns, ns.routes.topics_by_flag(lambda flag: bool(flag & UNIT_FLAG)))


@handles(r.GetHasUnitSubTopicList)
async def get_unit_subscribed_topics(ns: NameServer, call: Call[r.GetHasUnitSubTopicList]) -> Answer[NoFields]:
    return _topic_list(ns, ns.routes.topics_by_flag(lambda flag: bool(flag & UNIT_SUBSCRIBED_FLAG)))


@handles(r.GetHasUnitSubUnunitTopicList)
async def get_other_unit_subscribed_topics(
    ns: NameServer, call: Call[r.GetHasUnitSubUnunitTopicList]
) -> Answer[NoFields]:
    wanted = UNIT_SUBSCRIBED_FLAG
    return _topic_list(
        ns, ns.routes.topics_by_flag(lambda flag: flag & (UNIT_FLAG | UNIT_SUBSCRIBED_FLAG) == wanted)
    )


# Key-value settings


@handles(r.PutKvConfig)
async def put_kv_config(ns: NameServer, call: Call[r.PutKvConfig]) -> Answer[NoFields]:
    await ns.kv.put(call.header.namespace, call.header.key, call.header.value)
    return DONE


@handles(r.GetKvConfig)
async def get_kv_config(ns: NameServer, call: Call[r.GetKvConfig]) -> Answer[r.KvValue]:
    value = ns.kv.get(call.header.namespace, call.header.key)
    if value is None:
        remark = f"No config item, Namespace: {call.header.namespace} Key: {call.header.key}"
        raise BrokerError(ResponseCode.QUERY_NOT_FOUND, remark)
    return Answer(r.KvValue(value))


@handles(r.DeleteKvConfig)
async def delete_kv_config(ns: NameServer, call: Call[r.DeleteKvConfig]) -> Answer[NoFields]:
    await ns.kv.delete(call.header.namespace, call.header.key)
    return DONE


@handles(r.GetKvlistByNamespace)
async def get_kvlist_by_namespace(ns: NameServer, call: Call[r.GetKvlistByNamespace]) -> Answer[NoFields]:
    table = ns.kv.namespace(call.header.namespace)
    if table is None:
        raise BrokerError(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {call.header.namespace}")
    return Answer(NoFields(), KVTable(table).encode())


# The name server's own settings


@handles(r.GetNamesrvConfig)
async def get_namesrv_config(ns: NameServer, call: Call[r.GetNamesrvConfig]) -> Answer[NoFields]:
    return Answer(NoFields(), ns.settings_text().encode())


@handles(r.UpdateNamesrvConfig)
async def update_namesrv_config(ns: NameServer, call: Call[r.UpdateNamesrvConfig]) -> Answer[NoFields]:
    if not call.body:
        return DONE
    try:
        changes = parse_properties(call.body.decode())
    except (UnicodeDecodeError, ConfigError) as error:
        raise RemoteProtocolError(f"string2Properties error: {error}") from None
    forbidden = {name.strip() for name in ns.settings.config_black_list.split(";")} | {"rocketmqHome"}
    if not forbidden.isdisjoint(changes):
        raise BrokerError(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
    try:
        changed = update_all(changes, ns.settings, ns.server_settings)
    except ConfigError as error:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, str(error)) from None
    await ns.store_settings({name: changes[name] for name in changed})
    return DONE
