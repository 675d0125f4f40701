/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KV_POLICY_ADVICE_H
#define PIPIT_KV_POLICY_ADVICE_H

/* Policies to take one after the other as memory shrinks, with what each costs. The figures are
 * measured, of three models of different families, and stand with their command in
 * docs/results/quality.md, "Advice". */

#include <stdbool.h>
#include <stdint.h>

struct policy_advice {
    const char *kv;
    double bytes;   /* of f16's for keys and values, percent */
    double least;   /* perplexity above full's, percent: of the model that lost least, */
    double most;    /* and of the one that lost most */
    double half;    /* the wider one's half of a 95 % interval */
    bool evicts;    /* then text that stands far back may not be quoted or found */
};

/* From no loss to the largest; NULL behind the last. Some are not for every model and backend. */
const struct policy_advice *policy_advice(int i);

#endif
