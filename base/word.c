/* SPDX-License-Identifier: Apache-2.0 */
/* Optimal string alignment, by the whole table: words are short. */

#include "base/word.h"

size_t word_distance(const char *a, size_t n_a, const char *b, size_t n_b)
{
    enum { MAX = 40 };
    size_t d[MAX + 1][MAX + 1];

    if (n_a > MAX || n_b > MAX) {
        return MAX;
    }
    for (size_t i = 0; i <= n_a; i++) {
        for (size_t j = 0; j <= n_b; j++) {
            if (i == 0 || j == 0) {
                d[i][j] = i + j;
                continue;
            }
            size_t best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            size_t skip = (d[i - 1][j] < d[i][j - 1] ? d[i - 1][j] : d[i][j - 1]) + 1;

            best = skip < best ? skip : best;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                d[i - 2][j - 2] + 1 < best) {
                best = d[i - 2][j - 2] + 1;
            }
            d[i][j] = best;
        }
    }
    return d[n_a][n_b];
}

size_t word_far(size_t n)
{
    return n / 3 + 1;
}
