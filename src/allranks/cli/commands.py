"""Every command as it is typed: its settings, its own options and its examples (pure data).

The fields of `settings/runspec.py` that name a command are its settings. Help, completion and the parsing of a command
line need this file and no other of a command: the module that does the work is imported when it begins.
"""

from __future__ import annotations

from dataclasses import replace

from allranks.settings.parsers import FLAG, PATTERN, byte_count, choice, duration, path, several, text, whole_number
from allranks.settings.runspec import LAUNCHERS, SUITES
from allranks.settings.setting import SettingRow
from allranks.settings.table import engine_of, settings_of

from .declare import AS_JSON, CONFIG, DRY_RUN, PATH, RUN, RUNS_DIR, Argument, Declared, DeclaredVerbs, quiet

QUIET_RUN = quiet("print the program's output alone, and why it failed")
QUIET_FINDINGS = quiet("print what is wrong, and nothing else")
QUIET_FAILURES = quiet("print only what failed")
COMMAND_HELP = "train.py …, -m PACKAGE.MODULE …, or any program. What follows it is the program's"

ON = SettingRow("on", text("a host that ssh reaches", "HOST"), "host that has the run, over ssh")

SIGNATURES = SettingRow(
    "signatures", PATH, "signatures of your site, as TOML [default: ~/.config/allranks/signatures.toml]"
)
ONLY_RANKS = SettingRow(
    "rank",
    several(whole_number(0, 999_999), "ranks such as 0,1", commas=True),
    "only these ranks, such as 0,1",
    default=(),
)
ONLY_ROLES = SettingRow(
    "role",
    several(text("the name of a role", "ROLE"), "names of roles", commas=True),
    "only the nodes of these roles",
    default=(),
)

_MANY = 10**15
_COUNT = whole_number(1, 100_000)
_GPUS_PER_NODE = SettingRow("gpus_per_node", _COUNT, "ranks on each node", default=8)

# What `render` writes, by its name: what it is called, and how its example names the nodes.
RENDERED = {
    "torchrun": ("a script for each node", "--hosts hosts.txt"),
    "accelerate": ("a configuration and a script for each node", "--hosts hosts.txt"),
    "deepspeed": ("a hostfile, a configuration, a script for each node", "--hosts hosts.txt"),
    "slurm": ("a batch script for sbatch", "--nodes 2"),
    "kubernetes": ("a Job, a JobSet, a TrainJob or pods", "--nodes 2"),
    "skypilot": ("a SkyPilot task", "--nodes 2"),
}


def _render(what: str) -> Declared:
    """Declare the command that writes for one launcher or scheduler."""
    title, nodes = RENDERED[what]
    engine = engine_of(what)
    settings = [row for row in settings_of("render") if not row.engines or engine in row.engines]
    if what not in LAUNCHERS:
        settings += settings_of("rendered")
    return Declared(
        what,
        f"Write {title}.",
        (f"render {what} {nodes} --nproc 8 --output launch train.py --epochs 3",),
        fixed={"what": what},
        verb="render",
        settings=tuple(settings),
        command_help="training command",
        options=(
            CONFIG,
            SettingRow("output", path("the path of a directory", "DIR"), "write the files here"),
            SettingRow("force", FLAG, "replace files that are there"),
            SettingRow("json_", FLAG, "print one JSON document, with the files by name", options="--json"),
        ),
    )


_ALL: tuple[Declared | DeclaredVerbs, ...] = (
    Declared(
        "run",
        "Start training on every node, watch it, and end all of it if any part fails.",
        ("run --hosts hosts.txt --nproc 8 train.py --epochs 3",),
        settings=settings_of("run"),
        command_help=COMMAND_HELP,
        options=(CONFIG, DRY_RUN, QUIET_RUN, AS_JSON),
    ),
    Declared(
        "check",
        "Look at every node and compare them: GPUs, network, software, code, data. Nothing is changed.",
        ("check --hosts hosts.txt --nproc 8 --data-path /data/train",),
        settings=settings_of("check"),
        command_help="the command that a run would have",
        options=(
            SettingRow(
                "from_",
                path("the path of a file or run", "FILE|RUN"),
                "judge saved evidence, ask no node",
                options="--from",
            ),
            SettingRow("list_", FLAG, "list the checks, ask no node", options="--list"),
            CONFIG,
            DRY_RUN,
            SettingRow("verbose", FLAG, "show what is ok, too, and the evidence", options="-v --verbose"),
            QUIET_FINDINGS,
            AS_JSON,
        ),
    ),
    Declared(
        "test",
        "Run collective tests as a training run would run: same start, network, interpreter. Says who is to blame.",
        ("test --hosts hosts.txt --suite pairs",),
        settings=settings_of("test"),
        options=(CONFIG, DRY_RUN, QUIET_FINDINGS, AS_JSON),
    ),
    Declared(
        "diagnose",
        "Why a run failed: cause, culprit, evidence with file and line, and what to do.",
        ("diagnose slurm-4711.out",),
        arguments=(
            Argument(
                "what",
                "[FILE… | DIR | - | RUN]",
                "logs of any launcher, a directory of them, standard input, or a run [default: the newest run]",
                many=True,
                names_run=True,
            ),
        ),
        options=(
            SettingRow("html", PATH, "write a page of it, too"),
            SettingRow("exit_code", FLAG, "exit with the code that stands for the verdict, as the run did"),
            quiet("print the cause alone"),
            SIGNATURES,
            RUNS_DIR,
            AS_JSON,
        ),
    ),
    Declared(
        "explain",
        "What a cause, a check or a state means, and what to do about it. Without a name it lists all.",
        ("explain port-blocked",),
        arguments=(Argument("name", "[CAUSE | CHECK | STATE]", "cause of a verdict, ID of a check, a state"),),
        options=(SIGNATURES, AS_JSON),
    ),
    Declared(
        "report",
        "One HTML page of a run: verdict, timeline, tests, logs with a search box. Secrets are hidden.",
        ("report --bundle --redact 'acme-[a-z]+'",),
        arguments=(RUN,),
        options=(
            SettingRow("bundle", FLAG, "write a zip to send to an administrator or a maintainer"),
            SettingRow("output", path("the path of a file or directory"), "where the file goes"),
            SettingRow(
                "redact",
                several(text("a regular expression", "REGEX"), "regular expressions"),
                "hide what matches, too",
                default=(),
            ),
            RUNS_DIR,
            AS_JSON,
        ),
    ),
    Declared(
        "ps",
        "The runs that go on, and the newest that are over: state, nodes, step, rate, goodput, age, verdict.",
        ("ps --all",),
        options=(
            SettingRow("all_", FLAG, "of every directory in which you have started runs", options="--all"),
            SettingRow(
                "number",
                whole_number(0, 1_000_000),
                "how many runs of a directory that are over",
                options="-n",
                default=20,
            ),
            quiet("print the names alone"),
            RUNS_DIR,
            AS_JSON,
        ),
    ),
    Declared(
        "status",
        "Nodes and ranks of a run: states, pids, steps, seconds since the last output.",
        ("status --watch",),
        arguments=(RUN,),
        options=(
            SettingRow("watch", FLAG, "show it again every second until the run ends"),
            ON,
            quiet("print the state of the run alone"),
            RUNS_DIR,
            SettingRow("json_", FLAG, "print JSON. With --watch a line each second", options="--json"),
        ),
    ),
    Declared(
        "top",
        "A run at a glance: ranks as a grid by lateness, nodes, step, rate, loss, warnings, events. q ends the view.",
        ("top", "top --on login.cluster pretrain"),
        arguments=(RUN,),
        options=(ON, SettingRow("once", FLAG, "print it once, as where standard output is not a terminal"), RUNS_DIR),
    ),
    Declared(
        "stacks",
        "What every rank does now: its stack, its step, the collective it is in. The run is not changed.",
        ("stacks", "stacks --rank 3 --dump"),
        arguments=(RUN,),
        options=(
            ONLY_RANKS,
            ONLY_ROLES,
            SettingRow("native", FLAG, "the frames below Python too. py-spy stops each rank for some milliseconds"),
            SettingRow("dump", FLAG, "keep stacks, flight recorders and NCCL's words in evidence/ of the run"),
            RUNS_DIR,
            AS_JSON,
        ),
    ),
    Declared(
        "profile",
        "A trace of a rank by torch's profiler, of a run that goes on, and what `overlap` reads from it.",
        ("profile --steps 3", "profile --rank 0,8 --steps 5 --json"),
        arguments=(RUN,),
        options=(
            replace(ONLY_RANKS, help="these ranks, such as 0,1 [default: the first of the run]"),
            ONLY_ROLES,
            SettingRow("steps", whole_number(1, 1000), "whole steps to profile, as the run shows them", default=3),
            SettingRow("limit", duration(1), "time after which it ends, whatever the steps", default=60.0),
            RUNS_DIR,
            AS_JSON,
        ),
    ),
    Declared(
        "logs",
        "Output of all ranks in the order it arrived, each line with its node and rank.",
        ("logs -f --rank 0,1", "logs --grep 'loss nan|Traceback' --since 10m"),
        arguments=(RUN,),
        options=(
            SettingRow("follow", FLAG, "go on until the run ends", options="-f --follow"),
            SettingRow(
                "node",
                several(text("a node's name or index", "NODE"), "names or indexes of nodes", commas=True),
                "only these nodes, by name or index, such as 0,1",
                default=(),
            ),
            ONLY_RANKS,
            ONLY_ROLES,
            SettingRow("grep", PATTERN, "only lines in which this is found"),
            SettingRow("since", duration(0), "only what arrived in the last 10m"),
            SettingRow("until", duration(0), "only what had arrived 5m ago"),
            SettingRow(
                "tail",
                whole_number(1, 999_999_999),
                "only the last N lines (with --metrics those of each rank, 5 unless set)",
                options="--tail -n",
            ),
            SettingRow("metrics", FLAG, "metrics lines instead of output"),
            SettingRow("no_fold", FLAG, "show identical lines of all ranks"),
            ON,
            RUNS_DIR,
            SettingRow("json_", FLAG, "a JSON object a line", options="--json"),
        ),
    ),
    Declared(
        "attach",
        "Follow a run again. Where its controller died, take it over before the lease is up.",
        ("attach",),
        arguments=(RUN,),
        options=(
            SettingRow("take_over", FLAG, "replace a controller that lives. It then follows the run"),
            ON,
            QUIET_RUN,
            RUNS_DIR,
            AS_JSON,
        ),
    ),
    Declared(
        "stop",
        "End a run in order: ranks get SIGTERM and 30 s to save. It works when the controller is dead, too.",
        ("stop",),
        arguments=(
            Argument(
                "run", "[RUN]", "run directory or name [default: the run that goes on, else the newest]", names_run=True
            ),
        ),
        options=(
            SettingRow("all_", FLAG, "every run of this runs directory that is not over", options="--all"),
            SettingRow("save", FLAG, "ranks save at one step first, at SIGUSR1 or where they call should_save"),
            SettingRow("now", FLAG, "no time for ranks to save"),
            SettingRow("stop_grace", duration(0), "time from SIGTERM to SIGKILL [default: the run's own]"),
            ON,
            QUIET_FAILURES,
            RUNS_DIR,
            AS_JSON,
        ),
    ),
    Declared(
        "exec",
        "Run a command on every node. Nodes that print the same are one entry, and nothing stays behind.",
        ("exec --hosts hosts.txt nvidia-smi -L", "exec --run pretrain 'df -h /data | tail -1'"),
        settings=settings_of("exec"),
        command_help="the program and its arguments. One word with blanks is a line for /bin/sh",
        options=(
            SettingRow(
                "run",
                text("a run directory or the name of a run", "RUN"),
                "the nodes of this run, instead of a target. Nodes that joined need --allow-exec",
            ),
            SettingRow("timeout", duration(0, above=True), "time after which the command is ended [default: none]"),
            SettingRow(
                "directory",
                path("the path of a directory", "DIR"),
                "working directory on the nodes [default: as ssh leaves it]",
                options="--workdir",
            ),
            CONFIG,
            RUNS_DIR,
            DRY_RUN,
            QUIET_FAILURES,
            AS_JSON,
        ),
    ),
    Declared(
        "fetch",
        "Bring the files in ALLRANKS_OUTPUT_DIR from the nodes of a run. "
        "A fetch that was cut off goes on where it was.",
        ("fetch '*.pt'", "fetch --dry-run", "fetch --merge 'ckpt/step_300/*'"),
        arguments=(
            RUN,
            Argument("pattern", "[PATTERN]", "names of files, such as '*.pt' or 'ckpt/step_*/*' [default: all]"),
        ),
        options=(
            SettingRow(
                "output",
                path("the path of a directory", "DIR"),
                "where the files go [default: outputs/ of the run directory]",
            ),
            SettingRow("merge", FLAG, "put the files of all nodes into one tree too, and name those that differ"),
            RUNS_DIR,
            DRY_RUN,
            AS_JSON,
        ),
    ),
    Declared(
        "nodes",
        "What runs, checks and tests have found of each node: faults by cause, when, and who is suspected.",
        ("nodes", "nodes --forget node07"),
        options=(
            SettingRow(
                "forget",
                several(text("a node's name or machine", "NODE"), "names of nodes"),
                "forget what is known of a node, after a repair",
                default=(),
            ),
            quiet("print the names of suspects alone"),
            AS_JSON,
        ),
    ),
    DeclaredVerbs(
        "data",
        "Count the steps of an epoch (plan), or look at who reads what (audit).",
        "data plan --samples 32217 --nodes 1,2,8",
        (
            Declared(
                "plan",
                "Count the steps of an epoch, and how long they take, for several numbers of nodes.",
                ("data plan --samples 32217 --gpus-per-node 8 --nodes 1,2,8 --epochs 5 --step-time 2s",),
                function="plan_command",
                verb="data",
                options=(
                    SettingRow("samples", whole_number(0, _MANY), "samples in the data"),
                    SettingRow("batch", whole_number(1, _MANY), "samples a step and rank", default=1),
                    _GPUS_PER_NODE,
                    SettingRow(
                        "nodes", text("numbers such as 1,2,8", "N,N,…"), "numbers of nodes to compare", default="1"
                    ),
                    SettingRow("epochs", whole_number(1, _MANY), "epochs in all", default=1),
                    SettingRow("step_time", duration(0), "time of one batch of one rank, such as 2s"),
                    SettingRow("grad_accum", _COUNT, "batches an optimizer step", default=1),
                    SettingRow("drop_last", FLAG, "leave the rest out"),
                    SettingRow("pad", FLAG, "fill up the last batches (default)"),
                    SettingRow("model_bytes", byte_count(0), "gradients exchanged a step, such as 14GB"),
                    SettingRow(
                        "bandwidth",
                        text("bytes a second, or a run", "SIZE|RUN"),
                        "bytes a second, or a run of `allranks test`",
                    ),
                    SettingRow("observed_steps", whole_number(0, _MANY), "steps that a run showed: says why"),
                    RUNS_DIR,
                    AS_JSON,
                ),
            ),
            Declared(
                "audit",
                "Look at every sample that each of N virtual ranks reads: is the data really split?",
                ("data audit --loader train:make_loader --world-size 16",),
                function="audit_command",
                verb="data",
                options=(
                    SettingRow(
                        "loader",
                        text("module:function or file.py:function", "WHERE"),
                        "module:function or file.py:function, which gives a DataLoader",
                    ),
                    SettingRow("world_size", _COUNT, "virtual ranks", default=2),
                    _GPUS_PER_NODE,
                    SettingRow("python", path("the path of a Python interpreter"), "training interpreter"),
                    AS_JSON,
                ),
            ),
        ),
    ),
    DeclaredVerbs(
        "render",
        "Write what one would run on each node without allranks: scripts, configurations, manifests.",
        "render torchrun --hosts hosts.txt --nproc 8 --output launch train.py --epochs 3",
        tuple(_render(what) for what in RENDERED),
    ),
    Declared(
        "overlap",
        "Read torch.profiler's traces: computation, communication, both at once, idle, for each rank and step.",
        ("overlap outputs/rank_*_trace.json.gz --html overlap.html",),
        arguments=(Argument("traces", "TRACE...", "files (.json, .json.gz) or directories", many=True, required=True),),
        options=(
            SettingRow("top", whole_number(1, 100_000), "how many kinds of collectives to list", default=10),
            SettingRow("html", path("the path of a file", "FILE"), "write a page with a plot there"),
            AS_JSON,
        ),
    ),
    Declared(
        "clean",
        "Remove old run directories, or end and remove what earlier runs left on the nodes.",
        ("clean --keep 5", "clean --orphans --hosts hosts.txt"),
        settings=settings_of("clean"),
        options=(
            SettingRow("keep", whole_number(0, 1_000_000), "all but the newest N runs and N checks go [default: 5]"),
            SettingRow("orphans", FLAG, "processes and directories of dead runs on the nodes"),
            SettingRow("foreign", FLAG, "your other processes on GPUs or the master port"),
            SettingRow("yes", FLAG, "do not ask", options="--yes -y"),
            DRY_RUN,
            AS_JSON,
        ),
    ),
    Declared(
        "join",
        "Run the same command on every node, in any order: no ssh, any scheduler. One node's failure ends all.",
        ("join --nnodes 2 --node-rank 0 --master-addr node01 train.py",),
        settings=settings_of("join"),
        command_help=COMMAND_HELP,
        options=(
            SettingRow("check_nodes", FLAG, "instead of a command: look at the nodes", options="--check"),
            SettingRow("suite", choice(*SUITES), "instead of a command: collective tests", options="--test"),
            CONFIG,
            QUIET_RUN,
            SettingRow("json_", FLAG, "JSON lines. On node 0 they are the run, its result last", options="--json"),
        ),
    ),
    Declared(
        "init",
        "Write a commented allranks.toml here: every setting with its default.",
        ("init",),
        options=(SettingRow("force", FLAG, "replace the file that is there"),),
    ),
)
COMMANDS = {command.name: command for command in _ALL}
