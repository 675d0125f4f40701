/* SPDX-License-Identifier: Apache-2.0 */
/* The tests' pipit-engine dies or stops on request. An order is a stop string that begins with the
 * byte 1, so it needs no message of its own:
 *
 *     crash:N, hang:N, spin:N   after N new tokens, and not again when the request is replayed
 *     crash-always:N            after N new tokens, replayed or not
 *     text-hang, text-spin      before the prompt is tokenized, and not again when it is replayed
 *     text-hang-always          the same, replayed or not
 *     kill-front:N              stops the front after N tokens (0: at once), and kills both
 *                               processes when the session's file has its name
 *     crash:saved               kills the engine then */

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/worker/ask.h"
#include "daemon/worker/hook.h"
#include "daemon/worker/job.h"

enum { MOST = 64 };

static struct order {
    uint8_t id[16];
    int at; /* new tokens */
    bool crash;
    bool hang;
    bool spin;
    bool crash_saved;
    bool kill_front;
} orders[MOST]; /* by turns: the worker thread writes, the saver reads what is complete */
static unsigned n_orders;

static struct order *order_of(const struct job *j)
{
    for (unsigned i = n_orders; i > 0 && n_orders - i < MOST; i--) {
        struct order *o = &orders[(i - 1) % MOST];

        if (memcmp(o->id, j->id, sizeof(o->id)) == 0) {
            return o;
        }
    }
    return NULL;
}

static void read_order(const char *text, bool replayed, struct order *o)
{
    if (strcmp(text, "crash:saved") == 0) {
        o->crash_saved = true;
    } else if (sscanf(text, "kill-front:%d", &o->at) == 1) {
        o->kill_front = true;
        if (o->at == 0) {
            (void)kill(getppid(), SIGSTOP);
        }
    } else if (sscanf(text, "crash-always:%d", &o->at) == 1) {
        o->crash = true;
    } else if (!replayed && sscanf(text, "crash:%d", &o->at) == 1) {
        o->crash = true;
    } else if (!replayed && sscanf(text, "hang:%d", &o->at) == 1) {
        o->hang = true;
    } else if (!replayed && sscanf(text, "spin:%d", &o->at) == 1) {
        o->spin = true;
    }
}

static bool is_order(const struct stop_text *s, const char *text)
{
    return s->len == strlen(text) + 1 && s->ptr[0] == '\001' &&
           memcmp(s->ptr + 1, text, s->len - 1) == 0;
}

/* By the thread that reads texts. */
void hook_text(const struct job *j, const struct ask *a)
{
    bool replayed = j->flags & LANE_F_REPLAYED;

    for (size_t i = 0; i < a->n_stops; i++) {
        bool hang = is_order(&a->stops[i], "text-hang-always") ||
                    (!replayed && is_order(&a->stops[i], "text-hang"));

        while (hang) {
            (void)pause();
        }
        for (volatile bool spins = !replayed && is_order(&a->stops[i], "text-spin"); spins;) {
        }
    }
}

void hook_begin(const struct job *j, const struct ask *a)
{
    for (size_t i = 0; i < a->n_stops; i++) {
        const struct stop_text *s = &a->stops[i];
        struct order *o = &orders[n_orders % MOST];
        char text[64];

        if (s->ptr[0] != '\001' || s->len > sizeof(text)) {
            continue;
        }
        memcpy(text, s->ptr + 1, s->len - 1);
        text[s->len - 1] = '\0';
        *o = (struct order){.at = -1};
        memcpy(o->id, j->id, sizeof(o->id));
        read_order(text, j->n_forced > 0, o);
        n_orders++;
    }
}

void hook_token(const struct job *j)
{
    const struct order *o = order_of(j);

    if (!o || o->at < 0 || j->index + 1 < o->at) {
        return;
    }
    if (o->kill_front) {
        (void)kill(getppid(), SIGSTOP);
        return;
    }
    while (o->hang) {
        (void)pause();
    }
    for (volatile bool spins = o->spin; spins;) {
    }
    if (o->crash) {
        /* The I/O thread passes on what was said; without that the order would be repeated. */
        (void)poll(NULL, 0, 50);
        (void)raise(SIGKILL);
    }
}

void hook_saved(const struct job *j)
{
    const struct order *o = order_of(j);

    if (o && o->kill_front) {
        (void)kill(getppid(), SIGKILL);
    }
    if (o && (o->crash_saved || o->kill_front)) {
        (void)kill(getpid(), SIGKILL);
    }
}
