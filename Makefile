# The front door; CMake does the work. `make check CC=clang BUILD=build-clang` and the like also work.
BUILD ?= build
JOBS  ?= $(shell nproc)
CMAKE_ARGS ?=
ifneq ($(origin CC),default)
CMAKE_ARGS += -DCMAKE_C_COMPILER=$(CC)
endif

all: $(BUILD)/CMakeCache.txt
	@cmake --build $(BUILD) -j $(JOBS)

$(BUILD)/CMakeCache.txt:
	@cmake -B $(BUILD) $(CMAKE_ARGS)

check: all
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

bench: all
	@$(BUILD)/kcheck --bench

# The floors of this CPU's class (tests/kcheck/floors): some two minutes on a quiet machine. FLOORS=FILE for one file.
FLOORS ?= tests/kcheck/floors
bench-check: all
	@$(BUILD)/kcheck --bench --roofline --floors=$(FLOORS)

# Every format of weights and caches against float32: up to an hour; writes the tables of docs/accuracy.md.
accuracy: all
	@python3 tools/accuracy/accuracy.py --neap $(BUILD)/neap --work $(BUILD)/accuracy

# Decode at 32K over 4K tokens, and peak memory, on random weights (minutes).
bench-sparse: all
	@python3 bench/sparse.py $(BUILD)/neap

# neap beside llama.cpp, which is built from PyPI first (an hour in all; --quick: minutes).
bench-compare: all
	@python3 bench/compare.py $(BUILD)/neap --work $(BUILD)/compare $(COMPARE)

demo: all
	@sh demo.sh

asan tsan scalar:
	@cmake --preset $@
	@cmake --build build-$@ -j $(JOBS)
	@ctest --test-dir build-$@ --output-on-failure -j $(JOBS)

fmt:
	@git ls-files '*.c' '*.h' | xargs clang-format -i

install: all
	@cmake --install $(BUILD)

# A Debian package with unit file and settings: build/neap_VERSION_amd64.deb
deb: all
	@cd $(BUILD) && cpack -G DEB

clean:
	@rm -rf build build-*

.PHONY: all check bench bench-compare bench-check accuracy demo asan tsan scalar fmt install deb clean
