"""What runs once a node or once a rank: direct, torchrun, command. One file a launcher.

Pure: each is a function that gives the processes of one node.
"""

from .collectives import collectives
from .command import command
from .direct import direct
from .torchrun import torchrun

LAUNCHERS = {"direct": direct, "torchrun": torchrun, "command": command}

__all__ = ["LAUNCHERS", "collectives"]
