// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The kernel side of memtrack: all programs and maps of the object, one concern per header. The
 * loader decides before load which programs run; see python/memtrack/hooks.py.
 */
#include "vmlinux.h"

#include <bpf/bpf_helpers.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#include "event.h"
#include "state.h"

#include "maps.bpf.h"
#include "number.bpf.h"

#include "counters.bpf.h"
#include "identity.bpf.h"
#include "preempt.bpf.h"

#include "totals.bpf.h"

#include "emit.bpf.h"
#include "tree.bpf.h"

#include "rmap_sums.bpf.h"

#include "lifecycle.bpf.h"
#include "migration.bpf.h"
#include "rmap.bpf.h"
#include "rss.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";
