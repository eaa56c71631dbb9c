"""Options of the engines that give nodes (Slurm, Kubernetes, SkyPilot): one group that several verbs take."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

from .options import BEHAVIOUR, CHECKS, HOW, TARGET, TIMES, Text, option

PODS = "Pods and cloud machines (--k8s, --sky)"


def targets(
    k8s: Annotated[bool | None, option("--k8s", TARGET, "pods of a Kubernetes cluster, through kubectl")] = None,
    sky: Annotated[bool | None, option("--sky", TARGET, "machines that SkyPilot finds")] = None,
    context: Annotated[Text, option("--context", PODS, "of kubectl (the current one)", "NAME")] = None,
) -> None:
    """What only a verb that acts takes."""


def pods(
    kind: Annotated[Text, option("--kind", PODS, "of objects (job)", "job|jobset|trainjob|pods")] = None,
    namespace: Annotated[Text, option("--namespace", PODS, "of Kubernetes (the context's)", "NAME")] = None,
    image: Annotated[Text, option("--image", PODS, "container image: Python and torch are enough", "IMAGE")] = None,
    gpus: Annotated[Text, option("--gpus", PODS, "a node: 8, amd.com/gpu:8; for SkyPilot H100:8", "[NAME:]K")] = None,
    shm: Annotated[Text, option("--shm", PODS, "size of /dev/shm (half of the memory)", "SIZE")] = None,
    pod: Annotated[Text, option("--pod", PODS, "laid over the pods: volumes, nodeSelector, …", "FILE")] = None,
    deadline: Annotated[Text, option("--deadline", PODS, "the cluster ends the run after so long")] = None,
    infra: Annotated[Text, option("--infra", PODS, "SkyPilot's: aws/us-east-1, k8s/CONTEXT", "WHERE")] = None,
    autostop: Annotated[Text, option("--autostop", PODS, "SkyPilot's machines go when idle so long")] = None,
) -> None:
    """What describes them."""


def inside(
    launcher: Annotated[Text, option("--launcher", HOW, "direct, torchrun, accelerate, deepspeed, …", "NAME")] = None,
    lease: Annotated[Text, option("--lease", TIMES, "ranks live this long without allranks (60s)")] = None,
    grace: Annotated[Text, option("--grace", TIMES, "SIGTERM to SIGKILL after a failure (1s)")] = None,
    stop_grace: Annotated[Text, option("--stop-grace", TIMES, "SIGTERM to SIGKILL at the end (30s)")] = None,
    init_timeout: Annotated[Text, option("--init-timeout", TIMES, "until all ranks have initialised (10m)")] = None,
    hang_timeout: Annotated[Text, option("--hang-timeout", TIMES, "nothing moves: look at every rank (10m)")] = None,
    pg_timeout: Annotated[Text, option("--pg-timeout", TIMES, "of the process groups, over the script's own")] = None,
    data_paths: Annotated[list[str] | None, option("--data-path", CHECKS, "must be on all nodes", "PATH")] = None,
    debug: Annotated[bool | None, option("--debug", BEHAVIOUR, "NCCL_DEBUG=INFO, TORCH_DISTRIBUTED_DEBUG")] = None,
) -> None:
    """What a rendered command of allranks takes: that in a batch script, in pods and in a SkyPilot task."""


def engine_options(*groups: Callable[..., None]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A verb with the options of these groups; it gets their values as keywords."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        kept = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        more = [p for group in groups for p in inspect.signature(group, eval_str=True).parameters.values()]

        @functools.wraps(command)
        def with_them(*args: Any, **keywords: Any) -> None:
            command(*args, **keywords)

        with_them.__signature__ = own.replace(parameters=[*kept, *more])  # type: ignore[attr-defined]
        with_them.__annotations__ = {p.name: p.annotation for p in (*kept, *more)}
        return with_them

    return add
