# make demo: the main job on this machine. make test: every test that can run here. make test-fast: the unit tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install -q -c constraints.txt --disable-pip-version-check

.PHONY: demo dist test test-fast test-slow test-docs test-install test-pythons test-torch test-launchers test-ray fuzz lint bench gpu chaos corpus external pages page-figures pictures docs setup system browser clean

setup: $(VENV)/.demo

$(VENV)/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch numpy
	$(PIP) -e .
	$(BIN)/python -m compileall -q src
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(PIP) -e '.[dev,stacks]'
	touch $@

demo: $(VENV)/.demo
	$(BIN)/allranks run --local 2 --nproc 2 --name demo examples/train_lm.py

# Real sshd in network namespaces and a real Slurm on them need root and these; without root those tests say that
# they skip.
system:
	@if [ "$$(id -u)" = 0 ]; then \
	  for tool in /usr/sbin/sshd ip nft slurmctld slurmd sbatch munged; do command -v $$tool >/dev/null || missing=1; done; \
	  if [ -n "$$missing" ]; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	      openssh-server openssh-client iproute2 nftables iputils-ping fish tcsh faketime procps \
	      slurmctld slurmd slurm-client munge; \
	  fi; \
	fi

# The report's page is looked at in headless Chromium where there is one (300 MB, so `make test` does not install it).
browser:
	@command -v chromium-headless-shell >/dev/null || command -v chromium >/dev/null || command -v google-chrome >/dev/null \
	|| { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	    chromium-headless-shell; }

# Byte code is kept, that of the tests too: each worker reads all of them.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest

$(VENV)/.collected: $(VENV)/.test $(shell find src tests -name '*.py')
	$(BIN)/python -m compileall -q src
	$(PYTEST) --collect-only -qq > /dev/null
	touch $@

test: $(VENV)/.collected system
	$(PYTEST) -m 'not (slow or install or docs)' -n 6 --dist loadfile --no-loadscope-reorder

# No hosts, no torch, no program but this one: under a minute.
test-fast: $(VENV)/.collected
	$(PYTEST) -m 'not (slow or install or hosts or torch or processes or docs or fuzz)' -n 2 --dist loadfile

# The commands of README and docs print what the pages show: on this machine, on ssh hosts, on Slurm.
test-docs: $(VENV)/.collected system
	$(PYTEST) -m 'docs and not slow' -n 6 --dist loadfile --no-loadscope-reorder tests/docs

# The same, and the figures that it prints stand in the pages afterwards, in place of `…`. On a quiet machine.
page-figures: $(VENV)/.collected system
	ALLRANKS_WRITE_FIGURES=1 $(PYTEST) -m docs -n 2 --dist loadfile --no-loadscope-reorder tests/docs

test-slow: $(VENV)/.collected system browser
	$(PYTEST) -m slow -n 4 --dist loadfile --no-loadscope-reorder
	$(PYTEST) tests/browser

# The fuzzers of `make test` for longer, each time with other input: FUZZ seconds each. They say how many cases they have
# tried. A test takes part with the mark `fuzz` and the fixture `campaign` (tests/campaign.py).
FUZZ ?= 120
fuzz: $(VENV)/.test
	ALLRANKS_FUZZ_SECONDS=$(FUZZ) HYPOTHESIS_PROFILE=search $(PYTEST) -m fuzz tests

# accelerate, deepspeed and ColossalAI for real, in environments of their own over torch's (docs/how-to/launchers.md). The
# default tests skip these.
LAUNCHERS := .venv-launchers
COLOSSALAI := .venv-colossalai

define environment_over_torch
	$(BIN)/python -m venv $(1)
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > \
	  $$($(1)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/torch.pth
endef

$(LAUNCHERS)/.done: $(VENV)/.test
	$(call environment_over_torch,$(LAUNCHERS))
	$(LAUNCHERS)/bin/pip install -q --disable-pip-version-check wheel 'setuptools<81'
	$(LAUNCHERS)/bin/pip install -q --disable-pip-version-check --no-build-isolation accelerate==1.15.* deepspeed==0.19.* transformers==5.23.*
	touch $@

# ColossalAI asks for an older torch with CUDA, and for much that its launcher does not import: it comes without these.
# It calls torchrun, which has to be of the interpreter that has ColossalAI.
$(COLOSSALAI)/.done: $(VENV)/.test
	$(call environment_over_torch,$(COLOSSALAI))
	$(COLOSSALAI)/bin/pip install -q --disable-pip-version-check wheel 'setuptools<81' packaging psutil fabric
	$(COLOSSALAI)/bin/pip install -q --disable-pip-version-check --no-deps --no-build-isolation colossalai==0.5.0
	printf '#!%s\nfrom torch.distributed.run import main\nmain()\n' $(CURDIR)/$(COLOSSALAI)/bin/python > $(COLOSSALAI)/bin/torchrun
	chmod +x $(COLOSSALAI)/bin/torchrun
	touch $@

test-launchers: $(LAUNCHERS)/.done $(COLOSSALAI)/.done system
	ALLRANKS_LAUNCHERS_PYTHON=$(CURDIR)/$(LAUNCHERS)/bin/python $(BIN)/python -m pytest tests/hosts/test_frameworks.py
	ALLRANKS_LAUNCHERS_PYTHON=$(CURDIR)/$(COLOSSALAI)/bin/python $(BIN)/python -m pytest tests/hosts/test_frameworks.py -k colossalai

# Real Ray, in an environment of its own over torch's: 240 MB. `python -m bench ray` takes it too.
RAY := .venv-ray

$(RAY)/.done: $(VENV)/.test
	$(call environment_over_torch,$(RAY))
	$(RAY)/bin/pip install -q --disable-pip-version-check 'ray[default]==2.60.*'
	touch $@

test-ray: $(RAY)/.done system
	ALLRANKS_RAY_PYTHON=$(CURDIR)/$(RAY)/bin/python $(PYTEST) tests/hosts/test_ray.py tests/slurm/test_slurm_ray.py

$(VENV)/.release: $(VENV)/.test
	$(PIP) -e '.[release]'
	touch $@

# What a release consists of, in dist/.
dist: $(VENV)/.release
	rm -rf dist
	$(BIN)/python -m build --installer uv
	$(BIN)/python -m allranks.engines.zipapp dist/allranks.pyz

# Wheel, sdist and allranks.pyz, built and used as a stranger would, with pip, uv and pipx.
test-install: $(VENV)/.release
	$(PYTEST) tests/install/test_packages.py

# The wheel under each Python that is supported on the controller, and each as the interpreter of nodes: those of pyenv
# and of PATH, or those of PYTHONS, a list of paths: these run the programs of the runner's tests too.
PYTHONS ?=
test-pythons: $(VENV)/.release
	ALLRANKS_TEST_PYTHONS="$(PYTHONS)" $(PYTEST) -rs tests/install/test_pythons.py \
	  $(if $(PYTHONS),tests/agent/test_runner.py tests/agent/test_runner_imports.py)

# A small training run, a hang, a collective test and a check with each release of torch in TORCH. One that is not in
# $(VENV) takes 5 GB, as CUDA's libraries are part of it. The path of an interpreter with torch stands for a release too.
TORCH ?= 2.13.0
test-torch: $(VENV)/.release
	ALLRANKS_TEST_TORCH="$(TORCH)" $(PYTEST) -rs tests/install/test_torch.py

lint: $(VENV)/.test
	$(BIN)/ruff check src tests bench examples
	$(BIN)/ruff format --check src bench
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini tests

# The pages of docs/reference/ that are written from tables of the source.
pages: $(VENV)/.test
	$(BIN)/python -m tests.pages

# The docs as one site, in build/docs/. Nothing is fetched: links to other sites are counted, not followed.
$(VENV)/.docs: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[docs]'
	touch $@

docs: $(VENV)/.docs
	$(BIN)/python -m tests.links
	$(BIN)/python -m sphinx -q -W --keep-going -n -j auto -d build/doctrees -c docs . build/docs

# The pictures of README and docs, from a real run. Without Chromium the one that needs it is left as it is.
pictures: $(VENV)/.test
	$(BIN)/python -m tests.pictures

# Accuracy of the diagnosis on real logs, where they lie beside the project.
corpus: $(VENV)/.test
	$(BIN)/python -m bench.corpus

# The scoreboard on logs, hangs, kernel lines and host lists that others wrote. SHARED and SUITES say where they lie
# (bench/external.py lists the files); what is absent is named and left out.
external: $(VENV)/.test
	$(BIN)/python -m bench.external --write $(if $(SHARED),--shared $(SHARED)) $(if $(SUITES),--suites $(SUITES))

bench: $(VENV)/.test system
	$(BIN)/python -m bench

# Rounds of a random fault at a random moment on 3 to 6 real hosts, and what must hold in each (bench/chaos/). A round is
# drawn from SEED and its number. A call goes on where the last one ended, and begins no round after HOURS.
ROUNDS ?= 200
SEED ?= 16
HOURS ?= 4
chaos: $(VENV)/.test system
	$(BIN)/python -m bench.chaos --rounds $(ROUNDS) --seed $(SEED) --hours $(HOURS)

# What only a GPU can show, on one machine with one (bench/gpu/): a line a part, kept in bench/out/gpu.txt. PYTHON has torch
# with CUDA; nothing is installed.
gpu:
	$(PYTHON) -m bench.gpu

clean:
	rm -rf $(VENV) $(LAUNCHERS) $(COLOSSALAI) $(RAY) .venv-torch build dist runs
