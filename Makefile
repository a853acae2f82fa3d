# infer: `make` builds build/infer; `make help` lists the rest. A new file needs no edit here: sources are found by
# wildcard and a kernel file's suffix (_avx2.c, _avx512vnni.c, _neon.c) sets its instruction-set flags.
BUILD   ?= build
CC      ?= gcc
OPT     ?= -O2
CSTD     = -std=c11 -D_GNU_SOURCE
WARN     = -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla $(WERROR)
PKGS     = jansson libpcre2-8 libutf8proc
CFLAGS  += $(CSTD) $(OPT) -g $(WARN) -ffp-contract=off -fvisibility=hidden -pthread -MMD -MP \
           -Iinclude -Isrc $(shell pkg-config --cflags $(PKGS)) $(EXTRA)
LDLIBS  += $(shell pkg-config --libs $(PKGS)) -lm -pthread

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
ISA_avx512vnni = -march=x86-64-v4 -mavx512vnni -mprefer-vector-width=512
ISA_neon       = -march=armv8.2-a+dotprod

LIB_SRC := $(wildcard src/base/*.c src/compute/*.c src/compute/cpu/*.c src/compute/cpu/ref/*.c \
             src/compute/cpu/$(ISA_DIR)/*.c src/models/*.c src/inference/*.c)
CLI_SRC := $(wildcard src/cli/*.c)
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/%.o)
CLI_OBJ := $(CLI_SRC:%.c=$(BUILD)/%.o)

all: $(BUILD)/infer

$(BUILD)/infer: $(CLI_OBJ) $(LIB_OBJ)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# flags by file suffix; kernels may skip errno, which no kernel reads
isa_of = $(ISA_$(lastword $(subst _, ,$(basename $(notdir $(1))))))
$(BUILD)/src/compute/%.o: src/compute/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(BASE_ISA) -O3 -fno-math-errno $(call isa_of,$<) -c -o $@ $<
$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(BASE_ISA) -c -o $@ $<

# tests/unit/test_<module>.c: one program each, linked with the library's plain objects
UNIT := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/unit/test_*.c))
$(BUILD)/tests/unit/%: $(BUILD)/tests/unit/%.o $(LIB_OBJ)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcmocka
unit: $(UNIT)
	@for t in $(UNIT); do $$t || exit 1; done

# tests/kernels: the checker, one program
CHECK_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/kernels/*.c))
$(BUILD)/check-kernels: $(CHECK_OBJ) $(LIB_OBJ)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS)

clean:
	rm -rf $(BUILD)
.PHONY: all unit clean
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
