"""Trains a byte-level transformer with FSDP2 (fully_shard): sharded parameters, gradients and optimizer.

    torchrun --nproc-per-node 4 train_fsdp.py --config fsdp.yaml
    allranks run --local 2 --nproc 2 examples/train_fsdp.py --config examples/fsdp.yaml
    train_fsdp.py --config fsdp.yaml --set fsdp.sharding_strategy=hybrid_shard --set training.max_steps=100

The text is the source code of Python's standard library. Gloo on CPU; NCCL and bfloat16 on GPU. The script needs torch
(PyYAML if there is one), reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and MASTER_*, and knows of no launcher.
A checkpoint resumes on any number of ranks: what is saved are whole tensors in pieces, and the samples seen so far.
"""

import argparse
import contextlib
import itertools
import json
import os
import signal
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint as recomputed

CORPUS_BYTES = 8 << 20
STRATEGIES = ("full_shard", "shard_grad_op", "hybrid_shard", "none")

# Every setting, its default and thereby its type; fsdp.yaml says what each of them means.
DEFAULTS = {
    "model": {"num_layers": 2, "model_dim": 128, "num_heads": 4, "context": 96},
    "training": {"batch_size": 4, "max_steps": 60, "gradient_accumulation": 1, "lr": 3e-3, "clip": 1.0, "seed": 0},
    "fsdp": {"sharding_strategy": "full_shard", "mixed_precision": "auto", "activation_checkpointing": False,
             "cpu_offload": False},
    "checkpoint": {"every": 0, "dir": "", "resume": True},
    "profiling": {"enabled": False, "wait": 2, "warmup": 1, "active": 3},
}  # fmt: skip


# ---- settings


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, help="YAML file; without it, the defaults")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="over the file")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("ALLRANKS_OUTPUT_DIR", "outputs")))
    args = parser.parse_args()
    try:
        args.config = settings(args.config.read_text(encoding="utf-8") if args.config else "", args.set)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return args


def settings(text: str, changes: list[str]) -> dict[str, dict]:
    """The defaults, changed by the file, then by --set; a name that isn't known is an error."""
    found = {section: dict(keys) for section, keys in DEFAULTS.items()}
    sections = read_yaml(text) or {}
    if not isinstance(sections, dict) or not all(isinstance(keys, dict) for keys in sections.values()):
        raise ValueError("the configuration is not made of sections with keys and values")
    given = [(section, key, value) for section, keys in sections.items() for key, value in keys.items()]
    for change in changes:
        name, equals, value = change.partition("=")
        section, dot, key = name.partition(".")
        if not (equals and dot):
            raise ValueError(f"--set {change}: not SECTION.KEY=VALUE")
        given.append((section, key, value))
    for section, key, value in given:
        if key not in found.get(section, {}):
            raise ValueError(f"no setting {section}.{key}; there are {', '.join(named(DEFAULTS))}")
        found[section][key] = as_kind(f"{section}.{key}", value, DEFAULTS[section][key])
    strategy = found["fsdp"]["sharding_strategy"]
    if strategy not in STRATEGIES:
        raise ValueError(f"fsdp.sharding_strategy is {strategy!r}, not one of {', '.join(STRATEGIES)}")
    if found["fsdp"]["mixed_precision"] not in ("auto", "bf16", "fp32"):
        raise ValueError("fsdp.mixed_precision is auto, bf16 or fp32")
    if found["model"]["model_dim"] % found["model"]["num_heads"]:
        raise ValueError("model.model_dim must be a multiple of model.num_heads")
    return found


def named(sections: dict[str, dict]) -> list[str]:
    return [f"{section}.{key}" for section, keys in sections.items() for key in keys]


def as_kind(name: str, value: object, default: object):
    """The value as the default's type: YAML reads 3e-3 as text, and --set reads all as text."""
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    try:
        return words[str(value).lower()] if isinstance(default, bool) else type(default)(value)
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{name}: {value!r} is not of the kind of {default!r}") from None


def read_yaml(text: str) -> dict[str, dict]:
    """Two levels, `section:` and `  key: value`, are all this needs where PyYAML is absent."""
    with contextlib.suppress(ImportError):
        import yaml

        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"no YAML: {error}") from None
    found: dict[str, dict] = {}
    section: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.split(" #")[0].partition(":")
        if not key.strip() or key.startswith("#"):
            continue
        if key[0] != " ":
            section = found.setdefault(key.strip(), {})
        else:
            section[key.strip()] = value.strip().strip("'\"")
    return found


# ---- data


def sources(folder: Path):
    """All .py files in a fixed order, without what differs between two machines of the same Python version."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in ("site-packages", "dist-packages", "__pycache__", "test"):
            yield from sources(path)
        elif path.suffix == ".py" and not path.name.startswith(("_sysconfigdata", "sitecustomize")):
            yield path


class Batches:
    """Windows of context + 1 bytes, in one random order for all; each global batch is dealt out to the ranks.

    The order doesn't depend on the number of ranks, so a run resumed on another one goes on where this one was.
    """

    def __init__(self, context: int, seed: int) -> None:
        self.context, self.seed = context, seed
        text = bytearray()
        for path in sources(Path(sysconfig.get_path("stdlib"))):
            text += path.read_bytes()
            if len(text) >= CORPUS_BYTES:
                break
        self.text = torch.frombuffer(text[:CORPUS_BYTES], dtype=torch.uint8)
        self.windows = (len(self.text) - 1) // context
        self.epoch, self.order = -1, torch.empty(0)

    def window(self, sample: int) -> Tensor:
        epoch, place = divmod(sample, self.windows)
        if epoch != self.epoch:
            shuffle = torch.Generator().manual_seed(self.seed + epoch)
            self.epoch, self.order = epoch, torch.randperm(self.windows, generator=shuffle)
        start = int(self.order[place]) * self.context
        return self.text[start : start + self.context + 1].long()

    def batch(self, first: int, size: int) -> Tensor:
        """This rank's share of the samples from `first` on: `size` of them a rank."""
        rank, world = dist.get_rank(), dist.get_world_size()
        return torch.stack([self.window(first + i * world + rank) for i in range(size)])


# ---- model


class Block(nn.Module):
    def __init__(self, width: int, heads: int, recompute: bool) -> None:
        super().__init__()
        self.heads, self.recompute = heads, recompute
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Inside FSDP's own hooks: what is recomputed in backward finds its parameters gathered."""
        return recomputed(self.computed, x, use_reentrant=False) if self.recompute else self.computed(x)

    def computed(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class LanguageModel(nn.Module):
    def __init__(self, num_layers: int, model_dim: int, num_heads: int, context: int, recompute: bool) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, model_dim), nn.Embedding(context, model_dim)
        self.blocks = nn.Sequential(*[Block(model_dim, num_heads, recompute) for _ in range(num_layers)])
        self.norm, self.head = nn.LayerNorm(model_dim), nn.Linear(model_dim, 256)
        for embedding in (self.bytes, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        """The mean loss of predicting each byte from those before it."""
        x, target = text[:, :-1], text[:, 1:]
        x = self.bytes(x) + self.places(torch.arange(x.shape[1], device=x.device))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


# ---- sharding


def sharding_mesh(strategy: str, device: str) -> DeviceMesh:
    """Rows are copies of the model, the ranks in a row share one. fully_shard shards within rows, reduces across.

    hybrid_shard: a row is a node. Parameters are gathered for every block, forward and backward, over the fast links
    inside a node; between nodes only gradients travel, already a node's share of them. (The other way round, across
    nodes, would gather over the slow links: some guides have it so.)
    """
    world = dist.get_world_size()
    if strategy == "none":
        shape = (world, 1)
    elif strategy == "hybrid_shard":
        local, rank = int(os.environ.get("LOCAL_WORLD_SIZE") or 0), dist.get_rank()
        fits = local and world % local == 0 and int(os.environ.get("LOCAL_RANK", "-1")) == rank % local
        counts: list = [None] * world
        dist.all_gather_object(counts, local if fits else 0)
        if len(set(counts)) > 1 or not fits:
            raise SystemExit(f"hybrid_shard needs as many ranks on each node, numbered node by node: found {counts}")
        shape = (world // local, local)
    else:
        shape = (1, world)
    mesh = init_device_mesh(device, shape, mesh_dim_names=("replicate", "shard"))
    if dist.get_rank() == 0:
        print(f"{strategy}: {shape[0]} x {shape[1]} (copies x shards), ranks {mesh.mesh.tolist()}", flush=True)
    return mesh["shard"] if shape[0] == 1 else mesh


def build(config: dict[str, dict], device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Same seed, same first parameters on every rank; each block is a unit that is gathered and freed by itself."""
    model, fsdp, training = config["model"], config["fsdp"], config["training"]
    torch.manual_seed(training["seed"])
    model = LanguageModel(**model, recompute=fsdp["activation_checkpointing"]).to(device)
    half = {"auto": device.type == "cuda", "bf16": True, "fp32": False}[fsdp["mixed_precision"]]
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if half else MixedPrecisionPolicy()
    offload = CPUOffloadPolicy() if fsdp["cpu_offload"] and device.type == "cuda" else OffloadPolicy()
    how = {
        "mesh": sharding_mesh(fsdp["sharding_strategy"], device.type),
        # shard_grad_op keeps a block's parameters from forward to backward: half the gathering, more memory.
        "reshard_after_forward": fsdp["sharding_strategy"] in ("full_shard", "hybrid_shard"),
        "mp_policy": policy, "offload_policy": offload,
    }  # fmt: skip
    for block in model.blocks:
        fully_shard(block, **how)
    fully_shard(model, **how)
    return model, torch.optim.AdamW(model.parameters(), lr=training["lr"], weight_decay=0.01)


# ---- checkpoints: every rank writes its shards, so the folder must be one that all nodes see


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, samples: int) -> None:
    weights, state = get_state_dict(model, optimizer)
    progress = torch.tensor([step, samples])
    path = folder / f"step_{step:06d}"
    dcp.save({"model": weights, "optimizer": state, "progress": progress}, checkpoint_id=str(path))
    if dist.get_rank() == 0:
        print(f"saved {path}", flush=True)


def resume(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> tuple[int, int]:
    """Loads the newest whole checkpoint, whatever number of ranks wrote it; the steps and samples done."""
    newest = [max((p.parent for p in folder.glob("step_*/.metadata")), default=None)]  # .metadata is written last
    dist.broadcast_object_list(newest, src=0, device=device)
    if newest[0] is None:
        return 0, 0
    unseen = torch.tensor(float(not (newest[0] / ".metadata").exists()), device=device)
    dist.all_reduce(unseen)
    if unseen.item():
        raise SystemExit(f"{unseen.item():.0f} ranks do not see {newest[0]}: checkpoint.dir must be on a file system "
                         "that all nodes share")  # fmt: skip
    weights, state = get_state_dict(model, optimizer)
    found = {"model": weights, "optimizer": state, "progress": torch.zeros(2, dtype=torch.long)}
    dcp.load(found, checkpoint_id=str(newest[0]))
    set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
    step, samples = found["progress"].tolist()
    if dist.get_rank() == 0:
        print(f"resumes {newest[0]} at step {step}", flush=True)
    return step, samples


# ---- training


def profiler(config: dict[str, dict], device: torch.device, out: Path):
    """Traces some steps, after the first ones, which are slow for reasons of their own; a file a rank."""
    wanted = config["profiling"]
    if not wanted["enabled"]:
        return contextlib.nullcontext()
    path = out / f"rank_{dist.get_rank():02d}_trace.json.gz"
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    steps = schedule(wait=wanted["wait"], warmup=wanted["warmup"], active=wanted["active"], repeat=1)
    write = lambda found: found.export_chrome_trace(str(path))  # noqa: E731
    # Shapes, because a collective's size on Gloo stands nowhere else.
    return profile(activities=kinds, schedule=steps, on_trace_ready=write, record_shapes=True)


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, micro_batches: list[Tensor], clip: float) -> Tensor:
    """The mean loss of this rank's micro-batches."""
    total = torch.zeros((), device=micro_batches[0].device)
    for left, batch in zip(range(len(micro_batches) - 1, -1, -1), micro_batches, strict=True):
        # Gradients are summed over ranks once a step: until then each rank keeps whole ones, which costs memory.
        model.set_requires_gradient_sync(left == 0)
        loss = model(batch) / len(micro_batches)
        loss.backward()
        total += loss.detach()
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
    return total


def train(args: argparse.Namespace, device: torch.device, stop_asked: list[int]) -> None:
    rank, world, config, training = dist.get_rank(), dist.get_world_size(), args.config, args.config["training"]
    model, optimizer = build(config, device)
    folder = Path(config["checkpoint"]["dir"] or args.out / "checkpoints")
    start, samples = resume(folder, model, optimizer, device) if config["checkpoint"]["resume"] else (0, 0)
    steps, every, size = training["max_steps"], config["checkpoint"]["every"], training["batch_size"]
    if rank == 0 and start >= steps:
        print(f"all {start} steps are done: ask for more training.max_steps", flush=True)
    data = Batches(config["model"]["context"], training["seed"])
    args.out.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        metrics = stack.enter_context((args.out / f"rank_{rank:02d}_metrics.jsonl").open("a" if start else "w"))
        trace = stack.enter_context(profiler(config, device, args.out))
        for step in range(start + 1, steps + 1):
            began = time.perf_counter()
            optimizer.param_groups[0]["lr"] = training["lr"] * min(1.0, step / 10)  # a short warm-up
            firsts = itertools.count(samples, size * world)
            parts = [data.batch(next(firsts), size).to(device) for _ in range(training["gradient_accumulation"])]
            samples = next(firsts)
            loss = one_step(model, optimizer, parts, training["clip"])
            # One all_reduce for two things: the loss over all ranks, and whether any of them was asked to stop.
            shared = torch.stack([loss / world, torch.tensor(float(len(stop_asked)), device=device)])
            dist.all_reduce(shared)
            mean, stops = shared.tolist()
            if trace:
                trace.step()
            speed = len(parts) * size * data.context * world / (time.perf_counter() - began)
            line = {"step": step, "loss": mean, "rank_loss": loss.item(), "tokens_per_s": round(speed)}
            metrics.write(json.dumps({**line, "t": time.time()}) + "\n")
            metrics.flush()
            last = step == steps or stops > 0
            if rank == 0 and (step % 5 == 0 or step == 1 or last):
                print(f"step {step}/{steps} loss {mean:.4f} {speed:.0f} bytes/s", flush=True)
            if last or (every and step % every == 0):
                save(folder, model, optimizer, step, samples)
            if stops > 0:
                break
    dist.barrier()  # no rank leaves while another still writes


def main() -> None:
    args = options()
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
             "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}  # fmt: skip
    if "RANK" not in os.environ:
        os.environ.update(alone)
    stop_asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stop_asked.append(number))
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)  # ranks share the machine
    # Gloo beside NCCL: with cpu_offload, norms of gradients are reduced on the CPU.
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    train(args, device, stop_asked)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
