/* SPDX-License-Identifier: Apache-2.0 */
/* The shortest useful program: one question, the answer as it comes.
 *
 *     cc simple.c -o simple $(pkg-config --cflags --libs libpipit) && ./simple 'Why is it dark?' */

#include <pipit.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char *argv[])
{
    const char *question = argc > 1 ? argv[1] : "Name three birds.";
    struct pipit_client *client = NULL;
    struct pipit_request *request = NULL;
    const struct pipit_event *event;
    struct pipit_error error = {0};
    int status = 1;

    if (pipit_client_create(&client) < 0 || pipit_client_connect(client, &error) < 0 ||
        pipit_request_create(client, PIPIT_CHAT, &request) < 0 ||
        pipit_request_add_message(request, "user", question, strlen(question)) < 0 ||
        pipit_request_set_param(request, PIPIT_MAX_TOKENS, 200) < 0 ||
        pipit_request_send(request, &error) < 0) {
        fprintf(stderr, "%s\n", error.text);
        goto out;
    }
    while (pipit_request_next(request, -1, &event) == 1) {
        switch (event->type) {
        case PIPIT_EVENT_TOKEN:
        case PIPIT_EVENT_TEXT:
            fwrite(event->text, 1, event->text_len, stdout);
            fflush(stdout);
            break;
        case PIPIT_EVENT_DONE:
            printf("\n(%s, %d tokens)\n", pipit_reason_name(event->done->reason),
                   event->done->n_new);
            status = 0;
            break;
        case PIPIT_EVENT_ERROR:
            fprintf(stderr, "%s: %s\n", pipit_code_name(event->error->code), event->error->text);
            break;
        default:
            break;
        }
    }
out:
    pipit_request_destroy(request);
    pipit_client_destroy(client);
    return status;
}
