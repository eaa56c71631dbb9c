"""The example of reinforcement learning: generate, gather padded completions, update, with real ranks."""

from pathlib import Path

import pytest
from tests.examples.ranks import EXAMPLES, Ranks, module_of

SCRIPT = EXAMPLES / "train_grpo.py"
pytestmark = pytest.mark.torch


def train(out: Path) -> Ranks:
    return Ranks(SCRIPT, out, "--out", str(out), "--steps", "25")


def test_the_policy_learns_from_the_completions_of_all_ranks_and_again_the_same(tmp_path: Path) -> None:
    first, again = train(tmp_path / "one"), train(tmp_path / "again")
    output = first.finish()
    again.finish()
    assert "step 25/25 reward " in output and "of 160 completions" in output
    rewards = [line["reward"] for line in first.metrics()]
    assert rewards[0] < 0.3 < 0.6 < rewards[-1]
    assert [[line["reward"] for line in rows] for rows in (first.metrics(1), again.metrics())] == [rewards] * 2
    assert {line["longest"] for line in first.metrics()} <= set(range(1, 9))


def test_advantages_are_of_the_samples_of_one_prompt_and_the_end_is_counted_once() -> None:
    torch = pytest.importorskip("torch")
    example = module_of(SCRIPT)
    gains = example.advantages_of(torch.tensor([[0.0, 1.0], [5.0, 5.0]]))
    assert gains[0].tolist() == pytest.approx([-0.7070, 0.7070], abs=1e-3) and gains[1].tolist() == [0, 0]
    completions = torch.tensor([[3, 3, 10, 10], [3, 1, 3, 3]])
    assert example.rewards_of(completions, torch.tensor([3, 3])).tolist() == [2 / 8, 3 / 8]
    policy = example.Policy(8)
    prompts = torch.tensor([3, 3])
    before = example.probabilities(policy, prompts, completions).detach()
    loss = example.loss_of(policy, prompts, completions, before, torch.tensor([1.0, 0.0]), 0.2)
    assert loss.item() == pytest.approx(-3 / 7)  # 3 places of the first, its end among them, and 4 of the second
