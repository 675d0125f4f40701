/* SPDX-License-Identifier: Apache-2.0 */
/* Inline PTX, interpreted. asm.py lets the compiler's preprocessor read kernels/cuda/prim.cuh as a
 * GPU's compiler would, and turns each asm statement into a call of ptx_run() with its text and its
 * operands; all else of the file is compiled as C++. A lane is a fiber of tests/cuda/emu, from
 * which the interpreter takes the lane's number and the exchange of a word between the lanes of a
 * warp, and nothing else: what instructions do is written here from the document.
 *
 * A text is cut at its semicolons into instructions, an instruction into its name and operands: %N
 * (an operand of the statement), a register that the text declares, a number, {a list}, [an
 * address]. The name decides, modifiers and all, in step(): a name that is not there is a failure
 * with the instruction's text.
 *
 * Semantics are those of NVIDIA's "Parallel Thread Execution ISA", version 9.0. Named there:
 *   prmt, mov, cvt ("Data Movement and Conversion Instructions"); ex2, setp;
 *   "Matrix Fragments for mma.m16n8k16 with floating point type", the same "with .u8/.s8", "Matrix
 *   Fragments for mma.m16n8k32"; ldmatrix; movmatrix;
 *   "Asynchronous Warpgroup Level Matrix Instructions": "Register Fragments", "Canonical Layouts",
 *   "Matrix Descriptor Format", wgmma.fence, .commit_group, .wait_group;
 *   "Data Movement and Conversion Instructions: Asynchronous copy": cp.async, its groups;
 *   griddepcontrol, prefetch, fence.proxy.
 *
 * Asynchronous work is done as late as the document allows: at the wait that covers its group. A
 * matrix product in shared memory without wgmma.fence and fence.proxy.async before is a failure, so
 * is an address that is not aligned or in no memory. Sums of 16-bit products are made in double and
 * rounded once; the document leaves order and rounding open, so the test compares exact sums, and
 * others within a bound. */

#include "tests/cuda/ptx/interpreter.cuh"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

struct copy {
    void *to;
    const void *from;
    size_t bytes;
    int group;
};

struct copies {
    std::vector<struct copy> under_way;
    int groups;
};

static struct copies lanes[MAX_LANES];
static const uint8_t *global;
static size_t global_bytes;
static char failure[512];
static uint64_t counts[MAX_SITES];
static const struct ptx_fault *fault;
static std::map<int, std::vector<struct instruction>> parsed; /* without the fault's */
static std::vector<struct instruction> parsed_fault;

void ptx_fail(const char *format, ...)
{
    va_list list;

    if (!failure[0]) {
        va_start(list, format);
        vsnprintf(failure, sizeof(failure), format, list);
        va_end(list);
    }
}

/* ---- numbers -------------------------------------------------------------------------------- */

/* Sign, exponent of e bits with this bias, fraction of m bits. */
static double small_float(unsigned bits, int e, int m, int bias)
{
    int exponent = (int)(bits >> m) & ((1 << e) - 1);
    int fraction = (int)bits & ((1 << m) - 1);
    double x = exponent == 0 ? ldexp(fraction, 1 - bias - m)
                             : ldexp((1 << m) + fraction, exponent - bias - m);

    return bits >> (e + m) & 1 ? -x : x;
}

double ptx_half_value(uint16_t bits, bool bf16)
{
    int e = bf16 ? 8 : 5;
    int m = 15 - e;

    if ((bits >> m & ((1 << e) - 1)) == (1 << e) - 1) {
        return bits & ((1 << m) - 1) ? NAN : bits >> 15 ? -INFINITY : INFINITY;
    }
    return small_float(bits, e, m, (1 << (e - 1)) - 1);
}

/* Beyond the largest number: infinity, or that number when rounding goes to zero. NaN is 0x7fff. */
uint16_t ptx_half_of(double x, bool bf16, bool to_zero)
{
    int m = bf16 ? 7 : 10;
    int bias = bf16 ? 127 : 15;
    uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    uint16_t infinite = (uint16_t)((2 * bias + 1) << m);
    double size = fabs(x);
    int unit; /* exponent of the last place */

    if (std::isnan(x)) {
        return 0x7fff;
    }
    if (std::isinf(x)) {
        return sign | infinite;
    }
    unit = (size == 0 || ilogb(size) < 1 - bias ? 1 - bias : ilogb(size)) - m;
    size = ldexp(size, -unit);
    size = to_zero ? trunc(size) : nearbyint(size);
    if (ldexp(size, unit) >= ldexp(1, bias + 1)) {
        return sign | (to_zero ? infinite - 1 : infinite);
    }
    /* a fraction of 2^m and more carries into the exponent, as it should */
    return sign | (uint16_t)((int)size + ((unit + m + bias - 1) << m));
}

static double e4m3_value(unsigned code)
{
    return (code & 0x7f) == 0x7f ? NAN : small_float(code, 4, 3, 7);
}

float ptx_float_of(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, 4);
    return x;
}

uint32_t ptx_bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, 4);
    return std::isnan(x) ? 0x7fffffff : bits;
}

/* ---- texts ---------------------------------------------------------------------------------- */

static std::string trimmed(const std::string &s)
{
    size_t from = s.find_first_not_of(" \t\n");
    size_t to = s.find_last_not_of(" \t\n");

    return from == std::string::npos ? "" : s.substr(from, to - from + 1);
}

/* At commas that are in no braces. */
static strings cut(const std::string &s)
{
    strings list;
    std::string part;
    int depth = 0;

    for (char c : s) {
        depth += c == '{' ? 1 : c == '}' ? -1 : 0;
        if (c == ',' && depth == 0) {
            list.push_back(trimmed(part));
            part.clear();
        } else {
            part += c;
        }
    }
    part = trimmed(part);
    if (!part.empty() || !list.empty()) {
        list.push_back(part);
    }
    return list;
}

static std::vector<struct instruction> parse(const std::string &text)
{
    std::vector<struct instruction> list;
    size_t at = 0;

    while (at < text.size()) {
        size_t end = std::min(text.find(';', at), text.size());
        std::string s = trimmed(text.substr(at, end - at));
        size_t name;

        at = end + 1;
        while (!s.empty() && (s[0] == '{' || s[0] == '}')) { /* a scope */
            s = trimmed(s.substr(1));
        }
        if (!s.empty()) {
            name = std::min(s.find_first_of(" \t\n"), s.size());
            list.push_back({s.substr(0, name), s, cut(trimmed(s.substr(name)))});
        }
    }
    return list;
}

strings ptx_members(const std::string &list)
{
    if (list.size() < 2 || list[0] != '{' || list.back() != '}') {
        ptx_fail("not a list: %s", list.c_str());
        return {};
    }
    return cut(list.substr(1, list.size() - 2));
}

struct ptx_operand *ptx_operand_of(struct frame *f, const std::string &name)
{
    size_t i = name.size() > 1 && name[0] == '%' ? strtoul(name.c_str() + 1, NULL, 10) : 0;

    if (name.empty() || name[0] != '%' || i >= f->operands.size()) {
        ptx_fail("not an operand: %s", name.c_str());
        return NULL;
    }
    return &f->operands[i];
}

uint64_t ptx_get(struct frame *f, const std::string &name)
{
    char *end;
    uint64_t number = strtoull(name.c_str(), &end, 0);

    if (!name.empty() && *end == 0) {
        return number;
    }
    if (f->registers.count(name)) {
        return f->registers[name];
    }
    const struct ptx_operand *o = ptx_operand_of(f, name);

    if (o && o->constraint[0] == '=') {
        ptx_fail("reads an output: %s", name.c_str());
    }
    return o ? o->bits : 0;
}

void ptx_set(struct frame *f, const std::string &name, uint64_t value)
{
    if (f->registers.count(name)) {
        f->registers[name] = value;
        return;
    }
    struct ptx_operand *o = ptx_operand_of(f, name);

    if (o && !o->at) {
        ptx_fail("writes an input: %s", name.c_str());
    } else if (o) {
        memcpy(o->at, &value, o->bytes);
    }
}

/* Sizes of the lists; false: a failure. */
bool ptx_has(const struct instruction *in, std::initializer_list<size_t> sizes)
{
    size_t i = 0;

    if (in->args.size() != sizes.size()) {
        ptx_fail("%s: %zu operands", in->text.c_str(), in->args.size());
        return false;
    }
    for (size_t n : sizes) {
        if ((n > 0 || in->args[i][0] == '{') && ptx_members(in->args[i]).size() != n) {
            ptx_fail("%s: operand %zu is a list of another length", in->text.c_str(), i);
            return false;
        }
        i++;
    }
    return true;
}

/* ---- memory --------------------------------------------------------------------------------- */

static uintptr_t window(void)
{
    return (uintptr_t)emu_shared() & ~(uintptr_t)1023;
}

uint32_t ptx_shared_address(const void *p)
{
    size_t at = (uintptr_t)p - window();

    if (at >= EMU_SHARED_MAX) {
        ptx_fail("an address that is not in shared memory");
    }
    return (uint32_t)at + SHARED_BASE;
}

void *ptx_shared_at(uint64_t address, size_t bytes, size_t align)
{
    if (address % align != 0 || address < SHARED_BASE ||
        address + bytes > SHARED_BASE + EMU_SHARED_MAX) {
        ptx_fail("shared address %#llx: not aligned to %zu, or outside",
                 (unsigned long long)address, align);
        return NULL;
    }
    return (void *)(window() + (uintptr_t)address - SHARED_BASE);
}

static const void *global_at(uint64_t address, size_t bytes, size_t align)
{
    uint64_t at = address - (uintptr_t)global;

    if (address % align != 0 || at > global_bytes || bytes > global_bytes - at) {
        ptx_fail("a global address not aligned to %zu, or outside", align);
        return NULL;
    }
    return (const void *)(uintptr_t)address;
}

/* [name] */
uint64_t ptx_address(struct frame *f, const std::string &arg)
{
    if (arg.size() < 3 || arg[0] != '[' || arg.back() != ']') {
        ptx_fail("not an address: %s", arg.c_str());
        return 0;
    }
    return ptx_get(f, arg.substr(1, arg.size() - 2));
}

/* ---- asynchronous copies -------------------------------------------------------------------- */

static void cp_async(struct frame *f, const struct instruction *in, bool l2_only)
{
    struct copies *l = &lanes[emu_index];
    size_t n = in->args.size() == 3 ? (size_t)ptx_get(f, in->args[2]) : 0;

    if (n != 16 && (l2_only || (n != 4 && n != 8))) {
        ptx_fail("%s: of %zu bytes", in->text.c_str(), n);
        return;
    }
    void *to = ptx_shared_at(ptx_address(f, in->args[0]), n, n);
    const void *from = global_at(ptx_address(f, in->args[1]), n, n);

    if (to && from) {
        l->under_way.push_back({to, from, n, l->groups});
    }
}

static void wait_copies(int n_pending)
{
    struct copies *l = &lanes[emu_index];
    std::vector<struct copy> kept;

    for (const struct copy &c : l->under_way) {
        if (c.group < l->groups - n_pending) {
            memcpy(c.to, c.from, c.bytes);
        } else {
            kept.push_back(c);
        }
    }
    l->under_way = kept;
}

/* ---- instructions --------------------------------------------------------------------------- */

static uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector)
{
    uint32_t ret = 0;

    for (int i = 0; i < 4; i++) {
        uint32_t nibble = selector >> (4 * i) & 0xf;
        uint32_t byte = (nibble & 4 ? b : a) >> (8 * (nibble & 3)) & 0xff;

        if (nibble & 8) {
            byte = byte & 0x80 ? 0xff : 0;
        }
        ret |= byte << (8 * i);
    }
    return ret;
}

/* Subnormal numbers, in and out, are zeroes. */
static float ex2_ftz(float x)
{
    double y = exp2(std::fpclassify(x) == FP_SUBNORMAL ? 0.0 : (double)x);

    return y < 0x1p-126 ? 0.0f : (float)y;
}

/* "first second" of the value of the register's two halves; the first operand goes on top. */
static void cvt_halves(struct frame *f, const struct instruction *in, bool bf16, bool to_zero)
{
    if (ptx_has(in, {0, 0, 0})) {
        uint32_t hi = ptx_half_of(ptx_float_of((uint32_t)ptx_get(f, in->args[1])), bf16, to_zero);
        uint32_t lo = ptx_half_of(ptx_float_of((uint32_t)ptx_get(f, in->args[2])), bf16, to_zero);

        ptx_set(f, in->args[0], hi << 16 | lo);
    }
}

static void declare(struct frame *f, const struct instruction *in)
{
    /* .reg TYPE names */
    std::string rest = trimmed(in->text.substr(4));
    size_t n = std::min(rest.find(' '), rest.size());

    if (rest.substr(0, n) != ".b16" && rest.substr(0, n) != ".pred") {
        ptx_fail("%s", in->text.c_str());
        return;
    }
    for (const std::string &name : cut(trimmed(rest.substr(n)))) {
        f->registers[name] = 0;
    }
}

static void step(struct frame *f, const struct instruction *in)
{
    const std::string &s = in->name;
    const strings &a = in->args;
    struct copies *l = &lanes[emu_index];

    if (ptx_step_matrix(f, in)) {
        return;
    }
    if (s == ".reg") {
        declare(f, in);
    } else if (s == "mov.b32" && a.size() == 2 && ptx_members(a[0]).size() == 2) {
        ptx_set(f, ptx_members(a[0])[0], ptx_get(f, a[1]) & 0xffff);
        ptx_set(f, ptx_members(a[0])[1], ptx_get(f, a[1]) >> 16 & 0xffff);
    } else if ((s == "setp.ne.b32" || s == "setp.eq.b32") && a.size() == 3) {
        ptx_set(f, a[0],
                ((uint32_t)ptx_get(f, a[1]) == (uint32_t)ptx_get(f, a[2])) == (s[5] == 'e'));
    } else if (s == "prmt.b32" && a.size() == 4) {
        ptx_set(f, a[0],
                prmt((uint32_t)ptx_get(f, a[1]), (uint32_t)ptx_get(f, a[2]),
                     (uint32_t)ptx_get(f, a[3])));
    } else if (s == "ex2.approx.ftz.f32" && a.size() == 2) {
        ptx_set(f, a[0], ptx_bits_of(ex2_ftz(ptx_float_of((uint32_t)ptx_get(f, a[1])))));
    } else if (s == "cvt.rn.bf16x2.f32" || s == "cvt.rn.f16x2.f32" || s == "cvt.rz.bf16x2.f32" ||
               s == "cvt.rz.f16x2.f32") {
        cvt_halves(f, in, s[7] == 'b', s[5] == 'z');
    } else if (s == "cvt.rn.f16x2.e4m3x2" && a.size() == 2) {
        uint32_t codes = (uint32_t)ptx_get(f, a[1]);

        ptx_set(f, a[0],
                ptx_half_of(e4m3_value(codes & 0xff), false, false) |
                    (uint32_t)ptx_half_of(e4m3_value(codes >> 8 & 0xff), false, false) << 16);
    } else if (s == "cp.async.cg.shared.global" || s == "cp.async.ca.shared.global") {
        cp_async(f, in, s[10] == 'g');
    } else if (s == "cp.async.commit_group" && a.empty()) {
        l->groups++;
    } else if (s == "cp.async.wait_group" && a.size() == 1) {
        wait_copies((int)ptx_get(f, a[0]));
    } else if (s == "prefetch.global.L2" && a.size() == 1) {
        global_at(ptx_address(f, a[0]), 1, 1);
    } else if ((s == "griddepcontrol.wait" || s == "griddepcontrol.launch_dependents") &&
               a.empty()) {
        return; /* one kernel at a time */
    } else {
        ptx_fail("unknown instruction: %s", in->text.c_str());
    }
}

void ptx_run(int site, std::initializer_list<struct ptx_operand> operands)
{
    struct frame f;
    bool is_fault = fault && fault->site == site;

    if (site >= MAX_SITES) {
        ptx_fail("more statements than the interpreter counts");
        return;
    }
    f.operands = operands;
    counts[site]++;
    for (const struct ptx_operand &o : f.operands) {
        char type = o.constraint[strlen(o.constraint) - 1];
        size_t bytes = type == 'h' ? 2 : type == 'l' || type == 'd' ? 8 : 4;

        if (o.bytes != bytes) {
            ptx_fail("line %d: an operand of %zu bytes as \"%s\"", ptx_sites[site].line, o.bytes,
                     o.constraint);
        }
    }
    if (is_fault) {
        if (!f.operands.empty()) {
            f.operands[fault->operand].bits ^= fault->bits;
        }
    } else if (!parsed.count(site)) {
        parsed[site] = parse(ptx_sites[site].text);
    }
    for (const struct instruction &in : is_fault ? parsed_fault : parsed[site]) {
        step(&f, &in);
    }
}

/* ---- for the test --------------------------------------------------------------------------- */

void ptx_begin(const void *at, size_t bytes)
{
    for (struct copies &l : lanes) {
        l = {};
    }
    ptx_begin_matrices();
    global = (const uint8_t *)at;
    global_bytes = bytes;
    failure[0] = 0;
}

void ptx_set_fault(const struct ptx_fault *f)
{
    fault = f;
    if (f) {
        std::string text = ptx_sites[f->site].text;

        parsed_fault = parse(f->to ? text.replace(f->at, f->n, f->to) : text);
    }
}

const char *ptx_failure(void)
{
    return failure[0] ? failure : NULL;
}

uint64_t ptx_count(int site)
{
    return counts[site];
}
