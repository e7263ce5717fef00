# moert: `make` builds everything, `make check` tests it, `make help` lists the rest.
#
# Variables: BUILD (output directory), CC, HOSTCC (a compiler for this machine if CC is a cross
# compiler), CFLAGS, MPI (ompi-c or mpich, a package of pkg-config), MPICC (an MPI compiler in its
# place), SANITIZE=1 (ASan + UBSan), JOBS (tests at a time), V=1 (show commands), PREFIX, DESTDIR.

MAKEFLAGS += -r # no built-in rules: make would try them for every header, seconds a call

VERSION  := $(shell awk '/^.define MOERT_VERSION_(MAJOR|MINOR|PATCH) / {v = v dot $$3; dot = "."} \
	END {print v}' include/moert/version.h)
BUILD    ?= build
PREFIX   ?= /usr/local
CC       := gcc
HOSTCC   ?= $(CC)
AR       ?= ar
CFLAGS   ?= -O2 -g
JOBS     ?= $(shell cores=$$(nproc) && echo $$((cores < 8 ? cores : 8)))
# option -j for the builds of check and of other targets; empty if make was called with -j
PARALLEL  = $(if $(findstring -j,$(MAKEFLAGS)),,-j$(JOBS))
PACKAGES := OpenCL hwloc jansson libxxhash
MPI      ?= $(firstword $(foreach p,ompi-c mpich,$(shell pkg-config --exists $p && echo $p)) ompi-c)
ifdef MPICC
MPI_SHOWN  := $(shell $(MPICC) -show)
MPI_CFLAGS := $(filter -I%,$(MPI_SHOWN))
MPI_LIBS   := $(filter -L% -l% -Wl%,$(MPI_SHOWN))
else
PACKAGES   := $(MPI) $(PACKAGES)
endif

ifneq ($(V),1)
Q := @
say = @printf '  %-5s %s\n' '$(1)' '$(patsubst $(BUILD)/%,%,$@)'
endif

ifeq ($(SANITIZE),1)
override BUILD := $(BUILD)/sanitize
CFLAGS   := -O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined \
	-fno-sanitize-recover=undefined
endif

# pkg-config is asked once, when a command first needs its answer
once = $(eval $1 := $(shell pkg-config $2 $(PACKAGES)))$($1)
PACKAGE_CFLAGS = $(call once,PACKAGE_CFLAGS,--cflags)
PACKAGE_LIBS   = $(call once,PACKAGE_LIBS,--libs)
WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wpointer-arith
ALL_CFLAGS = -std=c11 -D_GNU_SOURCE -fPIC -fvisibility=hidden -ffp-contract=off -pthread \
	$(WARNINGS) -Iinclude -Isrc -Ikernels -DMOERT_VERSION='"$(VERSION)"' \
	$(subst -I,-isystem ,$(MPI_CFLAGS) $(PACKAGE_CFLAGS)) $(CFLAGS)
LIBS      = $(MPI_LIBS) $(PACKAGE_LIBS) -lm -ldl -pthread

# $(call find,DIRECTORY,PATTERN): matching files, also in subdirectories
find = $(shell find $1 -name '$2' | LC_ALL=C sort)

KERNELS  := $(call find,kernels,*.cl) $(call find,kernels,*.h) $(call find,kernels,*.txt)
SOURCES  := $(filter-out src/tools/%,$(call find,src,*.c))
OBJECTS  := $(SOURCES:%.c=$(BUILD)/%.o) $(BUILD)/kernels.o
MAINS    := $(wildcard src/tools/*/main.c)
TOOLS    := $(MAINS:src/tools/%/main.c=$(BUILD)/bin/moert-%)
TOOLPART := $(patsubst %.c,$(BUILD)/%.o,$(filter-out $(MAINS),$(call find,src/tools,*.c))) \
	$(BUILD)/page.o
BENCHES  := $(patsubst bench/%.c,$(BUILD)/bin/%,$(wildcard bench/bench_*.c))
BENCHPART := $(patsubst %.c,$(BUILD)/%.o,$(wildcard bench/*/*.c) tests/support/op/place.c)
TESTS    := $(patsubst %.c,$(BUILD)/%,$(call find,tests/unit tests/conformance,test_*.c))
PRELOADS := $(addprefix tests/tools/,inject.c flip.c oclgrind.c small_allocations.c)
TESTTOOLS := $(patsubst tests/tools/%.c,$(BUILD)/tests/%, \
	$(filter-out $(PRELOADS),$(wildcard tests/tools/*.c))) \
	$(PRELOADS:tests/tools/%.c=$(BUILD)/tests/%.so)
TESTPART := $(patsubst %.c,$(BUILD)/%.o,$(call find,tests/support,*.c))
STATIC   := $(BUILD)/lib/libmoert.a
SHARED   := $(BUILD)/lib/libmoert.so

.PHONY: FORCE all tests fuzz check check-all check-night check-inject check-kernels check-layers \
	check-python soak install uninstall dist wheel info help hooks format lint mutate clean
.SECONDARY:
.DELETE_ON_ERROR:

all: $(STATIC) $(SHARED) $(BUILD)/lib/moert.pc $(TOOLS) $(BENCHES) ## library, programs and benches
tests: $(TESTS) $(TESTTOOLS) ## test programs

$(STATIC): $(OBJECTS)
	$(call say,AR)
	$(Q)mkdir -p $(@D) && rm -f $@ && $(AR) qcs $@ $^

# libmoert.so exports the functions that the headers declare, and nothing else
$(BUILD)/moert.map: $(wildcard include/moert/*.h)
	$(Q)mkdir -p $(@D) && { echo 'MOERT_0 { global:'; \
		cat $^ | tr '\n' ' ' | grep -oE 'MOERT_API [^;(]*\(' | grep -oE 'moert_[a-z0-9_]+\(' | \
		tr '(' ';'; echo 'local: *; };'; } > $@

$(SHARED): $(OBJECTS) $(BUILD)/moert.map
	$(call say,LINK)
	$(Q)mkdir -p $(@D) && $(CC) $(ALL_CFLAGS) -shared -Wl,-soname,libmoert.so.0 \
		-Wl,--version-script=$(BUILD)/moert.map -o $@ $(OBJECTS) $(LIBS)

$(BUILD)/lib/moert.pc: Makefile FORCE # moert.pc has PREFIX, which may differ in each call
	$(Q)mkdir -p $(@D) && printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$${prefix}/lib' 'Name: moert' \
		'Description: expert-parallel runtime for Mixture-of-Experts training' 'Version: $(VERSION)' \
		'Requires: $(if $(MPICC),,$(MPI)) OpenCL' 'Requires.private: hwloc jansson libxxhash' \
		'Cflags: -I$${prefix}/include -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX $(MPI_CFLAGS)' \
		'Libs: -L$${libdir} -lmoert $(MPI_LIBS)' \
		'Libs.private: -lm -ldl -pthread' > $@

# holds the compiler and its flags; objects are built again when the compiler or a flag changes
$(BUILD)/flags: FORCE | $(BUILD)/packages
	$(file >$@.new,$(CC) $(ALL_CFLAGS))
	$(Q)if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

$(BUILD)/%.o: %.c $(BUILD)/flags
	$(call say,CC)
	$(Q)mkdir -p $(@D) && $(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/tests/%.o: ALL_CFLAGS += -Itests -I.
$(BUILD)/bench/%.o: ALL_CFLAGS += -I.

# commit.h defines the commit, which comes from $COMMIT, git, or the archive of `make dist`. make
# writes the file only when the commit changes; a copy without git keeps the old file
$(BUILD)/commit.h: FORCE
	$(Q)mkdir -p $(@D) && \
		commit=$${COMMIT:-$$(git describe --always --dirty 2>/dev/null || grep -v '\$$' .commit)}; \
		[ -z "$$commit" ] && [ -e $@ ] || \
		printf '#define MOERT_COMMIT "%s"\n' "$${commit:-unknown}" > $@.new; \
		if [ ! -e $@.new ]; then :; elif cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi
COMMITTED := $(patsubst %,$(BUILD)/%.o,bench/common/report src/tools/preflight/main \
	src/tools/common/option_file src/tools/tune/main)
$(COMMITTED): $(BUILD)/commit.h
$(COMMITTED): ALL_CFLAGS += -include $(BUILD)/commit.h

$(BUILD)/embed: kernels/embed.c
	$(Q)mkdir -p $(@D) && $(HOSTCC) -std=c11 -O1 $(WARNINGS) -o $@ $<

$(BUILD)/kernels.c: $(BUILD)/embed $(KERNELS)
	$(Q)$(BUILD)/embed embedded kernels $(KERNELS:kernels/%=%) > $@

# a line "@include FILE" stands for the lines of that file
$(BUILD)/page.html: $(foreach kind,html css js,$(wildcard src/tools/report/*.$(kind)))
	$(Q)mkdir -p $(@D) && cd src/tools/report && \
		awk '/^@include / { file = $$2; while ((getline < file) > 0) print; next } 1' page.html \
			> $(abspath $@)

$(BUILD)/page.c: $(BUILD)/embed $(BUILD)/page.html
	$(Q)$(BUILD)/embed page $(BUILD) page.html > $@

$(BUILD)/kernels.o $(BUILD)/page.o: %.o: %.c
	$(call say,CC)
	$(Q)$(CC) -std=c11 -O1 -fPIC -fvisibility=hidden -c -o $@ $<

$(BUILD)/bin/moert-%: $(BUILD)/src/tools/%/main.o $(TOOLPART) $(STATIC)
	$(call say,LINK)
	$(Q)mkdir -p $(@D) && $(CC) $(ALL_CFLAGS) -o $@ $^ $(LIBS)

$(BUILD)/bin/bench_%: $(BUILD)/bench/bench_%.o $(BENCHPART) $(TOOLPART) $(STATIC)
	$(call say,LINK)
	$(Q)mkdir -p $(@D) && $(CC) $(ALL_CFLAGS) -o $@ $^ $(LIBS)

$(BUILD)/tests/%: $(BUILD)/tests/tools/%.o $(TOOLPART) $(STATIC)
	$(call say,LINK)
	$(Q)mkdir -p $(@D) && $(CC) $(ALL_CFLAGS) -o $@ $^ $(LIBS)

$(BUILD)/tests/%.so: $(BUILD)/tests/tools/%.o
	$(call say,LINK)
	$(Q)mkdir -p $(@D) && $(CC) $(ALL_CFLAGS) -shared -o $@ $^ $(LIBS)

# in tests, calls of moert_program_source go to tests/support/build_listed.c
$(TESTS): %: %.o $(TESTPART) $(TOOLPART) $(STATIC)
	$(call say,LINK)
	$(Q)mkdir -p $(@D) && $(CC) $(ALL_CFLAGS) -Wl,--wrap=moert_program_source -o $@ \
		$(filter %.o,$^) $(STATIC) $(LIBS) -lcmocka

$(BUILD)/tests/programs: $(BUILD)/tests/support/programs.o
$(BUILD)/tests/unit/bench/test_predict: $(patsubst %,$(BUILD)/bench/%.o, \
	predict/machine predict/predict predict/spread common/tokens)
$(BUILD)/tests/unit/tools/test_refusals: $(patsubst %,$(BUILD)/src/tools/%/main.o, \
	layer op train tune)
$(patsubst %,$(BUILD)/tests/unit/tools/test_%,edges golden models runs verify): \
	$(BUILD)/src/tools/train/main.o
$(BUILD)/tests/unit/tools/test_models: $(BUILD)/src/tools/layer/main.o

# reports missing libraries before the first compilation fails
$(TESTS:=.o): | $(BUILD)/packages-tests
$(BUILD)/packages $(BUILD)/packages-tests:
	$(Q)mkdir -p $(@D) && pkg-config --exists $(PACKAGES) $(if $(findstring -tests,$@),cmocka) || \
		{ echo 'moert: libraries are missing; run launch/install-deps' >&2; exit 1; }
	$(Q)touch $@

check: ## builds all and runs the tests that find most faults, in minutes (installs what is missing)
	$(Q)launch/install-deps --if-missing
	$(Q)$(MAKE) $(PARALLEL) --no-print-directory all tests check-layers
	$(Q)tests/run --build $(BUILD) --jobs $(JOBS)

check-all: ## all other tests for one machine: lint, sanitizers, every variant, fuzz (after check)
	$(Q)launch/install-deps --if-missing --checks
	$(Q)$(MAKE) $(PARALLEL) --no-print-directory all tests check-layers
	$(Q)$(MAKE) --no-print-directory lint
	$(Q)$(MAKE) $(PARALLEL) --no-print-directory SANITIZE=1 BUILD=$(BUILD) tests
	$(Q)tests/run --build $(BUILD) --jobs $(JOBS) --tier all
	$(Q)$(MAKE) --no-print-directory fuzz RUNS=10000 SEED=1
	$(Q)for target in $(FUZZ_READERS); do \
		$(MAKE) --no-print-directory fuzz TARGET=$$target RUNS=1000 SEED=1 || exit 1; done

check-night: ## hours: compilers, drivers, hosts, injected failures, torch, soak; ROWS= for some
	$(Q)launch/install-deps --if-missing --night
	$(Q)tests/night --build $(BUILD) $(ROWS)

check-kernels: tests ## kernel tests in Oclgrind: invalid accesses, races, uninitialised values
	$(Q)tests/check_kernels --build $(BUILD)

check-inject: ## every call that can fail fails once, on 1 to 3 ranks (hours; goes on if stopped)
	$(Q)$(MAKE) $(PARALLEL) --no-print-directory all tests
	$(Q)tests/inject --build $(BUILD)

PYTHON ?= python3
WHEEL := $(BUILD)/python/source
wheel: $(SHARED) ## the Python package with the library, $(BUILD)/python/moert-*.whl, by $(PYTHON)
	$(Q)rm -rf $(WHEEL) $(BUILD)/python/*.whl && mkdir -p $(WHEEL)
	$(Q)cp -r src/python/moert src/python/pyproject.toml $(WHEEL)
	$(Q)mkdir $(WHEEL)/moert/lib && cp $(SHARED) $(WHEEL)/moert/lib
	$(Q)$(PYTHON) -c 'import sysconfig; \
		print("[bdist_wheel]\nplat_name =", sysconfig.get_platform())' >$(WHEEL)/setup.cfg
	$(Q)$(PYTHON) -m pip wheel --quiet --no-deps -w $(BUILD)/python $(WHEEL)
	@ls $(BUILD)/python/*.whl

VENV := $(BUILD)/python/venv
check-python: all ## the Python package, also with torch and transformers, in a virtual environment
	$(Q)[ -e $(VENV)/bin/pip ] || $(PYTHON) -m venv $(VENV)
	$(Q)$(MAKE) --no-print-directory wheel PYTHON=$(VENV)/bin/python
	$(Q)$(VENV)/bin/pip install --quiet numpy mpi4py torch transformers trl megatron-core pyarrow \
		jinja2 zstandard tensorboard
	$(Q)$(VENV)/bin/pip install --quiet --force-reinstall --no-deps $(BUILD)/python/*.whl
	$(Q)PYTHON=$(VENV)/bin/python tests/python/run --build $(BUILD) --installed --all
	$(Q)$(MAKE) --no-print-directory $(TESTTOOLS) $(BUILD)/tests/unit/tools/test_edges
	$(Q)for test in $(addprefix parity/,families sft masks edges megatron events states) \
		e2e/tokenize.sh; do PYTHON=$(VENV)/bin/python TEST_BUILD=$(BUILD) TEST_DOCUMENTS=10000 \
		bash tests/$$test || exit 1; done

MINUTES ?= 20
soak: ## MINUTES of training under random faults, then the same without; memory must stay flat
	$(Q)$(MAKE) $(PARALLEL) --no-print-directory all tests
	$(Q)tests/soak --build $(BUILD) --minutes $(MINUTES)

N ?= 40
mutate: ## N mutants by SEED; lists those that no test finds (hours; goes on if stopped)
	$(Q)command -v $(PYTHON) >/dev/null || { echo 'mutate: no $(PYTHON)' >&2; exit 1; }
	$(Q)$(PYTHON) tests/tools/mutate --build $(BUILD) --number $(N) --seed $(SEED) \
		$(if $(TIER),--tier $(TIER)) $(if $(FILES),--files '$(FILES)')

FUZZ_FLAGS := -O1 -g -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address,undefined \
	-fno-sanitize-recover=undefined
FUZZ_RUN   := -print_funcs=0 -rss_limit_mb=4096 -report_slow_units=600 \
	-verbosity=$(if $(filter 1,$(V)),1,0)
RUNS       ?= 100000
SEED       ?= 0

# what is fuzzed: op (descriptions and buffers of ops) or a reader of tests/fuzz/fuzz_files.c
TARGET     ?= op
FUZZ_READERS := $(shell sed -nE 's/^    X.([a-z_]+), ".*/\1/p' tests/fuzz/fuzz_files.c)
FUZZER     := fuzz_$(if $(filter op,$(TARGET)),op,files)
FUZZ_RUN   += $(if $(filter op,$(TARGET)), \
	-max_len=48 -len_control=0 -use_cmp=0 -use_memmem=0, \
	-max_len=4096 $(BUILD)/fuzz/corpus/$(TARGET) tests/fuzz/corpus/$(TARGET))

fuzz: ## RUNS random inputs of TARGET (op) by SEED (0: always another) under ASan and UBSan
	$(Q)if ! printf 'int LLVMFuzzerTestOneInput(void) { return 0; }' | \
		clang -fsanitize=fuzzer,address,undefined -x c - -o /dev/null 2>/dev/null; then \
		echo 'fuzz: skipped: no clang with libFuzzer; launch/install-deps --checks installs it'; \
		[ -z "$$CI" ]; \
	else \
		mkdir -p $(BUILD)/fuzz/corpus/$(TARGET); \
		$(MAKE) $(PARALLEL) --no-print-directory CC=clang BUILD=$(BUILD)/fuzz \
			CFLAGS='$(FUZZ_FLAGS)' $(BUILD)/fuzz/$(FUZZER) && \
		MOERT_CACHE_DIR="$${MOERT_CACHE_DIR:-$(CURDIR)/$(BUILD)/cache}" \
			LSAN_OPTIONS=suppressions=tests/support/lsan.supp:print_suppressions=0 \
			FUZZ_TARGET=$(TARGET) $(BUILD)/fuzz/$(FUZZER) $(FUZZ_RUN) \
			-artifact_prefix=$(BUILD)/fuzz/ -runs=$(RUNS) -seed=$(SEED) \
			>$(BUILD)/fuzz/log 2>&1 || { cat $(BUILD)/fuzz/log; exit 1; }; \
		tail -n 1 $(BUILD)/fuzz/log; \
	fi

$(BUILD)/fuzz_op: $(patsubst %,$(BUILD)/tests/%.o, \
	fuzz/fuzz_op fuzz/buffers fuzz/describe support/keep_modules) $(STATIC)
$(BUILD)/fuzz_files: $(patsubst %,$(BUILD)/tests/fuzz/%.o, \
	fuzz_files hosts notes) $(TOOLPART) $(STATIC)
$(BUILD)/fuzz_%:
	$(call say,LINK)
	$(Q)$(CC) $(ALL_CFLAGS) -fsanitize=fuzzer -o $@ $^ $(LIBS)

check-layers: $(STATIC) $(TOOLS) ## proves by includes and symbols that no file uses higher ones
	$(Q)tests/layers $(BUILD)

lint: $(BUILD)/commit.h ## clang-format, clang-tidy and cppcheck, each where it is installed
	$(Q)tests/lint $(ALL_CFLAGS) -include $<

hooks: ## git checks the message of each commit in this clone (tests/commit_message)
	$(Q)hooks=$$(git rev-parse --git-path hooks) && mkdir -p "$$hooks" && \
		ln -sf $(CURDIR)/tests/commit_message "$$hooks/commit-msg"

format: ## clang-format over all C and kernel files
	$(Q)clang-format -i $(foreach kind,*.c *.h *.cl, \
		$(call find,include src kernels tests bench,$(kind)))

$(BUILD)/man/moert-launch-%.1: launch/% launch/moert-launch docs/manpage.awk
	$(Q)mkdir -p $(@D) && launch/moert-launch $* --help | $(call manpage,moert-launch-$*)

$(BUILD)/man/moert-launch.1: launch/moert-launch docs/manpage.awk
	$(Q)mkdir -p $(@D) && $< --help | $(call manpage,moert-launch)

$(BUILD)/man/%.1: $(BUILD)/bin/% docs/manpage.awk
	$(Q)mkdir -p $(@D) && OMPI_MCA_ess_singleton_isolated=1 $< --help | $(call manpage,$*)

$(BUILD)/man3: $(wildcard include/moert/*.h) docs/manpage3.awk
	$(Q)rm -rf $@ && mkdir -p $@ && \
		awk -v version=$(VERSION) -v to=$@ -f docs/manpage3.awk $(filter %.h,$^)

manpage = awk -v name=$1 -v version=$(VERSION) -f docs/manpage.awk >$@
LAUNCH := train stop preflight scaling virtual-cluster tokenize detokenize generate evaluate
MANUAL := $(TOOLS:$(BUILD)/bin/%=$(BUILD)/man/%.1) $(BUILD)/man/moert-launch.1 \
	$(LAUNCH:%=$(BUILD)/man/moert-launch-%.1)

# bin/moert-launch runs the scripts of libexec/moert/launch, which find all programs in
# libexec/moert/bin
TO        = $(DESTDIR)$(PREFIX)
INSTALLED = bin/moert-* lib/libmoert.* lib/pkgconfig/moert.pc include/moert libexec/moert \
	share/moert share/doc/moert share/man/man1/moert-* share/man/man3/moert* \
	share/bash-completion/completions/moert-*
install: $(BUILD)/man3
install: all $(MANUAL) ## to $(DESTDIR)$(PREFIX): programs, library, headers, scripts, man pages
	install -d $(addprefix $(TO)/,bin lib/pkgconfig include/moert libexec/moert/bin \
		libexec/moert/launch/slurm libexec/moert/launch/dataset share/moert/examples \
		share/doc/moert share/man/man1 share/man/man3 share/bash-completion/completions)
	install -m 644 include/moert/*.h $(TO)/include/moert
	install -m 644 $(STATIC) $(TO)/lib
	install -m 755 $(SHARED) $(TO)/lib/libmoert.so.$(VERSION)
	ln -sf libmoert.so.$(VERSION) $(TO)/lib/libmoert.so.0
	ln -sf libmoert.so.0 $(TO)/lib/libmoert.so
	install -m 644 $(BUILD)/lib/moert.pc $(TO)/lib/pkgconfig
	install -m 755 $(TOOLS) $(TO)/bin
	install -m 755 $(BENCHES) $(TO)/libexec/moert/bin
	ln -sf $(TOOLS:$(BUILD)/bin/%=../../../bin/%) $(TO)/libexec/moert/bin
	install -m 755 $(LAUNCH:%=launch/%) launch/moert-launch $(TO)/libexec/moert/launch
	install -m 644 launch/environment launch/python launch/curves.awk $(TO)/libexec/moert/launch
	install -m 644 launch/dataset/*.py $(TO)/libexec/moert/launch/dataset
	install -m 755 launch/slurm/* $(TO)/libexec/moert/launch/slurm
	ln -sf ../libexec/moert/launch/moert-launch $(TO)/bin
	install -m 644 $(MANUAL) $(TO)/share/man/man1
	install -m 644 $(BUILD)/man3/* $(TO)/share/man/man3
	for program in $(TOOLS:$(BUILD)/bin/%=%) moert-launch; do \
		install -m 644 launch/completion.bash $(TO)/share/bash-completion/completions/$$program || \
			exit 1; done
	install -m 644 tests/examples/* $(TO)/share/moert/examples
	install -m 644 README.md LICENSE docs/*.md docs/*.png $(TO)/share/doc/moert

uninstall: ## removes the installed files
	rm -rf $(addprefix $(TO)/,$(INSTALLED))

dist: ## archive of the last commit, $(BUILD)/moert-$(VERSION).tar.gz
	git archive --prefix=moert-$(VERSION)/ -o $(BUILD)/moert-$(VERSION).tar.gz HEAD

info: ## settings of this build
	@printf '%-10s %s\n' version '$(VERSION)' compiler "$$($(CC) --version | head -1)" \
		cflags '$(CFLAGS)' build '$(BUILD)' prefix '$(PREFIX)'
	@for p in $(PACKAGES) cmocka; do \
		printf '%-10s %s\n' $$p "$$(pkg-config --modversion $$p 2>/dev/null || echo missing)"; done

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

clean: ## removes the build directory
	rm -rf $(BUILD)

-include $(shell find $(BUILD) -path $(BUILD)/mutate -prune -o -name '*.d' -print 2>/dev/null)

FORCE:
