"""Options of the engines that give nodes (Slurm, Kubernetes, SkyPilot): one group that several verbs take."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

TARGET, PODS = "Target", "Pods and cloud machines (--k8s, --sky)"
Text = str | None


def _option(names: str, panel: str, text: str, metavar: str | None = None) -> Any:
    return typer.Option(*names.split(), rich_help_panel=panel, help=text, metavar=metavar)


def targets(
    k8s: Annotated[bool | None, _option("--k8s", TARGET, "pods of a Kubernetes cluster, through kubectl")] = None,
    sky: Annotated[bool | None, _option("--sky", TARGET, "machines that SkyPilot finds")] = None,
    context: Annotated[Text, _option("--context", PODS, "of kubectl (the current one)", "NAME")] = None,
) -> None:
    """What only a verb that acts takes."""


def pods(
    kind: Annotated[Text, _option("--kind", PODS, "of objects (job)", "job|jobset|trainjob|pods")] = None,
    namespace: Annotated[Text, _option("--namespace", PODS, "of Kubernetes (the context's)", "NAME")] = None,
    image: Annotated[Text, _option("--image", PODS, "container image: Python and torch are enough", "IMAGE")] = None,
    gpus: Annotated[Text, _option("--gpus", PODS, "a node: 8, amd.com/gpu:8; for SkyPilot H100:8", "[NAME:]K")] = None,
    shm: Annotated[Text, _option("--shm", PODS, "size of /dev/shm (half of the memory)", "SIZE")] = None,
    pod: Annotated[Text, _option("--pod", PODS, "laid over the pods: volumes, nodeSelector, …", "FILE")] = None,
    deadline: Annotated[Text, _option("--deadline", PODS, "the cluster ends the run after so long")] = None,
    infra: Annotated[Text, _option("--infra", PODS, "SkyPilot's: aws/us-east-1, k8s/CONTEXT", "WHERE")] = None,
    autostop: Annotated[Text, _option("--autostop", PODS, "SkyPilot's machines go when idle so long")] = None,
) -> None:
    """What describes them."""


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
