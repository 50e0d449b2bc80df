"""Framework-neutral configurations: what FSDP1 was asked for, what FSDP2 will be asked to do."""

from .fsdp1 import Fsdp1Config
from .fsdp2 import Fsdp2Config
from .origin import Origin, Sourced

__all__ = ["Fsdp1Config", "Fsdp2Config", "Origin", "Sourced"]
