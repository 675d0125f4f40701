/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_HOT_H
#define PIPIT_BASE_HOT_H

/* A function that runs for each token. The linker puts these together, in a page or two of each
 * program: after the pause between two tokens the first instruction in each page costs a
 * microsecond or two (its translation and its lines are fetched from memory), far more than what is
 * done there (docs/design/service.md). */
#define HOT __attribute__((hot))

#endif
