"""What runs once a node or once a rank: direct, command, or another launcher. One file a launcher.

Pure: each is a function that gives the processes of one node.
"""

from allranks.settings.ray import DRIVER, RAY

from .accelerate import accelerate
from .collectives import collectives
from .colossalai import colossalai
from .deepspeed import deepspeed
from .node_launcher import command, direct
from .ray import driver, ray
from .torchrun import torchrun

LAUNCHERS = {
    "direct": direct,
    "torchrun": torchrun,
    "accelerate": accelerate,
    "deepspeed": deepspeed,
    "colossalai": colossalai,
    "command": command,
}

OF_RAY = {RAY: ray, DRIVER: driver}

__all__ = ["LAUNCHERS", "OF_RAY", "collectives"]
