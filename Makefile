# infer: `make` builds build/infer; `make help` lists the rest. A new file needs no edit here: sources are found by
# wildcard and a kernel file's suffix (_avx2.c, _amx.c, _neon.c …) sets its instruction-set flags.
BUILD   ?= build
CC      ?= gcc
OPT     ?= -O2
KERNEL_OPT ?= -O3
PREFIX  ?= /usr/local
CSTD     = -std=c11 -D_GNU_SOURCE
WARN     = -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla $(WERROR)
PKGS     = jansson libcurl libpcre2-8 libutf8proc
PKG_CFLAGS = $(shell pkg-config --cflags $(PKGS))
CFLAGS  += $(CSTD) $(OPT) -g $(WARN) -ffp-contract=off -fvisibility=hidden -fPIC -pthread -MMD -MP \
           -Iinclude -Isrc $(PKG_CFLAGS) $(EXTRA)
LDLIBS  += $(shell pkg-config --libs $(PKGS)) -lm -pthread
VERSION := $(shell sed -n 's/^.define INFER_VERSION "\(.*\)".*/\1/p' src/base/error.c)
SONAME   = libinfer.so.$(firstword $(subst ., ,$(VERSION)))

ARCH    := $(shell $(CC) -dumpmachine | cut -d- -f1)
ifeq ($(ARCH),x86_64)
ISA_DIR  = x86
BASE_ISA = -march=x86-64-v2
endif
ifeq ($(ARCH),aarch64)
ISA_DIR  = arm
BASE_ISA = -march=armv8-a
endif
ISA_avx2       = -march=x86-64-v3
ISA_avxvnni    = $(ISA_avx2) -mavxvnni
ISA_avx512vnni = -march=x86-64-v4 -mavx512vnni -mprefer-vector-width=512
ISA_amx        = $(ISA_avx512vnni) -mamx-tile -mamx-bf16
ISA_dotprod    = -march=armv8.2-a+dotprod
ISA_i8mm       = $(ISA_dotprod)+i8mm

COMPUTE_SRC := $(wildcard src/base/*.c src/compute/*.c src/compute/cpu/*.c src/compute/cpu/ref/*.c \
                 src/compute/cpu/$(ISA_DIR)/*.c)
LIB_SRC := $(COMPUTE_SRC) $(wildcard src/models/*.c src/vindex/*.c src/inference/*.c)
CLI_SRC := $(wildcard src/cli/*.c)
COMPUTE_OBJ := $(COMPUTE_SRC:%.c=$(BUILD)/%.o)
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/%.o)
CLI_OBJ := $(CLI_SRC:%.c=$(BUILD)/%.o)

all: $(BUILD)/infer ## the program (default)

# line editing is the program's alone: the library needs no libedit
$(CLI_OBJ): CFLAGS += $(shell pkg-config --cflags libedit)
$(BUILD)/infer: $(CLI_OBJ) $(LIB_OBJ)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS) $(shell pkg-config --libs libedit)

# flags by file suffix; kernels may skip errno, which no kernel reads
isa_of = $(ISA_$(lastword $(subst _, ,$(basename $(notdir $(1))))))
compile_kernel = $(CC) $(CFLAGS) $(BASE_ISA) $(KERNEL_OPT) -fno-math-errno $(call isa_of,$<) -c -o $@ $<
$(BUILD)/src/compute/%.o: src/compute/%.c
	@mkdir -p $(@D)
	$(compile_kernel)
$(BUILD)/tests/kernels/x86/%.o: tests/kernels/x86/%.c
	@mkdir -p $(@D)
	$(compile_kernel)
$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(BASE_ISA) -c -o $@ $<

# ---- library: the archive is one object, so that names which are not infer_* stay inside
lib: $(BUILD)/libinfer.a $(BUILD)/libinfer.so ## static and shared library
$(BUILD)/libinfer.a: $(LIB_OBJ)
	$(LD) -r -o $(BUILD)/libinfer.o $^
	objcopy --localize-hidden $(BUILD)/libinfer.o
	rm -f $@ && $(AR) rcs $@ $(BUILD)/libinfer.o
$(BUILD)/libinfer.so: $(LIB_OBJ)
	$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(SONAME) -Wl,--no-undefined -o $@ $^ $(LDLIBS)

# libcurl is named as a library: as a package it would ask for the static libraries of all that it uses
D = $(DESTDIR)$(PREFIX)
install: all lib ## headers, libraries, program and infer.pc to PREFIX (below DESTDIR)
	install -d $(D)/bin $(D)/include $(D)/lib/pkgconfig
	install -m 755 $(BUILD)/infer $(D)/bin/
	install -m 644 include/*.h $(D)/include/
	install -m 644 $(BUILD)/libinfer.a $(D)/lib/
	install -m 755 $(BUILD)/libinfer.so $(D)/lib/libinfer.so.$(VERSION)
	ln -sf libinfer.so.$(VERSION) $(D)/lib/$(SONAME)
	ln -sf $(SONAME) $(D)/lib/libinfer.so
	printf '%s\n' 'prefix=$(PREFIX)' 'includedir=$${prefix}/include' 'libdir=$${prefix}/lib' '' 'Name: infer' \
	  'Description: transformer inference engine' 'Version: $(VERSION)' 'Cflags: -I$${includedir}' \
	  'Libs: -L$${libdir} -linfer' 'Libs.private: $(shell pkg-config --libs libcurl) -lm -pthread' \
	  'Requires.private: $(filter-out libcurl,$(PKGS))' >$(D)/lib/pkgconfig/infer.pc

# examples/<name>.c: programs on the public headers alone
EXAMPLES := $(patsubst %.c,$(BUILD)/%,$(wildcard examples/*.c))
$(BUILD)/examples/%: $(BUILD)/examples/%.o $(BUILD)/libinfer.a
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS)
examples: $(EXAMPLES) ## the example programs

# ---- tests. Each program runs under scripts/tally, which counts what passed and shows what failed.
TALLY   = scripts/tally
PYTHON ?= python3
PYTEST  = $(PYTHON) -m pytest -q -p no:cacheprovider --tb=short
export INFER ?= $(BUILD)/infer
run_all = @fail=0; for t in $(1); do $(TALLY) $$(basename $$t) $(2) $$t $(3) || fail=1; done; exit $$fail

# the library's plain objects, of which a test takes what it needs (two objects may have one name: q, not r)
$(BUILD)/objects.a: $(LIB_OBJ)
	@rm -f $@
	$(AR) qcs $@ $^

# tests/unit/test_<module>.c: one program each
UNIT := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/unit/test_*.c))
$(BUILD)/tests/unit/%: $(BUILD)/tests/unit/%.o $(BUILD)/objects.a
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcmocka
# tests/tools/<name>.c: programs for those who look for differences by hand
$(BUILD)/tests/tools/%: $(BUILD)/tests/tools/%.o $(BUILD)/objects.a
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS)
unit: $(UNIT) ## unit tests
	$(call run_all,$(UNIT))

# tests/kernels: the checker, one program: every instruction-set level of this machine against the reference
CHECK_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/kernels/*.c tests/kernels/$(ISA_DIR)/*.c))
$(BUILD)/check-kernels: $(CHECK_OBJ) $(COMPUTE_OBJ)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -lm -pthread
kernels: $(BUILD)/check-kernels ## kernel checker
	@$(TALLY) check-kernels $(EMULATOR) $(BUILD)/check-kernels

golden: $(BUILD)/infer ## vectors from independent implementations, on every CPU level of this machine
	$(call run_all,$(wildcard tests/golden/test_*.py),$(PYTEST))
cli: $(BUILD)/infer examples ## the program's commands, and the examples
	$(call run_all,$(filter-out %/test_badfiles.py,$(wildcard tests/cli/test_*.py)),$(PYTEST))
badfiles: $(BUILD)/infer ## malformed files
	$(call run_all,$(wildcard tests/cli/test_badfiles.py),$(PYTEST))
install-check: all lib ## an installed library, used by a program of its own
	@$(TALLY) install scripts/check_install.sh

# Kernels are unrolled and inlined without bound: optimised under a sanitizer one file takes minutes. Without
# optimisation gcc warns that it does not unroll, which is no error here.
SANITIZE = -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
asan: export ASAN_OPTIONS = allocator_may_return_null=1:detect_stack_use_after_return=1
asan: export INFER_SANITIZED = 1
asan: ## unit tests, golden vectors and malformed files under AddressSanitizer and UBSan
	$(MAKE) -k BUILD=build-asan OPT=-O1 KERNEL_OPT=-O0 WERROR= EXTRA="$(SANITIZE)" INFER=build-asan/infer all unit golden badfiles
ndebug: ## malformed files without asserts
	$(MAKE) BUILD=build-ndebug EXTRA=-DNDEBUG INFER=build-ndebug/infer badfiles
TSAN_UNIT = $(wildcard tests/unit/test_thread.c tests/unit/test_engine.c tests/unit/test_hnsw.c)
tsan: ## what uses threads under ThreadSanitizer
	$(MAKE) BUILD=build-tsan OPT=-O1 KERNEL_OPT=-O0 WERROR= EXTRA=-fsanitize=thread \
	  UNIT="$(TSAN_UNIT:%.c=build-tsan/%)" unit
# Each level on a processor whose best it is; the Cortex-A53 is a plain armv8-a.
arm64: ## kernels built for arm64, checked under qemu
	$(MAKE) BUILD=build-arm64 CC=aarch64-linux-gnu-gcc LDFLAGS=-static PKG_CFLAGS= EXTRA=-g0 build-arm64/check-kernels
	@fail=0; check() { $(TALLY) arm64-$$3 qemu-aarch64 -cpu $$1 build-arm64/check-kernels --quick $$2 $$3 || fail=1; }; \
	  check max --level ref; check cortex-a53 --best neon; check neoverse-n1 --best dotprod; check max --best i8mm; exit $$fail

# tests/fuzz/fuzz_<parser>.c: libFuzzer programs; seeds in tests/fuzz/seeds/<parser>
FUZZ_SECONDS ?= 20
FUZZ := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
fuzz: ## every parser, FUZZ_SECONDS each
	$(MAKE) BUILD=build-fuzz CC=clang OPT=-O1 KERNEL_OPT=-O0 WERROR= EXTRA="$(SANITIZE) -fsanitize=fuzzer-no-link" \
	  $(FUZZ:%=build-fuzz/fuzz_%)
	@fail=0; for f in $(FUZZ); do mkdir -p build-fuzz/corpus/$$f tests/fuzz/seeds/$$f; \
	  ASAN_OPTIONS=allocator_may_return_null=1 $(TALLY) fuzz_$$f build-fuzz/fuzz_$$f -max_total_time=$(FUZZ_SECONDS) \
	    -timeout=10 -rss_limit_mb=2048 -artifact_prefix=build-fuzz/ build-fuzz/corpus/$$f tests/fuzz/seeds/$$f || fail=1; \
	  done; exit $$fail
$(BUILD)/fuzz_%: $(BUILD)/tests/fuzz/fuzz_%.o $(BUILD)/objects.a
	$(CC) $(CFLAGS) $(LDFLAGS) -fsanitize=fuzzer -o $@ $^ $(LDLIBS)

headers: ## each public header compiles alone, as C11 and as C++
	@for h in include/*.h; do \
	  $(TALLY) $$h.c11 $(CC) $(CSTD) $(WARN) -Werror -fsyntax-only -x c $$h || exit 1; \
	  $(TALLY) $$h.c++ clang -std=c++11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -x c++ $$h || exit 1; done
style: ## whitespace, line length, who may include whom
	@$(TALLY) style scripts/style.sh
	@$(TALLY) layers scripts/layers.sh
format: ## clang-format over all C
	clang-format -i $(wildcard include/*.h src/*/*.[ch] src/*/*/*.[ch] src/*/*/*/*.[ch] tests/*/*.[ch] examples/*.c)

check: all unit kernels golden ## the short tests
ci: ## every test
	@scripts/ci.sh
clean: ## what was built
	rm -rf build build-*
help:
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 16
.SECONDARY:
.PHONY: all lib examples install unit kernels golden cli badfiles install-check asan ndebug tsan arm64 fuzz headers style format \
        check ci clean help
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
