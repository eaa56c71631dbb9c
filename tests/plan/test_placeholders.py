"""Placeholders in the command: filled where ranks are started, else left alone."""

from tests.gang.test_gang import Drive

from allranks.settings.command_line import used

FOREIGN = ('{"lr": 1e-3, "run": {"x": {}}}', "{epoch:02d}-{val_loss}", "${run}", "{{attempt}}", "{}", "{rank}")


def test_ranks_get_the_values_and_every_other_brace() -> None:
    words = ("train.py", "--out={output_dir}/a{attempt}", "{run}", *FOREIGN)
    drive = Drive(count=1)
    drive.roster.spec = drive.spec.changed(command=words, retries=1)
    drive.running()
    argv = drive.last("start")["ranks"][0]["argv"]
    node_dir = "/tmp/allranks-0/h0"
    assert list(argv[-len(words) + 1 :]) == [f"--out={node_dir}/outputs/a0", "run-1", *FOREIGN]
    drive.again("0")
    assert f"--out={node_dir}/outputs/a1" in drive.last("start")["ranks"][0]["argv"]


def test_braces_of_programs_are_no_placeholders() -> None:
    assert used(("{run}", *FOREIGN)) == ["{run}"]
