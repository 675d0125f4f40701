/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_REPORT_H
#define PIPIT_DAEMON_FRONT_REPORT_H

/* What the engine says of itself beyond its state, kept for LANE_REPORT_GET and the metrics: the
 * backend's whole name, and who holds the cache, by policy. The texts are the engine's; nothing here
 * reads them. */

#include <stdint.h>

#include "proto/lane/record.h"

struct front;
struct lane;

enum { REPORT_POLICY = 512 };

struct report_kv {
    uint32_t n_seqs;
    uint64_t n_requests;
    uint64_t n_slots;
    uint64_t kv_bytes;
    uint64_t n_evicted;
    char policy[REPORT_POLICY];
};

struct report {
    char backend[1024];
    char model[65]; /* hexadecimal, of the files' bytes; "" of an engine that does not say it */
    uint32_t n_kv;
    struct report_kv kv[LANE_ENGINE_REPORT_ROWS];
};

void report_take(struct report *r, const struct lane_engine_report *said);
/* The engine is gone: nothing is held any more. */
void report_clear(struct report *r);
/* Of an enum front_refusal. */
const char *report_refusal_name(int why);
/* LANE_REPORT_GET */
void report_serve(struct front *f, struct lane *l, const struct lane_record *rec);

#endif
