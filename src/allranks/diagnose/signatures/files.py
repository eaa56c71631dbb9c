"""Files that several nodes share, the node's storage, and hubs: races, failed mounts, downloads without an internet."""

from __future__ import annotations

from dataclasses import replace

from .row import HARMLESS, RAISED, ROOT, Row, table

TRITON = (
    "Give each node its own cache on a local disk: `export TRITON_CACHE_DIR=/tmp/$USER/triton "
    "TORCHINDUCTOR_CACHE_DIR=/tmp/$USER/inductor` on every node. Remove the shared one once"
)
EXTENSION = (
    "Give each node its own directory on a local disk: `export TORCH_EXTENSIONS_DIR=/tmp/$USER/extensions`. Or build "
    "it once before the run, on one node. Remove {path} and a `lock` file beside it"
)
CHECKPOINT = (
    "Let one rank alone rename and remove checkpoints, with a barrier behind it. With transformers a shared disk takes "
    "save_on_each_node=False, and a larger save_total_limit removes later. Where each node has a disk of its own, "
    "save_on_each_node=True"
)
HUB = (
    r"huggingface\.co|hf\.co|hf-mirror\.com|github\.com|githubusercontent\.com|pypi\.org|pythonhosted\.org|"
    r"download\.pytorch\.org|blob\.core\.windows\.net|modelscope\.c\w|wandb\.ai|mlflow|storage\.googleapis\.com"
)
_HUB_NEEDS = (
    "huggingface.co|hf.co|hf-mirror.com|github.com|githubusercontent.com|pypi.org|pythonhosted.org|"
    "download.pytorch.org|"
    "blob.core.windows.net|modelscope.c|wandb.ai|mlflow|storage.googleapis.com"
)
_FAILS = (
    r"Max retries exceeded|[Nn]etwork is unreachable|[Nn]ame or service not known|[Cc]ould not resolve|"
    r"Failed to resolve|"
    r"[Cc]onnection (?:refused|timed out|reset|aborted)|[Tt]imed out|NewConnectionError|ConnectTimeout|SSLError|"
    r"Too Many Requests|50[234] (?:Server Error|Bad Gateway|Service Unavailable)|[Tt]emporary failure"
)
GATE = (
    "Set HF_TOKEN to a token of an account that has accepted the terms of the model on its page, on every node. Or "
    "load it once with that account (`hf download`), and run with HF_HUB_OFFLINE=1"
)
ROWS = tuple(replace(row, scope=RAISED) for row in (
    Row("cache-race", "shared-file-race", ROOT,
        "Triton runtime/cache.py (tmp.pid_ and os.replace), torch inductor codecache.py",
        "tmp.pid_|tale |No such file|busy|too short|cannot stat shared",
        r"\btmp\.pid_\d+|No such file or directory: '[^']*(?:triton|inductor|cache)[^']*\.(?:cubin|hsaco|ptx|ttg?ir|"
        r"llir|amdgcn|spv)'|(?:\.triton|triton/cache|__triton_launcher|torchinductor|inductor_cache|"
        r"\.nv/ComputeCache).{0,200}(?:[Ss]tale (?:NFS )?file handle|No such file or directory|busy|file too short|"
        r"cannot stat shared)|(?:[Ss]tale (?:NFS )?file handle|No such file or directory|busy): '[^']*(?:\.triton|"
        r"triton/cache|torchinductor|inductor_cache)/",
        means="nodes share one cache of compiled kernels, and another one replaced or removed that file",
        fix=TRITON),
    Row("streaming-stale", "orphan-process", ROOT,
        "MosaicML streaming/base/shared/prefix.py: shared memory whose owner has ended",
        "Reused local dir|File exists: '/0", r"Reused local director|File exists: '/0\d{5}_\w+'", confidence=0.92,
        means="an earlier run, or another user's, has left its shared memory on this node",
        fix="End the processes of earlier runs, and remove what they left: `rm /dev/shm/0*`, or call "
            "streaming.base.util.clean_stale_shared_memory() once before the datasets are made. Give each "
            "dataset a `local` directory of its own"),
    Row("extension-race", "shared-file-race", ROOT, "torch utils/cpp_extension.py, utils/file_baton.py",
        "torch_extensions",
        "torch_extensions.{0,200}(?:file too short|[Ss]tale (?:NFS )?file handle|Text file busy|invalid ELF header)",
        confidence=0.85, means="two nodes build one extension in one directory", fix=EXTENSION),
    Row("index-race", "shared-file-race", ROOT,
        "Megatron core/datasets, datasets arrow_dataset.py: what one rank builds for all",
        "No such file or directory: '",
        r"No such file or directory: '[^']*(?:[_-](?:doc|sample|shuffle)_?(?:idx|index)\w*\.npy|index-cache/[^']*|"
        r"cache[^']*/[0-9a-f]{16,64}[^'/]*|cache-[0-9a-f]{8,32}\w*\.arrow)'", confidence=0.72,
        means="the program builds that file itself, and this node looked before it was there, or shares no such "
              "directory", also="missing-file",
        fix="Run `ls -ld {path}` on every node. Build it once on one rank, before the run, with a barrier behind it. "
            "Let all nodes share the directory (--data-cache-path of Megatron), or build it on each node's own disk"),
    Row("checkpoint-race", "shared-file-race", ROOT,
        "transformers trainer.py: tmp-checkpoint and rotation, safetensors, torch distributed/checkpoint",
        "checkpoint|global_step|rng_state_",
        r"No such file or directory: '[^']*\btmp-checkpoint-\d+|"
        r"No such file or directory: '(?:[^']*/)?rng_state_\d{1,5}\.pth'|"
        r"No such file or directory: '[^']*(?:checkpoint-|global_step)\d+[^']*/(?:rng_state|optimizer|scheduler|"
        r"trainer_state|[\w.-]*optim_states)[^']*'$|(?:\[Errno 39\] Directory not empty|"
        r"\[Errno 17\] File exists): '[^']*(?:checkpoint|global_step)[^']*'", confidence=0.72,
        means="several ranks or nodes rename or remove one checkpoint directory", also="missing-file",
        fix=CHECKPOINT),
    Row("rename-race", "shared-file-race", ROOT,
        "rename(2), unlink(2) and NFS's silly rename: another process had moved, made or removed the file",
        "No such file or directory: |Directory not empty|File exists|.nfs0|Text file busy",
        r"No such file or directory: '[^']+' -> '|\[Errno 39\] Directory not empty|\[Errno 17\] File exists|"
        r"\.nfs0[0-9a-f]{8,}|\[Errno 26\] Text file busy", confidence=0.72,
        means="several ranks or nodes make, move or remove one file", also="missing-file"),
    Row("lock-unavailable", "shared-file-race", ROOT, "flock(2), fcntl(2) on NFS and Lustre, HDF5, SQLite, filelock",
        "No locks available|rrno 37]|unable to lock file|database is locked",
        r"No locks available|\[Errno 37\]|unable to lock file|database is locked", confidence=0.85,
        means="the shared file system grants no locks, or another process holds this one",
        fix="Put what is locked on a local disk of each node (HF_DATASETS_CACHE, HF_HOME, XDG_CACHE_HOME). HDF5 reads "
            "without locks with HDF5_USE_FILE_LOCKING=FALSE, and datasets with HF_DATASETS_USE_SOFT_FILELOCK=1"),
    Row("stale-handle", "storage-error", ROOT,
        "errno 116 ESTALE, 107 ENOTCONN, 5 EIO, 121 EREMOTEIO of a mounted file system",
        "tale NFS file handle|tale file handle|rrno 116|rrno 5]|Input/output error|ransport endpoint|rrno 107]|"
        "Remote I/O error|rrno 121]",
        r"[Ss]tale (?:NFS )?file handle|\[Errno (?:116|5|107|121)\]|[Tt]ransport endpoint is not connected|"
        r"^(?:cp|ls|cat|mv|tar|stat|rsync|du|find|bash)\b.*: Input/output error|Remote I/O error", confidence=0.75,
        means="the file system below that path does not answer any more: its server, its mount or its disk failed",
        also="missing-file"),
    Row("hub-gated", "hub-unreachable", ROOT, "huggingface_hub utils/_http.py, errors.py: a gate or a token",
        "gated repo|GatedRepoError|restricted and you are not|Access to model",
        r"GatedRepoError|gated repo|Access to model \S+ is restricted|restricted and you are not in the authorized",
        confidence=0.85, means="the hub gives that model only to accounts that have accepted its terms",
        fix=GATE),
    Row("wandb-service", "hub-unreachable", ROOT, "wandb errors/errors.py, sdk/wandb_init.py, wandb_login.py",
        "wandb.errors|api_key not configured",
        r"wandb\.errors\.\S{0,40}(?:CommError|AuthenticationError)|api_key not configured", confidence=0.85,
        means="W&B did not answer this node, or knows no key",
        fix="Run with WANDB_MODE=offline (or report_to=none), and `wandb sync` later where there is internet. Else "
            "set WANDB_API_KEY on every node"),
    Row("hub-name-unknown", "missing-file", ROOT, "huggingface_hub utils/_http.py: a name that the hub does not have",
        "404 Client Error", rf"404 Client Error.*(?:{HUB})", confidence=0.85,
        means="the hub has no such model, file or revision, or shows it to its owners alone",
        fix="Correct the name or the revision, or set HF_TOKEN where it is private. Where the files are on a disk, "
            "name their directory, and set HF_HUB_OFFLINE=1"),
    *table("transformers utils/hub.py, huggingface_hub file_download.py, datasets load.py, urllib3, git, pip",
           ROOT, "hub-unreachable", [
        ("hub-texts",
         "couldn't connect to '|in the cached files|disk cache|local cache|cached path|OfflineModeIsEnabled|"
         "LocalEntryNotFoundError|ouldn't reach",
         "[Ww]e couldn't connect to 'https?://|couldn't find (?:them|it) in the cached files|"
         "cannot find the (?:requested|appropriate) (?:files|snapshot folder).{0,80}(?:disk cache|local cache|"
         "cached path)|OfflineModeIsEnabled|LocalEntryNotFoundError|[Cc]ouldn't reach (?:the Hugging Face Hub|"
         "https?://|'[^']+' on the Hub)", 0.9, "the hub did not answer this node, and its cache has not all files"),
        ("hub-failed", _HUB_NEEDS, rf"(?:{HUB})\b.*(?:{_FAILS})|(?:{_FAILS}).*(?:{HUB})\b", 0.9,
         "that site did not answer this node: on many clusters compute nodes have no internet"),
    ]),
    Row("hub-download", "", HARMLESS, "torch hub.py, torchvision, pip: what is fetched over the internet",
        "Downloading: \"http", r"^Downloading: \"https?://(?P<host>[\w.-]+)"),
))  # fmt: skip
OFFLINE = Row(
    "hub-name", "hub-unreachable", role=ROOT, source="torch hub.py, urllib: a site that was to be downloaded from",
    literals="", pattern=r"(?!)",
    means="the site could not be reached for a download: on many clusters compute nodes have no internet",
)  # fmt: skip
