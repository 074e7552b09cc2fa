/* SPDX-License-Identifier: PostgreSQL */
#include "keys/key_file.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

struct signing_key *signing_key_new(void)
{
    struct signing_key *key = sodium_init() < 0 ? NULL : sodium_malloc(sizeof *key);

    /* sodium_malloc says nothing when its memory could not be locked. */
    if (key && sodium_mlock(key, sizeof *key) < 0)
        return signing_key_free(key);
    if (key)
        memset(key, 0, sizeof *key);
    return key;
}

struct signing_key *signing_key_free(struct signing_key *key)
{
    sodium_free(key); /* wipes */
    return NULL;
}

static int refuse(const char *path, enum cose_key_fault fault, char why[KEY_FILE_WHY_SIZE])
{
    (void)snprintf(why, KEY_FILE_WHY_SIZE, "%.200s: %s", path, cose_key_fault_text(fault));
    return -EBADMSG;
}

int key_file_read_public(const char *path, struct cose_key *ret, char why[KEY_FILE_WHY_SIZE])
{
    struct file_content file;
    int r = file_read(path, KEY_FILE_MAX, 0, &file, why);

    if (r < 0)
        return r;
    enum cose_key_fault fault = cose_key_decode_public(file_bytes(&file), ret);

    file_content_deinit(&file);
    return fault == COSE_KEY_OK ? 0 : refuse(path, fault, why);
}

int key_file_read_private(const char *path, struct signing_key **ret, char why[KEY_FILE_WHY_SIZE])
{
    struct file_content file;
    struct signing_key *key;
    int r = file_read(path, KEY_FILE_MAX, FILE_PRIVATE, &file, why);

    if (r < 0)
        return r;
    key = signing_key_new();
    if (!key) {
        file_content_deinit(&file);
        (void)snprintf(why, KEY_FILE_WHY_SIZE,
                       "%.200s: There is no memory for it that may be locked (ulimit -l).", path);
        return -ENOMEM;
    }
    enum cose_key_fault fault = cose_key_decode_private(file_bytes(&file), &key->key, key->secret);

    file_content_deinit(&file);
    if (fault != COSE_KEY_OK) {
        (void)signing_key_free(key);
        return refuse(path, fault, why);
    }
    *ret = key;
    return 0;
}
