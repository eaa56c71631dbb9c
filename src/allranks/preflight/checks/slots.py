"""The ranks of a node have a GPU each where GPUs are in use, and none of them is a MIG slice."""

from __future__ import annotations

from typing import Mapping

from allranks.findings import Finding
from allranks.text import count_of, join_names, join_words, plural

from .. import smi
from ..compare import Findings, Nodes, by_value, differing, fail_if, nodes_with, values_of, warn, who
from ..typed_facts import Request

ID = "slots"
GROUP = "gpu"
LEVEL = "quick"
LABEL = "invalid-device-ordinal"


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """invalid-device-ordinal where ranks would find no device; a warning where it may be a CPU program."""
    counts = values_of(facts_by_node, lambda facts: facts.gpu_count)
    interpreters = [facts.interpreter for facts in facts_by_node.values()]
    is_cpu_only = all(one.torch and not one.cuda and not one.hip for one in interpreters)  # torch/version.py
    if is_cpu_only or not any(counts.values()):
        return
    mig = nodes_with(facts_by_node, lambda facts: facts.gpus.mig)
    if mig:  # NCCL takes one MIG instance of a GPU only, and CUDA shows a process one
        message = f"{who(mig, 'has its GPUs', 'have their GPUs')} split by MIG"
        remedy = "switch MIG off (sudo nvidia-smi -mig 0), or say --nproc and set CUDA_VISIBLE_DEVICES a rank"
        is_set = any(request.asked.ranks_on(node) for node in mig)
        why = "a rank sees one slice at most" if is_set else "the number of ranks can't be taken from them"
        yield fail_if(not is_set, LABEL, mig, f"{message}: {why}", remedy)
        return
    sharing = len(counts) if request.asked.virtual else 1  # nodes of one machine
    wanted = {node: (request.asked.ranks_on(node) or 0) * sharing for node in counts}
    few = [node for node in counts if counts[node] < wanted[node]]
    if few:
        look = f"ssh {few[0]} {smi.listing(facts_by_node[few[0]].gpus.vendor)}"
        yield _too_few(request, counts, {node: wanted[node] for node in few}, look)
    elif not request.asked.virtual and not (request.asked.nproc or request.asked.launching.ranks_asked_for):
        yield from _unequal(request, counts, facts_by_node)


def _too_few(request: Request, counts: Mapping[str, int], wanted: Mapping[str, int], look: str) -> Finding:
    """Fail where other nodes have enough; else warn, as the program may not use them at all."""
    few = list(wanted)
    least = min(counts[node] for node in few)
    if request.asked.virtual:
        message = f"{wanted[few[0]]} ranks share {count_of(counts[few[0]], 'GPU')} of this machine"
        remedy = "set a smaller --nproc, unless the program uses CPUs only"
        return warn(LABEL, few, message, remedy, gpu=counts[few[0]])
    enough = len(counts) - len(few)
    sentences = []
    for ranks, nodes in by_value(wanted).items():
        shown = ", ".join(f"{node} has {count_of(counts[node], 'GPU')}" for node in nodes[:4])
        sentences.append(f"{shown} for {count_of(ranks, 'rank')}")
    message = join_words(sentences)
    if enough:
        message += f" (the other {enough} {plural(enough, 'has', 'have')} enough)"
    advice = f"use --nproc {least}" if least else f"leave {few[0]} out of the list"
    remedy = f"{advice}, or for a program on CPUs --env CUDA_VISIBLE_DEVICES=. Look: {look}"
    return fail_if(enough > 0, LABEL, few, message, remedy, gpu=counts[few[0]])


def _unequal(request: Request, counts: Mapping[str, int], facts_by_node: Nodes) -> Findings:
    """--nproc auto with different numbers of GPUs: allowed, and yet often a GPU that is lost."""
    free = {node: count for node, count in counts.items() if not request.asked.slots.get(node)}
    groups = list(by_value(free).values())
    if len(groups) < 2:
        return
    odd = groups[-1]
    message = f"nodes have different numbers of GPUs: {differing(free)}"
    without = nodes_with(free, lambda count: count == 0)
    if without:
        message += f", and {join_names(without)} would run one rank without a GPU"
    least = max(1, min(free.values()))
    look = f"ssh {odd[0]} {smi.listing(facts_by_node[odd[0]].gpus.vendor)}"
    yield warn(ID, odd, message, f"set one number for all with --nproc {least}. Look: {look}")
