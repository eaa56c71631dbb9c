"""Trains the language model of train_lm.py with accelerate. DeepSpeed shards it where the configuration says so.

    python train_accelerate.py                                                          alone
    accelerate launch --config_file examples/accelerate.yaml examples/train_accelerate.py
    allranks run --hosts hosts.txt accelerate launch --config_file examples/accelerate.yaml examples/train_accelerate.py

It needs accelerate. That configuration needs deepspeed and transformers, too. Gloo on CPU, NCCL on GPU. The script
knows of no launcher.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, set_seed
from torch.utils.data import DataLoader
from train_lm import Corpus, LanguageModel

CONTEXT = 96  # bytes a sequence


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=8, help="sequences a step and rank")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("ALLRANKS_OUTPUT_DIR", "outputs")))
    return parser.parse_args()


def train(args: argparse.Namespace, accelerator: Accelerator) -> None:
    set_seed(args.seed)
    model = LanguageModel(CONTEXT, layers=2, width=128)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    loader = DataLoader(Corpus(CONTEXT), args.batch, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if accelerator.is_main_process:
        print(f"{accelerator.distributed_type.value}: {accelerator.num_processes} ranks", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    step = 0
    with (args.out / f"rank_{accelerator.process_index:02d}_metrics.jsonl").open("w") as metrics:
        while step < args.steps:
            for batch in loader:
                step += 1
                loss = model(batch)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                mean = accelerator.reduce(loss.detach(), "mean").item()
                line = {"step": step, "loss": mean, "rank_loss": loss.item(), "t": time.time()}
                metrics.write(json.dumps(line) + "\n")
                metrics.flush()
                if accelerator.is_main_process and (step % 10 == 0 or step in (1, args.steps)):
                    print(f"step {step}/{args.steps} loss {mean:.4f}", flush=True)
                if step == args.steps:
                    break
    folder = args.out / "checkpoint"
    accelerator.save_state(str(folder))  # every rank writes its share of what DeepSpeed shards
    if accelerator.is_main_process:
        print(f"saved {folder} at step {step}", flush=True)


def main() -> None:
    args = options()
    if not torch.cuda.is_available() and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # ranks share the machine
    handlers = []
    if "RANK" in os.environ and not torch.cuda.is_available():
        # With DeepSpeed, accelerate chooses no backend without a GPU, and each rank takes itself for the only one.
        handlers.append(InitProcessGroupKwargs(backend="gloo"))
    accelerator = Accelerator(kwargs_handlers=handlers)
    train(args, accelerator)
    accelerator.end_training()


if __name__ == "__main__":
    main()
