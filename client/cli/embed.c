/* SPDX-License-Identifier: Apache-2.0 */
/* pipit embed: a text's embedding, written by the engine into a lease and printed from there. How
 * wide the model is is not known beforehand: a lease that is too small is asked for anew, as large
 * as the refusal says. */

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/answer.h"

enum { FIRST_BYTES = 64 << 10 };

struct embed {
    const struct settings *s;
    const struct text *text;
    struct pipit_error error;
    struct pipit_done done;
    const float *data;
    uint32_t n_rows;
    uint32_t n_cols;
};

static int build(const struct embed *e, struct pipit_client *c, const struct pipit_lease *lease,
                 struct pipit_request **ret)
{
    const struct settings *s = e->s;
    int r = pipit_request_create(c, PIPIT_EMBED, ret);

    r = r ? r : pipit_request_set_prompt(*ret, e->text->data, e->text->len);
    r = r || !s->kv ? r : pipit_request_set_policy(*ret, s->kv);
    r = r ? r : pipit_request_set_param(*ret, PIPIT_POOLING, s->pooling);
    r = r ? r : pipit_request_set_param(*ret, PIPIT_UNIT, !s->not_unit);
    r = r ? r : pipit_request_set_param(*ret, PIPIT_TIMEOUT_MS, ceil(s->timeout * 1000));
    return r ? r : pipit_request_set_output(*ret, lease);
}

static int ask(struct embed *e, struct pipit_client *c, const struct pipit_lease *lease)
{
    struct pipit_request *q = NULL;
    const struct pipit_event *ev;
    int r = build(e, c, lease, &q);

    if (r < 0) {
        (void)snprintf(e->error.text, sizeof(e->error.text), "cannot make the request: %s",
                       strerror(-r));
        e->error.code = PIPIT_E_LOCAL;
        e->error.err = r;
    } else {
        r = pipit_request_send(q, &e->error);
    }
    while (r == 0 && pipit_request_next(q, -1, &ev) == 1) {
        if (ev->type == PIPIT_EVENT_BULK && ev->bulk->kind == PIPIT_BULK_HIDDEN) {
            e->data = ev->bulk->data;
            e->n_rows = ev->bulk->n_rows;
            e->n_cols = ev->bulk->n_cols;
        } else if (ev->type == PIPIT_EVENT_DONE) {
            e->done = *ev->done;
        } else if (ev->type == PIPIT_EVENT_ERROR) {
            e->error = *ev->error;
        }
    }
    pipit_request_destroy(q);
    return e->error.code ? -EIO : 0;
}

static json_t *row_of(const struct embed *e, uint32_t row)
{
    json_t *a = json_array();

    for (uint32_t i = 0; a && i < e->n_cols; i++) {
        if (json_array_append_new(a, json_real((double)e->data[(size_t)row * e->n_cols + i]))) {
            json_decref(a);
            return NULL;
        }
    }
    return a;
}

static int print_json(const struct embed *e)
{
    static const char *const pooling[] = {"mean", "last", "none"};
    json_t *rows = e->s->pooling == PIPIT_POOL_NONE ? json_array() : row_of(e, 0);
    bool whole = rows;
    json_t *obj;
    int r;

    for (uint32_t i = 0; whole && e->s->pooling == PIPIT_POOL_NONE && i < e->n_rows; i++) {
        whole = json_array_append_new(rows, row_of(e, i)) == 0;
    }
    if (!whole) {
        json_decref(rows);
        return EXIT_INTERNAL;
    }
    obj = json_pack("{s:s, s:i, s:s, s:b, s:i, s:o}", "type", "embedding", "v", 1, "pooling",
                    pooling[e->s->pooling], "normalized", !e->s->not_unit, "prompt_tokens",
                    (int)e->done.n_prompt, "embedding", rows);
    r = obj ? json_dumpf(obj, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9)) : -1;
    json_decref(obj);
    return r || putchar('\n') == EOF ? EXIT_INTERNAL : EXIT_OK;
}

static int print(const struct embed *e)
{
    for (uint32_t i = 0; !e->s->json && i < e->n_rows; i++) {
        for (uint32_t d = 0; d < e->n_cols; d++) {
            (void)printf("%s%.9g", d ? " " : "", (double)e->data[(size_t)i * e->n_cols + d]);
        }
        (void)putchar('\n');
    }
    if (e->s->json && print_json(e)) {
        say("the embedding cannot be printed: no memory, or it holds numbers that are not finite");
        return EXIT_INTERNAL;
    }
    if (fflush(stdout) || ferror(stdout)) {
        say("cannot write: %s", strerror(errno));
        return errno == EPIPE ? EXIT_CANCELLED : EXIT_INTERNAL;
    }
    return EXIT_OK;
}

static int verdict(const struct embed *e)
{
    if (e->error.code) {
        return report(&e->error);
    }
    if (!e->data || exit_of_reason(e->done.reason)) {
        say("ended early: %s", pipit_reason_name(e->done.reason));
        return e->data || exit_of_reason(e->done.reason) ? exit_of_reason(e->done.reason)
                                                         : EXIT_INTERNAL;
    }
    return print(e);
}

static int run(struct embed *e, struct pipit_client *c)
{
    size_t bytes = FIRST_BYTES;
    int code;

    for (int tries = 2;; tries--) {
        struct pipit_lease *lease = NULL;
        int r = pipit_lease_get(c, PIPIT_FROM_DAEMON, bytes, &lease, &e->error);

        r = r < 0 ? r : ask(e, c, lease);
        if (r < 0 && tries > 1 && lease && e->error.code == PIPIT_E_TOO_LARGE &&
            e->error.count_a > bytes) {
            bytes = (size_t)e->error.count_a;
            e->error = (struct pipit_error){0};
            pipit_lease_put(lease);
            continue;
        }
        code = verdict(e);
        pipit_lease_put(lease);
        return code;
    }
}

int embed_run(struct settings *s, const struct option_list *words)
{
    struct pipit_client *c = NULL;
    struct text text = {0};
    struct embed e = {.s = s, .text = &text};
    int code = input_prompt(command_find("embed"), words, &text);

    if (code == 0) {
        code = cli_open(s, &c);
    }
    if (code == 0) {
        code = run(&e, c);
    }
    pipit_client_destroy(c);
    free(text.data);
    return code;
}
