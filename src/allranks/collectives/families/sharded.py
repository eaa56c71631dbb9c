"""Training steps with FSDP2 on a 2-D mesh (HSDP), compared with the same steps of one rank without distribution."""

from __future__ import annotations

from typing import Any

import torch

from .. import tensors
from ..lab import Lab, NotSupported, Test

WIDTHS = (24, 37, 5)  # 37 and 5: shards of different lengths
BATCH = 8
STEPS = 2
RATE = 0.1
SPREAD = 251  # a small modulus: the numbers of every rank cover the whole range, and differ by rank
RELATIVE, ABSOLUTE = 1e-4, 1e-6  # sums in another order; a wrong block is far beyond


def fsdp_step(lab: Lab) -> str:
    """Gradients and parameters after each step, element by element."""
    if lab.world < 2:
        raise NotSupported("one rank alone has nothing to shard")
    fully_shard, mesh_type = _load()
    rows, words = layout(list(lab.job.nodes.values()))
    mesh = _mesh(mesh_type, lab, rows)
    model, alone = _model(lab), _model(lab)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    lab.line_up("model")
    for step in range(STEPS):
        lab.arrive(step)
        with lab.where_supported("fully_shard"):
            _step(lab, step, model, alone)
    return f"{words}  {lab.use('float32')}"


def _load() -> tuple[Any, Any]:
    try:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        raise NotSupported(f"torch {torch.__version__} has no fully_shard with a device mesh") from None
    return fully_shard, DeviceMesh


def _mesh(mesh_type: Any, lab: Lab, rows: list[list[int]]) -> Any:
    try:
        return mesh_type(lab.device.type, rows, mesh_dim_names=("replicate", "shard"))
    except RuntimeError as error:
        if "homogeneous" in str(error):  # as many ranks as are no multiple of a node's devices
            raise NotSupported(str(error).splitlines()[0]) from None
        raise


def layout(nodes: list[list[int]]) -> tuple[list[list[int]], str]:
    """Rows of ranks: the mesh replicates across rows and shards in a row; and the words for it."""
    ranks = sorted(rank for node in nodes for rank in node)
    per_node = len(nodes[0])
    if len(nodes) > 1 and per_node > 1 and all(len(node) == per_node for node in nodes):
        return [list(node) for node in nodes], f"{len(nodes)} replicas (nodes) × {per_node} shards in a node"
    if len(ranks) % 2 == 0 and len(ranks) > 2:
        half = len(ranks) // 2
        return [ranks[:half], ranks[half:]], f"2 replicas × {half} shards, not along nodes"
    return [ranks], f"1 replica × {len(ranks)} shards: {len(ranks)} ranks allow no other mesh"


def _model(lab: Lab) -> Any:
    """The same numbers on every rank."""
    layers = [torch.nn.Linear(*WIDTHS[0:2]), torch.nn.Tanh(), torch.nn.Linear(*WIDTHS[1:3])]
    model = torch.nn.Sequential(*layers).to(lab.device)
    for place, value in enumerate(model.parameters()):
        fixed = tensors.build(tensors.moved(place, 0, SPREAD), value.numel(), "float32", lab.device)
        value.data.copy_((fixed / SPREAD - 0.5).reshape(value.shape))
    return model


def _step(lab: Lab, step: int, model: Any, alone: Any) -> None:
    """Both models do one step; the one alone with the data of all ranks."""
    given = lab.give(lambda rank: tensors.moved(rank, step, SPREAD), BATCH * WIDTHS[0], "float32")
    _loss(model, given).backward()
    whole = sum(_loss(alone, _batch(lab, rank, step)) for rank in lab.everyone) / lab.world
    alone.zero_grad()
    whole.backward()
    for (name, found), due in zip(model.named_parameters(), alone.parameters()):  # noqa: B905  (Python 3.9)
        _compare(lab, step, f"gradient of {name}", found.grad.full_tensor(), due.grad)
        with torch.no_grad():
            found.sub_(found.grad * RATE)
            due.sub_(due.grad * RATE)
        _compare(lab, step, f"parameter {name}", found.full_tensor(), due)
    model.zero_grad()


def _batch(lab: Lab, rank: int, step: int) -> torch.Tensor:
    return tensors.build(tensors.moved(rank, step, SPREAD), BATCH * WIDTHS[0], "float32", lab.device)


def _loss(model: Any, given: torch.Tensor) -> Any:
    return model((given / SPREAD - 0.5).reshape(BATCH, WIDTHS[0])).square().mean()


def _compare(lab: Lab, step: int, what: str, found: torch.Tensor, due: torch.Tensor) -> None:
    found, due = found.detach(), due.detach()
    wrong = (~torch.isclose(found, due, rtol=RELATIVE, atol=ABSOLUTE)).reshape(-1).nonzero()
    if len(wrong):
        place = int(wrong[0])
        right, wrong_one = (f"{float(tensor.reshape(-1)[place]):.6g}" for tensor in (due, found))
        lab.note(step, what, place, right, wrong_one)


SHARDED = (Test("fsdp_step", fsdp_step),)
