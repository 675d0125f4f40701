/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_SANITIZED_H
#define PIPIT_BASE_SANITIZED_H

/* SANITIZED: 1 in a build with AddressSanitizer, ThreadSanitizer or MemorySanitizer, whose memory
 * and times are not the program's; else 0. gcc says so by macros, clang by features. */

#define SANITIZED 0
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#undef SANITIZED
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                         \
    __has_feature(memory_sanitizer)
#undef SANITIZED
#define SANITIZED 1
#endif
#endif

#endif
