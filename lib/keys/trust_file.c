/* SPDX-License-Identifier: PostgreSQL */
#include "keys/trust_file.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

/* `hash`: of the text; NULL: not wanted. */
static int read_hashed(const char *path, struct trust **ret, uint8_t hash[TRUST_FILE_HASH_SIZE],
                       char why[TRUST_FILE_WHY_SIZE])
{
    struct file_content file;
    struct trust_fault fault;
    char file_why[FILE_WHY_SIZE];
    int r = file_read(path, TRUST_TEXT_MAX, FILE_TRUSTED, &file, file_why);

    if (r < 0) {
        (void)snprintf(why, TRUST_FILE_WHY_SIZE, "%s", file_why);
        return r;
    }
    r = trust_parse(file_bytes(&file), ret, &fault);
    if (r == 0 && hash)
        (void)crypto_generichash(hash, TRUST_FILE_HASH_SIZE, file.data, file.size, NULL, 0);
    file_content_deinit(&file);
    if (r == -ENOMEM)
        (void)snprintf(why, TRUST_FILE_WHY_SIZE, "%.200s: There is no memory for it.", path);
    else if (r < 0)
        (void)snprintf(why, TRUST_FILE_WHY_SIZE, "%.200s: %s", path, fault.why);
    return r == -EINVAL ? -EBADMSG : r;
}

int trust_file_read(const char *path, struct trust **ret, char why[TRUST_FILE_WHY_SIZE])
{
    return read_hashed(path, ret, NULL, why);
}

int trust_file_init(struct trust_file *file, const char *path, char why[TRUST_FILE_WHY_SIZE])
{
    struct trust_file f = {.trust = NULL};
    if (sodium_init() < 0) { /* who verifies with it need not have made any key */
        (void)snprintf(why, TRUST_FILE_WHY_SIZE, "%.200s: libsodium does not start.", path);
        return -EIO;
    }
    int r = watched_file_init(&f.watched, path, WATCHED_FILE_INTERVAL_NS);

    if (r < 0) {
        (void)snprintf(why, TRUST_FILE_WHY_SIZE, "%.200s: %s.", path, strerror(-r));
        return r;
    }
    (void)watched_file_look(&f.watched);
    r = read_hashed(f.watched.path, &f.trust, f.hash, why);
    if (r < 0) {
        watched_file_deinit(&f.watched);
        return r;
    }
    (void)watched_file_good(&f.watched);
    *file = f;
    return 0;
}

void trust_file_deinit(struct trust_file *file)
{
    watched_file_deinit(&file->watched);
    file->trust = trust_free(file->trust);
}

/* What became of reading it, with `r`. *ret_said: it is broken for the same reason as the last time. */
static enum trust_file_news take(struct trust_file *file, int r, struct trust *trust,
                                 const uint8_t hash[TRUST_FILE_HASH_SIZE],
                                 const char why[TRUST_FILE_WHY_SIZE], bool *ret_said)
{
    if (r < 0) {
        *ret_said = !watched_file_bad(&file->watched, why);
        return TRUST_FILE_BROKEN;
    }
    bool mended = watched_file_good(&file->watched);
    bool same = memcmp(hash, file->hash, sizeof file->hash) == 0;

    (void)trust_free(file->trust);
    file->trust = trust;
    memcpy(file->hash, hash, sizeof file->hash);
    return mended || !same ? TRUST_FILE_NEW : TRUST_FILE_SAME;
}

enum trust_file_news trust_file_refresh(struct trust_file *file, uint64_t now_ns,
                                        char why[TRUST_FILE_WHY_SIZE])
{
    uint8_t hash[TRUST_FILE_HASH_SIZE];
    struct trust *trust = NULL;
    bool said = false;

    if (!watched_file_is_due(&file->watched, now_ns) ||
        !watched_file_is_quiet(&file->watched, now_ns) ||
        watched_file_look(&file->watched) == WATCHED_SAME)
        return TRUST_FILE_SAME;
    int r = read_hashed(file->watched.path, &trust, hash, why);

    if (watched_file_is_other(&file->watched)) { /* and is read again */
        (void)trust_free(trust);
        return TRUST_FILE_SAME;
    }
    enum trust_file_news news = take(file, r, trust, hash, why, &said);

    return said ? TRUST_FILE_SAME : news;
}
