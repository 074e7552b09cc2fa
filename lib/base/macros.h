/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_BASE_MACROS_H
#define WALBUS_BASE_MACROS_H

#include <stddef.h>
#include <sys/param.h> /* MIN, MAX: glibc's, which libuv brings in as well */

#define MUST_CHECK      __attribute__((warn_unused_result))
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/** The struct that holds `member`, from a pointer to that member. */
#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

#endif
