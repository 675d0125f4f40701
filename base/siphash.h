/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_SIPHASH_H
#define PIPIT_BASE_SIPHASH_H

/* SipHash-1-3 (Aumasson and Bernstein, with the rounds that language runtimes use): a hash with a
 * secret key for tables whose keys a file or a client chooses. Without the key nobody can make
 * entries that collide. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

struct siphash_key {
    uint64_t k[2];
};

/* Random; where the kernel gives none, the clock and an address stand in. */
static inline struct siphash_key siphash_key_random(void)
{
    struct siphash_key key;

    if (getrandom(&key, sizeof(key), GRND_NONBLOCK) != (ssize_t)sizeof(key)) {
        struct timespec now = {0};

        (void)clock_gettime(CLOCK_MONOTONIC, &now);
        key.k[0] = (uint64_t)now.tv_nsec * 0x9E3779B97F4A7C15u;
        key.k[1] = (uint64_t)(uintptr_t)&now ^ (uint64_t)now.tv_sec;
    }
    return key;
}

static inline uint64_t siphash_rotate(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

static inline void siphash_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = siphash_rotate(v[1], 13) ^ v[0];
    v[3] = siphash_rotate(v[3], 16) ^ v[2];
    v[0] = siphash_rotate(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = siphash_rotate(v[1], 17) ^ v[2];
    v[3] = siphash_rotate(v[3], 21) ^ v[0];
    v[2] = siphash_rotate(v[2], 32);
}

static inline uint64_t siphash(const struct siphash_key *key, const void *data, size_t len)
{
    uint64_t v[4] = {key->k[0] ^ 0x736f6d6570736575u, key->k[1] ^ 0x646f72616e646f6du,
                     key->k[0] ^ 0x6c7967656e657261u, key->k[1] ^ 0x7465646279746573u};
    const unsigned char *p = data;
    uint64_t last = (uint64_t)len << 56;
    uint64_t word;

    for (; len >= sizeof(word); p += sizeof(word), len -= sizeof(word)) {
        memcpy(&word, p, sizeof(word));
        v[3] ^= word;
        siphash_round(v);
        v[0] ^= word;
    }
    for (size_t i = 0; i < len; i++) {
        last |= (uint64_t)p[i] << (8 * i);
    }
    v[3] ^= last;
    siphash_round(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    siphash_round(v);
    siphash_round(v);
    siphash_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
