/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_WORKER_SESSION_H
#define PIPIT_DAEMON_WORKER_SESSION_H

/* A saved conversation: one file, NAME.session, in the folder of its user, whose descriptor the
 * front sends with a request. It holds the whole text as token ids and a snapshot of the cache
 * (engine_save), so that the next request goes on where the last one ended: after a restart, or on
 * another machine with the same model. Little-endian:
 *
 *     struct session_header       4096 bytes, its own SHA-256 last
 *     i32 text (n_text)           all that was read and said, and zeros; SHA-256 in the header
 *     the snapshot                from a multiple of 4096 on; SHA-256 in the header
 *
 * The text is longer than the snapshot by the token that was drawn last. A file is never changed: a
 * new one is written beside it, synced, and takes its name; so the old one stays until the new one
 * is safe. Nothing in it is trusted: sums, sizes, ids, and what the snapshot's own check looks at;
 * and it is read, not mapped, so that a file cut short meanwhile is an error and no signal. */

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/lane/record.h"

struct engine;

enum { SESSION_VERSION = 1, SESSION_POLICY_MAX = 512, SESSION_HEADER_BYTES = 4096 };

/* Before all else, once in a process: libcrypto makes its tables at the first sum, and where memory
 * is short then, it ends the process (OpenSSL 3.0: 49 of its first 52 allocations). */
int session_start(struct error *reterr) WARN_UNUSED;

struct session_header {
    char magic[8]; /* "PIPITSES" */
    uint32_t version;
    uint32_t n_text;
    char identity[64];               /* of model and overlays */
    char policy[SESSION_POLICY_MAX]; /* canonical */
    uint8_t request[16];             /* the client's id of the one that saved it */
    uint64_t block_offset;
    uint64_t block_bytes;
    uint32_t n_prompt; /* of the first request */
    uint32_t n_answer; /* tokens that the last request said; 0: not known */
    uint8_t text_sha[32];
    uint8_t block_sha[32];
    uint8_t zero[SESSION_HEADER_BYTES - 728];
    uint8_t sha[32]; /* of all before it */
};

struct session {
    int dir; /* -1: none */
    int lock_fd; /* -1: none */
    char name[LANE_SESSION_NAME + 1];
    uint64_t quota; /* bytes of all files in the folder */
    uint64_t writes; /* bytes that its user may write a day (base/budget.h); 0: any number */
    uint64_t principal;
    uint8_t request[16];
    /* What was saved; fd -1 for a new one. */
    int fd;
    uint64_t file_bytes;
    struct session_header head;
    int32_t *text; /* (head.n_text) */
};

static inline bool session_exists(const struct session *s)
{
    return s->fd >= 0;
}

void session_init(struct session *s);

/* Opens NAME in the folder `dir`, which becomes the session's, and looks at its header; a name
 * without a file is a new session. The name is the session's until session_unlock(), for every
 * process that shares the folder: -EBUSY. -EINVAL (name), -EBADMSG (broken, another model),
 * -ENOTSUP (another version), or what the system says. */
int session_open(struct session *s, const struct engine *e, int dir, const char *name, size_t len,
                 struct error *reterr) WARN_UNUSED;
/* The text, and the sums of all that the header does not hold: a read of the whole file, so what
 * can be refused by the header is refused before. Any thread, as long as nobody else touches the
 * session. It looks at `stop` every MiB: -ECANCELED. -EBADMSG. */
int session_load(struct session *s, int32_t n_vocab, const atomic_bool *stop,
                 struct error *reterr) WARN_UNUSED;
/* Its file is no more read or written: another process may have the name. */
void session_unlock(struct session *s);
void session_close(struct session *s); /* takes one that was only initialised, too */

/* Of the snapshot in the file, as engine_request.saved_read; arg: the session. */
int session_read(void *arg, uint64_t at, void *buf, size_t n);

/* Saves a text and its snapshot beside what is there: synced, but not under its name. Any thread,
 * as long as nobody changes the session. 0 and the file's size; -EDQUOT (the
 * quota, or the budget of writes, with the time until it holds as much), -ENOSPC, -EFBIG, or what
 * else the system says: then nothing is left of it. */
struct session_text {
    const char *identity; /* 64 characters: of model and overlays */
    const char *policy;   /* canonical */
    const int32_t *ids;   /* (n) */
    size_t n;
    size_t n_prompt; /* of the session's first request */
    size_t n_answer; /* of the ids, the last request's answer */
};
/* The snapshot: its next bytes, at least one, which stay until the next call. */
struct session_block {
    uint64_t bytes; /* in all */
    int (*next)(void *arg, const void **ret, size_t *ret_n, struct error *reterr);
    void *arg;
};
int session_write(const struct session *s, const struct session_text *text,
                  const struct session_block *block, uint64_t *ret_bytes,
                  struct error *reterr) WARN_UNUSED;

/* What was written takes the session's name; 0: a power cut does not undo it, where the folders
 * above that this user may not read are safe already. A failure leaves the old file as it was, or,
 * where only the last sync failed, one of both. */
int session_commit(const struct session *s, struct error *reterr) WARN_UNUSED;

#endif
