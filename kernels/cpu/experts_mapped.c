/* SPDX-License-Identifier: Apache-2.0 */
/* Experts that stay in the file's map. Scratch has slots of the size of one packed expert (gate, up
 * and down). An expert that is chosen and in no slot is packed into the one that was used longest
 * ago, so every bit is that of an expert that is held.
 *
 * A slot is known by the address of its expert's first matrix in the map. The kernel is told what
 * will be read before the first of a few experts is packed. */

#include <assert.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/checked.h"
#include "kernels/cpu/cpu.h"
#include "quant/dtype.h"

enum { NONE = -1, PARTS = 3 };

struct slot {
    const uint8_t *of; /* NULL: nobody's */
    int32_t older;
    int32_t newer;
    int32_t next;  /* of the same hash */
    int32_t first; /* slot of hash i, where this is slot i */
};

struct cpu_expert_slots {
    size_t slot_bytes;
    uint8_t *mem;
    int32_t n;
    int32_t oldest;
    int32_t newest;
    struct slot slot[];
};

static uint64_t table_bytes(uint64_t n)
{
    return checked_round_up(sizeof(struct cpu_expert_slots) + n * sizeof(struct slot), 64);
}

uint64_t cpu_expert_slots_bytes(const struct backend_config *config,
                                const struct backend_limits *limits)
{
    uint64_t n = limits->max_expert_bytes ? config->expert_bytes / limits->max_expert_bytes : 0;

    return n ? table_bytes(n) + n * limits->max_expert_bytes : 0;
}

static void make_empty(struct cpu_expert_slots *s)
{
    s->oldest = 0;
    s->newest = s->n - 1;
    for (int32_t i = 0; i < s->n; i++) {
        s->slot[i] = (struct slot){
            .older = i - 1, .newer = i + 1 < s->n ? i + 1 : NONE, .next = NONE, .first = NONE};
    }
}

void cpu_expert_slots_ready(struct cpu *cpu, void *at)
{
    size_t bytes = (size_t)cpu->limits.max_expert_bytes;
    struct cpu_expert_slots *s = at;
    uint64_t n = bytes ? cpu->expert_bytes / bytes : 0;

    cpu->expert_slots = n ? s : NULL;
    if (n) {
        s->slot_bytes = bytes;
        s->mem = (uint8_t *)at + table_bytes(n);
        s->n = (int32_t)n;
        make_empty(s);
    }
}

void cpu_expert_slots_forget(struct cpu *cpu)
{
    if (cpu->expert_slots) {
        make_empty(cpu->expert_slots);
    }
}

/* ---- the order of use, and whose a slot is --------------------------------------------------- */

static void use_slot(struct cpu_expert_slots *s, int32_t i)
{
    struct slot *at = &s->slot[i];

    if (i == s->newest) {
        return;
    }
    *(at->older != NONE ? &s->slot[at->older].newer : &s->oldest) = at->newer;
    s->slot[at->newer].older = at->older;
    s->slot[s->newest].newer = i;
    at->older = s->newest;
    at->newer = NONE;
    s->newest = i;
}

static int32_t *first_of(struct cpu_expert_slots *s, const uint8_t *of)
{
    uint64_t hash = (uint64_t)(uintptr_t)of * 0x9E3779B97F4A7C15u >> 32;

    return &s->slot[hash % (uint64_t)s->n].first;
}

static int32_t find(struct cpu_expert_slots *s, const uint8_t *of)
{
    int32_t i = *first_of(s, of);

    while (i != NONE && s->slot[i].of != of) {
        i = s->slot[i].next;
    }
    return i;
}

static void give(struct cpu_expert_slots *s, int32_t i, const uint8_t *of)
{
    int32_t *link = first_of(s, s->slot[i].of);

    while (s->slot[i].of && *link != i) {
        link = &s->slot[*link].next;
    }
    *(s->slot[i].of ? link : &s->slot[i].next) = s->slot[i].next;
    link = first_of(s, of);
    s->slot[i].of = of;
    s->slot[i].next = *link;
    *link = i;
}

/* ---- experts --------------------------------------------------------------------------------- */

/* Its three stacks; NULL where up is the gate, too. */
struct parts {
    const struct ops_weight *w[PARTS];
};

static struct parts parts_of(const struct ops_experts *p)
{
    const struct ops_weight *gate = p->gate.w != p->up.w ? p->gate.w : NULL;

    return (struct parts){{gate, p->up.w, p->down.w}};
}

static uint64_t row_bytes(const struct ops_weight *w)
{
    uint64_t bytes = 0;

    (void)dtype_row_bytes(w->type, (uint64_t)w->n_cols, &bytes); /* weight_create has asked */
    return bytes;
}

static const uint8_t *matrix_at(const struct ops_weight *w, int32_t e)
{
    return (const uint8_t *)w->device +
           (uint64_t)e * ops_stack_rows(w->stack_rows, w->n_rows) * row_bytes(w);
}

static const uint8_t *name_of(const struct parts *p, int32_t e)
{
    return matrix_at(p->w[0] ? p->w[0] : p->w[1], e);
}

static struct ops_weight_desc one_of(const struct ops_weight *w, int32_t e)
{
    return (struct ops_weight_desc){.type = w->type,
                                    .role = w->role,
                                    .n_rows = w->n_rows,
                                    .n_cols = w->n_cols,
                                    .data = matrix_at(w, e)};
}

/* A hint, so what the kernel answers changes nothing. */
static void read_ahead(const struct ops_weight *w, int32_t e)
{
    uint64_t from = (uint64_t)(uintptr_t)matrix_at(w, e);
    uint64_t size = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t page = from / size * size;

    (void)madvise((void *)(uintptr_t)page,
                  (size_t)(from + (uint64_t)w->n_rows * row_bytes(w) - page), MADV_WILLNEED);
}

static void pack(struct cpu *cpu, const struct parts *p, int32_t e, uint8_t *to)
{
    const uint8_t *end = to + cpu->expert_slots->slot_bytes;

    for (int k = 0; k < PARTS; k++) {
        if (p->w[k]) {
            struct ops_weight_desc one = one_of(p->w[k], e);

            cpu_weight_pack(cpu, &one, to);
            to += cpu_weight_bytes(NULL, &one);
            assert(to <= end);
        }
    }
    (void)end;
}

void cpu_experts_fetch(struct cpu *cpu, const struct ops_experts *experts, const int32_t *which,
                       int32_t n)
{
    struct cpu_expert_slots *s = cpu->expert_slots;
    struct parts p = parts_of(experts);

    for (int32_t i = 0; i < n; i++) {
        int32_t at = find(s, name_of(&p, which[i]));

        if (at != NONE) {
            use_slot(s, at); /* so that no other of these takes it */
        }
        for (int k = 0; k < PARTS && at == NONE; k++) {
            if (p.w[k]) {
                read_ahead(p.w[k], which[i]);
            }
        }
    }
    for (int32_t i = 0; i < n; i++) {
        const uint8_t *name = name_of(&p, which[i]);
        int32_t at = s->oldest;

        if (find(s, name) == NONE) {
            pack(cpu, &p, which[i], s->mem + (size_t)at * s->slot_bytes);
            give(s, at, name);
            use_slot(s, at);
        }
    }
}

const uint8_t *cpu_experts_packed(const struct cpu *cpu, const struct ops_experts *experts,
                                  int part, int32_t e)
{
    struct cpu_expert_slots *s = cpu->expert_slots;
    struct parts p = parts_of(experts);
    const uint8_t *at = s->mem + (size_t)find(s, name_of(&p, e)) * s->slot_bytes;

    for (int k = 0; k < part; k++) {
        struct ops_weight_desc one = {0};

        if (p.w[k]) {
            one = one_of(p.w[k], e);
            at += cpu_weight_bytes(NULL, &one);
        }
    }
    return at;
}
