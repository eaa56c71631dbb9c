"""Hosts, kernels, ssh, Slurm, Kubernetes: what is said around the ranks."""

from __future__ import annotations

from allranks.kernel_lines import KINDS, KernelLineKind

from .row import CASCADE, RAISED, ROOT, SYMPTOM, WEAK, Row, Scope, Sign, table

_RAY_NODE = "Ray no longer hears of that node: it lost its link or its power, or its raylet ended"
ROWS = (
    Row("start-path", "remote-path-missing", ROOT,
        "agent/rank_start.py which call failed (chdir, execvpe), with strerror(3)",
        "could not", "could not .+: (?:No such file|Not a directory)", confidence=0.95, scope=Scope.AGENT),
    Row("start-format", "environment-mismatch", ROOT, "agent/rank_start.py execve(2) ENOEXEC",
        "could not run", "could not run .+: Exec format error", confidence=0.95, scope=Scope.AGENT),
    Row("start-arguments", "bad-launch-arguments", ROOT, "agent/rank_start.py execve(2) E2BIG",
        "could not run", "could not run .+: Argument list too long", confidence=0.95, scope=Scope.AGENT),
    Row("agent-denied", "permission-denied", ROOT,
        "agent/boot.py, agent/rank_start.py EACCES, EPERM, a directory of another user",
        "not owned|Permission denied|not permitted", "not owned|Permission denied|Operation not permitted",
        scope=Scope.AGENT),
    *table("OpenSSH sshconnect2.c, authfile.c, paramiko, DeepSpeed launcher/runner.py", ROOT, "ssh-auth", [
        ("ssh-denied", "Permission denied|ermission denied, please",
         r"Permission denied \([a-z]|Permission denied, please try again", 0.95),
        ("ssh-methods",
         "authentication|Authentication|PRIVATE KEY|Load key|sign_and_send_pubkey|PasswordRequired|Bad owner|"
         "password has expired|pam_slurm_adopt|account is currently not|private key file",
         "Too many authentication failures|[Nn]o (?:supported )?authentication methods|PasswordRequiredException: |"
         "Bad owner or permissions on |password has expired|Access denied by pam_slurm_adopt|"
         "This account is currently not available|UNPROTECTED PRIVATE KEY|Load key .*(?:bad permissions|"
         "invalid format|error in libcrypto)|sign_and_send_pubkey: .*(?:fail|denied|no mutual)|"
         "Authentication refused: bad ownership|AuthenticationException|(?i:ssh.{0,60}authentication failed)"),
    ]),
    Row("ssh-key-form", "ssh-auth", ROOT, "paramiko pkey.py: it reads keys in PEM alone, by their kind",
        "private key file", r"not a valid \w{2,8} private key file", confidence=0.95,
        means="paramiko does not read this key: of another kind, or in OpenSSH's own format",
        fix="Write the key as PEM, after a copy of it: `ssh-keygen -p -m PEM -f ~/.ssh/id_rsa`. Then try `ssh "
            "-o BatchMode=yes {node} true`"),
    Row("ssh-deepspeed", "ssh-auth", ROOT, "OpenSSH sshconnect2.c, authfile.c, paramiko, DeepSpeed launcher/runner.py",
        "was not reachable via ssh|exit status 255",
        r"host=(?P<node>\S+) was not reachable via ssh|"
        r"Command 'ssh [^']*?(?P<node2>\S+) hostname' returned non-zero exit status 255", confidence=0.7,
        means="DeepSpeed tries ssh without a password", also="ssh-unreachable"),
    Row("ssh-hostkey", "ssh-hostkey", ROOT, "OpenSSH sshconnect.c, paramiko ssh_exception.py, client.py",
        "ost key|HOST IDENTIFICATION|authenticity of host|BadHostKey|found in known_hosts",
        r"Host key verification failed|HOST IDENTIFICATION HAS CHANGED|No \S+ host key is known|"
        r"authenticity of host .*can't be established|(?:host key|Host key) .*(?:changed|mismatch|"
        r"not found in known)|BadHostKeyException: |Server '[^']+' not found in known_hosts", confidence=0.95),
    *table("OpenSSH sshconnect.c, kex.c, sshd MaxStartups", ROOT, "ssh-unreachable", [
        ("ssh-connect", "ssh: connect to|to port 22|port 22",
         r"ssh: connect to (?:host|address) (?P<node>\S+) port (?P<port>\d+): |Unable to connect to port 22|"
         r"(?<!\S)(?P<node2>\S+) port 22: (?:Connection|No route|Network|Operation)", 0.93),
        ("ssh-banner", "SSH protocol banner|UNKNOWN port|exchange_identification|banner exchange|port 22|sshd",
         r"(?:ssh|kex)_exchange_identification|banner exchange|Connection (?:closed|reset) by (?:UNKNOWN port \d|"
         r"(?P<node>\S+) port 22(?:22)?\b)|[Ee]rror reading SSH protocol banner", 0.85,
         "sshd ended the connection before the login: too many at once (MaxStartups), or a filter"),
        ("ssh-negotiate", "Unable to negotiate with", r"Unable to negotiate with (?P<node>\S+) port \d+: no matching",
         0.9, "the two versions of OpenSSH have no algorithm in common"),
        ("ssh-forward", "open failed|stdio forwarding",
         r"channel \d+: open failed: connect failed|stdio forwarding failed", 0.75,
         "the jump host does not reach the node"),
    ]),
    *table("OpenSSH clientloop.c, ServerAliveInterval, Open MPI orted, Ray gcs_node_manager.cc, "
           "python/ray/exceptions.py", WEAK, "node-network-down", [
        ("ssh-lost", "imeout, server|send disconnect|lost communication|closed by remote host",
         r"Connection to (?P<node2>\S+) closed by remote host|Timeout, server (?P<node>\S+) not responding|"
         r"client_loop: send disconnect|lost communication with (?:a )?remote daemon", 0.6),
        ("ray-node", "marked dead because",
         r"\b(?:ip|address): (?P<node>[\w.:-]{1,60}?)(?: and node name: [\w.-]{1,80})? has been marked dead because",
         0.65, _RAY_NODE, "peer-died"),
        # Its head says so of a raylet that was killed or too busy as well.
        ("ray-node-died",
         "marked dead because|node has died|missing too many heartbeats|node was terminated unexpectedly|was "
         "dead or unavailable",
         r"has been marked dead because|\bnode has died\b|missing too many heartbeats|"
         r"node was terminated unexpectedly|was running\) +was dead or unavailable", 0.48, _RAY_NODE, "peer-died"),
    ]),
    *table("Linux drivers netdev, bonding, Slurm NODE FAIL, Kubernetes node lifecycle", ROOT,
           "node-network-down", [
        ("link-down", "Link is Down|link is down|Link down|carrier|NETDEV WATCHDOG|definitely down",
         "(?:NIC )?[Ll]ink is [Dd]own|[Ll]ink down|(?i:lost carrier|no carrier)|link status definitely down", 0.85),
        ("node-failure",
         "error: Node|TaintManagerEviction|NODE FAILURE|Node failure|NODE_FAIL|node failure|NodeNotReady|"
         "node.kubernetes.io|DOWN*|not responding|on failed node|NodeLost",
         r"NODE FAILURE|(?:Node failure on|Killing JobId=\S+ on failed node) (?P<node>\S+)|NODE_FAIL|"
         r"NodeNotReady|Reason: *NodeLost|node\.kubernetes\.io/(?:unreachable|not-ready)|TaintManagerEviction|"
         r"error: Nodes? (?P<node2>\S+) (?:not responding|DOWN|are still not ready)|"
         r"nodes? (?P<node3>[\w.\[\],-]+) not responding", 0.88),
    ]),
    *table("cgroup memory.events, Slurm task/cgroup, Ray memory monitor", ROOT, "host-out-of-memory", [
        ("ray-oom", "killed due to memory pressure",
         r"(?P<count>\d+) Workers \(tasks / actors\) killed due to memory pressure \(OOM\)(?:.{0,160}IP: (?P<node"
         r">[\d.]{7,15}))?", 0.99, "Ray's own monitor ended them"),
        ("oom-kill", "oom-kill|oom_kill|Out Of Memory|OUT_OF_MEMORY|OOM Killed|OOM-killed",
         r"oom-kill(?!.*= 0)|Detected \d+ oom[_-]kill|oom_kill[: ]+\d+ ?-> ?[1-9]|oom_kill(?:er)? [1-9]|"
         r"(?:error: (?P<node>[\w.-]+): )?tasks? (?P<task>[\d,-]+): Out Of Memory|OUT_OF_MEMORY|"
         r"(?<!container init was )(?i:OOM[ -]killed)\b(?<!OOMKilled)", 0.93),
        ("ray-oom-hint", "ray-oom", r"ray-oom-prevention\.html", 0.8,
         "a hint of Ray's: its memory monitor ends workers"),
        ("memory-limit",
         "memory limit|MemoryPressure|memory pressure|ObjectStoreFull|low on resource: memory|running low on memory",
         r"[Ee]xceeded (?:job |step |\S+ )?memory limit|MemoryPressure|low on resource: memory|"
         r"node running low on memory|killed due to memory pressure|ObjectStoreFullError", 0.82),
    ]),
    Row("oomkilled", "k8s-out-of-memory", ROOT, "Kubernetes container status reasons",
        "OOMKill|container init was OOM-killed", "OOMKill(?:ed|ing)|container init was OOM-killed", confidence=0.95),
    *table("Slurm slurmstepd, sacct why a job ended, Kubernetes and cloud preemption", ROOT,
           "slurm-preempted-or-timeout", [
        ("time-limit",
         "TIMEOUT|timelimit|TIME LIMIT|TimeLimit|ime limit|has expired|DeadlineExceeded|specified deadline",
         r"DUE TO TIME LIMIT|JobState=TIMEOUT|\bTIMEOUT +\d+:\d+|exceeded (?:its )?time ?limit|"
         r"Job reached time limit|Time limit exhausted for |Slurm job \d+ has expired|"
         r"[Rr]eason: *\"?DeadlineExceeded|longer than (?:the )?specified deadline", 0.93),
        ("preempted", "JOB REQUEUE|REEMPT|reempt|Spot|spot|imminent node shutdown",
         r"DUE TO PREEMPTION|\bPREEMPTED\b|JobState=PREEMPTED|[Ss]pot (?:instance )?interruption|(?:was|been|"
         r"instance|Job|Pod|pod|node) preempted|Preempted (?:by|to accommodate)|TerminationByKubelet.*[Pp]reempt|"
         r"DUE TO JOB REQUEUE|in response to imminent node shutdown", 0.92),
    ]),
    Row("slurm-task-failed", "unknown", SYMPTOM, "Slurm slurmstepd/req.c, srun --kill-on-bad-exit",
        "DUE TO TASK FAILURE", r"CANCELLED AT \S+ DUE TO TASK FAILURE", confidence=0.35,
        means="a task of the step failed, and Slurm ended the others: what that task wrote says why"),
    Row("slurm-cancelled", "slurm-cancelled", SYMPTOM, "Slurm slurmstepd (scancel, or the end of a failed step)",
        "CANCELLED|scancel|Job step aborted|cancelled by user|Job cancel|Job was cancel|has been revoked",
        r"\*\*\* (?P<what>STEP|JOB) (?P<job>[\d.+_\w]+) ON (?P<node>\S+) CANCELLED|JobState=(?P<state>CANCELLED)|"
        r"\b(?P<by>CANCELLED by \w+|cancelled by user|scancel \d+|Job (?:was )?cancell?ed)|CANCELLED AT|"
        r"Job allocation \d+ has been revoked", rule="slurm-end"),
    *table("Slurm slurmstepd/mgr.c (srun has ended before the step), Kubernetes kubelet's restarts", CASCADE, "", [
        ("task-exit-unsent", "MESSAGE_TASK_EXIT", "Failed to send MESSAGE_TASK_EXIT"),
        ("crash-loop", "CrashLoopBackOff|restarting failed container", "CrashLoopBackOff|restarting failed container"),
    ]),
    Row("clock", "clock-skew", ROOT, "Slurm slurm_errno.c, sbatch, srun, slurmstepd",
        "TimeTooSkewed|xpired credential|ewound credential|redential expired|clock skew|Clock skew|not yet valid|"
        "in the future|clock is|not be synchronized",
        "RequestTimeTooSkewed|[Rr]ewound credential|[Ee]xpired credential|(?:[Jj]ob )?[Cc]redential expired|"
        "[Cc]lock skew|not yet valid|clock of the file system and this computer appear to not be synchronized|"
        "timestamp.{0,40}in the future|clock is (?:behind|ahead|off)", confidence=0.88),
    *table("enroot docker.sh, runtime.sh, pyxis args.c, enroot.c, importer.c, Kubernetes kubelet, containerd "
           "images", ROOT, "k8s-image", [
        ("enroot-image", "returned error code", r"URL \S+ returned error code: [45]\d\d", 0.85),
        ("image-pull",
         "pulling image|manifest for |ErrImage|ImagePull|InvalidImageName|pull image|pull access denied|manifest "
         "unknown|toomanyrequests|unpack image|resolve reference|invalid reference format|No such image|parse "
         "image name|pull policy of Never",
         r"Back-off pulling image|ErrImage\w+|ImagePullBackOff|InvalidImageName|"
         r"[Ff]ailed to pull (?:and unpack )?image|pull access denied|manifest (?:unknown|for \S+ not found)|"
         r"toomanyrequests|failed to resolve reference|invalid reference format|No such image: |"
         r"couldn't parse image name|pull policy of Never", 0.95),
        # Go writes errnos in small letters, the C library does not.
        ("image-architecture", "exec format error|no matching manifest",
         "exec format error|no matching manifest for", 0.75),
    ]),
    Row("pyxis-import", "k8s-image", WEAK, "pyxis enroot.c: the log of the import comes below it",
        "failed to import docker image", "pyxis: failed to import docker image", confidence=0.6),
    Row("mount-source", "missing-file", ROOT, "pyxis args.c, runc, docker: what a bind mount lacks",
        "source path does not exist|mount source", r"source path does not exist: |mount source \S+ doesn't exist",
        confidence=0.92),
    Row("memory-asked", "slurm-config", ROOT, "Slurm slurm_errno.c: what a job or a step asks for",
        "Memory specification", "Memory specification can ?not be satisfied", confidence=0.95,
        fix="Lower --mem to what a node has: `scontrol show node | grep -e NodeName -e RealMemory`"),
    Row("srun-exclusive", "slurm-config", ROOT,
        "Slurm src/common/slurm_opt.c: options that sbatch has set for its steps",
        "mutually exclusive", r"SLURM_\w{1,30}(?:,? and|,) SLURM_\w{1,30}.* mutually exclusive", confidence=0.95,
        means="an srun inside another job takes that job's variables",
        fix="Run `unset SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE` before that srun or sbatch, or "
            "submit from a login node"),
    Row("gres-asked", "slurm-config", ROOT, "Slurm slurm_errno.c: what a job or a step asks for",
        "generic resource", r"Invalid generic resource \(gres\) specification", confidence=0.95,
        fix="Pass the same --gres to sbatch and to srun, and only what `sinfo -o '%P %G'` shows. `scontrol show "
            "job {job}` says what the job has"),
    Row("submission", "slurm-config", ROOT, "Slurm slurm_errno.c, sbatch, srun, slurmstepd",
        "nvalid qos|nvalid job id|nvalid account|nvalid generic|nvalid partition|PU binding|ubmission failed|"
        "Unable to allocate|Unable to create step|configuration is not available|SLURM bash|not be satisfied|"
        "QOSMax|AssocGrp|AssocMax|accounting/QOS|More processors|cannot be satisfied",
        r"[Jj]ob submission failed|in your SLURM bash script, but this|Unable to allocate resources|"
        r"Unable to create step for job|configuration is not available|can ?not be satisfied|"
        r"[Ii]nvalid (?:generic resource|account|partition|qos|job id)\b|QOSMax\w+|Assoc(?:Grp|Max)\w+|"
        r"violates accounting/QOS|More processors requested|(?:CPU|GPU) binding.{0,60}(?:fail|error|outside|"
        r"invalid)", confidence=0.92),
    Row("slurmd-timeout", "slurm-config", ROOT,
        "Slurm src/common/slurm_protocol_api.c, srun/libsrun/launch.c: slurmd or slurmctld does not answer",
        "Socket timed out|socket timed out", "[Ss]ocket timed out on send/recv", confidence=0.76,
        means="a daemon of Slurm did not answer in time (MessageTimeout)",
        fix="Run `scontrol ping; scontrol show node {node}`, and on that node `systemctl status slurmd munge; "
            "journalctl -u slurmd --since -1h`. Leave it out with --exclude, or start slurmd again"),
    *table("Slurm slurm_errno.c, sbatch, srun, slurmstepd", ROOT, "slurm-config", [
        ("controller",
         "Unable to confirm|configuration source|Protocol authentication error|Munge |slurm controller|slurm_load|"
         "Invalid job credential|slurm_load|_establish_config|resolve_ctls|fetch_config",
         r"Could not establish a configuration source|Protocol authentication error|Munge (?:en|de)code failed|"
         r"(?:_establish_config_source|resolve_ctls_from_dns_srv|fetch_config): |Unable to contact slurm controller|"
         r"Invalid job credential|slurm_load_\w+ error|Unable to confirm allocation", 0.75),
        ("slurm-address", "find an address, check", r"Can't find an address, check slurm\.conf", 0.85,
         "Slurm finds no address for a node that its files name", "name-resolution"),
    ]),
    Row("container-start", "slurm-config", ROOT, "pyxis enroot.c, enroot runtime.sh and hooks, libnvidia-container",
        "pyxis: |start container|container start|enroot-|spank_pyxis|enroot/hooks.d|nvidia-container-cli",
        r"pyxis: (?:couldn't start container|container start failed|\s{1,20}\[ERROR\])|"
        r"enroot-\w{1,20}: failed to execute|spank_pyxis\.so: task_init\(\) failed|"
        r"enroot/hooks\.d/\S{1,80} exited with return code|nvidia-container-cli: (?:ldcache|mount|container) error",
        confidence=0.95, means="the container did not start: the enroot log that pyxis prints says which step failed",
        fix="Read the enroot log in these lines. On {node} run `enroot start` with the same image, and "
            "`nvidia-container-cli -k -d /dev/tty info`. Mend the hook that failed (/etc/enroot/hooks.d), or leave "
            "the node out (--exclude={node})"),
    Row("mpi-plugin", "slurm-config", ROOT, "Slurm src/interfaces/mpi.c",
        "Invalid MPI type|MPI: unable|mpi/pmi|PMI support",
        r"OMPI was not built with SLURM's PMI support|Invalid MPI type|MPI: unable to load|"
        r"mpi/pmi\w{1,10}: .{0,60}(?:fail|error)", confidence=0.8,
        means="srun's --mpi names a plug-in that this Slurm has not, or that fails",
        fix="Run `srun --mpi=list`, and choose one of these: --mpi=pmix for Open MPI, pmi2 for MPICH, none for "
            "torchrun"),
    *table("Slurm slurm_errno.c, sbatch, srun, slurmstepd", ROOT, "slurm-config", [
        ("task-launch", "launch failed|spank|slurmstepd: error|rolog|ask launch for|boot of the nodes",
         r"task \S+ launch failed|(?:Task launch for \S+|Application launch) failed(?!.*Can't find an address)|"
         r"Prolog hung on node|wrong with the boot of the nodes|[Pp]rolog (?:error|fail)|"
         r"slurmstepd: error: .{0,80}plugin|spank.{0,60}(?:fail|not found)", 0.65),
        # What a job_submit plug-in of the site refuses, Slurm's clients print as it stands.
        ("srun-fatal", "srun: |sbatch|salloc", "(?:srun|sbatch|salloc): fatal: |(?:salloc|sbatch): error: ", 0.75),
    ]),
    Row("step-waits", "slurm-config", SYMPTOM, "Slurm srun/libsrun/launch.c",
        "step creation temporarily disabled", "step creation temporarily disabled", confidence=0.5,
        means="another step of this job holds the CPUs, the memory or the GPUs (srun --overlap, --exact)"),
    Row("exec-format", "environment-mismatch", ROOT, "errno 8 ENOEXEC, bash execute_cmd.c",
        "Exec format error|cannot execute binary file", "Exec format error|cannot execute binary file", confidence=0.8,
        means="the program is built for another processor, or is a script without an interpreter in its first line",
        scope=RAISED),
    Row("container-exec", "remote-path-missing", ROOT,
        "runc, docker, apptainer starter: exec, stat and chdir in the container", "no such file or directory",
        r"(?:unable to start container process|exec failed|container init).*: (?:stat|chdir|exec|"
        r"fork/exec)\b.*no such file or directory|^FATAL: +stat \S+: no such file or directory"),
    *table("Docker daemon (names of containers), bash (a job that Ctrl-Z has stopped), launchers", ROOT,
           "orphan-process", [
        ("container-name", "in use by container", r"The container name \S+ is already in use by container", 0.85),
        ("job-stopped", "Stopped  ", r"^\[\d{1,3}\][-+]? +Stopped  +\S", 0.8),
        ("stale",
         "earlier run|earlier job|previous job|old run|old job|stale|eftover|left over|left-over|zombie|defunct|"
         "previous run|already running|orphan",
         r"(?i)\b(?:stale|left-?over|zombie|orphan(?:ed)?|defunct)\b.{0,30}(?:process|job|run|rank|worker|pid|"
         r"lock|python|store|session)|process(?:es)? (?:of|from) (?:a|an|the) (?:previous|earlier|old) (?:run|"
         r"job)|(?:another|an?) (?:instance|process|job|run).{0,40}already running", 0.72),
    ]),
    Row("unhealthy-devices", "gpu-hardware-error", ROOT, "NVIDIA k8s-device-plugin, kubelet cm/devicemanager",
        "unhealthy devices|no healthy devices", "no healthy devices present|cannot allocate unhealthy devices",
        confidence=0.75, means="the device plugin has seen an Xid of every GPU that is left on that node",
        also="k8s-scheduling"),
    Row("nodes-available", "k8s-scheduling", ROOT,
        "Kubernetes scheduler, quota admission, device plugin, SkyPilot exceptions.py, clouds/kubernetes.py",
        "nodes are available|FailedScheduling|Unschedulable|Insufficient|untolerated taint|node affinity|"
        "unbound immediate|exceeded quota|UnexpectedAdmissionError|volume node affinity|didn't match|"
        "admission webhook|is forbidden|no matches for kind|unable to create PodGroup|schedulable",
        r"PodGroup \S+ unschedulable|unable to create PodGroup|admission webhook \S+ denied|"
        r'\w\"? is forbidden: (?!User )|no matches for kind \"|tasks in gang unschedulable|'
        r"\d/\d{1,7} nodes are available|FailedScheduling|\bUnschedulable\b|\d Insufficient (?:nvidia\.com|"
        r"amd\.com|cpu|memory|rdma|[\w.]+/)|untolerated taint|unbound immediate PersistentVolumeClaims|"
        r"exceeded quota|UnexpectedAdmissionError|volume node affinity|didn't match (?:Pod's )?node", confidence=0.93),
    Row("ray-worker", "unknown", WEAK, "Ray raylet/worker_pool.cc, core_worker (it lists what may have been)",
        "Worker unexpectedly exits|potential root causes",
        "Worker unexpectedly exits with a connection error|There are some potential root causes", confidence=0.4,
        means="Ray cannot tell a kill for lack of memory from a crash: the kernel's log and the worker's own can"),
    Row("ray-placement", "cuda-device-unavailable", SYMPTOM,
        "vLLM executor/ray_utils.py: Ray has not given what was asked for yet", "placement group of specs",
        "Waiting for (?:creating|removing) a placement group of specs", confidence=0.42,
        means="Ray has no free GPUs for it: too few, held by others, or on nodes that have not joined"),
    Row("ray-head", "master-unreachable", SYMPTOM,
        "Ray python/ray/_private/services.py, util/client/worker.py, gcs_rpc_client.h",
        "running Ray instance|ray client connection|connect to GCS|Have you run 'ray start'|node_ip_address.json|"
        "head node to start|agent to submit job",
        r"Could not find any running Ray instance|ray client connection timeout|Have you run 'ray start'|"
        r"Can't find a `node_ip_address\.json`|Timed out waiting for head node to start|"
        r"No available agent to submit job|(?:[Ff]ailed|"
        r"Unable) to connect to GCS\b(?:.{0,20} at (?:address )?(?P<peer>[\w.-]+):(?P<port>\d+))?", confidence=0.7,
        means="the head node of Ray does not answer"),
    Row("ray-session", "orphan-process", ROOT, "Ray python/ray/_private/node.py, services.py: a cluster of before",
        "persisted value|Ray is trying to start at",
        r"Session name \S+ does not match persisted value|Ray is trying to start at .* is already running",
        confidence=0.92, means="another cluster of Ray runs on that port", scope=RAISED,
        fix="Run `ray stop --force` on every node, and remove /tmp/ray where they share it. Then start the head, and "
            "the others after it"),
    Row("ray-existing", "bad-launch-arguments", ROOT, "Ray python/ray/_private/worker.py: ray.init() in a cluster",
        "existing cluster", r"When connecting to an existing cluster, \w+", confidence=0.95, scope=RAISED,
        fix="Leave num_cpus, num_gpus and the like out of ray.init(), as `ray start` has set them. Where a cluster of "
            "its own is meant, `unset RAY_ADDRESS`, or ray.init(address='local')"),
    Row("ray-env", "environment-mismatch", ROOT, "Ray python/ray/exceptions.py, _private/runtime_env",
        "RuntimeEnvSetupError", "RuntimeEnvSetupError", confidence=0.75,
        means="what runtime_env names could not be installed or fetched on that node", scope=RAISED,
        fix="Read runtime_env_setup-*.log in /tmp/ray/session_latest/logs on {node}. Put the packages into the "
            "image, and a working_dir on a disk that all nodes have"),
    Row("ray-register", "limit-too-small", SYMPTOM,
        "Ray raylet_client: the raylet of a node has ended, or the node has no more processes",
        "register worker with raylet|registered within the timeout",
        "Unable to register worker with raylet|have not registered within the timeout", confidence=0.48,
        also="node-network-down",
        fix="Run `ulimit -u; df -h /tmp/ray`, and read raylet.out in /tmp/ray/session_latest/logs on {node}. "
            "Start Ray with fewer CPUs (`ray start --num-cpus`), because it starts a worker for each"),
    Row("ray-overloaded", "straggler", SYMPTOM, "Ray raylet/node_manager.cc, slow answers of a node that lives",
        "mistakenly been marked", "has mistakenly been marked as dead", confidence=0.45,
        means="the node lives and did not answer Ray's head in time: it was busy, with a save for instance",
        also="node-network-down",
        fix="Give nodes longer at the head: RAY_health_check_timeout_ms=60000 and "
            "RAY_health_check_failure_threshold=20 before `ray start --head`. Leave a core free for the raylet"),
    Row("engine-late", "straggler", SYMPTOM,
        "SGLang entrypoints/http_server.py, managers/scheduler.py, vLLM v1/executor/multiproc_executor.py",
        "Health check failed|atchdog timeout|RPC call to|memory broadcast block|engine core processes",
        r"Timed out waiting for engine core processes|Health check failed\. Server couldn't|[Ww]atchdog timeout \(|"
        r"RPC call to \w+ timed out|No available shared memory broadcast block", confidence=0.42,
        means="a process of the engine did not answer in time: long prompts, a compile, or a collective that hangs",
        fix="Run `py-spy dump --pid PID` on its processes. Where they work, give them longer: "
            "SGLANG_HEALTH_CHECK_TIMEOUT and --watchdog-timeout of SGLang, VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS of vLLM"),
)  # fmt: skip


# Causes whose own remedy says more than what the check of a node advises.
_OWN_REMEDY = frozenset({"host-out-of-memory", "too-many-open-files", "node-network-down", "segfault-native"})


def _kernel_row(kind: KernelLineKind) -> Row:
    fix = ""
    if kind.cause not in _OWN_REMEDY:
        advice = kind.advice("{node}")
        fix = f"{advice[0].upper()}{advice[1:]}"
    return Row(
        f"kernel-{kind.id}",
        kind.cause,
        role=Sign(kind.role),
        source=kind.source,
        literals="|".join(kind.needs),
        pattern=kind.pattern,
        confidence=kind.confidence,
        means=kind.what.removeprefix("that "),
        fix=fix,
    )


# One line of a kind that is a fault only in numbers tells nothing.
KERNEL_ROWS = (
    Row("loader-oom", "dataloader-worker-killed", ROOT,
        "Linux mm/oom_kill.c, torch utils/data/_utils/worker.py (it names its processes)", "pt_data_worker",
        r"(?:Killed process|oom-kill:).{0,120}\bpt_data_worker\b", confidence=0.93,
        means="the host's memory ran out, and the kernel chose a worker of the data loader", also="host-out-of-memory",
        fix="Use fewer workers (num_workers), a smaller prefetch_factor, and samples that are not held in Python "
            "lists, or ask for more memory{mem_option}"),
    *(_kernel_row(kind) for kind in KINDS if kind.least == 1),
)  # fmt: skip
