"""Runs the pods of rendered manifests on the hosts of a bed: what a kubelet would start, in an environment as it
would give it.

Each pod is the first process of its own PID namespace, as in a container; the ConfigMap and the Secret are files
where the manifest mounts them; `NAME-I.NAME` resolves as the headless Service would have it.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from tests.hosts.bed import Bed, Host
from tests.hosts.launching import BOUND
from tests.hosts.waiting import wait_until

Document = dict[str, Any]
SECRET = "a secret that only these pods know, 0123456789"
START = """
set -e
mount -t tmpfs tmpfs /opt
for pair in $FILES; do mkdir -p "$(dirname "${pair#*=}")"; cp "${pair%%=*}" "${pair#*=}"; done
unset FILES
exec unshare --pid --fork --kill-child --mount-proc -- /bin/sh -c "$VOLUMES" - "$@" >"$OUT" 2>&1 </dev/null
"""
# Each memory volume is a file system of this pod's own, as large as its limit says: `/dev/shm:size=48m`.
VOLUMES = """
for volume in $MEMORY; do mount -t tmpfs -o "${volume#*:}" tmpfs "${volume%%:*}" || exit; done
unset MEMORY VOLUMES
exec "$@"
"""


class Pods:
    """The pods of a Job, a JobSet or bare ones; `index` is the node rank, also the bed's order."""

    def __init__(self, bed: Bed, place: Path, text: str) -> None:
        self.bed, self.place = bed, place
        self.documents: list[Document] = list(yaml.safe_load_all(text))
        self.processes: dict[int, subprocess.Popen[str]] = {}
        (place / "work").mkdir(exist_ok=True)
        for name, data in self._files().items():
            path = place / "mounted" / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o600)

    # -- what the manifest says --------------------------------------------------------------------

    def templates(self) -> list[Document]:
        """A pod's spec for each node rank."""
        pods = [d for d in self.documents if d["kind"] == "Pod"]
        if pods:
            return [p["spec"] for p in pods]
        return [job["template"]["spec"] for _, job, _ in self._indexed()]

    def _indexed(self) -> list[tuple[str, Document, int]]:
        """For each pod of a Job, or of a JobSet's: its name, the Job's spec, its completion index."""
        (owner,) = [d for d in self.documents if d["kind"] in ("Job", "JobSet")]
        name = owner["metadata"]["name"]
        jobs = {f"{name}-{one['name']}-0": one["template"]["spec"] for one in owner["spec"].get("replicatedJobs", ())}
        jobs = jobs or {name: owner["spec"]}
        return [(f"{name}-{i}", job, i) for name, job in jobs.items() for i in range(job["completions"])]

    def _files(self) -> dict[str, bytes]:
        """The content of the pods' volumes by path."""
        config_maps = {d["metadata"]["name"]: d for d in self.documents if d["kind"] == "ConfigMap"}
        spec = self.templates()[0]
        found = {}
        mounts = {m["name"]: m["mountPath"] for m in spec["containers"][0]["volumeMounts"]}
        for volume in spec["volumes"]:
            where = mounts[volume["name"]]
            if "configMap" in volume:
                source = config_maps[volume["configMap"]["name"]]
                found.update({f"{where}/{k}": base64.b64decode(v) for k, v in source.get("binaryData", {}).items()})
                found.update({f"{where}/{k}": v.encode() for k, v in source.get("data", {}).items()})
            if "secret" in volume:
                found[f"{where}/secret"] = SECRET.encode()
        return found

    def memory_volumes(self) -> list[str]:
        """Where a tmpfs of its own is mounted in every pod, each with its options."""
        spec = self.templates()[0]
        mounts = {m["name"]: m["mountPath"] for m in spec["containers"][0]["volumeMounts"]}
        limits = {v["name"]: v["emptyDir"].get("sizeLimit") for v in spec["volumes"] if "emptyDir" in v}
        options = {name: f"size={limit.removesuffix('i').lower()}" if limit else "rw" for name, limit in limits.items()}
        return [f"{mounts[name]}:{option}" for name, option in options.items()]

    def environment(self, index: int) -> dict[str, str]:
        """The container's own variables, and those that Kubernetes sets in every pod."""
        template = self.templates()[index]
        own = {e["name"]: expanded(e["value"], {}) for e in template["containers"][0]["env"] if "value" in e}
        every = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443",
                 "KUBERNETES_PORT": "tcp://10.96.0.1:443", "HOSTNAME": self.host(index).name}  # fmt: skip
        indexed = {} if "hostname" in template else {"JOB_COMPLETION_INDEX": str(self._indexed()[index][2])}
        return {**every, **indexed, **own}

    # -- the cluster ---------------------------------------------------------------------------------

    def host(self, index: int) -> Host:
        return self.bed.hosts[index]

    def resolve_names(self) -> Pods:
        """The headless Service: each pod's name, and no name that all share."""
        subdomain = self.templates()[0]["subdomain"]
        called = {host.name: host.name for host in self.bed.hosts}
        if any(d["kind"] == "JobSet" for d in self.documents):
            called.update({self.host(i).name: name for i, (name, _, _) in enumerate(self._indexed())})
        for host in self.bed.hosts:
            file = host.dir / "etc" / "hosts"
            names = []
            for h in self.bed.hosts:
                name = f"{called[h.name]}.{subdomain}"
                names.append(f"{h.address} {name}.default.svc.cluster.local {name}\n")
            with file.open("a") as stream:
                stream.writelines(names)
        return self

    def start(self, *indexes: int, env: dict[str, str] | None = None) -> Pods:
        """These pods, in this order."""
        for index in indexes:
            container = self.templates()[index]["containers"][0]
            files = " ".join(f"{self.place}/mounted{path}={path}" for path in self._files())
            given = {"FILES": files, "MEMORY": " ".join(self.memory_volumes()), "VOLUMES": VOLUMES}
            full = {**self.environment(index), **given, "OUT": str(self._log(index)), **(env or {})}
            command = [expanded(word, full) for word in container["command"]]
            argv = ["/bin/bash", "-c", START, "-", *command]
            self.processes[index] = self.host(index).popen(argv, env=full, cwd=container.get("workingDir", "/"))
        return self

    # -- what came of it -----------------------------------------------------------------------------

    def _log(self, index: int) -> Path:
        return self.place / f"pod-{index}.log"

    def log(self, index: int) -> str:
        """`kubectl logs`."""
        return self._log(index).read_text() if self._log(index).exists() else ""

    def codes(self, *indexes: int) -> list[int]:
        """Exit codes once these have ended."""
        chosen = indexes or tuple(sorted(self.processes))
        wait_until(lambda: all(self.processes[i].poll() is not None for i in chosen), 2 * BOUND, "the pods end")
        return [int(self.processes[i].returncode) for i in chosen]

    def first(self, index: int) -> int:
        """The machine's pid of a pod's first process."""
        (found,) = [pid for pid in self.left(index) if _spaces(pid)[-1] == "1"]
        return found

    def signal(self, index: int, number: int) -> None:
        """A signal as a kubelet sends it: to the first process."""
        os.kill(self.first(index), number)

    def left(self, index: int) -> list[int]:
        """Processes in a pod's PID namespace, or any below the host's own; without its sshd and init."""
        host = self.host(index)
        space = os.stat(f"/run/netns/{host.netns}").st_ino
        outer = {p.pid for p in host.pids(system=True)}
        return [pid for pid in _pids_of(space) if pid not in outer and len(_spaces(pid)) > 2]

    def nothing_left(self) -> None:
        for index in range(len(self.bed.hosts)):
            if self.host(index).is_on:
                wait_until(lambda i=index: not self.left(i) and not self.host(i).pids(), BOUND,
                           f"nothing is left on {self.host(index).name}")  # fmt: skip

    def end(self) -> None:
        """What a failed test left."""
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(BOUND)


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """What the kubelet makes of a word or value: k8s.io/kubernetes/third_party/forked/golang/expansion/expand.go."""
    found, at = "", 0
    while at < len(text):
        if text[at] == "$" and at + 1 < len(text):
            end = text.find(")", at + 2)
            if text[at + 1] == "$":
                found, at = found + "$", at + 2
                continue
            if text[at + 1] == "(" and end > 0:
                name = text[at + 2 : end]
                found, at = found + variables.get(name, f"$({name})"), end + 1
                continue
        found, at = found + text[at], at + 1
    return found


def _spaces(pid: int) -> list[str]:
    """Its pids from the machine's PID namespace to its own: three of a process in a pod on a host."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return []
    (spaces,) = [line.split()[1:] for line in lines if line.startswith("NSpid:")] or [[]]
    return spaces


def _pids_of(space: int) -> Sequence[int]:
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.stat(f"/proc/{entry}/ns/net").st_ino == space:
                found.append(int(entry))
        except OSError:
            continue
    return found
