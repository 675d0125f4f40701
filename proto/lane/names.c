/* SPDX-License-Identifier: Apache-2.0 */
/* Names and exit codes of the lane's enums (record.h): what people and scripts see. The names are
 * part of the contract (JSON output, logs) and so never change. */

#include "proto/lane/record.h"

#include <stddef.h>

struct name {
    const char *text;
    int exit_code;
};

/* clang-format off */
static const struct name reasons[] = {
    [LANE_REASON_STOP]          = {"stop", 0},
    [LANE_REASON_LENGTH]        = {"length", 0},
    [LANE_REASON_CONTEXT]       = {"context", 5},
    [LANE_REASON_CANCELLED]     = {"cancelled", 7},
    [LANE_REASON_TIMEOUT]       = {"timeout", 7},
    [LANE_REASON_SLOW_CONSUMER] = {"slow_consumer", 8},
    [LANE_REASON_SHUTDOWN]      = {"shutdown", 8},
    [LANE_REASON_ERROR]         = {"error", 8},
    [LANE_REASON_TOOL_CALLS]    = {"tool_calls", 0},
};

static const struct name errors[] = {
    [LANE_ERR_INVALID]          = {"INVALID", 2},
    [LANE_ERR_PROTOCOL]         = {"PROTOCOL", 8},
    [LANE_ERR_ABI]              = {"ABI", 3},
    [LANE_ERR_DENIED]           = {"DENIED", 4},
    [LANE_ERR_BUSY]             = {"BUSY", 4},
    [LANE_ERR_CONTEXT_OVERFLOW] = {"CONTEXT_OVERFLOW", 5},
    [LANE_ERR_NO_MEMORY]        = {"NO_MEMORY", 4},
    [LANE_ERR_UNSUPPORTED]      = {"UNSUPPORTED", 2},
    [LANE_ERR_NOT_FOUND]        = {"NOT_FOUND", 4},
    [LANE_ERR_MODEL]            = {"MODEL", 6},
    [LANE_ERR_ENGINE_CRASHED]   = {"ENGINE_CRASHED", 8},
    [LANE_ERR_SHUTDOWN]         = {"SHUTDOWN", 4},
    [LANE_ERR_TOO_LARGE]        = {"TOO_LARGE", 4},
    [LANE_ERR_INTERNAL]         = {"INTERNAL", 8},
};

static const struct name states[] = {
    [LANE_UNLOADED] = {"unloaded", 0},
    [LANE_LOADING]  = {"loading", 0},
    [LANE_READY]    = {"ready", 0},
    [LANE_FAILED]   = {"failed", 0},
    [LANE_STOPPING] = {"stopping", 0},
};
/* clang-format on */

static const char *const kinds[] = {
    [LANE_KIND_GENERATE] = "generate", [LANE_KIND_CHAT] = "chat",
    [LANE_KIND_TOKENIZE] = "tokenize", [LANE_KIND_DETOKENIZE] = "detokenize",
    [LANE_KIND_SCORE] = "score",       [LANE_KIND_EMBED] = "embed",
};

static const struct name *look_up(const struct name *table, size_t n, uint32_t i)
{
    static const struct name unknown = {"unknown", 8};

    return i < n && table[i].text ? &table[i] : &unknown;
}

const char *lane_reason_name(uint32_t reason)
{
    return look_up(reasons, sizeof(reasons) / sizeof(reasons[0]), reason)->text;
}

const char *lane_error_name(uint32_t code)
{
    return look_up(errors, sizeof(errors) / sizeof(errors[0]), code)->text;
}

const char *lane_kind_name(uint32_t kind)
{
    return kind < sizeof(kinds) / sizeof(kinds[0]) && kinds[kind] ? kinds[kind] : "unknown";
}

const char *lane_state_name(uint32_t state)
{
    return look_up(states, sizeof(states) / sizeof(states[0]), state)->text;
}

int lane_reason_exit(uint32_t reason)
{
    return look_up(reasons, sizeof(reasons) / sizeof(reasons[0]), reason)->exit_code;
}

int lane_error_exit(uint32_t code)
{
    return look_up(errors, sizeof(errors) / sizeof(errors[0]), code)->exit_code;
}

int lane_session_name_ok(const char *name, uint64_t len)
{
    for (uint64_t i = 0; i < len && i <= LANE_SESSION_NAME; i++) {
        char c = name[i];
        int plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    c == '_' || c == '-' || (c == '.' && i > 0);

        if (!plain) {
            return 0;
        }
    }
    return len >= 1 && len <= LANE_SESSION_NAME;
}
