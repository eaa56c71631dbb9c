"""A rank that saves where allranks says so, and goes on from what it saved: preempt.py PLACE PAUSE SAVING [torch].

It takes PAUSE seconds a step, and SAVING seconds for its checkpoint. Ranks keep in step, every tenth step without torch
and at each all_reduce with it. `words-RANK.jsonl` in PLACE has each first step and each save. Ends with the file `go`.
"""

import json
import os
import sys
import time
from pathlib import Path

import allranks

PLACE = Path(sys.argv[1])
PAUSE = float(sys.argv[2])
SAVING = float(sys.argv[3])
WITH_TORCH = "torch" in sys.argv[4:]
RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
TOGETHER = 10  # steps

if WITH_TORCH:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)


def say(event, step):
    """Write a line that is on the disk when this returns."""
    line = {"event": event, "rank": RANK, "attempt": ATTEMPT, "step": step, "t": time.time()}
    with open(PLACE / f"words-{RANK}.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def part(directory):
    """The file of this rank's checkpoint."""
    return Path(directory, f"rank-{RANK}.{'pt' if WITH_TORCH else 'json'}")


def save(step, weights):
    """Write the checkpoint in the place of the one before, and say so."""
    path = part(allranks.checkpoint_dir())
    new = f"{path}.new"
    if WITH_TORCH:
        torch.save({"step": step, "weights": weights}, new)
    else:
        Path(new).write_text(json.dumps({"step": step}))
    time.sleep(SAVING)
    os.replace(new, path)
    say("saved", step)


def resume():
    """The step that was saved, and the weights."""
    path = part(allranks.checkpoint_dir())
    if not path.exists():
        return 0, torch.zeros(1000) if WITH_TORCH else None
    if WITH_TORCH:
        state = torch.load(path)
        return state["step"], state["weights"]
    return json.loads(path.read_text())["step"], None


def may_go(step):
    """Keep in step with the other ranks; True once all may end."""
    if WITH_TORCH:
        asked = torch.tensor([float((PLACE / "go").exists())])
        dist.all_reduce(asked)
        return bool(asked.item())
    if step % TOGETHER:
        return False
    (PLACE / f"at-{ATTEMPT}-{step}-{RANK}").touch()
    old = PLACE / f"at-{ATTEMPT}-{step - 2 * TOGETHER}-{RANK}"
    old.unlink(missing_ok=True)
    while not all((PLACE / f"at-{ATTEMPT}-{step}-{rank}").exists() for rank in range(WORLD_SIZE)):
        if (PLACE / "go").exists():
            return True
        time.sleep(0.001)
    return (PLACE / "go").exists()


def main():
    """Train until all may end."""
    if WITH_TORCH:
        dist.init_process_group("gloo")
    step, weights = resume()
    first = step + 1
    is_over = False
    while not is_over:
        step += 1
        time.sleep(PAUSE * (1 + RANK % 3 / 10))
        if WITH_TORCH:
            weights += step
        is_over = may_go(step)
        if step == first:
            say("first", step)
        if allranks.should_save(step):
            save(step, weights)
    if WITH_TORCH:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
