"""allranks test: collective tests on the target's nodes, and which node or link is to blame."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from allranks.backends.transport import Transport
from allranks.cluster import Cluster
from allranks.errors import UsageError
from allranks.settings import RunSpec

from .allocated import with_step
from .dryrun import describe
from .options import BEHAVIOUR, CHECKS, HOW, NETWORK, PLACES, TARGET, TIMES, Text, option, split_words
from .target import find_cluster, resolve_options, say_notes
from .together import run_together

TESTS = "Tests"


def command(
    local: Annotated[int | None, option("--local", TARGET, "N virtual nodes on this machine", "N")] = None,
    hosts: Annotated[Text, option("--hosts", TARGET, "hostfile, or a list: h1,h2 or node[01-04]", "FILE|LIST")] = None,
    slurm: Annotated[bool | None, option("--slurm", TARGET, "the Slurm allocation that we are in")] = None,
    nodes: Annotated[int | None, option("--nodes", TARGET, "the first N hosts of the list", "N")] = None,
    nproc: Annotated[Text, option("--nproc", TARGET, "ranks a node (auto: slots, GPUs, else 2)", "K")] = None,
    suite: Annotated[Text, option("--suite", TESTS, "sync (default), bandwidth, pairs or staged", "NAME")] = None,
    backend: Annotated[Text, option("--backend", TESTS, "auto (default), gloo or nccl", "NAME")] = None,
    size: Annotated[Text, option("--size", TESTS, "largest payload a rank (256MB)", "SIZE")] = None,
    timeout: Annotated[Text, option("--timeout", TESTS, "limit of each test (60s)", "TIME")] = None,
    only: Annotated[list[str] | None, option("--only", TESTS, "these tests alone (with commas)", "NAME")] = None,
    min_bandwidth: Annotated[Text, option("--min-bandwidth", TESTS, "a link must carry, bytes/s: 1GB", "SIZE")] = None,
    max_latency: Annotated[Text, option("--max-latency", TESTS, "longest round trip of a link: 1ms", "TIME")] = None,
    python: Annotated[Text, option("--python", HOW, "training interpreter on the nodes", "PATH")] = None,
    guard_python: Annotated[Text, option("--guard-python", HOW, "Python >= 3.8 for allranks' guard", "PATH")] = None,
    workdir: Annotated[Text, option("--workdir", HOW, "working directory on the nodes (default: this one)")] = None,
    prelude: Annotated[Text, option("--prelude", HOW, "shell lines before the ranks: conda activate …")] = None,
    wrap: Annotated[Text, option("--wrap", HOW, "goes around each rank: 'apptainer exec --nv IMG'")] = None,
    env: Annotated[list[str] | None, option("--env", HOW, "set K=V, or forward NAME from here", "K=V|NAME")] = None,
    ssh_options: Annotated[list[str] | None, option("--ssh-option", HOW, "as ssh's -o", "KEY=VALUE")] = None,
    network: Annotated[Text, option("--network", NETWORK, "network of the master address", "CIDR")] = None,
    master_addr: Annotated[Text, option("--master-addr", NETWORK, "default: chosen, and proved")] = None,
    master_port: Annotated[int | None, option("--master-port", NETWORK, "0: a free one (default)")] = None,
    no_check: Annotated[bool, option("--no-check", CHECKS, "do not look at the nodes before ranks start")] = False,
    allow: Annotated[list[str] | None, option("--allow", CHECKS, "a failure that does not stop it", "ID")] = None,
    lease: Annotated[Text, option("--lease", TIMES, "ranks live this long without allranks (60s)")] = None,
    connect_timeout: Annotated[Text, option("--connect-timeout", TIMES, "to reach a node (12s)")] = None,
    runs_dir: Annotated[Text, option("--runs-dir", PLACES, "where its directory goes (runs)")] = None,
    node_dir: Annotated[Text, option("--node-dir", PLACES, "scratch directory on the nodes (/tmp)")] = None,
    config: Annotated[Text, option("--config", PLACES, "settings file (allranks.toml)")] = None,
    debug: Annotated[bool | None, option("--debug", BEHAVIOUR, "NCCL_DEBUG=INFO, TORCH_DISTRIBUTED_DEBUG")] = None,
    dry_run: Annotated[bool, option("--dry-run", BEHAVIOUR, "print what would be done, do nothing")] = False,
    json_: Annotated[bool, option("--json", BEHAVIOUR, "one JSON document on stdout")] = False,
) -> None:
    """Run collective tests as a training run would run: same start, network, interpreter. Says who is to blame.

    Example: allranks test --hosts hosts.txt --suite pairs
    """
    given = {k: v for k, v in locals().items() if k not in ("config", "no_check", "json_", "dry_run")}
    given.update(check=False if no_check else None, allow=split_words(allow), only=split_words(only), name="test")
    resolved = resolve_options(given, config)
    cluster = find_cluster(resolved)
    spec = dataclasses.replace(resolved.spec, test="full", command=(), launcher="direct", retries=0)
    say_notes(resolved, json_)
    if dry_run:
        typer.echo(describe(spec, cluster, json_))
        raise typer.Exit(0)
    raise typer.Exit(with_step(spec, cluster, lambda reach: run_suite(spec, cluster, json_, reach)))


def run_suite(spec: RunSpec, cluster: Cluster, json_: bool, transport: Transport | None = None) -> int:
    """The suite that was asked for; gives the exit code."""
    if spec.suite == "staged":
        from .staged import run_staged

        return run_staged(spec, cluster, json_, transport)
    if spec.suite == "pairs":
        if len(cluster.nodes) < 2:
            raise UsageError("--suite pairs measures links between nodes: name two or more")
        from .pairs import run_pairs

        return run_pairs(spec, cluster, json_, transport)
    return run_together(spec, cluster, json_, transport=transport)
