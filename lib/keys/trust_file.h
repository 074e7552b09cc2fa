/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_KEYS_TRUST_FILE_H
#define WALBUS_KEYS_TRUST_FILE_H

/* Trust off the disk (codec/trust.h): read once, or kept and read again when the file changes. */

#include <stdint.h>

#include "base/file.h"
#include "base/macros.h"
#include "base/watched_file.h"
#include "codec/trust.h"

/** A path and a sentence of trust_parse. */
#define TRUST_FILE_WHY_SIZE (TRUST_WHY_SIZE + 256)

/** Reads a trust file, which not everybody may write. 0 and one count; -ENOMEM; another negative errno of file_read; -EBADMSG: its
 *  text is refused. Whatever it is, `why` is a sentence that begins with the path. */
int trust_file_read(const char *path, struct trust **ret,
                    char why[TRUST_FILE_WHY_SIZE]) MUST_CHECK;

#define TRUST_FILE_HASH_SIZE 32

/** One that is kept. `trust` is what is believed now: who hands it to others hands counts. */
struct trust_file {
    struct watched_file watched;
    struct trust *trust;
    uint8_t hash[TRUST_FILE_HASH_SIZE]; /* of the text: a fresh file is read twice (watched_file.h) */
};

enum trust_file_news {
    TRUST_FILE_SAME = 0,
    TRUST_FILE_NEW,    /* `trust` is another one, or what was broken is good again */
    TRUST_FILE_BROKEN, /* cannot be read, or is refused: to be said, once; `trust` stays */
};

/** As trust_file_read; `file` is to be deinited only with 0. */
int trust_file_init(struct trust_file *file, const char *path,
                    char why[TRUST_FILE_WHY_SIZE]) MUST_CHECK;
void trust_file_deinit(struct trust_file *file);

/**
 * Looks whether the file has changed, at most once in WATCHED_FILE_INTERVAL_NS of `now_ns`
 * (clock_monotonic_ns), so that it may be called for each message; and reads it if so, but not while
 * it is being written (watched_file_is_quiet). `why` is written with TRUST_FILE_BROKEN.
 */
enum trust_file_news trust_file_refresh(struct trust_file *file, uint64_t now_ns,
                                        char why[TRUST_FILE_WHY_SIZE]) MUST_CHECK;

#endif
