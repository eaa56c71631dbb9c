"""The example of reinforcement learning: generate, gather padded completions, update, with real ranks."""

import importlib.util
from pathlib import Path

import pytest
from tests.examples.ranks import EXAMPLES, Ranks, metrics, module_of

SCRIPT = EXAMPLES / "train_grpo.py"
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]


def train(out: Path) -> Ranks:
    return Ranks(SCRIPT, out, "--out", str(out), "--steps", "25")


def rewards(out: Path, rank: int) -> list[float]:
    return [line["reward"] for line in metrics(out, rank)]


def test_the_policy_learns_from_the_completions_of_all_ranks_and_again_the_same(tmp_path: Path) -> None:
    output = train(tmp_path / "one").finish()
    train(tmp_path / "again").finish()
    assert "step 25/25 reward " in output and "of 160 completions" in output
    one = rewards(tmp_path / "one", 0)
    assert one[0] < 0.3 < 0.6 < one[-1]
    assert one == rewards(tmp_path / "one", 1) == rewards(tmp_path / "again", 0)
    assert {line["longest"] for line in metrics(tmp_path / "one", 0)} <= set(range(1, 9))


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
