"""What the recorders' account of a hang means, in the same words for a run and for dumps beside logs (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from allranks.text import plural

from ..candidate import Reading, Strength
from ..words import name_by_node
from .frontier import Account, CollectiveFault

CONDITION = "Look for a condition on rank or data there"
SAME = f"all ranks of a group must call the same collectives with the same shapes in the same order. {CONDITION}"
PAIRS = "allranks test --hosts … --suite pairs says whether a node or a link is at fault"
NOT_CALLED = (
    "find out what was done there instead: read the log, `dmesg -T` on the node, and while it stands `py-spy dump`"
)
STUCK = (
    "a device, a process or a link has stopped there. Read `dmesg -T` on the node for errors of the device. "
    f"If there are none, {PAIRS}"
)
BEHIND = f"its process or a link to it has stopped, as all ranks had called it. Look at its stack. {PAIRS}"
TOGETHER = f"all ranks have called it, so the network between them is suspect. {PAIRS}"
FEW = 4  # culprits that a mismatch still names


def read_account(recorded: Account, nodes: Mapping[int, str], all_wait: bool = False) -> Reading:
    """Give cause, sentence and remedy of an account. `nodes` are those of ranks, as far as they are known.

    `all_wait`: the ranks' stacks show that those that have not called it wait for others, too. What made a rank late
    stands in its log, if anywhere, so only a mismatch explains itself.
    """
    late = frozenset(recorded.culprits)
    named = name_by_node(recorded.culprits, lambda rank: nodes.get(rank, ""))
    message = recorded.message
    waited_for = f"the others wait for {named}: {message}"
    unlike = ""
    if 0 < len(late) < FEW:
        unlike = f" ({named} unlike most)"
    if recorded.case is CollectiveFault.DIFFERENT and recorded.is_shape:
        words = f"ranks have called a collective with different shapes or types: {message}{unlike}"
        return Reading("collective-shape-mismatch", 0.9, words, SAME, late=late)
    if recorded.case is CollectiveFault.DIFFERENT:
        words = f"ranks have called different collectives: {message}{unlike}"
        return Reading("collective-mismatch", 0.9, words, SAME, late=late)
    if recorded.case is CollectiveFault.MISSING and all_wait:
        words = f"ranks have called a different number of collectives: {message}{unlike}"
        return Reading("collective-mismatch", 0.8, words, SAME, late=late)
    weak = Strength.SYMPTOM
    if recorded.case is CollectiveFault.MISSING:
        return Reading("straggler", 0.75, waited_for, NOT_CALLED, weak, late=late)
    if recorded.case is CollectiveFault.STUCK:
        return Reading("straggler", 0.75, waited_for, STUCK, weak, late=late)
    if recorded.case is CollectiveFault.BEHIND:
        link = f"a link to {plural(len(late), 'it', 'them')} may be at fault as well"
        return Reading("straggler", 0.6, f"{waited_for}. {link}", BEHIND, weak, late=late)
    if recorded.case is CollectiveFault.ORDER:
        words = f"ranks wait for each other: {message}{unlike}"
        confidence = 0.7
        if late:
            confidence = 0.8
        return Reading("collective-mismatch", confidence, words, SAME, weak, late=late)
    return Reading("unknown", 0.45, f"{message}, and none is behind", TOGETHER, weak)
