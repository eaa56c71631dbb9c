"""Trains a byte-level transformer language model with DistributedDataParallel, on text that every machine has.

    python train_lm.py                          alone
    torchrun --nproc-per-node 4 train_lm.py     four ranks on one machine
    allranks run --local 2 --nproc 2 train_lm.py

The text is the source code of Python's standard library. Gloo on CPU, NCCL on GPU. The script is plain torch: it
reads RANK, WORLD_SIZE, LOCAL_RANK and MASTER_* and knows of no launcher. It checkpoints, resumes, and on SIGTERM
saves and ends in good order. The same seed and world size give the same losses, bit by bit.
"""

import argparse
import json
import os
import signal
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CORPUS_BYTES = 8 << 20


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60, help="steps in all, those before a resume included")
    parser.add_argument("--batch", type=int, default=8, help="sequences a step and rank")
    parser.add_argument("--context", type=int, default=96, help="bytes a sequence")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="data-loader processes a rank")
    parser.add_argument("--checkpoint-every", type=int, default=0, metavar="STEPS", help="0: only at the end")
    parser.add_argument("--checkpoint-dir", type=Path, help="default: OUT/checkpoints; rank 0 alone uses it")
    parser.add_argument("--resume", choices=["auto", "never"], default="auto")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("ALLRANKS_OUTPUT_DIR", "outputs")))
    parser.add_argument(
        "--step-delay", type=float, default=0.0, metavar="SECONDS", help="to watch it for longer"
    )
    return parser.parse_args()


# ---- data


def sources(folder: Path):
    """All .py files in a fixed order, without what differs between two machines of the same Python version."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in ("site-packages", "dist-packages", "__pycache__", "test"):
            yield from sources(path)
        elif path.suffix == ".py" and not path.name.startswith(("_sysconfigdata", "sitecustomize")):
            yield path


class Corpus(Dataset):
    """Windows of context + 1 bytes over the standard library's .py files, in sorted order."""

    def __init__(self, context: int) -> None:
        self.context = context
        text = bytearray()
        for path in sources(Path(sysconfig.get_path("stdlib"))):
            text += path.read_bytes()
            if len(text) >= CORPUS_BYTES:
                break
        self.text = torch.frombuffer(text[:CORPUS_BYTES], dtype=torch.uint8)

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index: int) -> Tensor:
        return self.text[index * self.context :][: self.context + 1].long()


def batches(corpus: Corpus, args: argparse.Namespace, rank: int, world: int, start: int):
    """Endless batches of this rank's shard, from step `start` on, wherever the epochs begin."""
    sampler = DistributedSampler(corpus, world, rank, seed=args.seed, drop_last=True)
    loader = DataLoader(corpus, args.batch, sampler=sampler, num_workers=args.workers, drop_last=True)
    step = 0
    for epoch in range(1 << 30):
        sampler.set_epoch(epoch)
        if step + len(loader) <= start:
            step += len(loader)
            continue
        for batch in loader:
            if step >= start:
                yield batch
            step += 1


# ---- model


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class LanguageModel(nn.Module):
    def __init__(self, context: int, layers: int, width: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, max(1, width // 32)) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)
        for embedding in (self.bytes, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        """The mean loss of predicting each byte from those before it."""
        x, target = text[:, :-1], text[:, 1:]
        x = self.bytes(x) + self.places(torch.arange(x.shape[1], device=x.device))
        return F.cross_entropy(self.head(self.norm(self.blocks(x))).flatten(0, 1), target.flatten())


# ---- checkpoints: rank 0 alone reads and writes them, so no shared file system is needed


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)  # whatever happens, there is one whole checkpoint
    print(f"saved {path} at step {step}", flush=True)


def resume(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """Loads on rank 0; the others get it by broadcast. Returns the number of steps done."""
    found = [None]
    if dist.get_rank() == 0 and path.exists():
        found = [torch.load(path, map_location="cpu", weights_only=True)]
        print(f"resumes {path} at step {found[0]['step']}", flush=True)
    dist.broadcast_object_list(found, src=0, device=device)
    if found[0] is None:
        return 0
    model.load_state_dict(found[0]["model"])
    optimizer.load_state_dict(found[0]["optimizer"])
    return found[0]["step"]


# ---- training


def train(args: argparse.Namespace, device: torch.device, stop_asked: list[int]) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = LanguageModel(args.context, args.layers, args.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    checkpoint = (args.checkpoint_dir or args.out / "checkpoints") / "latest.pt"
    start = resume(checkpoint, model, optimizer, device) if args.resume == "auto" else 0
    if rank == 0 and start >= args.steps:
        print(f"all {start} steps are done: ask for more --steps, or --resume never", flush=True)
    parallel = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    data = batches(Corpus(args.context), args, rank, world, start)
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / f"rank_{rank:02d}_metrics.jsonl").open("a" if start else "w") as metrics:
        for step in range(start + 1, args.steps + 1):
            began = time.perf_counter()
            optimizer.param_groups[0]["lr"] = args.lr * min(1.0, step / 10)  # a short warm-up
            loss = parallel(next(data).to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            # One all_reduce for two things: the loss over all ranks, and whether any of them was asked to stop.
            shared = torch.stack([loss.detach() / world, torch.tensor(float(len(stop_asked)), device=device)])
            dist.all_reduce(shared)
            mean, stops = shared.tolist()
            speed = args.batch * args.context * world / (time.perf_counter() - began)
            time.sleep(args.step_delay)
            line = {"step": step, "loss": mean, "rank_loss": loss.item(), "tokens_per_s": round(speed)}
            metrics.write(json.dumps({**line, "t": time.time()}) + "\n")
            metrics.flush()
            last = step == args.steps or stops > 0
            if rank == 0 and (step % 5 == 0 or step == 1 or last):
                print(f"step {step}/{args.steps} loss {mean:.4f} {speed:.0f} bytes/s", flush=True)
            if rank == 0 and (last or (args.checkpoint_every and step % args.checkpoint_every == 0)):
                save(checkpoint, step, model, optimizer)
            if stops > 0:
                break
    dist.barrier()  # no rank leaves while rank 0 still saves


def main() -> None:
    args = options()
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }.items():
        os.environ.setdefault(name, value)
    stop_asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stop_asked.append(number))
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)  # ranks share the machine
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    train(args, device, stop_asked)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
