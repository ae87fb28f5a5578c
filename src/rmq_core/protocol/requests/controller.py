"""Codes of Apache's controller. A deployment without one never sees them; here they are names only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rmq_core.protocol.request import NoFields, Request


@dataclass(frozen=True, slots=True)
class ControllerAlterSyncStateSet(Request[NoFields]):
    """Belongs to the controller."""

    code: ClassVar = 1001


@dataclass(frozen=True, slots=True)
class ControllerElectMaster(Request[NoFields]):
    """Belongs to the controller."""

    code: ClassVar = 1002


@dataclass(frozen=True, slots=True)
class ControllerRegisterBroker(Request[NoFields]):
    """Belongs to the controller."""

    code: ClassVar = 1003


@dataclass(frozen=True, slots=True)
class ControllerGetReplicaInfo(Request[NoFields]):
    """Belongs to the controller."""

    code: ClassVar = 1004


@dataclass(frozen=True, slots=True)
class ControllerGetMetadataInfo(Request[NoFields]):
    """Belongs to the controller."""

    code: ClassVar = 1005


@dataclass(frozen=True, slots=True)
class ControllerGetSyncStateData(Request[NoFields]):
    """Belongs to the controller."""

    code: ClassVar = 1006


@dataclass(frozen=True, slots=True)
class UpdateControllerConfig(Request[NoFields]):
    """Belongs to the controller."""

    code: ClassVar = 1009


@dataclass(frozen=True, slots=True)
class GetControllerConfig(Request[NoFields]):
    """Belongs to the controller."""

    code: ClassVar = 1010


@dataclass(frozen=True, slots=True)
class CleanBrokerData(Request[NoFields]):
    """Belongs to the controller."""

    code: ClassVar = 1011


@dataclass(frozen=True, slots=True)
class ControllerGetNextBrokerId(Request[NoFields]):
    """Belongs to the controller."""

    code: ClassVar = 1012


@dataclass(frozen=True, slots=True)
class ControllerApplyBrokerId(Request[NoFields]):
    """Belongs to the controller."""

    code: ClassVar = 1013
