/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_KEYS_KEY_FILE_H
#define WALBUS_KEYS_KEY_FILE_H

/* Keys off the disk: a file holds one COSE_Key (codec/cose_key.h) and nothing else. */

#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "base/macros.h"
#include "codec/cose_key.h"

/** Most bytes of a key's file: what we write is a tenth of it, and others may add labels. */
#define KEY_FILE_MAX ((size_t)4096)

#define KEY_FILE_WHY_SIZE FILE_WHY_SIZE

/** A key to sign with. It stands in locked memory, which is no part of a core dump. */
struct signing_key {
    struct cose_key key;
    uint8_t secret[COSE_KEY_SECRET_SIZE];
};

/**
 * Read a key. 0; -ENOMEM; another negative errno of file_read; -EBADMSG: no such key. Whatever it
 * is, `why` is a sentence that begins with the path. A private key's file is refused when it is not
 * private (FILE_PRIVATE).
 */
int key_file_read_public(const char *path, struct cose_key *ret,
                         char why[KEY_FILE_WHY_SIZE]) MUST_CHECK;
int key_file_read_private(const char *path, struct signing_key **ret,
                          char why[KEY_FILE_WHY_SIZE]) MUST_CHECK;

/** An empty one, to make a key in; NULL: no memory, or none that may be locked. */
struct signing_key *signing_key_new(void) MUST_CHECK;

/** Wipes and frees; NULL in, NULL out. */
struct signing_key *signing_key_free(struct signing_key *key);

#endif
