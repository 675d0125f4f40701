/* SPDX-License-Identifier: Apache-2.0 */
/* Either ring holds one job at the most: the list does the waiting. */

#include "daemon/worker/loader.h"

#include <sys/resource.h>
#include <unistd.h>

#include "daemon/worker/job.h"

enum { ITEMS = 2, LOADER_NICE = 5 };

int loader_init(struct loader *l, struct worker *w, struct error *reterr)
{
    int r = ring_init(&l->to_disk, ITEMS, sizeof(struct job *), reterr);

    l->worker = w;
    if (!r) {
        r = ring_init(&l->back, ITEMS, sizeof(struct job *), reterr);
        if (r) {
            ring_finish(&l->to_disk);
        }
    }
    return r;
}

static void *run(void *arg)
{
    struct loader *l = arg;
    struct job *j;

    /* Who waits for a token goes before who waits for a first one. */
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), LOADER_NICE);
    for (;;) {
        while (!ring_pop(&l->to_disk, &j)) {
            ring_wait(&l->to_disk);
        }
        j->load_rc = session_load(&j->session, j->load_vocab, &j->load_stop, &j->load_error);
        (void)ring_push(&l->back, &j);
        worker_wake(l->worker);
    }
    return NULL;
}

int loader_take(struct loader *l, struct job *j, struct error *reterr)
{
    struct job **at = &l->first;

    if (!l->has_thread) {
        int err = pthread_create(&l->thread, NULL, run, l);

        if (err) {
            return error_set_errno(reterr, -err, "no thread to read sessions");
        }
        l->has_thread = true;
    }
    while (*at) {
        at = &(*at)->next_load;
    }
    *at = j;
    j->next_load = NULL;
    if (l->first == j) {
        (void)ring_push(&l->to_disk, &j);
    }
    return 0;
}

bool loader_drop(struct loader *l, const struct job *j)
{
    for (struct job *before = l->first; before; before = before->next_load) {
        if (before->next_load == j) {
            before->next_load = j->next_load;
            return true;
        }
    }
    return false;
}

bool loader_ready(const struct loader *l)
{
    return !ring_empty(&l->back);
}

bool loader_run(struct loader *l)
{
    struct job *j;
    bool any = false;

    while (ring_pop(&l->back, &j)) {
        l->first = j->next_load;
        if (l->first) {
            (void)ring_push(&l->to_disk, &l->first);
        }
        job_loaded(j);
        any = true;
    }
    return any;
}
