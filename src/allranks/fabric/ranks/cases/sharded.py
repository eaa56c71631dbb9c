"""Training steps with FSDP2 on a 2-D mesh (HSDP), compared with the same steps of one rank without distribution."""

from __future__ import annotations

from typing import Any

import torch

from .. import payload as tensors
from ..lab import Lab, NotSupported

WIDTHS = (24, 37, 5)  # 37 and 5: shards of different lengths
BATCH = 8
STEPS = 2
RATE = 0.1
SPREAD = 251  # a small modulus: the numbers of every rank cover the range, and differ by rank
RELATIVE = 1e-4  # sums in another order; a wrong block is far beyond
ABSOLUTE = 1e-6


def fsdp_step(lab: Lab) -> str:
    """Compare gradients and parameters after each step, element by element."""
    if lab.world < 2:
        raise NotSupported("one rank alone has nothing to shard")
    rows, words = layout(list(lab.nodes.values()))
    model = _model(lab)
    reference = _model(lab)
    _shard(model, lab, rows)
    lab.line_up("model")
    for step in range(STEPS):
        lab.arrive(step)
        with lab.where_supported("fully_shard"):
            _step(lab, step, model, reference)
    return f"{words}  {lab.use('float32')}"


def _shard(model: torch.nn.Sequential, lab: Lab, rows: list[list[int]]) -> None:
    try:
        from torch.distributed.device_mesh import DeviceMesh  # late: torch before 2.6 lacks one of the two
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        raise NotSupported(f"torch {torch.__version__} has no fully_shard with a device mesh") from None
    try:
        mesh = DeviceMesh(lab.device.type, rows, mesh_dim_names=("replicate", "shard"))
    except RuntimeError as error:
        if "homogeneous" in str(error):  # as many ranks as are not a multiple of a node's devices
            raise NotSupported(str(error).splitlines()[0]) from None
        raise
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)


def layout(nodes: list[list[int]]) -> tuple[list[list[int]], str]:
    """Give rows of ranks (the mesh replicates across rows and shards in a row), and the words for them."""
    ranks = sorted(rank for node in nodes for rank in node)
    per_node = len(nodes[0])
    if len(nodes) > 1 and per_node > 1 and all(len(node) == per_node for node in nodes):
        return nodes, f"{len(nodes)} replicas (nodes) × {per_node} shards in a node"
    if len(ranks) % 2 == 0 and len(ranks) > 2:
        half = len(ranks) // 2
        return [ranks[:half], ranks[half:]], f"2 replicas × {half} shards, not along nodes"
    return [ranks], f"1 replica × {len(ranks)} shards: {len(ranks)} ranks allow no other mesh"


def _model(lab: Lab) -> torch.nn.Sequential:
    layers = [torch.nn.Linear(*WIDTHS[0:2]), torch.nn.Tanh(), torch.nn.Linear(*WIDTHS[1:3])]
    model = torch.nn.Sequential(*layers).to(lab.device)
    for place, value in enumerate(model.parameters()):
        numbers = tensors.build(tensors.moved(place, 0, SPREAD), value.numel(), "float32", lab.device)
        value.data.copy_((numbers / SPREAD - 0.5).reshape(value.shape))
    return model


def _step(lab: Lab, step: int, model: torch.nn.Sequential, reference: torch.nn.Sequential) -> None:
    count = BATCH * WIDTHS[0]
    torch.autograd.backward(_loss(model, lab.give(lambda rank: tensors.moved(rank, step, SPREAD), count, "float32")))
    reference.zero_grad()
    for rank in range(lab.world):
        batch = tensors.build(tensors.moved(rank, step, SPREAD), count, "float32", lab.device)
        torch.autograd.backward(_loss(reference, batch) / lab.world)
    for (name, sharded), right in zip(model.named_parameters(), reference.parameters()):
        _compare(lab, step, f"gradient of {name}", sharded.grad, right.grad)
        _descend(sharded)
        _descend(right)
        _compare(lab, step, f"parameter {name}", sharded, right)
    model.zero_grad()


def _loss(model: torch.nn.Sequential, batch: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = model((batch / SPREAD - 0.5).reshape(BATCH, WIDTHS[0]))
    return output.square().mean()


def _descend(parameter: torch.nn.Parameter) -> None:
    assert parameter.grad is not None
    with torch.no_grad():
        parameter.sub_(parameter.grad * RATE)


def _compare(lab: Lab, step: int, what: str, sharded: Any, right: torch.Tensor | None) -> None:
    """Compare a DTensor (its module has another name in each version of torch) with a tensor of the reference."""
    assert right is not None
    result: torch.Tensor = sharded.full_tensor().detach().reshape(-1)
    expected = right.detach().reshape(-1)
    wrong = (~torch.isclose(result, expected, rtol=RELATIVE, atol=ABSOLUTE)).nonzero()
    if len(wrong):
        place = int(wrong[0])
        lab.note(step, what, place, f"{float(expected[place]):.6g}", f"{float(result[place]):.6g}")


TESTS = (fsdp_step,)
