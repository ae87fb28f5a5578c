"""Producers, consumers and administration. Users import them from `rmq_core` and `rmq_core.aio`."""
