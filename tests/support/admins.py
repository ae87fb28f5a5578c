"""Administrators of a cluster of this process."""

from __future__ import annotations

from rmq_core.client.admin import Admin
from rmq_core.client.options import ClientArguments
from support.brokers import Cluster
from support.cluster import address_of


def admin_of(cluster: Cluster, *, timeout_ms: int = 5_000, namespace: str = "") -> Admin:
    """One that asks the cluster's name servers; not started yet."""
    names = [address_of(each) for each in cluster.name_servers]
    return Admin(timeout_ms=timeout_ms, **ClientArguments(name_server=names, namespace=namespace))
