/* SPDX-License-Identifier: Apache-2.0 */
/* Which accesses of a block another block of the launch may count on. The kernels are compiled with
 * -fsanitize=thread, whose calls before each access come here in the place of its library's.
 *
 * The order is that of PTX, as far as kernels use it. A fence covers what its thread did before and
 * what its block did before the last barrier. An atomic operation of that thread behind the fence
 * hands this to whoever operates on the same word later: the thread has it from its next fence on,
 * its block from the next barrier on. The end of a launch orders everything. Two accesses of a word
 * by two blocks, one of them a write, in no such order end the process, whatever was read: on a GPU
 * the bytes may be the old ones.
 *
 * A launch on the side (a branch of a graph, a second stream) is made when it is waited for. What
 * the main chain has launched since the point where it branched off may run at the same time: a
 * word that both touch, one of them writing, ends the process.
 *
 * Not there: what __syncwarp() orders, threads of one block, shared memory, the host's memory. Of
 * the readers of a word the last is kept.
 *
 * EMU_WITHOUT=FILE:LINE takes a fence or a barrier out of the order (it runs as ever). */

#include "emu_impl.cuh"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <sys/mman.h>
#include <vector>

enum { WORD = 4, MAX_TICK = (1 << 16) - 1, MAX_LAUNCH = (1 << 18) - 1 };

/* Of a word of the device: the last write, the last read. A tick is a time of the block, which each
 * barrier and each fence ends. */
struct access {
    uint64_t launch : 18, block : 16, thread : 10, tick : 16, bytes : 4;
};

/* Accesses of a block: those before tick `all`, and those of `thread` before tick `own`. */
struct seen {
    unsigned block, all, thread, own;
};
typedef std::vector<struct seen> seen_list;

struct thread {
    seen_list given; /* what its last fence covers */
    seen_list taken; /* from atomic operations since */
    seen_list known; /* beside what its block knows */
};

static struct access *writes, *reads;
static const uint8_t *device;
static unsigned launch;
/* The launch that the early ones up to this one follow: all of them may run at once. */
static unsigned chain;
static bool on_side[MAX_LAUNCH + 1]; /* launches so far */
static std::map<const void *, seen_list> words; /* that atomic operations of this launch have met */
static struct block {
    unsigned number, tick, barrier; /* now; when the last barrier was */
    seen_list known;
    struct thread thread[EMU_MAX_THREADS];
} blocks[EMU_BLOCKS];

static struct block *block_now(void)
{
    return &blocks[emu_index / EMU_MAX_THREADS];
}

static unsigned thread_now(void)
{
    return (unsigned)emu_index % EMU_MAX_THREADS;
}

static void add(seen_list *to, const struct seen &s)
{
    for (struct seen &t : *to) {
        if (t.block == s.block && t.thread == s.thread) {
            t.all = max(t.all, s.all);
            t.own = max(t.own, s.own);
            return;
        }
    }
    to->push_back(s);
}

static void add(seen_list *to, const seen_list &from)
{
    for (const struct seen &s : from) {
        add(to, s);
    }
}

static bool covers(const seen_list &list, const struct access *a)
{
    bool yes = false;

    for (const struct seen &s : list) {
        yes = yes || (s.block == a->block && a->tick < (s.thread == a->thread ? s.own : s.all));
    }
    return yes;
}

static bool is_out(const char *file, int line)
{
    static const char *const out = getenv("EMU_WITHOUT");
    char site[256];
    int n;

    if (!out) {
        return false;
    }
    n = snprintf(site, sizeof(site), "%s:%d", file, line) - (int)strlen(out);
    return n >= 0 && strcmp(site + n, out) == 0;
}

static void next_tick(struct block *b)
{
    if (b->tick == MAX_TICK) {
        fprintf(stderr, "emu: %s: more barriers and fences than the emulator counts\n",
                emu_kernel.name);
        abort();
    }
    b->tick++;
}

/* ---- launches, blocks, barriers ------------------------------------------------------------- */

static struct access *open_words(void)
{
    void *p = mmap(NULL, EMU_DEVICE_BYTES / WORD * sizeof(struct access), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED) {
        perror("emu: order");
        abort();
    }
    return (struct access *)p;
}

void emu_order_launch(void)
{
    if (!writes) {
        writes = open_words();
        reads = open_words();
    }
    device = emu_device();
    if (launch == MAX_LAUNCH) { /* numbers begin anew: what old ones say is forgotten */
        madvise(writes, EMU_DEVICE_BYTES / WORD * sizeof(*writes), MADV_DONTNEED);
        madvise(reads, EMU_DEVICE_BYTES / WORD * sizeof(*reads), MADV_DONTNEED);
        launch = 0;
    }
    launch++;
    chain = emu_kernel.early && chain <= launch ? chain : launch;
    on_side[launch] = emu_kernel.side;
    words.clear();
}

unsigned emu_order_now(void)
{
    return launch;
}

void emu_order_block(int slot, unsigned number)
{
    struct block *b = &blocks[slot];

    b->number = number & 0xffff;
    b->tick = b->barrier = 0;
    b->known.clear();
    for (int i = 0; i < emu_kernel.n_threads; i++) {
        b->thread[i] = {};
    }
}

void emu_order_barrier(int slot, const char *file, int line)
{
    struct block *b = &blocks[slot];

    if (is_out(file, line)) {
        return;
    }
    next_tick(b);
    b->barrier = b->tick;
    for (int i = 0; i < emu_kernel.n_threads; i++) {
        if (!b->thread[i].known.empty()) {
            add(&b->known, b->thread[i].known);
            b->thread[i].known.clear();
        }
    }
}

/* ---- fences and atomic operations ----------------------------------------------------------- */

void emu_order_fence(const char *file, int line)
{
    struct block *b = block_now();
    struct thread *t = &b->thread[thread_now()];

    if (!is_out(file, line)) {
        next_tick(b);
        add(&t->known, t->taken);
        t->taken.clear();
        t->given = b->known;
        add(&t->given, t->known);
        add(&t->given, {b->number, b->barrier, thread_now(), b->tick});
    }
    emu_yield();
}

void emu_order_atomic(const void *p)
{
    struct thread *t = &block_now()->thread[thread_now()];

    if ((size_t)((const uint8_t *)p - device) < EMU_DEVICE_BYTES) {
        emu_yield();

        seen_list *word = &words[p];

        add(&t->taken, *word);
        add(word, t->given);
    }
}

/* ---- accesses ------------------------------------------------------------------------------- */

static void check(const struct access *a, unsigned bytes, const char *what)
{
    const struct block *b = block_now();

    if (emu_kernel.side && a->launch > emu_kernel.after && a->launch < launch &&
        !on_side[a->launch] && a->bytes & bytes) {
        fprintf(stderr, "emu: %s: thread %u of block %u %s a kernel that runs at the same time\n",
                emu_kernel.name, thread_now(), b->number, what);
        abort();
    }
    if (a->launch == launch && a->block != b->number && a->bytes & bytes && !covers(b->known, a) &&
        !covers(b->thread[thread_now()].known, a)) {
        fprintf(stderr, "emu: %s: thread %u of block %u %s thread %u of block %u, in no order\n",
                emu_kernel.name, thread_now(), b->number, what, (unsigned)a->thread,
                (unsigned)a->block);
        abort();
    }
}

/* What a thread reads before it waits for the kernel ahead. */
static void check_ahead(size_t at, size_t n, bool write)
{
    for (size_t word = at / WORD; word <= (at + n - 1) / WORD; word++) {
        if (write || writes[word].launch >= chain) {
            fprintf(stderr, "emu: %s: thread %u of block %u %s before it waits\n", emu_kernel.name,
                    thread_now(), block_now()->number,
                    write ? "writes" : "reads what the step has written");
            abort();
        }
    }
}

static void access_device(size_t at, size_t n, bool write)
{
    emu_check_waited();
    if (emu_is_ahead()) {
        check_ahead(at, n, write);
    }
    for (size_t end = at + n; at < end;) {
        size_t stop = min((at / WORD + 1) * WORD, end);
        unsigned bytes = ((1u << (stop - at)) - 1u) << at % WORD;
        struct access *last = write ? &writes[at / WORD] : &reads[at / WORD];
        struct access a = {launch, block_now()->number, thread_now(), block_now()->tick, 0};

        check(&writes[at / WORD], bytes, write ? "writes beside" : "reads what was written by");
        if (write) {
            check(&reads[at / WORD], bytes, "writes what was read by");
        }
        if (last->launch == a.launch && last->block == a.block && last->thread == a.thread &&
            last->tick == a.tick) {
            bytes |= last->bytes;
        }
        a.bytes = bytes & 15;
        *last = a;
        at = stop;
    }
}

static inline void access(const void *p, size_t n, bool write)
{
    size_t at = (size_t)((const uint8_t *)p - device);

    if (at < EMU_DEVICE_BYTES && device) {
        access_device(at, n, write);
    }
}

void emu_order_ahead(const void *p, size_t n)
{
    size_t at = (size_t)((const uint8_t *)p - device);

    if (at < EMU_DEVICE_BYTES && device && emu_is_ahead()) {
        check_ahead(at, n, false);
    }
}

void emu_order_read(const void *p, size_t n)
{
    access(p, n, false);
}

/* What the compiler calls. */
/* clang-format off */
#define CALL(name, n, write) extern "C" void __tsan_##name(void *p) { access(p, n, write); }
#define CALLS(n) CALL(read##n, n, false) CALL(write##n, n, true) \
    CALL(unaligned_read##n, n, false) CALL(unaligned_write##n, n, true)
CALLS(1)
CALLS(2)
CALLS(4)
CALLS(8)
CALLS(16)
/* clang-format on */

extern "C" void __tsan_read_range(void *p, unsigned long n)
{
    access(p, n, false);
}

extern "C" void __tsan_write_range(void *p, unsigned long n)
{
    access(p, n, true);
}

extern "C" void __tsan_init(void)
{
}
