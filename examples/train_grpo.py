"""Trains a small policy with GRPO: every rank generates completions, all gather them, all update.

    python train_grpo.py                          alone
    torchrun --nproc-per-node 4 train_grpo.py     four ranks on one machine
    allranks run --local 2 --nproc 2 train_grpo.py

The task needs no data: the prompt is a symbol, and a completion is worth the share of its places that repeat it. The
samples of one prompt are spread over all ranks, so their mean reward is known only after a gather. Completions have
different lengths: ranks agree on the longest first and pad to it. The script is plain torch and knows of no launcher.
The same seed and world size give the same rewards, bit by bit, on CPU.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

SYMBOLS = 10
END = SYMBOLS  # ends a completion, and fills what is behind its end
LONGEST = 8


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--samples", type=int, default=8, help="completions of each prompt on a rank")
    parser.add_argument("--updates", type=int, default=2, help="updates with the samples of one step")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--clip", type=float, default=0.2, help="how far the policy may leave the one that sampled")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("ALLRANKS_OUTPUT_DIR", "outputs")))
    return parser.parse_args()


class Policy(nn.Module):
    """The log probability of each next symbol, after each place of a text."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS + 1, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, SYMBOLS + 1)

    def forward(self, text: Tensor) -> Tensor:
        return F.log_softmax(self.head(self.memory(self.symbols(text))[0]), dim=-1)


@torch.no_grad()
def generate(policy: Policy, prompts: Tensor, chance: torch.Generator) -> Tensor:
    """Completions of prompts (rows), until each has ended; rows that end early are filled with END."""
    text = prompts[:, None]
    ended = torch.zeros(len(prompts), dtype=torch.bool)
    while text.shape[1] <= LONGEST and not ended.all():
        following = torch.multinomial(policy(text)[:, -1].exp().cpu(), 1, generator=chance)[:, 0]
        following[ended] = END
        ended |= following == END
        text = torch.cat([text, following[:, None].to(text.device)], dim=1)
    return text[:, 1:]


def gather_padded(completions: Tensor) -> list[Tensor]:
    """The completions of every rank, padded to the longest of all."""
    longest = torch.tensor(completions.shape[1], device=completions.device)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    padded = F.pad(completions, (0, int(longest) - completions.shape[1]), value=END)
    parts = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, padded.contiguous())
    return parts


def rewards_of(completions: Tensor, prompts: Tensor) -> Tensor:
    """The share of the places that repeat the prompt."""
    return (completions == prompts[:, None]).sum(dim=1) / LONGEST


def advantages_of(rewards: Tensor) -> Tensor:
    """How much better each sample (column) is than the others of its prompt (row)."""
    return (rewards - rewards.mean(dim=1, keepdim=True)) / (rewards.std(dim=1, keepdim=True) + 1e-4)


def loss_of(
    policy: nn.Module, prompts: Tensor, completions: Tensor, before: Tensor, gains: Tensor, clip: float
) -> Tensor:
    """The clipped objective over the places of a completion and its end."""
    ratio = (probabilities(policy, prompts, completions) - before).exp()
    gained = torch.minimum(ratio * gains[:, None], ratio.clamp(1 - clip, 1 + clip) * gains[:, None])
    ended_before = F.pad(completions == END, (1, 0))[:, :-1]
    counts = (~ended_before).float()
    return -(gained * counts).sum() / counts.sum()


def probabilities(policy: nn.Module, prompts: Tensor, completions: Tensor) -> Tensor:
    """Log probabilities of the symbols of completions."""
    text = torch.cat([prompts[:, None], completions[:, :-1]], dim=1)
    return policy(text).gather(2, completions[:, :, None])[:, :, 0]


def train(args: argparse.Namespace, device: torch.device) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    policy = Policy(args.width).to(device)
    parallel = DistributedDataParallel(policy, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.Adam(policy.parameters(), lr=args.lr)
    chance = torch.Generator().manual_seed(args.seed * 1000 + rank)  # each rank samples something else
    prompts = torch.arange(SYMBOLS, device=device).repeat_interleave(args.samples)
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / f"rank_{rank:02d}_metrics.jsonl").open("w") as metrics:
        for step in range(1, args.steps + 1):
            own = generate(policy, prompts, chance)
            everyone = gather_padded(own)
            rewards = torch.cat([rewards_of(part, prompts).view(SYMBOLS, -1) for part in everyone], dim=1)
            gains = advantages_of(rewards).chunk(world, dim=1)[rank].reshape(-1)
            with torch.no_grad():
                before = probabilities(policy, prompts, own)
            for _ in range(args.updates):
                loss = loss_of(parallel, prompts, own, before, gains, args.clip)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            reward = rewards.mean().item()
            line = {"step": step, "loss": loss.item(), "reward": reward, "longest": everyone[0].shape[1]}
            metrics.write(json.dumps({**line, "t": time.time()}) + "\n")
            metrics.flush()
            if rank == 0 and (step % 10 == 0 or step in (1, args.steps)):
                print(f"step {step}/{args.steps} reward {reward:.3f} of {rewards.numel()} completions", flush=True)


def main() -> None:
    args = options()
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        os.environ.setdefault(name, value)
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)  # ranks share the machine
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    train(args, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
