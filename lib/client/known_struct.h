/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLIENT_KNOWN_STRUCT_H
#define WALBUS_CLIENT_KNOWN_STRUCT_H

/* The structs that callers fill in, which grow from version to version. */

#include <stdbool.h>
#include <stddef.h>

/** Beyond this, bytes, a size is taken for memory that was not initialised: no struct of a later
 *  version will come near, and what a wild size says is never read. */
#define STRUCT_SIZE_MAX 4096u

/**
 * Whether a struct of the caller's, of `size` bytes by its own word, can be taken by a library that
 * knows `known` of them: it has all of these, at most STRUCT_SIZE_MAX bytes, and what a later
 * version may have added is zero.
 */
bool struct_is_known(const void *given, size_t size, size_t known);

#endif
