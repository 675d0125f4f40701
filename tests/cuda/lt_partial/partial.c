/* SPDX-License-Identifier: Apache-2.0 */
/* A library by the name of cublasLt's that has one function of it. */

#include <stddef.h>

size_t cublasLtGetVersion(void);

__attribute__((visibility("default"))) size_t cublasLtGetVersion(void)
{
    return 130100;
}
