"""What a round does: drawn from the seed and the round's number alone. Pure."""

from __future__ import annotations

import random
from typing import NamedTuple

from bench.chaos.faults import BY_NAME, FAULTS, Fault, Target, Way, When

STEPS = 100
PAUSE = 0.03  # seconds after a step
LAST_STEP = 60  # at which a fault strikes: then there is time left for it
SHARE_OF_STEPS = 0.6  # of the faults that may strike at any time, this share strikes while all ranks train
LONGEST_DELAY = 1.0  # seconds from an event to the fault
STARTING = ("node-connecting", "node-ready", "gate-listening", "gate-proved", "rank-started", "rank-initialised")
RANKS_ARE_THERE = ("rank-started", "rank-initialised")


class Moment(NamedTuple):
    """When a fault strikes: `delay` seconds after the first event of this kind, or at a step; or before all."""

    event: str = ""
    step: int = 0
    delay: float = 0.0

    @property
    def text(self) -> str:
        """Say it in a word or two."""
        if self.step:
            return f"step {self.step}"
        if self.event:
            return f"{self.event} + {self.delay:.2f} s"
        return "before the start"


class Round(NamedTuple):
    """One round. `rank` and `node` (from 0, its place in the list) are struck, `peer` is another node."""

    number: int
    fault: str
    hosts: int
    nproc: int
    spares: int
    moment: Moment
    rank: int
    node: int
    peer: int
    lasting: float
    on_hang: str
    preload: str

    @property
    def nodes(self) -> int:
        """Nodes with ranks."""
        return self.hosts - self.spares

    @property
    def world_size(self) -> int:
        """Ranks."""
        return self.nodes * self.nproc


def draw(seed: int, number: int) -> Round:
    """The round of this number. Each run of len(FAULTS) rounds has every fault once, in an order of its own."""
    cycle, place = divmod(number, len(FAULTS))
    order = list(FAULTS)
    random.Random(f"{seed}/{cycle}").shuffle(order)
    fault = order[place]
    dice = random.Random(f"{seed}/{number}/{fault.name}")
    hosts = dice.randint(3, 6)
    spares = 2 if hosts == 6 and dice.random() < 0.5 else 1
    nodes = hosts - spares
    nproc = dice.randint(1, 2) if nodes <= 3 else 1
    rank = dice.randrange(nodes * nproc)
    node = rank // nproc
    if fault.target is Target.SPARE:
        node = nodes
    if fault.name == "port-taken":
        node = 0
    if fault.way in (Way.JOIN, Way.SLURM):
        hosts = dice.randint(3, 4)
        spares = 0
        nodes = hosts
        nproc = 1
        rank = node = dice.randrange(0 if fault.target is Target.RANK else 1, hosts)  # node 0 has the controller
    return Round(
        number=number,
        fault=fault.name,
        hosts=hosts,
        nproc=nproc,
        spares=spares,
        moment=_moment(fault, dice),
        rank=rank,
        node=node,
        peer=dice.choice([n for n in range(nodes) if n != node]),
        lasting=round(dice.uniform(*fault.lasting), 2),
        on_hang=dice.choice(("stop", "restart")),
        preload=dice.choice(("never", "retries")),
    )


def _moment(fault: Fault, dice: random.Random) -> Moment:
    step = dice.randint(2, LAST_STEP)
    delay = round(dice.uniform(0.0, LONGEST_DELAY), 3)
    in_steps = dice.random() < SHARE_OF_STEPS
    if fault.when is When.BEFORE:
        return Moment()
    if fault.when is When.STEPS or in_steps:
        return Moment(step=step)
    return Moment(event=dice.choice(STARTING if fault.when is When.ANY else RANKS_ARE_THERE), delay=delay)


def fault_of(round_: Round) -> Fault:
    """The row of its fault."""
    return BY_NAME[round_.fault]
