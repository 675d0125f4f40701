/* SPDX-License-Identifier: Apache-2.0 */
/* How pipit says things to people: on stderr, one line a matter, with what may help where something
 * may. Exit codes are a contract with scripts; the table of the lane's codes is the
 * lane's own (proto/lane), what the library says by itself is added here. */

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/hex.h"
#include "client/cli/cli.h"
#include "proto/lane/record.h"

static void say_v(const char *fmt, va_list args)
{
    char text[1024];

    (void)vsnprintf(text, sizeof(text), fmt, args);
    (void)fflush(stdout);
    (void)fprintf(stderr, "pipit: %s\n", text);
}

void say(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    say_v(fmt, args);
    va_end(args);
}

int usage_error(const char *command, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    say_v(fmt, args);
    va_end(args);
    (void)fprintf(stderr, "Try 'pipit %s%s--help'.\n", command ? command : "", command ? " " : "");
    return EXIT_USAGE;
}

int exit_of_code(uint32_t code)
{
    switch (code) {
    case PIPIT_E_UNREACHABLE:
    case PIPIT_E_LOST:
    case PIPIT_E_TIMED_OUT:
        return EXIT_UNREACHABLE;
    case PIPIT_E_LOCAL:
        return EXIT_INTERNAL;
    default:
        return lane_error_exit(code);
    }
}

int exit_of_reason(uint32_t reason)
{
    return lane_reason_exit(reason);
}

/* Do both numbers stand in the text already? */
static bool counts_said(const struct pipit_error *e)
{
    char a[24];
    char b[24];

    (void)snprintf(a, sizeof(a), "%llu", (unsigned long long)e->count_a);
    (void)snprintf(b, sizeof(b), "%llu", (unsigned long long)e->count_b);
    return (e->count_a == 0 && e->count_b == 0) || (strstr(e->text, a) && strstr(e->text, b));
}

/* The engine says so where the context is all that the model was trained on. */
static bool context_is_the_models(const struct pipit_error *e)
{
    return strstr(e->text, "the model's own") != NULL;
}

static void overflow_advice(const struct pipit_error *e, const char *session)
{
    if (session) {
        (void)fprintf(stderr,
                      "The session '%.64s' and this message do not fit into the context together: "
                      "shorten the message,\ngo on with another --session, or forget this one by "
                      "'pipit session rm %.64s'.\n",
                      session, session);
    } else if (context_is_the_models(e)) {
        (void)fprintf(stderr, "Nothing was cut: shorten the prompt.\n");
    } else {
        (void)fprintf(stderr, "Nothing was cut: shorten the prompt, or start pipitd with a larger "
                              "--ctx.\n");
    }
}

static int report_in(const struct pipit_error *e, const char *session)
{
    char counts[80] = "";

    if (!counts_said(e)) {
        (void)snprintf(counts, sizeof(counts), " (%llu asked, %llu allowed)",
                       (unsigned long long)e->count_a, (unsigned long long)e->count_b);
    }
    say("%s%s", e->text, counts);
    switch (e->code) {
    case PIPIT_E_UNREACHABLE:
    case PIPIT_E_TIMED_OUT:
        (void)fprintf(stderr, "'pipit doctor' looks closer.\n");
        break;
    case PIPIT_E_BUSY:
        if (e->retry_after_ms) {
            (void)fprintf(stderr, "Try again in %.1f s.\n", e->retry_after_ms / 1000.0);
        }
        break;
    case PIPIT_E_CONTEXT_OVERFLOW:
        overflow_advice(e, session);
        break;
    default:
        break;
    }
    return exit_of_code(e->code);
}

int report(const struct pipit_error *e)
{
    return report_in(e, NULL);
}

const char *model_cause(struct pipit_client *c)
{
    const struct pipit_report *rep;

    return pipit_client_report(c, &rep, NULL) == 0 ? rep->cause : "";
}

int report_model(struct pipit_client *c)
{
    const char *cause = model_cause(c);

    say("the model cannot be loaded: %s", cause[0] ? cause : "the daemon's log says why");
    return EXIT_MODEL;
}

int report_answer(const struct pipit_error *e, bool begun, const struct settings *s)
{
    if (begun && e->code == PIPIT_E_LOST) {
        say("the answer is incomplete: %s", e->text);
        (void)fprintf(stderr, "'pipit doctor' looks closer.\n");
        return EXIT_INTERNAL;
    }
    return report_in(e, s->session);
}

const char *bytes_text(uint64_t bytes, char ret[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    size_t i = 0;

    while (v >= 1024 && i + 1 < sizeof(units) / sizeof(units[0])) {
        v /= 1024;
        i++;
    }
    (void)snprintf(ret, 32, i == 0 || v >= 100 ? "%.0f %s" : "%.1f %s", v, units[i]);
    return ret;
}

int backend_len(const char *backend)
{
    return (int)strcspn(backend, ";");
}

void id_text(const uint8_t id[16], char ret[33])
{
    hex_of(id, 16, ret);
}

void quote_bytes(FILE *f, const char *text, size_t len)
{
    bool whole = input_bad_byte(text, len) < 0;

    (void)fputc('"', f);
    for (size_t i = 0; i < len; i++) {
        uint8_t b = (uint8_t)text[i];

        if (b < 0x20 || b == 0x7f || b == '"' || b == '\\' || (b >= 0x80 && !whole)) {
            (void)fprintf(f, "\\x%02x", b);
        } else {
            (void)fputc(b, f);
        }
    }
    (void)fputc('"', f);
}
