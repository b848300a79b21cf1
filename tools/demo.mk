# What tools/demo records: the sources of both sides, compiled by two compilers in parallel into OUT.
HOST := $(filter-out %.bpf.c,$(wildcard bpf/*.c))
FLAGS := -std=gnu11 -D_GNU_SOURCE -O2 -g -Ibpf -c

all: $(OUT)/gcc.o $(OUT)/clang.o $(OUT)/rss.bpf.o

$(OUT)/gcc.o: $(HOST:bpf/%.c=$(OUT)/%.gcc.o)
	$(LD) -r -o $@ $^

$(OUT)/clang.o: $(HOST:bpf/%.c=$(OUT)/%.clang.o)
	$(LD) -r -o $@ $^

$(OUT)/%.gcc.o: bpf/%.c
	gcc $(FLAGS) -o $@ $<

$(OUT)/%.clang.o: bpf/%.c
	clang $(FLAGS) -o $@ $<

$(OUT)/rss.bpf.o: bpf/rss.bpf.c
	clang -target bpf -O2 -g -Ibpf -c -o $@ $<

.PHONY: all
