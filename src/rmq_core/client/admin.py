"""Administration, as coroutines: everything that brokers and name servers let administrators ask and change.

One class; its families are in admin_topics, admin_groups, admin_offsets, admin_messages, admin_clients,
admin_brokers and admin_name_servers. Whom a call goes to, and what it raises, is said in admin_base.
"""

from __future__ import annotations

from rmq_core.client.admin_name_servers import AdminNameServers


class Admin(AdminNameServers):
    """Manage a cluster: `async with Admin() as admin: await admin.create_topic("Orders", queues=8)`."""
