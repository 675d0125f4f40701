/* SPDX-License-Identifier: Apache-2.0 */
/* What else the model might have said: continues a text greedily and prints, for each token, its
 * probability and the three likeliest ones. Also shows token ids and a request's own parameters. */

#include <math.h>
#include <pipit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_token(const struct pipit_event *event)
{
    printf("%-12s %5.1f %%  ", event->text, 100 * exp((double)event->logprob));
    for (size_t i = 0; i < event->n_alts; i++) {
        const struct pipit_alt *alt = &event->alts[i];

        printf(" [%.*s %.1f %%]", (int)alt->text_len, alt->text, 100 * exp((double)alt->logprob));
    }
    putchar('\n');
}

int main(int argc, char *argv[])
{
    const char *text = argc > 1 ? argv[1] : "Once upon a time";
    struct pipit_client *client = NULL;
    struct pipit_request *request = NULL;
    const struct pipit_event *event;
    struct pipit_error error = {0};
    int32_t *ids = NULL;
    size_t n_ids = 0;
    int status = 1;

    if (pipit_client_create(&client) < 0 || pipit_client_connect(client, &error) < 0 ||
        pipit_client_tokenize(client, text, strlen(text), 0, &ids, &n_ids, &error) < 0) {
        fprintf(stderr, "%s\n", error.text);
        goto out;
    }
    printf("%zu tokens of prompt\n", n_ids);
    if (pipit_request_create(client, PIPIT_GENERATE, &request) < 0 ||
        pipit_request_set_prompt(request, text, strlen(text)) < 0 ||
        pipit_request_set_param(request, PIPIT_TEMPERATURE, 0) < 0 ||
        pipit_request_set_param(request, PIPIT_LOGPROBS, 3) < 0 ||
        pipit_request_set_param(request, PIPIT_MAX_TOKENS, 20) < 0 ||
        pipit_request_send(request, &error) < 0) {
        fprintf(stderr, "%s\n", error.text);
        goto out;
    }
    while (pipit_request_next(request, -1, &event) == 1) {
        if (event->type == PIPIT_EVENT_TOKEN) {
            print_token(event);
        } else if (event->type == PIPIT_EVENT_ERROR) {
            fprintf(stderr, "%s\n", event->error->text);
        } else if (event->type == PIPIT_EVENT_DONE) {
            status = 0;
        }
    }
out:
    free(ids);
    pipit_request_destroy(request);
    pipit_client_destroy(client);
    return status;
}
