/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_TESTS_FUZZ_FUZZ_H
#define WALBUS_TESTS_FUZZ_FUZZ_H

/*
 * What the fuzzers share. Each fuzz_NAME.c defines the entry point below and nothing else that is
 * not static. With clang and -Dfuzz=true libFuzzer calls it; without, standalone.c does, over the
 * files of corpus/NAME and every cut of them.
 *
 * A fuzzer decodes, encodes what it got and compares, so that it finds wrong answers and not only
 * crashes; where a second way to the same answer exists, it compares with that.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/macros.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/** Ends the program in the way that libFuzzer and the standalone runner take for a finding. */
#define FUZZ_CHECK(condition)                                                               \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            (void)fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                        \
        }                                                                                   \
    } while (0)

/** A sentence that a decoder wrote into a buffer of `size` bytes: not empty, ended, and nothing in
 *  it that a log line could not hold. */
#define FUZZ_CHECK_WHY(why) fuzz_check_why((why), sizeof(why))

static inline void fuzz_check_why(const char *why, size_t size)
{
    size_t n = strnlen(why, size);

    FUZZ_CHECK(n > 0 && n < size);
    for (size_t i = 0; i < n; i++)
        FUZZ_CHECK((uint8_t)why[i] >= 0x20 && why[i] != 0x7f);
}

/** Fills an output with a pattern, for fuzz_is_marked to see that it was not written. */
static inline void fuzz_mark(void *at, size_t size)
{
    memset(at, 0xa5, size);
}

static inline bool fuzz_is_marked(const void *at, size_t size)
{
    const uint8_t *p = at;

    for (size_t i = 0; i < size; i++)
        if (p[i] != 0xa5)
            return false;
    return true;
}

/** A copy on the heap with not a byte to spare, so that the sanitizers see a read past its end. */
static inline uint8_t *fuzz_copy(struct bytes in)
{
    uint8_t *copy = malloc(in.size);

    if (in.size) {
        FUZZ_CHECK(copy != NULL);
        memcpy(copy, in.data, in.size);
    }
    return copy;
}

/* ---- an input taken as a list of small numbers; behind its end everything reads as 0 ---- */

struct fuzz_in {
    const uint8_t *at;
    size_t left;
};

static inline uint8_t fuzz_u8(struct fuzz_in *in)
{
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->at++;
}

static inline uint16_t fuzz_u16(struct fuzz_in *in)
{
    uint8_t high = fuzz_u8(in);

    return (uint16_t)(high << 8 | fuzz_u8(in));
}

/** Up to `size` bytes, as many as are left; borrowed. */
static inline struct bytes fuzz_bytes(struct fuzz_in *in, size_t size)
{
    struct bytes taken = {in->at, MIN(size, in->left)};

    in->at += taken.size;
    in->left -= taken.size;
    return taken;
}

#endif
