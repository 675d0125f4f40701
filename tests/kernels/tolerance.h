/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_KERNELS_TOLERANCE_H
#define PIPIT_TESTS_KERNELS_TOLERANCE_H

/* How far a kernel may be from the reference, and why. nmse = sum((a - b)^2) / sum(b^2) over one
 * output; max = largest |a - b| as a share of the root mean square of b. A NaN or an infinity where
 * the reference has none fails whatever the tolerance. Copies, layout, slots, victims and cuts are
 * compared bit for bit and have no entry. */

struct tolerance {
    double nmse;
    double max;
    const char *reason;
};

/* clang-format off */
static const struct tolerance
    /* f32 sums of up to a few thousand terms in another order, FMA or not: the error of each grows
     * like sqrt(n) * 2^-24; cancellation can make a single output ten times worse than the mean. */
    tol_reduce = {1e-11, 1e-4, "f32 sums in another order"},
    /* Elementwise with a polynomial for exp or tanh, good to 1e-6. */
    tol_elementwise = {1e-12, 1e-4, "polynomial exp and tanh"},
    /* Sums over a state that rows have added to and taken from in f32; a norm divides by what
     * may be a small mean of them. */
    tol_delta = {1e-10, 1e-3, "f32 sums in another order, row after row"},
    /* Softmax weights by a polynomial exp, several partial sums merged with rescaling. */
    tol_attention = {1e-11, 2e-4, "polynomial exp, chunks merged"},
    /* The same where logits reach 1e4: an f32 logit is then known to 1e-3, and so is e^ of it. */
    tol_attention_large = {1e-6, 1e-1, "logits of 1e4 in f32"},
    /* The same, and the approximate probabilities' share that blends in the mean of V. */
    tol_select = {1e-11, 2e-4, "polynomial exp, two softmaxes"},
    /* Up to 170 values added, one taken away and added again, in another order. */
    tol_sum = {1e-11, 1e-4, "f32 sums in another order"},
    /* Prefill rows on tiles of bf16: queries, keys, weights and values rounded to 8 bits, so a
     * logit is off by 2^-9 of its terms, a few of which add up; an output is a mean that cancels.
     * With logits of 1e4 that is 20: which of the nearest keys wins is open. */
    tol_attention_bf16 = {1e-4, 1e-1, "queries, keys, weights, values in bf16"},
    tol_attention_bf16_large = {1e-1, 1e1, "logits of 1e4 in bf16"},
    /* FP8 keys and values in f16: 2^-12 of each component of a query and of each sum of 8 dims or
     * 32 slots, in squares a thousandth of what FP8 itself loses (2^-4 of each value). */
    tol_attention_half = {4e-6, 2e-2, "f16 sums of FP8 products"},
    /* With logits of 1e4 that is 3. One head in 500 has two keys as near as that; if the other one
     * wins, two decode rows of nine heads are off by a ninth. */
    tol_attention_half_large = {3e-1, 1e1, "logits of 1e4 in f16"},
    /* FP8 codes below 2^-6 count as 0 where a head's largest is 448. */
    tol_attention_flush = {1e-10, 1e-3, "FP8 below 2^-15 of a head's largest is 0"},
    /* Keys of 8 and 4 bits: queries in 15 bits of their largest component, products exact; int8
     * loses 2^-8. Values of 4 bits: weights in 15 bits of a page's largest. */
    tol_attention_15 = {1e-7, 2e-3, "queries in 15 bits"},
    /* Values of 4 bits on a GPU: a level times its scale in f16, 2^-12 of each value at most; the 4
     * bits themselves lose a tenth. */
    tol_attention_levels = {1e-7, 1e-2, "levels times scales in f16"},
    /* The reference itself, f32 sums in order, against double. */
    tol_attention_double = {1e-9, 1e-3, "double arithmetic against f32"},
    /* Scores: probabilities in [0, 1] summed over rows; noise through two logarithms (3e-7
     * each). */
    tol_score = {1e-9, 1e-3, "noise through two logarithms"},
    /* The same where logits come from f16 or 15-bit products. */
    tol_score_half = {1e-7, 3e-3, "noise, and f16 sums of FP8 products"},
    /* Angles at position 1e5: products in double, f32 sine and cosine. */
    tol_rope = {1e-12, 1e-4, "f32 rotation"},
    /* Weights of 4-8 bits meet activations rounded to int8 by blocks of 32: a step is absmax / 127,
     * the error uniform, about 0.3-0.5 % of each product's size; a product of two such sums (gate)
     * doubles it, and its largest outputs are many times the rms. Few outputs make a small rms by
     * chance. Without a norm before it the result is also compared with the same rounding done in
     * the test, to tol_reduce. */
    tol_int8_acts = {2e-3, 4e-1, "activations in int8 by blocks of 32"},
    /* Experts: rounded before both products, and the gate doubles what the first lost. The worst of
     * 16,000 cases had 2.8e-3. */
    tol_int8_twice = {6e-3, 6e-1, "activations in int8 by blocks of 32, twice"},
    /* Rows of class prefill on tiles of bf16: activations and weights rounded to 8 bits, each off
     * by a uniform part of 2^-9 at most, sums in f32; gate doubles it, and few outputs make a small
     * rms by chance. Against the same rounding done in the test what is left is f32 sums in another
     * order, and a weight of which the last bit before rounding differs and tips it over. */
    tol_bf16 = {1e-4, 1e-1, "activations and weights in bf16"},
    tol_bf16_rounded = {1e-7, 1e-3, "f32 sums in another order, weights rounded the other way"},
    /* A GPU's prefill: activations rounded once to the weights' own 16 bits (bf16: 2^-9 of each at
     * most), as tensor cores take them. Where one activation dominates its row, its error does not
     * average out: both products of a gate are off by 2^-9, together 1.5e-5 of the square, and a
     * negative gate doubles its part. */
    tol_half_acts = {3e-5, 5e-2, "activations in the weights' 16 bits"},
    /* A GPU's decode rows by bf16 weights: activations in two bf16 pieces, off by 2^-18 of each
     * at most (mean square 1e-12 to 4e-12); a gate doubles it or more. A weight is off by 2^-9. */
    tol_bf16_pieces = {5e-11, 1e-4, "activations in two bf16 pieces"},
    /* The output head also multiplies what that rounding left, rounded again: 2^-8 of it stays. */
    tol_head = {1e-8, 1e-3, "activations in twice int8"},
    /* A value stored in the cache against the f32 it came from, mean of a head's normal data. */
    tol_store_f16 = {1e-6, 1e-2, "f16: 2^-11 of each value"},
    tol_store_bf16 = {2e-5, 4e-2, "bf16: 2^-8 of each value"},
    tol_store_q4_0 = {5e-2, 1.0, "4 bits: half a step of absmax / 8, and one at the other end"},
    tol_store_fp8 = {2e-3, 4e-1, "e4m3: 2^-4 of each value"};
/* clang-format on */

#endif
