"""The program: Python's exceptions by what they say, native crashes, checkpoints, files, packages, configurations."""

from __future__ import annotations

from .row import CASCADE, RAISED, ROOT, SYMPTOM, WEAK, Row, Scope, table
from .vocabulary import OPTIONS, SAME_MODEL

_IMPORT = "CPython: Python/ceval.c (import_from)"
PROJECT = (
    "Compare the project's code with `git rev-parse HEAD && git status --short` on every node. "
    "Bring all nodes to one commit, or ship one tree with `allranks run --sync`"
)
LOST_ENVIRONMENT = (
    "Let the command of --wrap pass the environment on. Apptainer does without --cleanenv, sudo with -E, and `docker "
    "run` passes no variable without --env"
)
PROCESSES = (
    "Set OMP_NUM_THREADS and use fewer DataLoader workers, or raise the limit: `ulimit -u` of the user, "
    "`--pids-limit` of Docker, TasksMax of a systemd service"
)
ROWS = (
    Row("lost-environment", "environment-mismatch", ROOT, "agent/runner.py, LOST_ENVIRONMENT",
        "starts the program without its environment",
        "RANK is not set: the command of --wrap starts the program without its environment", confidence=0.97,
        means="the command of --wrap starts the program without its environment", fix=LOST_ENVIRONMENT),
    *table("DeepSpeed runtime/config.py, runtime/zero/config.py, transformers integrations/deepspeed.py", ROOT,
           "deepspeed-config", [
        ("ds-batch", "Check batch related parameters|train_batch_size|has to be greater than 0",
         r"(?:Train batch size|Micro batch size per gpu|Gradient accumulation steps): \S+ has to be greater than 0|"
         r"Check batch related parameters|train_batch_size is not equal to", 0.95),
        ("ds-config", "TrainingArguments|validation error|DeepSpeed|deepspeed|ds_config|Elasticity",
         r"DeepSpeedConfigError|Elasticity(?:Config)?Error|validation errors? for (?:DeepSpeed\w*|FP16Config|"
         r"BF16Config|\w*Zero\w*Config)|mismatch TrainingArguments|DeepSpeed config values that|"
         r"[Ee]xpected a string path to an existing deepspeed config|deepspeed.{0,40}config\S* (?:is invalid|"
         r"not valid|error)|ds_config.{0,60}(?:missing|invalid|not)|is not a supported DeepSpeed|"
         r"DeepSpeed (?:does not|doesn't) (?:support|currently)", 0.88),
        ("ds-zero", "zero stage|ZeRO|zero_allow|zero_force",
         r"zero stage \d requires|ZeRO.{0,80}(?:not supported|is not compatible|unsupported|incompatible)|"
         r"zero_(?:allow_untested_optimizer|force_ds_cpu_optimizer)|"
         r"You are using ZeRO-Offload with a client provided optimizer|untested ZeRO Optimizer", 0.85),
    ]),
    *table("accelerate commands/launch.py, commands/config, utils/launch.py", ROOT, "accelerate-config", [
        ("accelerate-config",
         "machine_rank|AcceleratorState|You can only use one of|ccelerate|main_process_ip|gpu_ids|num_machines|"
         "config file|mixed_precision|GPU ids",
         r"config file at \S+ had unknown keys|(?:Please|need to) (?:run|use) `accelerate config`|"
         r"Less than two GPU ids were configured|`--?-?(?:main_process_ip|gpu_ids|num_machines|"
         r"machine_rank)`.{0,80}(?:required|must|need|specify|missing)|You can only use one of `--cpu`|"
         r"accelerate.{0,60}(?:config|yaml).{0,60}(?:invalid|unknown|not valid)|Unknown mixed_precision mode|"
         r"AcceleratorState.{0,60}(?:initialized|has no attribute)|accelerate config.{0,40}not", 0.85),
        ("fsdp-layer", "transformer layer class", "Could not find the transformer layer class", 0.75),
    ]),
    Row("circular-import", "program-exception", ROOT, _IMPORT, "partially initialized module",
        "ImportError: cannot import name '[^']+' from partially initialized module", confidence=0.8,
        means="the program's modules import each other in a circle", scope=RAISED),
    # A file of the project: not below the interpreter's own directories.
    Row("project-import", "environment-mismatch", ROOT, _IMPORT, "cannot import name",
        r"ImportError: cannot import name '[^']+' from '[^']+' \((?P<file>/(?:(?!(?:site|dist)-packages/|"
        r"lib(?:64)?/python\d)[^)]){1,400})\)", confidence=0.75,
        means="that file of the project has no such name on this node", scope=RAISED, fix=PROJECT),
    Row("other-program", "environment-mismatch", WEAK, "glibc elf/dl-lookup.c, of a program that is not Python",
        "symbol lookup error", r"^(?!\S*python)\S+: symbol lookup error: .*undefined symbol: ", confidence=0.4,
        means="a program beside the ranks finds another library than it was built with"),
    Row("other-apex", "environment-mismatch", ROOT, "PyPI's apex 0.9.10dev, another package than NVIDIA's",
        "UnencryptedCookieSessionFactoryConfig", "name 'UnencryptedCookieSessionFactoryConfig'", confidence=0.95,
        means="the package apex of PyPI is another one than NVIDIA's", scope=RAISED,
        fix="Run `python -m pip uninstall apex` on every node, and build NVIDIA's apex from its repository, or "
            "use torch.amp instead"),
    Row("torch-symbol", "environment-mismatch", ROOT,
        "the dynamic linker, of an extension that was built for another torch", "undefined symbol: _ZN",
        r"(?:^|/)(?P<module>[A-Za-z]\w{0,60})(?:\.cpython-[\w-]{1,40})?\.so: undefined symbol: _ZNK?\d?(?:3c10|2at|"
        r"5torch)", means="that extension was built for another torch", scope=RAISED,
        fix="Build it again for this torch, on every node: `python -m pip install --force-reinstall --no-deps "
            "--no-cache-dir --no-build-isolation PACKAGE`, such as flash-attn for flash_attn_2_cuda. Here it is "
            "{module}"),
    Row("library-absent", "environment-mismatch", ROOT, "the dynamic linker, glibc elf/dl-load.c",
        "cannot open shared object file",
        r"(?P<lib>lib[\w.+-]{1,60}): cannot open shared object file: No such file|"
        r"(?P<lib2>lib[\w.+-]{1,60}): cannot open shared object file$", confidence=0.85,
        means="that library is not found on this node", scope=RAISED,
        fix="Look for it with `find / -name {lib}` on that node. Put its directory into LD_LIBRARY_PATH, alike "
            "on all nodes, or install the package that has it{vendor_script}"),
    Row("linker", "environment-mismatch", ROOT,
        "GNU ld, clang's lld: a library of the CUDA toolkit or of the system that is not there",
        "find -l|find library -l", r"(?:cannot|unable to) find (?:library )?-l(?P<lib>[\w.+-]{1,60})",
        means="the extension cannot be linked here",
        fix="Install lib{lib} on that node (libcurand, libcudart and others are of the CUDA toolkit), and name "
            "its directory: `export LIBRARY_PATH=$CUDA_HOME/lib64:$LIBRARY_PATH`. Remove "
            "~/.cache/torch_extensions after it"),
    Row("compiler", "environment-mismatch", ROOT,
        "gcc, nvcc, hipcc, ptxas, setuptools, Triton runtime/build.py: what is compiled on the node",
        "fatal error: |nvcc fatal|ptxas fatal|Command '['|error: command '|libcuda.so cannot|subprocess-exited-with|"
        "ailed building wheel|ailed to build",
        r"fatal error: \S{1,200}\.h(?:pp)?: No such file|(?:nvcc|ptxas) fatal +:|libcuda\.so cannot found|"
        r"(?:Command '\[|error: command )'(?:which', ')?(?:/\S{1,200}/)?(?:gcc|g\+\+|cc|c\+\+|clang\S*|nvcc|hipcc|"
        r"ninja|cmake|ptxas)\S*'|subprocess-exited-with-error|Failed building wheel|Failed to build installable wheels",
        confidence=0.75, means="a kernel or an extension could not be compiled here", scope=RAISED,
        fix="Read the compiler's own lines above it. Python.h is of python3-dev, the CUDA headers and nvcc of a "
            "toolkit of torch's CUDA version (`nvcc --version`), libcuda of the driver (`ldconfig -p | grep "
            "libcuda`). A wheel that is built for this torch needs no compiler"),
    Row("ninja", "environment-mismatch", ROOT, "torch utils/cpp_extension.py verify_ninja_availability",
        "Ninja is required", r"Ninja is required to load C\+\+ extensions",
        means="the build tool of extensions is not installed there, or not on PATH", scope=RAISED,
        fix="Run `python -m pip install ninja` on {node} with the interpreter that runs the training, and keep "
            "its bin directory on PATH"),
    Row("pip-conflict", "environment-mismatch", ROOT, "pip _internal/resolution/resolvelib/factory.py, uv resolver",
        "conflicting dependencies|ResolutionImpossible|No matching distribution|that satisfies the requirement|"
        "No solution found when resolving",
        "these package versions have conflicting dependencies|ResolutionImpossible|No matching distribution found for|"
        "Could not find a version that satisfies the requirement|No solution found when resolving", confidence=0.92,
        means="the packages that are asked for do not fit each other, this Python or this machine",
        fix="Install torch of one version first, from its own index (`--index-url`, `--extra-index-url`), then the "
            "others without another torch: `python -m pip install --no-deps`. Their requirements name the version"),
    Row("module-hollow", "environment-mismatch", ROOT,
        "CPython Objects/moduleobject.c, Python/ceval.c: a package without what it must have",
        "module '|unknown location",
        r"AttributeError: (?:partially initialized )?module '(?P<module>(?!torch')[A-Za-z]\w*)[\w.]*' has no attr"
        r"ibute|cannot import name '\w+' from '(?P<module2>\w+)[\w.]*' \(unknown location\)", confidence=0.75,
        means="the installed package has another version than the program expects, or a directory of its name "
              "hides it", scope=RAISED,
        fix="Run `python -c 'import {module}; print({module}.__path__)'` on every node, where the ranks start. "
            "Rename what hides the package, else install the version that the program names: `python -m pip "
            "install '{module}==VERSION'`"),
    Row("library-unopened", "environment-mismatch", ROOT,
        "dlopen(3) in NCCL, Triton and others: a library that is not found",
        "ailed to open lib|ailed to load lib|ould not load lib",
        r"(?:[Ff]ailed to (?:open|load)|[Cc]ould not load) (?:library |lib)?(?P<lib>lib[\w+-]{1,60}\.so[\w.]{0,20})",
        confidence=0.8, means="that library is not found on this node", scope=RAISED,
        fix="Look for it with `find / -name '{lib}*'` on that node, and put its directory into LD_LIBRARY_PATH, alike "
            "on all nodes. A container gets the driver's libraries from its runtime (NVIDIA_DRIVER_CAPABILITIES=all)"),
    Row("vllm-one-node", "cuda-device-unavailable", ROOT,
        "vLLM executor/uniproc_executor.py, v1/worker: more ranks than this node has devices",
        "max local gpu count", r"world_size \(\d+\) is less than than max local gpu count", confidence=0.92,
        means="vLLM starts all ranks on this node, which has fewer devices", scope=RAISED,
        fix="Let Ray start them on several nodes: `ray start` on each, then `--distributed-executor-backend "
            "ray`. Or ask for no more than `{list}` shows (--tensor-parallel-size, --pipeline-parallel-size)"),
    Row("vllm-nccl", "environment-mismatch", ROOT, "vLLM distributed/device_communicators/pynccl_wrapper.py",
        "Failed to load NCCL library", r"Failed to load NCCL library from (?P<path>\S{1,300}?)\.? ",
        confidence=0.88, means="that file is absent, damaged, or needs a library that is", scope=RAISED,
        fix="Run `ldd {path}` on {node}. Unset VLLM_NCCL_SO_PATH and LD_LIBRARY_PATH, or name the libnccl.so.2 "
            "that torch brings: `find / -name 'libnccl.so*'`"),
    Row("gpu-architecture", "environment-mismatch", ROOT,
        "aiter, FlashAttention, vLLM: a kernel that is written for other GPUs",
        "requires ", r"requires (?:GPUs? with |a GPU with )?(?:gfx\d|sm_?\d\d|compute capability)", confidence=0.8,
        means="this GPU is none of those that the kernel was written for", scope=RAISED,
        fix="Choose another kernel, such as another attention backend (VLLM_ATTENTION_BACKEND, "
            "--attention-backend), or a release of that library that knows this GPU: `{gpu_arch}`"),
    Row("architecture", "environment-mismatch", ROOT,
        "vLLM, SGLang, transformers: an architecture that this version does not know",
        "are not supported for now|does not recognize this architecture",
        "Model architectures .{0,200} are not supported for now|does not recognize this architecture",
        confidence=0.78, means="this version of the library is older than the model", scope=RAISED,
        fix="Run `python -m pip install -U transformers vllm` (of these the one that says so) on every node, or "
            "use an engine that knows the model"),
    Row("version-range", "environment-mismatch", ROOT,
        "transformers utils/versions.py, packaging: a range that the installed version is not in", "equires ",
        r"[Rr]equires (?P<module>[A-Za-z][\w.-]{0,60})(?: version)? ?(?P<range>[<>=!~]=? ?[\w.,<>=!~ ]{1,60}?),? "
        r"but (?:got|found|have)", confidence=0.8, means="the installed version is outside the range that is wanted",
        scope=RAISED, fix="Run `python -m pip install '{module}{range}'` on every node"),
    *table("CPython, importlib, packaging names and versions", ROOT, "environment-mismatch", [
        ("cannot-import-name", "cannot import name", "ImportError: cannot import name", 0.75,
         "the installed package has another version than the program needs"),
        ("shared-object",
         "DLL load failed|cannot open shared object|undefined symbol|version `|GLIBC|CXXABI|libstdc++|ELF |"
         "static TLS block|link time reference|as shared object requires|Unable to load any of {lib",
         r"wrong ELF class|invalid ELF header|memory in static TLS block|with link time reference|"
         r"enable executable stack as shared object requires|Unable to load any of \{lib|"
         r"cannot open shared object file|undefined symbol: |version `(?:GLIBC|GLIBCXX|CXXABI|FABRIC|NCCL|"
         r"OPENSSL|IBVERBS)_?\S*' not found|DLL load failed", 0.8),
    ], scope=RAISED),
    Row("device-package", "environment-mismatch", ROOT,
        "torch/__init__.py, c10 Device.cpp: the package that brings a device was not imported",
        "at start of device string|has no attribute 'npu'|has no attribute 'hpu'",
        "at start of device string: (?P<device>npu|hpu|xla|xpu)|module 'torch' has no attribute '(?P<device2>npu|hpu)'",
        confidence=0.92, means="no package has brought that device to torch in this process", scope=RAISED,
        fix="Import the package of the accelerator before its device is used, in every process. Such a package must "
            "be of the same release as torch"),
    *table("CPython, importlib, packaging names and versions", ROOT, "environment-mismatch", [
        ("binary-abi",
         "compiled against|compiled  against|VERSION_MISMATCH|multiarray failed|binary incompatibility|compiled "
         "using NumPy|size changed|cuDNN version|CuDNN library|compiled with different CUDA|mismatches the "
         "version|does not match the version",
         r"runtime CuDNN library: |binary incompatibility|compiled using NumPy 1|cuDNN version incompatibility|"
         r"compiled with different CUDA|CUDA version \(\S+\) mismatches the version|"
         r"does not match the version torch was compiled.*unable to compile|compiled  ?against|"
         r"CUDNN_STATUS_\w*VERSION_MISMATCH|multiarray failed to import", 0.85),
        ("requires-version",
         "or newer|or later|or higher|is required|equires|version must be|VersionConflict|not supported for now|"
         "does not recognize this architecture|incompatible|Unsupported|unsupported",
         r"is required for a normal functioning of this module, but found|VersionConflict|"
         r"[Rr]equires (?:a different )?[Pp]ython|Python .{0,20}(?:is required|or (?:newer|later|higher))|"
         r"requires \w+ ?[<>=]=? ?[\d.]+,? but|(?:requires PyTorch|version must be) ?>=? ?\d|"
         r"incompatible (?:version|package)s?\b|unsupported (?:pickle protocol|(?:Python|torch) version)", 0.78),
        ("cuda-home", "CUDA_HOME|ninja|Error building extension|compiling|Unable to JIT load|C compiler",
         "CUDA_HOME (?:does not exist|environment variable is not set)|Error building extension|"
         "Unable to JIT load the|Failed to find C compiler|Error compiling objects for extension", 0.75),
        ("illegal-hardware", "llegal instruction", r"\bIllegal instruction\b", 0.6,
         "a library was built for another processor", "segfault-native"),
        ("module-attribute", "'_OpNamespace' |AttributeError: module|' has no attribute '|object has no attribute '_",
         r"AttributeError: (?:module '[\w.]+' has no attribute|'_OpNamespace' )|\bmodule '[\w.]+' has no attribute '|"
         r"'\w*(?:DistributedDataParallel|Tensor|Parameter|DataLoader\w*|Optimizer|"
         r"ProcessGroup\w*)' object has no attribute '_[a-z]", 0.68,
         "the installed package has another version than the program expects"),
    ]),
    Row("version-apart", "environment-mismatch", ROOT, "Ray python/ray/_private/utils.py check_version_info",
        "ersion mismatch", "Version mismatch: The cluster was started with", confidence=0.92,
        means="this node has another version of Ray or Python than the cluster", scope=RAISED,
        fix="Use one version of Ray and of Python on all nodes: `python -m pip install 'ray==VERSION'`, or one image. "
            "Where that cluster is not the one meant, end it with `ray stop --force`, or unset RAY_ADDRESS"),
    Row("torchvision-operator", "environment-mismatch", ROOT, "torchvision and torch of two releases",
        "torchvision::", r"operator torchvision::\w+ does not exist|Could not run 'torchvision::", confidence=0.93,
        means="torchvision was built for another torch", scope=RAISED,
        fix="Install both of one release: `python -m pip install -U torch torchvision` on every node"),
    Row("cublas-other", "environment-mismatch", ROOT,
        "cuBLAS: another libcublas than the one that torch was built with",
        "CUBLAS_STATUS_INVALID_VALUE", "CUBLAS_STATUS_INVALID_VALUE when calling", confidence=0.6,
        means="in most cases LD_LIBRARY_PATH holds another libcublas", also="cuda-kernel-fault", scope=RAISED,
        fix="Run it once with `unset LD_LIBRARY_PATH`, and look with `python -m pip list | grep cublas`: it "
            "must be the one that this torch asks for"),
    Row("cuda-forked", "program-exception", ROOT, "torch cuda/__init__.py, xpu/__init__.py _lazy_init",
        "in forked subprocess", r"Cannot re-initialize \w+ in forked subprocess", confidence=0.95,
        means="a process that had used the device was forked", scope=RAISED,
        fix="Start the workers with spawn: VLLM_WORKER_MULTIPROC_METHOD=spawn for vLLM, "
            "multiprocessing_context='spawn' for a DataLoader. Or touch no device before that"),
    Row("expandable-pool", "environment-mismatch", ROOT, "vLLM device_allocator/cumem.py",
        "xpandable segments", "Expandable segments are not compatible with memory pool",
        means="vLLM's sleep mode needs another allocator than the variable asks for", scope=RAISED,
        fix="Unset PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF (expandable_segments:True) for these processes"),
    Row("unsupported-kernel", "environment-mismatch", ROOT,
        "TransformerEngine common/, cuDNN's frontend, cuBLAS: no kernel for these shapes and types on this GPU",
        "in function nvte_|_STATUS_NOT_SUPPORTED|valid execution plan|suitable cuBLAS",
        r"in function nvte_\w{1,60}: |CU(?:BLAS|DNN)_STATUS_NOT_SUPPORTED|No valid execution plans?|suitable cuBLAS",
        confidence=0.6, means="this release of the library has no kernel for that call on this GPU",
        also="program-exception", scope=RAISED),
    *table("CPython importlib, importlib.metadata, transformers utils/import_utils.py", ROOT, "missing-module", [
        ("no-module", "No module named|ModuleNotFoundError",
         r"No module named ['\"]?(?P<module>[\w.-]+)|ModuleNotFoundError"),
        ("not-installed",
         "not installed|working triton|PackageNotFoundError|DistributionNotFound|but it was not found|pip "
         "install|You need to have",
         r"PackageNotFoundError|DistributionNotFound|Error: .{0,80}(?:is|are) not installed|"
         r"launcher '\w+' not installed|Cannot find a working triton installation|"
         r"requires the \S+ library but it was not found|ImportError: .{0,200}pip install|"
         r"seems to be not installed|You need to have \w[\w ]* installed", 0.85),
    ], scope=RAISED),
    Row("no-space", "disk-full", ROOT, "errno 28 ENOSPC, 122 EDQUOT, torch inline_container.cc (writer)",
        "o space left|enough disk space|rrno 28|os error 28|StorageFull|ENOSPC|quota exceeded|rrno 122|EDQUOT|"
        "Quota exceeded|No queda espacio|Aucun espace disponible|kein Speicherplatz|设备上没有空间",
        r"No queda espacio en el dispositivo|Aucun espace disponible sur le périphérique|设备上没有空间|"
        r"kein Speicherplatz mehr verfügbar|[Nn]o space left on device|Not enough disk space|\(os error 28\)|"
        r"StorageFull|\[?Errno 28\]?|ENOSPC|[Dd]isk quota exceeded|\[Errno 122\]|EDQUOT|"
        r"[Qq]uota exceeded(?!.*\bpods?\b)", scope=RAISED | Scope.AGENT),
    Row("state-dict", "checkpoint-unreadable", ROOT,
        "torch serialization.py, inline_container.cc (reader), nn/modules/module.py, safetensors, DeepSpeed",
        "loading state_dict|size mismatch for|key(s) in state_dict|copying a param",
        r"loading state_dict|size mismatch for |(?:Missing|Unexpected) key\(s\) in state_dict|"
        r"copying a param with shape", scope=RAISED, fix=SAME_MODEL),
    Row("zero-world", "checkpoint-unreadable", ROOT, "DeepSpeed runtime/engine.py _load_zero_checkpoint",
        "used a DP world size", "checkpoint being loaded used a DP world size", confidence=0.95,
        means="it is in as many parts as ranks have saved it", scope=RAISED,
        fix="Start as many ranks as have saved it. Or convert it with DeepSpeed's ds_to_universal.py and load it with "
            "`load_universal`. `zero_to_fp32.py`, which lies in it, gives the weights without the optimizer"),
    Row("weights-only", "checkpoint-unreadable", ROOT, "torch serialization.py: torch 2.6 and later load weights alone",
        "Weights only load failed|allowed global by default",
        "Weights only load failed|was not an allowed global by default", confidence=0.95,
        means="it holds other objects too", scope=RAISED,
        fix="Where you trust the file, load it with torch.load(…, weights_only=False), or set "
            "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1. torch.serialization.add_safe_globals allows single classes"),
    *table("torch distributed/checkpoint, safetensors, DeepSpeed, torch serialization.py, inline_container.cc "
           "(reader), nn/modules/module.py, safetensors, DeepSpeed", ROOT, "checkpoint-unreadable", [
        # torch distributed/checkpoint: default_planner.py, filesystem.py, planner_helpers.py
        ("sharded-state", "mismatch sizes torch|Size mismatch between saved|Invalid checkpoint metadata",
         r"mismatch sizes torch\.Size|Size mismatch between saved .{0,60}and current|Invalid checkpoint metadata for"),
        ("archive",
         "PytorchStreamReader|central directory|invalid load key|pickle data was truncated|Invalid magic number|"
         "UnpicklingError|unexpected EOF|file might be corrupted|legacy loading|load weights|storage has wrong|"
         "MetadataIncompleteBuffer|HeaderTooLarge|HeaderTooSmall|InvalidHeader|SafetensorError|not a ZIP|not a zip",
         "PytorchStreamReader failed|failed finding central directory|invalid load key|pickle data was truncated|"
         "Invalid magic number; corrupt|UnpicklingError|Unable to load weights from (?:pytorch )?checkpoint|"
         "unexpected EOF, expected|file might be corrupted|MetadataIncompleteBuffer|"
         "storage has wrong (?:byte )?size: expected|HeaderToo(?:Large|Small)|InvalidHeader|SafetensorError|"
         "not a (?:ZIP|zip) (?:archive|file)"),
        ("optimizer-groups", "loaded state dict|parameter group",
         "loaded state dict (?:has a different number|contains a parameter group)"),
    ], scope=RAISED),
    *table("torch serialization.py, inline_container.cc (reader), nn/modules/module.py, safetensors, DeepSpeed",
           ROOT, "checkpoint-unreadable", [
        ("ckpt-world", "heckpoint",
         "is not a distributed checkpoint|(?i:checkpoint(?!ing).{0,60}(?:corrupt|mismatch|incompatible|"
         "incomplete|does not match|truncated|different (?:world size|number of)))|"
         "following zero checkpoints paths are missing|(?i:(?:mismatch|corrupt|incompatible|"
         "incomplete).{0,60}checkpoint(?!ing))|Missing key in checkpoint state_dict", 0.85),
        ("empty-pickle", "Ran out of input", "EOFError: Ran out of input", 0.75, "the file is empty or cut off"),
    ]),
    Row("stream-writer", "disk-full", ROOT, "errno 28 ENOSPC, 122 EDQUOT, torch inline_container.cc (writer)",
        "PytorchStreamWriter|basic_ios::clear|unexpected pos|file write failed|write(): fd",
        r"\bwrite\(\): fd \d+ failed with|basic_ios::clear: iostream error|PytorchStreamWriter failed writing|"
        r"unexpected pos \d+ vs \d+|file write failed", confidence=0.78,
        means="torch could not write the whole file: the disk or the quota is full, in almost all cases", scope=RAISED),
    Row("disk-pressure", "disk-full", ROOT, "errno 28 ENOSPC, 122 EDQUOT, torch inline_container.cc (writer)",
        "ephemeral|ephemeral-storage|DiskPressure|disk full|disk is full|Disk full|EmptyDir|FreeDiskSpaceFailed|"
        "full, available space",
        r"ephemeral local storage usage exceeds|Usage of EmptyDir volume .* exceeds|FreeDiskSpaceFailed|"
        r"is over \d+% full, available space|low on resource: ephemeral-storage|DiskPressure|"
        r"ephemeral.storage.{0,40}exceed|(?i:disk (?:is )?full)", confidence=0.85),
    Row("open-files", "too-many-open-files", ROOT, "errno 24 EMFILE, 23 ENFILE, torch multiprocessing",
        "oo many open files|Too many open files|rrno 24|items of ancdata|EMFILE|rrno 23|system limit exceeded on "
        "number",
        r"system limit exceeded on number of (?:files|pipes)|[Tt]oo many open files|\[Errno 2[34]\]|"
        r"received \d+ items of ancdata|EMFILE", confidence=0.92, scope=RAISED | Scope.AGENT),
    Row("shared-name", "dataloader-worker-killed", ROOT,
        "torch multiprocessing/reductions.py rebuild_storage_filename, shared by file names",
        "unable to open shared memory object",
        r"unable to open shared memory object </torch_\w+> .*No such file or directory",
        means="the worker that had put a tensor there has ended, or removed it", scope=RAISED,
        fix="Share by descriptors: torch.multiprocessing.set_sharing_strategy('file_descriptor'), with `ulimit "
            "-n 65536`. Or use fewer workers"),
    Row("loader-bus", "dataloader-worker-killed", ROOT, "torch utils/data/dataloader.py, csrc/DataLoader.cpp",
        "us error",
        r"DataLoader worker (?:\(pid(?:\(s\))? (?P<pid>\d+)[^)]*\).{0,40})?is killed by signal: Bus error|"
        r"Unexpected bus error encountered in worker", confidence=0.88, also="shm-too-small", scope=RAISED,
        fix="Run `df -h /dev/shm` on {node}. A bus error says that it was full. Containers take `--shm-size=16g` or "
            "`--ipc=host`, pods an emptyDir with `medium: Memory` there. Or use fewer workers"),
    Row("loader-worker", "dataloader-worker-killed", ROOT, "torch utils/data/dataloader.py, csrc/DataLoader.cpp",
        "encountered in worker|DataLoader|Pin memory thread",
        r"DataLoader worker (?:\(pid(?:\(s\))? (?P<pid>\d+)[^)]*\).{0,40})?(?:exited unexpectedly|"
        r"is killed by signal(?!: Bus))|Unexpected (?:segmentation fault|"
        r"floating-point exception) encountered in worker|DataLoader timed out after|"
        r"Pin memory thread exited unexpectedly", confidence=0.88, also="shm-too-small", scope=RAISED),
    *table("torch c10/core/CPUAllocator.cpp, CPython MemoryError, errno 12 ENOMEM, C++ bad_alloc", ROOT,
           "host-out-of-memory", [
        ("cpu-memory",
         "annot allocate memory|DefaultCPUAllocator|rrno 12|MemoryError|Failed to malloc|returned null|bad_alloc|"
         "Cannot allocate memory",
         r"DefaultCPUAllocator: (?:can't|not enough)|\[Errno 12\]|\b(?:_Array|Arrow)?MemoryError\b|"
         r"Failed to malloc \d+ bytes|malloc\(size=\d+\) returned null|std::bad_alloc|[Cc]annot allocate memory", 0.75),
        ("cpu-memalign", "posix_memalign", r"posix_memalign\(.{0,60}== 0\. 12 vs 0", 0.75,
         "this machine had no memory left for a tensor"),
    ], scope=RAISED | Scope.AGENT),
    Row("local-rank", "bad-launch-arguments", ROOT,
        "argparse, click, typer, hydra, torch/distributed/run.py what a parser refuses",
        "local-rank|local_rank", "unrecognized arguments: .*--local[-_]rank", confidence=0.95,
        means="the launcher passes its rank as an option, which the script does not know",
        fix="Read LOCAL_RANK from the environment, and start with `torchrun`, which passes no such option. Or "
            "let the parser take both --local-rank and --local_rank"),
    Row("argument-required", "bad-launch-arguments", ROOT,
        "argparse, click, typer, hydra, torch/distributed/run.py what a parser refuses",
        "error: ", "error: (?:the following arguments are required|one of the arguments)", confidence=0.93,
        fix="Give what the message names, behind the name of the script: what stands before it is the launcher's"),
    *table("argparse, click, typer, hydra, torch/distributed/run.py what a parser refuses", ROOT,
           "bad-launch-arguments", [
        ("argparse", "error: ",
         r"error: (?:unrecognized arguments|argument \S+.{0,80}(?:invalid|expected|not allowed|ignored|conflict)|"
         r"ambiguous option|invalid choice)", 0.93),
        ("argument-list", "Argument list too long", "Argument list too long", 0.85,
         "the arguments and the environment together are longer than the kernel allows"),
        ("shell-variable", "unbound variable", r": line \d+: \w+: unbound variable", 0.75,
         "the script expects a variable that its caller did not set"),
        ("ssh-config", "onfiguration option", r": line \d+: Bad configuration option|Bad configuration option: "),
        ("mpi-arguments", "attempt to run as root|job failed to map|rcmd type",
         r"detected an attempt to run as root|^Your job failed to map|pdsh@\S+ Unknown rcmd type", 0.85),
        ("options",
         "nexpected extra argument|No such option|no such option|unexpected extra argument|Missing argument|"
         "Missing option|Invalid value for|unrecognized option|invalid option|illegal option",
         "[Nn]o such option|[Uu]nexpected extra argument|Missing (?:argument|option)|Invalid value for '|"
         "unrecognized option|(?:invalid|illegal) option -- ", 0.85),
        ("rendezvous-endpoint", "the rendezvous endpoint",
         "The (?:hostname|port number) of the rendezvous endpoint '[^']*' must be"),
        ("nproc", "nsupported nproc|nproc_per_node|enough slots|nnodes|rdzv|No slot",
         r"Unsupported nproc_per_node|nproc_per_node.{0,40}(?:invalid|must)|not enough slots available|(?:nnodes|"
         r"rdzv).{0,60}(?:invalid|must be|required|malformed)|No slot '?\d+'? specified", 0.85),
        ("hydra",
         "MissingMandatoryValue|HfArgumentParser|Could not override|not in struct|LexerNoViableAlt|Unrecognized "
         "arguments|are not used by the HfArgumentParser|ConfigCompositionException",
         r"MissingMandatoryValue|Could not override '|Key '\S+' is not in struct|LexerNoViableAlt|"
         r"Unrecognized arguments|not used by the HfArgumentParser", 0.8),
    ],
        fix="Remove the option or argument that the message names, or write it as --help of launcher and script "
            "of these versions has it. `allranks run` gives the ranks their environment"),
    *table("Megatron arguments.py, vLLM config, verl workers: options that do not fit each other", ROOT,
           "bad-launch-arguments", [
        ("not-divisible", "divisible", "(?i)divisible by .{0,60}(?:parallel|possible batch size)", 0.65),
        ("config-invalid", "validation error", r"validation errors? for \w*(?:Config|Args|Arguments|Settings)\b",
         0.6, "the program refuses its configuration"),
        ("option-values", "max_model_len|Please set at least one of '",
         "User-specified max_model_len .* is greater than|Please set at least one of '", 0.85),
    ], scope=RAISED, fix=OPTIONS),
    Row("line-continuation", "bad-launch-arguments", WEAK, "sh, bash: an option that stands alone on its line",
        ": command not found", r"(?<![\w-])--?[A-Za-z][\w-]*: command not found", confidence=0.5,
        means="the backslash at the end of the line before is missing, or a blank follows it"),
    Row("no-script", "remote-path-missing", ROOT,
        "CPython main.c, sh, bash, env, execvp a program or directory that the node has not",
        "can't open file|__main__' module|can't find",
        r"can't open file '?(?P<path>[^']+)'?: \[Errno 2\]|can't find '__main__' module", confidence=0.92),
    Row("no-tool", "remote-path-missing", ROOT, "CPython subprocess.py: a program that a library starts",
        "No such file or directory: '",
        r"No such file or directory: '(?P<tool>ldconfig|nvcc|hipcc|gcc|g\+\+|c\+\+|cc|ninja|git|ffmpeg|ip|ssh|srun|"
        r"scontrol|sinfo|mpirun|nvidia-smi|rocm-smi|rocminfo|npu-smi|hl-smi)'$", confidence=0.92,
        means="that program is not there, or not on PATH", scope=RAISED,
        fix="Install {tool} on {node}, or put its directory on PATH there (/sbin and /usr/sbin hold ldconfig and ip)"),
    Row("no-orted", "remote-path-missing", ROOT, "Open MPI plm_rsh: its daemon orted, of PRRTE prted",
        "orted: |prted: ", r"\b(?:orted|prted): (?:command )?not found", confidence=0.93,
        means="mpirun starts its daemon there by ssh, and that shell does not find it",
        fix="Run `mpirun --prefix DIRECTORY-OF-MPI …`, with the same Open MPI on every node. Or set PATH and "
            "LD_LIBRARY_PATH in ~/.bashrc above the lines that leave shells which are not interactive"),
    *table("CPython main.c, sh, bash, env, execvp a program or directory that the node has not", ROOT,
           "remote-path-missing", [
        ("no-command", "command not found|: not found|executable file not found|No such file|cannot execute",
         r"(?<![\w./+-])[\w./+-]+: command not found|sh: (?:line )?\d+: \S+: not found|"
         r"executable file not found in \$?PATH|(?:bash|sh|zsh|env|cd|nohup|srun|exec|execve\(\)|execvp|tcsh|csh|"
         r"time|timeout|numactl|su)\b[^:]*: .{0,200}No such file or directory|(?:execve|execvp|"
         r"exec)\b.{0,120}No such file|cannot execute: required file not found", 0.88),
        ("chdir", "chdir|change directory|change to directory|couldn't chdir|chdir to|working directory|No such file",
         r"couldn't chdir to|[Cc]an(?:'t|not) change (?:to )?(?:working )?directory|chdir\b.{0,80}(?:No such|fail)|"
         r"working directory .{0,80}(?:does not exist|not found)", 0.92),
        ("mpirun-executable", "executable",
         r"(?:could not|unable to) (?:find|access|locate|launch).{0,60}(?:specified )?executable|"
         r"could not access\s+or execute an executable", 0.88),
    ]),
    Row("permission", "permission-denied", ROOT, "errno 13 EACCES, 1 EPERM, 30 EROFS, huggingface_hub",
        "rrno 13|PermissionError|ermission denied|rrno 30|Read-only file system|rrno 1]|Operation not permitted|"
        "Insufficient Permissions|EACCES|rrno: 13|Permiso denegado|Permission non accord|Keine Berechtigung|权限不够",
        r"PermissionError|\[Errno (?:13|1|30)\]|\bEACCES\b|errno: 13 - |(?:: |"
        r"^)Permission denied(?! \()(?!.*please try again)|: permission denied(?:: unknown)?\.?$|"
        r"Permiso denegado|Permission non accordée|Keine Berechtigung|权限不够|Read-only file system|"
        r"Operation not permitted|Insufficient Permissions", confidence=0.85, scope=RAISED),
    Row("gated", "permission-denied", ROOT, "errno 13 EACCES, 1 EPERM, 30 EROFS, huggingface_hub",
        "401 Client Error|403 Client Error|Access Denied|AccessDenied|ExpiredToken|NoCredentialsError|is "
        "forbidden: User",
        r"(?<!RepositoryNotFoundError: )40[13] Client Error|Access ?Denied|\(ExpiredToken\)|NoCredentialsError|"
        r"is forbidden: User \S+ cannot", confidence=0.7),
    Row("is-directory", "missing-file", ROOT, "errno 21 EISDIR", "rrno 21]|IsADirectoryError",
        r"\[Errno 21\]|IsADirectoryError", confidence=0.85, means="a directory stands where the program wants a file",
        scope=RAISED,
        fix="Run `ls -l {path}` on every node. Name the file inside it that the program wants, or correct the path"),
    Row("no-file", "missing-file", ROOT, "errno 2 ENOENT, 20 ENOTDIR, huggingface_hub, datasets",
        "rrno 2]|rrno 20]|FileNotFoundError|NotADirectoryError|No such file or directory",
        r"\[Errno (?:2|20)\]|FileNotFoundError|NotADirectoryError|No such file or directory", confidence=0.85,
        scope=RAISED),
    *table("errno 2 ENOENT, huggingface_hub, datasets", ROOT, "missing-file", [
        ("hub",
         "Couldn't find|an't load|not a local folder|RepositoryNotFoundError|dataset script|HFValidationError|"
         "EntryNotFoundError|an't find a valid checkpoint|valid model identifier",
         r"[Cc]an't load (?:\w+ ){1,3}for '|not a local folder|(?:Repository|(?<!Local)Entry)NotFoundError|"
         r"Couldn't find (?:a|any) dataset|HFValidationError|[Cc]an't find a valid checkpoint", 0.8),
        ("weights-absent", "a file named|no file named|No valid checkpoint|find 'latest' file|(404) when calling",
         r"does not appear to have a file named|Error no file named |No valid checkpoint found|"
         r"Unable to find 'latest' file|\(404\) when calling", 0.8),
        ("checkpoint-index", "Can't find a checkpoint index|Incorrect path_or_model_id",
         "Can't find a checkpoint index|Incorrect path_or_model_id", 0.8),
        ("no-object", "NoSuchKey|NoSuchBucket", "NoSuch(?:Key|Bucket)", 0.7),
        ("does-not-exist",
         "FailedMount|FailedAttachVolume|unable to open the hostfile|to open host file|mount failed|mounting "
         "failed|MountVolume|does not exist|doesn't exist|not found",
         r"(?:Error|ERROR).{0,40}(?:[Ff]ile|[Pp]ath|[Dd]irectory|[Ff]older|[Dd]ataset)\b.{0,120}(?:does not exist|"
         r"doesn't exist|not found)|mount(?:ing)? failed: .*No such|FailedMount|FailedAttachVolume|"
         r'MountVolume\.SetUp failed|Error: (?:configmap|secret) \"[^\"]+\" not found|'
         r'unable to open (?:the hostfile|' "host file)", 0.72),
        ("go-no-file", "no such file or directory",
         r"^(?!.*[Ww]arn|.*WARN).*: no such file or directory(?:: unknown)?\.?$", 0.7),
    ]),
    Row("bus-error", "shm-too-small", WEAK,
        "Linux signal(7) SIGBUS, tmpfs(5): a page of /dev/shm that has no memory behind it",
        "ignal 7|ignal: 7|Bus error|SIGBUS|signal 7", r"\bBus error\b|SIGBUS|[Ss]ignal:? 7\b", confidence=0.55,
        means="memory behind a mapping was not there. /dev/shm is full, or a mapped file was cut short",
        also="segfault-native"),
    *table("Linux signal(7), CPython faulthandler, glibc malloc, UCX, kernel traps", WEAK, "segfault-native", [
        ("segfault",
         "Signal 11|ignal: 11|egmentation Fault|egmentation fault|SIGSEGV|segfault at|Segfault|signal 11|signal "
         "SIGSEGV", r"[Ss]egmentation [Ff]ault|SIGSEGV|segfault at|[Ss]ignal:? 11\b", 0.7),
        ("heap",
         "sysmalloc|double free|free():|malloc():|corrupted|munmap_chunk|stack smashing|realloc():|general protection",
         r"double free or corruption|sysmalloc: Assertion|(?:free|malloc|realloc)\(\): |munmap_chunk\(\)|"
         r"stack smashing detected|general protection fault|corrupted (?:size|double)", 0.75),
        ("fatal-python", "Fatal Python error",
         "Fatal Python error: (?:Segmentation fault|Bus error|Illegal instruction|Floating)", 0.75),
        ("illegal-signal", "SIGILL|SIGFPE", r"\bSIG(?:ILL|FPE)\b", 0.6),
    ]),
    Row("checkpoint-exception", "checkpoint-unreadable", WEAK,
        "torch distributed/checkpoint/api.py: the exceptions of ranks follow in it",
        "CheckpointException|CheckpointingException", "Checkpoint(?:ing)?Exception", confidence=0.6),
    *table("requests, urllib3 exceptions.py, DeepSpeed runtime/fp16/loss_scaler.py", WEAK, "program-exception", [
        ("http-service", "HTTPConnection|HTTPSConnection",
         r"^\S{0,80}(?:Error|Timeout|Exception): .{0,40}HTTPS?Connection", 0.6,
         "the program asks for a service that does not answer this node"),
        ("loss-scale", "scale already at minimum", "loss scale already at minimum", 0.6,
         "the training diverged: every step overflowed"),
    ]),
    *table("torch elastic, CPython subprocess, signal a launcher's or an ended process's own words", CASCADE, "", [
        ("child-failed", "ChildFailedError|CalledProcessError|non-zero exit status",
         "ChildFailedError|CalledProcessError|returned non-zero exit status"),
        ("death-signal", "KeyboardInterrupt|closing signal|Received SIGTERM|received SIGTERM",
         "^KeyboardInterrupt|closing signal SIG(?!HUP)|[Rr]eceived SIGTERM"),
        ("orted", "ORTE|PRTE|daemon",
         "(?:ORTE|PRTE) was unable to reliably start|(?:ORTE|PRTE) daemon|[Aa] daemon .{0,60}failed to start"),
        ("pdsh-255", "pdsh@|exited with exit code", "(?:ssh|rsh) exited with exit code|pdsh@"),
    ]),
    Row("process-limit", "limit-too-small", WEAK,
        "errno 11 EAGAIN of fork(2) and pthread_create(3): CPython, OpenBLAS, libgomp, libomp, bash",
        "temporarily unavailable|start new thread|thread_create failed|System error #11",
        r"can't start new thread|pthread_create failed|(?:fork|[Tt]hread creation failed|^thread|System error #11|"
        r"what\(\)): .*Resource temporarily unavailable|BlockingIOError: \[Errno 11\] Resource temporarily unavailable",
        confidence=0.7,
        means="the limit of processes and threads was reached, that of the user (ulimit -u) or of the container "
              "(pids.max)", fix=PROCESSES),
    Row("mpi-no-finalize", "rank-exited-early", SYMPTOM, "Open MPI, PRRTE help-prun.txt proc-exit-no-sync",
        "exiting improperly", r"exiting improperly\. There are", confidence=0.55,
        means="the process ended without a call that the others made"),
    Row("cxx-uncaught", "unknown", SYMPTOM, "libstdc++ vterminate.cc", "terminate called|what():",
        r"terminate called (?:after throwing an instance of|without an active exception)|^ *what\(\): +\S",
        confidence=0.25,
        means="an exception of C++ that nothing caught ended this process, and its text is of no known kind"),
)  # fmt: skip
