"""The figures of a launcher's command that was pasted, compared with the settings before any node is asked (pure)."""

from __future__ import annotations

from allranks.cluster import Cluster
from allranks.errors import UsageError
from allranks.plan.launchers.config_keys import launcher_settings
from allranks.settings import RunSpec

from .checks.accelerate_config import COUNTS, judge_options
from .launcher_config import RankCounts
from .typed_facts import Request


def refuse_contradictions(spec: RunSpec, cluster: Cluster) -> None:
    """Raise UsageError where the pasted command of a launcher has other figures than the settings.

    `run` refuses them in its checks before ranks start. Ranks of a node that only the node knows are not compared.
    """
    if not spec.preflight.check:
        return
    launching = launcher_settings(spec)
    slots = {node.name: node.slots for node in cluster.nodes}
    if spec.launch.nproc is None and None in slots.values():
        options = launching["options"]
        launching = {**launching, "options": {k: v for k, v in options.items() if k not in COUNTS}}
    port = spec.rendezvous.master_port
    fields = {"launching": launching, "nproc": spec.launch.nproc, "slots": slots, "master_port": port}
    request = Request(fields)
    for finding in judge_options(request, RankCounts(request, {}), {}):
        if finding.id not in spec.preflight.allow and finding.check not in spec.preflight.allow:
            raise UsageError(f"{finding.message}\nhint: {finding.remedy}")
