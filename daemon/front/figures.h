/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_FIGURES_H
#define PIPIT_DAEMON_FRONT_FIGURES_H

/* What the daemon counts, as one client may see it. Root and the daemon's user see what is, on
 * lanes of their own: the gateway's is one for many users. To others exact figures would tell the
 * length of somebody's prompt, and when each token of an answer was said. They see what was 10 to
 * 20 s ago; of each request's tokens a multiple of 64, rounded up or down by chance so that sums
 * stay right; of the cache's bytes sixteenths; and not at all what adds up over steps. The state,
 * clients, deaths of engines and loads are everybody's to see at once: they tell of nobody's
 * request, and who waits for a model needs them. */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/front/loop.h"

struct front;
struct lane;
struct lane_done;

enum { FIGURES_TOKENS = 64, FIGURES_PARTS = 16 };

struct figures {
    uint64_t n_requests;
    uint64_t n_prompt_tokens;
    uint64_t n_new_tokens;
    uint64_t n_by_reason[16];
    uint64_t n_refused[8]; /* enum front_refusal */
    uint64_t n_saved;
    uint64_t n_not_saved;
    uint64_t kv_bytes_used;
    uint64_t n_running;
    uint64_t n_queued;
    int64_t step_age_ns;
    bool all; /* the others may be shown, too */
};

struct figures_late {
    struct figures shown; /* to others, */
    struct figures next;  /* and what will be */
    struct loop_timer timer;
    uint64_t n_prompt_tokens; /* rounded */
    uint64_t n_new_tokens;
};

void figures_of(const struct front *f, const struct lane *l, struct figures *ret);

/* A request ended: its tokens. */
void figures_ended(struct front *f, const struct lane_done *d);
/* A client or a request was turned away: why, of enum front_refusal. */
void figures_refused(struct front *f, uint32_t why);
/* Something has changed: others see it when it is 10 s old. */
void figures_watch(struct front *f);

#endif
