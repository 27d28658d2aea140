# Each target does all the set-up that it needs (tools/bootstrap), from a fresh clone on.
.DEFAULT_GOAL := help
.PHONY: help demo test test-torch build lint bench bench-gates hello-1000 storm soak-hosts asan tsan fuzz aarch64 soak wheel docs parity clean
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

JOBS ?= $(shell nproc)
VENV_PYTHON := .venv/bin/python
CONFIGURE := .venv/bin/cmake -S . -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/.venv/bin/ninja --log-level=WARNING
COMPILE := .venv/bin/cmake --build
PEOPLE := $(wildcard python tests bench examples tools)
# The C++ tests, one program per layer. SHORT=1 asks seeded tests for few seeds, through MONARCH_TEST_SHORT.
CTEST := $(if $(SHORT),MONARCH_TEST_SHORT=1) .venv/bin/ctest --output-on-failure --timeout $(or $(LIMIT),600) \
  -j $(JOBS) --no-tests=error --test-dir
# gcc's TSan wants fewer random address bits than some kernels give; where the call is forbidden, it runs without.
FIXED_ADDRESSES = $$(setarch -R true 2>/dev/null && echo setarch -R)

help:  ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

build:  ## the core and the extension, into build/release and python/monarch
	@tools/bootstrap build
	@$(CONFIGURE) -B build/release -DPython_EXECUTABLE=$(CURDIR)/$(VENV_PYTHON) $(CMAKE_FLAGS) >/dev/null
	@$(COMPILE) build/release -j $(JOBS)
	@$(VENV_PYTHON) -m compileall -q python/monarch  # workers start without compiling, also where bytecode is not written

demo:  ## the main job: one script trains a model, with a worker process for each core; then again, while two of four die
	@tools/bootstrap build demo
	@$(MAKE) --no-print-directory build
	@$(VENV_PYTHON) examples/digits.py
	@echo
	@$(VENV_PYTHON) examples/digits.py --workers 4 --kill

test:  ## every test that needs no GPU and no cluster, and a short run under ASan and UBSan
	@tools/bootstrap build test
	@$(MAKE) --no-print-directory build CMAKE_FLAGS=-DMONARCH_TESTS=ON
	@$(CTEST) build/release
	@$(VENV_PYTHON) -m pytest -n 3 --dist worksteal tests/python
	@$(MAKE) --no-print-directory asan SHORT=1

test-torch:  ## the tests that need torch, which this installs (about 1 GB; a CPU build will do), and torchstore
	@tools/bootstrap build test torch
	@$(MAKE) --no-print-directory build
	@$(VENV_PYTHON) -m pytest -n 2 --dist worksteal tests/python/test_torch.py tests/python/test_rdma_torch.py \
	  tests/python/test_spmd_torch.py tests/python/test_torchstore.py

lint:  ## layers, style, types, the parity table; a short run under TSan, of each fuzzer and for aarch64
	@tools/bootstrap build test lint
	@$(VENV_PYTHON) tools/check_layers.py
	@$(VENV_PYTHON) tools/check_python_layers.py
	@$(VENV_PYTHON) tools/check_style.py
	@$(VENV_PYTHON) tools/parity.py --check
	@$(VENV_PYTHON) -m ruff check $(PEOPLE)
	@$(VENV_PYTHON) -m ruff format --check $(PEOPLE)
	@$(VENV_PYTHON) -m mypy
	@$(MAKE) --no-print-directory tsan SHORT=1
	@$(MAKE) --no-print-directory fuzz SECONDS_EACH=5
	@$(MAKE) --no-print-directory aarch64 SHORT=1

asan:  ## the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@tools/bootstrap build test
	@$(CONFIGURE) -B build/asan -DMONARCH_SANITIZE=address,undefined -DMONARCH_TESTS=ON -DMONARCH_PYTHON=OFF >/dev/null
	@$(COMPILE) build/asan -j $(JOBS)
	@$(CTEST) build/asan

tsan:  ## the C++ tests under ThreadSanitizer
	@tools/bootstrap build test
	@$(CONFIGURE) -B build/tsan -DMONARCH_SANITIZE=thread -DMONARCH_TESTS=ON -DMONARCH_PYTHON=OFF >/dev/null
	@$(COMPILE) build/tsan -j $(JOBS)
	@$(FIXED_ADDRESSES) env TSAN_OPTIONS=suppressions=$(CURDIR)/tools/tsan.supp $(CTEST) build/tsan

fuzz:  ## every decoder's fuzzer, SECONDS_EACH=60 (needs clang)
	@tools/bootstrap build lint
	@tools/fuzz $(or $(SECONDS_EACH),60)

aarch64:  ## the C++ tests, compiled for aarch64, under qemu-user; SHORT=1: the lower layers only
	@tools/bootstrap build aarch64
	@$(CONFIGURE) -B build/aarch64 -DCMAKE_TOOLCHAIN_FILE=$(CURDIR)/tools/aarch64.cmake -DMONARCH_TESTS=ON \
	  -DMONARCH_PYTHON=OFF >/dev/null
	@$(COMPILE) build/aarch64 -j $(JOBS) --target $$(tools/aarch64_tests targets $(SHORT))
	@tools/aarch64_tests run $(SHORT)

# Each step says when it begins; the first that fails ends the run.
STEP = @echo "soak: $$(date +%H:%M:%S) $(1)"
soak:  ## some hours, not in CI: sanitizers over many seeds, long fuzzing, aarch64, the runtime again and again
	@tools/bootstrap build test lint aarch64
	@$(MAKE) --no-print-directory build CMAKE_FLAGS=-DMONARCH_TESTS=ON
	$(call STEP,C++ tests over 5000 seeds)
	@MONARCH_SIM_SEEDS=5000 $(MAKE) --no-print-directory soak-ctest LIMIT=3600
	$(call STEP,a million seeds of each simulated test)
	@$(VENV_PYTHON) tools/soak_seeds.py --seeds $(or $(SEEDS),1000000)
	$(call STEP,buffers of 8 GiB by every way)
	@MONARCH_TEST_LONG=1 build/release/src/monarch/bulk_test --gtest_brief=1 --gtest_filter='*Gibibytes*'
	$(call STEP,starting and ending processes 20 times over)
	@build/release/src/monarch/host_test --gtest_brief=1 --gtest_repeat=20 --gtest_throw_on_failure
	$(call STEP,the Python tests of processes and shutdown 5 times over)
	@for round in 1 2 3 4 5; do $(VENV_PYTHON) -m pytest -q -n 2 --dist worksteal tests/python/test_spawn.py \
	  tests/python/test_processes.py tests/python/test_shutdown.py tests/python/test_exit.py tests/python/test_logging.py \
	  tests/python/test_guests.py tests/python/test_several_hosts.py; done
	$(call STEP,1000 scripts that are lost at random points)
	@MONARCH_TEST_LONG=1 $(VENV_PYTHON) -m pytest -q -n 2 --dist worksteal -o faulthandler_timeout=0 tests/python/test_owner_lost.py
	$(call STEP,an hour of kills)
	@$(MAKE) --no-print-directory storm SECONDS=3600
	$(call STEP,a twentieth of an hour's work)
	@MONARCH_SOAK_SHARE=0.05 $(VENV_PYTHON) -m pytest -q -s -o faulthandler_timeout=0 tests/python/test_soak.py
	$(call STEP,hosts that come and go for a while)
	@$(MAKE) --no-print-directory soak-hosts SECONDS=600
	$(call STEP,each system call fails once)
	@MONARCH_TEST_LONG=1 $(VENV_PYTHON) -m pytest -q -n 2 --dist worksteal tests/python/test_shortage_sweeps.py
	$(call STEP,a wheel in an environment of its own)
	@MONARCH_TEST_LONG=1 $(VENV_PYTHON) -m pytest -q tests/python/test_package.py
	$(call STEP,ASan and UBSan over 500 seeds)
	@MONARCH_SIM_SEEDS=500 $(MAKE) --no-print-directory asan LIMIT=3600
	$(call STEP,TSan)
	@$(MAKE) --no-print-directory tsan LIMIT=3600
	$(call STEP,each fuzzer for 10 minutes)
	@$(MAKE) --no-print-directory fuzz SECONDS_EACH=600
	$(call STEP,1000 hello worlds)
	@$(MAKE) --no-print-directory hello-1000
	$(call STEP,aarch64)
	@$(MAKE) --no-print-directory aarch64
	$(call STEP,done)

.PHONY: soak-ctest
soak-ctest:
	@$(CTEST) build/release

bench:  ## a 3-minute subset of the benchmarks, without peers
	@tools/bootstrap build bench
	@$(MAKE) --no-print-directory build CMAKE_FLAGS=-DMONARCH_TESTS=ON
	@$(VENV_PYTHON) bench/run.py --quick

bench-gates:  ## every gated number, side by side with the peers (makes a venv for each peer)
	@tools/bootstrap build bench
	@$(MAKE) --no-print-directory build CMAKE_FLAGS=-DMONARCH_TESTS=ON
	@$(VENV_PYTHON) bench/run.py --gates

hello-1000:  ## RUNS=1000 hello worlds, a tenth of them killed: nothing may fail or stay behind
	@tools/bootstrap build
	@$(MAKE) --no-print-directory build
	@$(VENV_PYTHON) tools/hello_1000.py --runs $(or $(RUNS),1000)

storm:  ## SECONDS=60 of kills, crashes and shortages among real processes; SEED=N repeats one as far as it can be
	@tools/bootstrap build test
	@$(MAKE) --no-print-directory build
	@MONARCH_STORM_SECONDS=$(or $(SECONDS),60) MONARCH_TEST_SEED=$(SEED) $(VENV_PYTHON) -m pytest -q -s -o faulthandler_timeout=0 \
	  tests/python/test_kill_storm.py

soak-hosts:  ## SECONDS=180 of daemons, hosts and scripts that come and go over TCP: nothing is lost, and nothing grows; SEED=N
	@tools/bootstrap build test
	@$(MAKE) --no-print-directory build
	@MONARCH_SOAK_SECONDS=$(or $(SECONDS),180) MONARCH_TEST_SEED=$(SEED) $(VENV_PYTHON) -m pytest -q -s -o faulthandler_timeout=0 \
	  tests/python/test_hosts_soak.py

wheel:  ## dist/monarch_cpp-*.whl
	@tools/bootstrap build wheel
	@PATH=$(CURDIR)/.venv/bin:$$PATH $(VENV_PYTHON) -m pip wheel . --no-deps --no-build-isolation -q -w dist && ls dist

docs:  ## the documentation as a site, build/site/index.html
	@tools/bootstrap docs
	@# The variable: mkdocs-material announces its successor (Zensical, 2027) at each start.
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet
	@echo "build/site/index.html"

parity:  ## docs/parity.md, from a run of the Python tests
	@tools/bootstrap build test
	@$(MAKE) --no-print-directory build CMAKE_FLAGS=-DMONARCH_TESTS=ON
	@$(VENV_PYTHON) -m pytest -n 3 --dist worksteal tests/python --parity-out build/parity.json || [ $$? -eq 1 ]  # failures are in the table
	@$(VENV_PYTHON) tools/parity.py build/parity.json

clean:  ## removes what was built; .venv stays
	rm -rf build dist python/monarch/_core*.so python/monarch/libmonarch.so* python/monarch/bin python/monarch/cmake
	find $(PEOPLE) -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf .pytest_cache .mypy_cache .ruff_cache
