"""Trains the policy of train_grpo.py with GRPO, on completions that serve_policy.py samples.

    python serve_policy.py 8000 &
    torchrun --nproc-per-node 2 train_served.py --server 127.0.0.1:8000

Each rank asks the server for its completions. After each step rank 0 sends it the new weights.
"""

import argparse
import io
import json
import os
import sys
import urllib.request
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))
from train_grpo import SYMBOLS, Policy, advantages_of, gather_padded, loss_of, probabilities, rewards_of

WIDTH = 64


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", required=True, help="HOST:PORT of serve_policy.py")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--samples", type=int, default=8, help="completions of each prompt on a rank")
    return parser.parse_args()


def post(server: str, path: str, body: bytes) -> bytes:
    request = urllib.request.Request(f"http://{server}{path}", body)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


def send_weights(server: str, policy: Policy) -> None:
    weights = io.BytesIO()
    torch.save(policy.state_dict(), weights)
    post(server, "/weights", weights.getvalue())


def main() -> None:
    args = options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    policy = Policy(WIDTH)
    parallel = DistributedDataParallel(policy)
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
    prompts = torch.arange(SYMBOLS).repeat_interleave(args.samples)
    for step in range(1, args.steps + 1):
        if rank == 0:
            send_weights(args.server, policy)
        dist.barrier()
        own = torch.tensor(json.loads(post(args.server, "/generate", json.dumps(prompts.tolist()).encode())))
        everyone = gather_padded(own)
        rewards = torch.cat([rewards_of(part, prompts).view(SYMBOLS, -1) for part in everyone], dim=1)
        gains = advantages_of(rewards).chunk(world, dim=1)[rank].reshape(-1)
        with torch.no_grad():
            before = probabilities(policy, prompts, own)
        for _ in range(2):
            loss = loss_of(parallel, prompts, own, before, gains, 0.2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0 and (step % 10 == 0 or step in (1, args.steps)):
            print(f"step {step}/{args.steps} reward {rewards.mean().item():.3f}", flush=True)
    print(f"rank {rank} of {world} ({os.environ.get('ROLE_NAME', 'default')})", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
