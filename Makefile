# The commands of a working day. Presets are in CMakePresets.json, what they need in scripts/deps.sh.
#
#   make quickstart   install, build and run the whole chain on this machine
#   make test         build and pass the tests
#
# Variables: PRESET=release|dev|ci (build folder build/PRESET), JOBS=N, TRIREME_TORCH=DIR (an installed
# `torch` package or an unpacked LibTorch), TORCH_INDEX=URL (the pip index to take torch from),
# CTEST_FLAGS (for example "-L unit", "-R tokenizer").
PRESET ?= release
JOBS ?= $(shell nproc)
BUILD := build/$(PRESET)
PROGRAM := $(BUILD)/bin/trireme
CTEST := ctest --test-dir $(BUILD) --output-on-failure $(CTEST_FLAGS)

.PHONY: help deps deps-test configure build all test test-full bench quickstart asan tsan-core fuzz format tidy clean
help:
	@sed -n '2,8s/^# \{0,1\}//p' Makefile

deps:
	@scripts/deps.sh build
deps-test:
	@scripts/deps.sh test

configure: deps
	cmake --preset $(PRESET)
build: configure
	cmake --build $(BUILD) -j $(JOBS) --target trireme_program
all: configure
	cmake --build $(BUILD) -j $(JOBS)

# The tests labelled `full` repeat others over their whole grids; `make test` leaves them out.
test: deps-test all
	$(CTEST) -LE full
test-full: deps-test all
	$(CTEST)

bench: deps-test all
	$(PROGRAM) bench

quickstart: build
	examples/quickstart/run.sh $(PROGRAM)

# The half without LibTorch under the sanitizers.
asan tsan-core:
	@scripts/deps.sh core
	cmake --preset $@
	cmake --build build/$@ -j $(JOBS)
	ctest --test-dir build/$@ --output-on-failure -LE full $(CTEST_FLAGS)

# Readers of untrusted files on damaged ones, under the sanitizers.
fuzz:
	@scripts/deps.sh core
	cmake --preset asan
	cmake --build build/asan -j $(JOBS) --target damage_tests
	ctest --test-dir build/asan --output-on-failure -R damage_tests $(CTEST_FLAGS)

format:
	git ls-files '*.h' '*.cc' | xargs clang-format -i
tidy: deps
	cmake --preset tidy
	cmake --build build/tidy -j $(JOBS)

clean:
	rm -rf build
