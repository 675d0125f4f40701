/* SPDX-License-Identifier: Apache-2.0 */
/* Several answers at once in an event loop of one's own: every argument is a question, all are
 * asked together, each event comes to a callback. poll() here stands for whatever loop a program
 * has. */

#include <errno.h>
#include <pipit.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

enum { MAX_QUESTIONS = 16 };

struct question {
    const char *text;
    int number;
    int *n_running;
};

static void on_event(struct pipit_request *request, const struct pipit_event *event, void *user)
{
    struct question *q = user;

    switch (event->type) {
    case PIPIT_EVENT_TOKEN:
    case PIPIT_EVENT_TEXT:
        if (event->text_len) {
            printf("%d: %s\n", q->number, event->text);
        }
        break;
    case PIPIT_EVENT_ERROR:
        fprintf(stderr, "%d: %s\n", q->number, event->error->text);
        --*q->n_running;
        pipit_request_destroy(request);
        break;
    case PIPIT_EVENT_DONE:
        printf("%d ends: %s\n", q->number, pipit_reason_name(event->done->reason));
        --*q->n_running;
        pipit_request_destroy(request);
        break;
    default:
        break;
    }
}

static int ask(struct pipit_client *client, struct question *q, struct pipit_error *error)
{
    struct pipit_request *request;

    if (pipit_request_create(client, PIPIT_CHAT, &request) < 0) {
        return -1;
    }
    if (pipit_request_add_message(request, "user", q->text, strlen(q->text)) < 0 ||
        pipit_request_set_param(request, PIPIT_MAX_TOKENS, 100) < 0 ||
        pipit_request_set_callback(request, on_event, q) < 0 ||
        pipit_request_send(request, error) < 0) {
        pipit_request_destroy(request);
        return -1;
    }
    ++*q->n_running;
    return 0;
}

int main(int argc, char *argv[])
{
    struct question questions[MAX_QUESTIONS];
    struct pipit_client *client = NULL;
    struct pipit_error error = {0};
    int n_running = 0;
    int status = 0;

    if (pipit_client_create(&client) < 0 || pipit_client_connect(client, &error) < 0) {
        fprintf(stderr, "%s\n", error.text);
        pipit_client_destroy(client);
        return 1;
    }
    for (int i = 0; i + 1 < argc && i < MAX_QUESTIONS; i++) {
        questions[i] = (struct question){argv[i + 1], i + 1, &n_running};
        if (ask(client, &questions[i], &error) < 0) {
            fprintf(stderr, "%s\n", error.text);
            status = 1;
        }
    }
    while (n_running > 0) {
        struct pollfd p = {.fd = pipit_client_fd(client), .events = POLLIN};

        if (poll(&p, 1, -1) < 0 && errno != EINTR) {
            status = 1;
            break;
        }
        if (pipit_client_dispatch(client, 0) < 0) {
            status = 1;
            break;
        }
    }
    pipit_client_destroy(client);
    return status;
}
