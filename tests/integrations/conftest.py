"""The plug-in's own fixture, whether it is installed or not."""

from __future__ import annotations

from rmq_core.integrations import pytest_plugin

rocketmq = pytest_plugin.rocketmq
