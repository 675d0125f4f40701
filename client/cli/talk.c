/* SPDX-License-Identifier: Apache-2.0 */
/* The turns of a conversation: who said what, which tools were called and what came of it. */

#include "client/cli/talk.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int copy_text(struct text *ret, const char *data, size_t len)
{
    ret->data = malloc(len + 1);
    if (!ret->data) {
        return -ENOMEM;
    }
    memcpy(ret->data, data, len);
    ret->data[len] = '\0';
    ret->len = len;
    return 0;
}

static void clear_turn(struct turn *t)
{
    calls_clear(t->calls, t->n_calls);
    free(t->text.data);
    free(t->reasoning.data);
    free(t->name.data);
}

int talk_say(struct talk *t, const char *role, const char *data, size_t len)
{
    struct turn *more = realloc(t->turns, (t->n + 1) * sizeof(*more));

    if (more) {
        t->turns = more;
        more[t->n] = (struct turn){.role = role};
    }
    if (!more || copy_text(&more[t->n].text, data, len) < 0) {
        say("no memory for the conversation");
        return -ENOMEM;
    }
    t->n++;
    return 0;
}

int talk_answer(struct talk *t, struct answer *a, bool calls)
{
    int r = talk_say(t, "assistant", a->text.data ? a->text.data : "", a->text.len);
    struct turn *last;

    if (r < 0) {
        return r;
    }
    last = &t->turns[t->n - 1];
    last->reasoning = a->reasoning;
    a->reasoning = (struct text){0};
    if (calls) {
        t->n_calls += (unsigned)a->n_calls;
        last->calls = a->calls;
        last->n_calls = a->n_calls;
        a->calls = NULL;
        a->n_calls = 0;
    }
    return 0;
}

int talk_result(struct talk *t, const struct call *call, const char *data, size_t len)
{
    int r = talk_say(t, "tool", data, len);

    if (r < 0) {
        return r;
    }
    memcpy(t->turns[t->n - 1].id, call->id, sizeof(call->id));
    if (copy_text(&t->turns[t->n - 1].name, call->name.data, call->name.len) < 0) {
        say("no memory for the conversation");
        talk_forget(t, t->n - 1);
        return -ENOMEM;
    }
    return 0;
}

void talk_forget(struct talk *t, size_t n_left)
{
    while (t->n > n_left) {
        clear_turn(&t->turns[--t->n]);
    }
}

void talk_clear(struct talk *t)
{
    talk_forget(t, 0);
    free(t->turns);
    *t = (struct talk){0};
}

static int put_turn(const struct turn *t, struct pipit_request *q)
{
    int r;

    if (strcmp(t->role, "tool") == 0) {
        return pipit_request_add_result(q, t->id, t->name.data, t->text.data, t->text.len);
    }
    r = pipit_request_add_message(q, t->role, t->text.data, t->text.len);
    if (r == 0 && t->reasoning.len) {
        r = pipit_request_add_reasoning(q, t->reasoning.data, t->reasoning.len);
    }
    for (size_t i = 0; r == 0 && i < t->n_calls; i++) {
        const struct call *c = &t->calls[i];

        r = pipit_request_add_call(q, c->id, c->name.data, c->arguments.data, c->arguments.len);
    }
    return r;
}

int talk_put(const struct talk *t, size_t from, struct pipit_request *q)
{
    int r = 0;

    for (size_t i = from; r == 0 && i < t->n; i++) {
        r = put_turn(&t->turns[i], q);
    }
    return r;
}
