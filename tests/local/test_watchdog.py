"""torch's watchdog ends ranks before anybody looks: what it has dumped of each rank says who was waited for."""

from pathlib import Path

from tests.local.running import LocalRun

PROGRAM = (Path(__file__).parents[2] / "bench" / "programs" / "gpu_dumps.py").read_text()


def test_dumps_of_the_watchdog_come_to_the_run_and_name_the_late_rank(tmp_path: Path) -> None:
    run = LocalRun(tmp_path, PROGRAM, nodes=3)
    verdict = run.result()["verdict"]
    assert (verdict["cause"], verdict["culprits"], verdict["victims"]) == ("straggler", [1], [0, 2]), verdict
    assert verdict["message"].endswith("ranks 0 and 2 are in all_reduce #65 of 4 MB, rank 1 has not called it")
    assert (verdict["where"]["node"], verdict["where"]["rank"]) == ("local1", 1) and verdict["where"]["pid"]
    dumps = sorted(path.name for path in (run.directory / "evidence" / "flight").iterdir())
    assert dumps == ["dump_a0_rank_000", "dump_a0_rank_001", "dump_a0_rank_002"]
