/* SPDX-License-Identifier: Apache-2.0 */
/* The rows once more, over the struct alone: what the engine's command line is written from. */

#include "daemon/options/engine_options.h"

#include <string.h>

/* As CALLS_FORMATS of engine/text/calls/calls.h. */
const char *const engine_option_tool_formats[] = {"auto",    "hermes",  "qwen-xml", "llama3",
                                                  "mistral", "harmony", "gemma4",   "lfm2",
                                                  "granite", "none",    NULL};
const char *const engine_option_backends[] = {"auto", "ref", "cpu", "cuda", NULL};
const char *const engine_option_draws[] = {"auto", "host", "device", NULL};
const char *const engine_option_prefills[] = {"auto", "own", "cublas", NULL};
const char *const engine_option_waits[] = {"spin", "sleep", NULL};
const char *const engine_option_experts[] = {"held", "mapped", NULL};
const char *const engine_option_no_yes[] = {"no", "yes", NULL};

struct alone {
    struct engine_options o;
};

static const struct option_row rows[] = {ENGINE_OPTION_ROWS(struct alone, o)};
static const struct option_table table = {.rows = rows, .n_rows = sizeof(rows) / sizeof(rows[0])};

bool engine_option_is(const struct option_row *row)
{
    for (size_t i = 0; i < table.n_rows; i++) {
        if (strcmp(rows[i].name, row->name) == 0) {
            return true;
        }
    }
    return false;
}

int engine_options_args(const struct engine_options *o, struct option_list *args)
{
    return options_args(&table, o, args);
}
