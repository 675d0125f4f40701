/* SPDX-License-Identifier: Apache-2.0 */
/* pipit score: log-probabilities of a text's own tokens, as the daemon sends them: one TOKEN event
 * each, which needs no lease and so has no limit but the context. */

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "client/cli/answer.h"

struct score {
    const struct settings *s;
    struct out out;
    struct answer a;
    size_t n;
    double sum;
};

static void put_line(struct score *sc, const struct pipit_event *ev)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);

    if (!f) {
        sc->out.err = -ENOMEM;
        return;
    }
    (void)fprintf(f, "%.6f\t", ev->logprob);
    quote_bytes(f, ev->text, ev->text_len);
    (void)fputc('\n', f);
    if (fclose(f) == 0) {
        out_put(&sc->out, text, size);
    }
    free(text);
}

static void put_total(struct score *sc)
{
    double perplexity = sc->n ? exp(-sc->sum / (double)sc->n) : 1;
    char text[160];
    json_t *obj;
    int n;

    if (!sc->s->json) {
        if (sc->s->total) {
            n = snprintf(text, sizeof(text), "%zu tokens, log-probability %.4f, perplexity %.4f\n",
                         sc->n, sc->sum, perplexity);
            out_put(&sc->out, text, (size_t)n);
        }
        return;
    }
    obj = json_pack("{s:s, s:I, s:f, s:f}", "type", "score", "tokens", (json_int_t)sc->n, "logprob",
                    isfinite(sc->sum) ? sc->sum : 0.0, "perplexity",
                    isfinite(perplexity) ? perplexity : 0.0);
    char *line = obj ? json_dumps(obj, JSON_COMPACT | JSON_REAL_PRECISION(12)) : NULL;
    if (line) {
        out_put(&sc->out, line, strlen(line));
        out_put(&sc->out, "\n", 1);
    }
    free(line);
    json_decref(obj);
}

static void on_event(struct score *sc, const struct pipit_request *q, const struct pipit_event *ev)
{
    switch (ev->type) {
    case PIPIT_EVENT_TOKEN:
        sc->a.first_ns = sc->a.first_ns ? sc->a.first_ns : clock_ns();
        sc->n++;
        sc->sum += (double)ev->logprob;
        if (!sc->s->total && sc->s->json) {
            json_event(&sc->out, q, ev, true);
        } else if (!sc->s->total) {
            put_line(sc, ev);
        }
        break;
    case PIPIT_EVENT_DONE:
        sc->a.has_done = true;
        sc->a.done = *ev->done;
        break;
    case PIPIT_EVENT_ERROR:
        sc->a.error = *ev->error;
        break;
    default:
        break;
    }
}

static int verdict(const struct score *sc)
{
    if (sc->a.error.code) {
        return report(&sc->a.error);
    }
    if (sc->out.err) {
        say("cannot write: %s", strerror(-sc->out.err));
        return EXIT_INTERNAL;
    }
    if (sc->a.done.reason == PIPIT_REASON_TIMEOUT) {
        say("no time left: it took longer than --timeout %g", sc->s->timeout);
    } else if (exit_of_reason(sc->a.done.reason)) {
        say("ended early: %s", pipit_reason_name(sc->a.done.reason));
    }
    return exit_of_reason(sc->a.done.reason);
}

/* SIGINT and SIGPIPE end the program as they always do; the daemon cancels what its lane asked. */
static int run(struct score *sc, struct pipit_client *c, struct pipit_request *q)
{
    const struct pipit_event *ev;
    int code;
    int r;

    memcpy(sc->a.id, pipit_request_id(q), sizeof(sc->a.id));
    sc->a.start_ns = clock_ns();
    r = pipit_request_send(q, &sc->a.error);
    while (r == 0 && !sc->out.err) {
        r = pipit_request_next(q, -1, &ev);
        if (r == 1) {
            on_event(sc, q, ev);
            out_flush(&sc->out);
            r = 0;
        } else if (r == -EAGAIN) {
            r = 0;
        } else {
            break; /* no more events */
        }
    }
    sc->a.end_ns = clock_ns();
    if (sc->a.has_done && exit_of_reason(sc->a.done.reason) == 0) {
        put_total(sc);
    }
    if (sc->s->json) {
        json_last(&sc->out, c, &sc->a);
    }
    out_flush(&sc->out);
    code = verdict(sc);
    out_finish(&sc->out);
    return code;
}

static int build(const struct settings *s, struct pipit_client *c, const struct text *text,
                 struct pipit_request **ret)
{
    int r = pipit_request_create(c, PIPIT_SCORE, ret);

    if (r == 0) {
        r = pipit_request_set_prompt(*ret, text->data, text->len);
    }
    if (r == 0 && s->kv) {
        r = pipit_request_set_policy(*ret, s->kv);
    }
    if (r == 0) {
        r = pipit_request_set_param(*ret, PIPIT_SCORE_FIRST, (double)s->first);
    }
    if (r == 0) {
        r = pipit_request_set_param(*ret, PIPIT_TIMEOUT_MS, ceil(s->timeout * 1000));
    }
    if (r < 0) {
        say("cannot make the request: %s", strerror(-r));
    }
    return r < 0 ? EXIT_INTERNAL : 0;
}

int score_run(struct settings *s, const struct option_list *words)
{
    struct score sc = {.s = s};
    struct pipit_client *c = NULL;
    struct pipit_request *q = NULL;
    struct text text = {0};
    int code = input_prompt(command_find("score"), words, &text);

    if (code == 0) {
        code = cli_client(s, &c);
    }
    if (code == 0) {
        code = build(s, c, &text, &q);
    }
    if (code == 0) {
        code = cli_connect(c, 0, s->json);
    }
    if (code == 0) {
        code = run(&sc, c, q);
    }
    pipit_request_destroy(q);
    pipit_client_destroy(c);
    free(text.data);
    return code;
}
