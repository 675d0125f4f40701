/* SPDX-License-Identifier: Apache-2.0 */
/* The formats, in the order in which a template is asked for them. */

#include <errno.h>
#include <string.h>

#include "engine/text/calls/calls_impl.h"

/* Magistral and Ministral think between [THINK] and [/THINK]; Granite 3 answers in <response>. */
static const struct calls_format formats[] = {
    {.name = "harmony",
     .hints = {"<|channel|>", "<|message|>"},
     .markers = {{"<|start|>", MARK_START},
                 {"<|channel|>", MARK_CHANNEL},
                 {"<|constrain|>", MARK_CONSTRAIN},
                 {"<|message|>", MARK_MESSAGE},
                 {"<|end|>", MARK_END},
                 {"<|return|>", MARK_END},
                 {"<|call|>", MARK_END}},
     .open_end = true,
     .read = harmony_read},
    {.name = "gemma4",
     .hints = {"<|tool_call>", "<tool_call|>"},
     .markers = {{"<|tool_call>", MARK_CALL},
                 {"<tool_call|>", MARK_CALL_END},
                 {"<|channel>", MARK_THINK},
                 {"thought", MARK_LABEL},
                 {"<channel|>", MARK_THINK_END}},
     .read = gemma4_read},
    {.name = "lfm2",
     .hints = {"<|tool_list_start|>"},
     .markers = {{"<|tool_call_start|>", MARK_CALL},
                 {"<|tool_call_end|>", MARK_CALL_END},
                 {"<think>", MARK_THINK},
                 {"</think>", MARK_THINK_END}},
     .read = lfm2_read},
    {.name = "lfm2",
     .hints = {"List of tools: ["},
     .markers = {{"<|tool_call_start|>", MARK_CALL},
                 {"<|tool_call_end|>", MARK_CALL_END},
                 {"<think>", MARK_THINK},
                 {"</think>", MARK_THINK_END}},
     .read = lfm2_read},
    {.name = "qwen-xml",
     .hints = {"<tool_call>", "<function=", "<parameter="},
     .markers = {{"<tool_call>", MARK_CALL},
                 {"</tool_call>", MARK_CALL_END},
                 {"<function=", MARK_CALL_IN},
                 {"<think>", MARK_THINK},
                 {"</think>", MARK_THINK_END}},
     .read = hermes_read},
    {.name = "hermes",
     .hints = {"<tool_call>"},
     .markers = {{"<tool_call>", MARK_CALL},
                 {"</tool_call>", MARK_CALL_END},
                 {"<think>", MARK_THINK},
                 {"</think>", MARK_THINK_END}},
     .read = hermes_read},
    {.name = "granite",
     .hints = {"<|tool_call|>"},
     .markers = {{"<|tool_call|>", MARK_CALL},
                 {"<|/tool_call|>", MARK_CALL_END},
                 {"<think>", MARK_THINK},
                 {"</think>", MARK_THINK_END},
                 {"<response>", MARK_DROP},
                 {"</response>", MARK_DROP}},
     .open_end = true,
     .read = granite_read},
    {.name = "mistral",
     .hints = {"[TOOL_CALLS]"},
     .markers = {{"[TOOL_CALLS]", MARK_CALL},
                 {"[THINK]", MARK_THINK},
                 {"[/THINK]", MARK_THINK_END}},
     .open_end = true,
     .read = mistral_read},
    {.name = "llama3",
     .hints = {"<|start_header_id|>", "\"parameters\""},
     .markers = {{"<|python_tag|>", MARK_CALL}},
     .open_end = true,
     .bare = true,
     .read = llama3_read},
    {.name = "none", .markers = {{"<think>", MARK_THINK}, {"</think>", MARK_THINK_END}}},
};

enum { N_FORMATS = sizeof(formats) / sizeof(formats[0]) };

static bool holds(const char *text, size_t len, const char *what)
{
    return memmem(text, len, what, strlen(what)) != NULL;
}

static bool is_of(const struct calls_format *f, const char *text, size_t len)
{
    for (int i = 0; i < CALLS_HINTS && f->hints[i]; i++) {
        if (!holds(text, len, f->hints[i])) {
            return false;
        }
    }
    return true;
}

int calls_choose(const char *name, const char *template_text, size_t len,
                 const struct calls_format **ret, struct error *reterr)
{
    bool choose = !name || !name[0] || strcmp(name, "auto") == 0;

    for (int i = 0; i < N_FORMATS; i++) {
        if (choose ? is_of(&formats[i], template_text ? template_text : "", len)
                   : strcmp(formats[i].name, name) == 0) {
            *ret = &formats[i];
            return 0;
        }
    }
    return error_set(reterr, -EINVAL, "no format of tool calls is called '%s' (" CALLS_FORMATS ")",
                     name);
}

const char *calls_format_name(const struct calls_format *f)
{
    return f->name;
}
