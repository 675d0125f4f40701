/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_SCHED_LOOKUP_H
#define PIPIT_ENGINE_SCHED_LOOKUP_H

/* Foretells a text from itself: what followed the last time that its latest tokens stood together.
 *
 * Every pair of neighbouring tokens is entered in a hash table with chains, the latest first. Of the
 * earlier places of the text's last pair (at most LOOKUP_STEPS of them) the one counts that agrees
 * with the text's end for longest, and of equals the latest. As long as what it predicts comes
 * true no search is needed: no other place can have become longer. So a token costs a few compares,
 * and a search only where the text departs from what was predicted.
 *
 * How often a predicted token comes is counted by the length of the agreement, whether anybody made
 * use of it or not; older tokens count less. The counts of all texts together are what a new one
 * begins with. */

#include <stddef.h>
#include <stdint.h>

enum {
    LOOKUP_STEPS = 32,  /* of a chain */
    LOOKUP_LONGEST = 64, /* agreement that a search tells apart */
    LOOKUP_LENGTHS = 8,  /* classes of it: 2, 3, 4.., 6.., 8.., 16.., 32.., 64.. */
};

struct lookup_counts {
    float hits[LOOKUP_LENGTHS];
    float tries[LOOKUP_LENGTHS];
};

struct lookup {
    int32_t n;      /* tokens taken in */
    int32_t at;     /* the next one is predicted to be that at `at`; 0: nothing is predicted */
    int32_t length; /* of the agreement before it */
    struct lookup_counts counts;
    int32_t n_heads; /* a power of two */
    int32_t *heads;  /* (n_heads) where the latest pair with a hash ends, 0: none */
    int32_t *before; /* (cap) where the pair with the same hash ends that comes before */
};

/* Bytes for texts of up to cap tokens, and a lookup over them. lookup_begin() comes first. */
size_t lookup_bytes(int32_t cap);
void lookup_init(struct lookup *l, void *memory, int32_t cap);

/* A new text. */
void lookup_begin(struct lookup *l);

/* The text has n tokens now, those taken in included; tokens from `counted` on are counted, here
 * and in `all`. */
void lookup_follow(struct lookup *l, const int32_t *tokens, int32_t n, int32_t counted,
                   struct lookup_counts *all);

/* The predicted tokens, `most` of them; 0 or most. What goes on beyond the text's end repeats. */
int32_t lookup_foretell(const struct lookup *l, const int32_t *tokens, int32_t most, int32_t *ret);

/* How likely predicted token i is, if all before it have come. */
float lookup_chance(const struct lookup *l, int32_t i, const struct lookup_counts *all);

/* Half of all come true: what is assumed before anything is known. */
void lookup_counts_init(struct lookup_counts *c);

#endif
