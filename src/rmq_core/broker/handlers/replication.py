"""Between a master and its replicas, as far as a master without replicas has something to say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmq_core.errors import BrokerError
from rmq_core.net.calls import DONE, Answer, Call
from rmq_core.net.dispatch import handles
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import HAClientRuntimeInfo, HARuntimeInfo
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.request import NoFields

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker


@handles(r.GetBrokerHaStatus)
async def get_broker_ha_status(broker: Broker, call: Call[r.GetBrokerHaStatus]) -> Answer[NoFields]:
    body = HARuntimeInfo(
        master=broker.is_master,
        master_commit_log_max_offset=broker.store.log.end,
        ha_client_runtime_info=HAClientRuntimeInfo(),
    )
    return Answer(NoFields(), body.encode())


@handles(r.ResetMasterFlushOffset)
async def reset_master_flush_offset(broker: Broker, call: Call[r.ResetMasterFlushOffset]) -> Answer[NoFields]:
    """Told to replicas; a master knows how far it has flushed."""
    return DONE


@handles(r.GetBrokerEpochCache)
async def get_broker_epoch_cache(broker: Broker, call: Call[r.GetBrokerEpochCache]) -> Answer[NoFields]:
    raise BrokerError(ResponseCode.SYSTEM_ERROR, "this request is only for brokers under a controller")
