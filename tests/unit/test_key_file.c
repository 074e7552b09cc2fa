/* SPDX-License-Identifier: PostgreSQL */
#include "keys/key_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "key_fixture.h"
#include "unit.h"

/* Free with drop(). */
static char *private_file(void)
{
    struct pair pair = test_pair();
    uint8_t encoded[COSE_KEY_PRIVATE_ENCODED_MAX];
    size_t size = cose_key_encode_private(&pair.key, pair.secret, encoded);
    char *path = unit_temp_file((struct bytes){encoded, size});

    ck_assert_int_eq(chmod(path, 0600), 0);
    return path;
}

static char *public_file(void)
{
    struct pair pair = test_pair();
    uint8_t encoded[COSE_KEY_PUBLIC_ENCODED_MAX];
    size_t size = cose_key_encode_public(&pair.key, encoded);

    char *path = unit_temp_file((struct bytes){encoded, size});

    ck_assert_int_eq(chmod(path, 0644), 0);
    return path;
}

static void drop(char *path)
{
    (void)unlink(path);
    free(path);
}

static void refused(const char *path, bool private_key, int error, const char *sentence)
{
    struct cose_key key;
    struct signing_key *secret = NULL;
    char why[KEY_FILE_WHY_SIZE];
    int r = private_key ? key_file_read_private(path, &secret, why)
                        : key_file_read_public(path, &key, why);

    ck_assert_int_eq(r, error);
    ck_assert_ptr_null(secret);
    ck_assert_int_eq(strncmp(why, path, strlen(path)), 0);
    ck_assert_msg(strstr(why, sentence) != NULL, "%s", why);
}

START_TEST(both_kinds)
{
    struct pair pair = test_pair();
    char *path = private_file(), *other = public_file();
    struct signing_key *secret;
    struct cose_key key;
    char why[KEY_FILE_WHY_SIZE];

    ck_assert_msg(key_file_read_private(path, &secret, why) == 0, "%s", why);
    ck_assert_mem_eq(secret->secret, pair.secret, sizeof pair.secret);
    unit_assert_hex(cose_key_kid(&secret->key), "866eefbd6718c884");
    ck_assert_ptr_null(signing_key_free(secret));
    ck_assert_ptr_null(signing_key_free(NULL));
    ck_assert_msg(key_file_read_public(other, &key, why) == 0, "%s", why);
    ck_assert_mem_eq(key.x, pair.key.x, sizeof key.x);
    drop(path);
    drop(other);
}
END_TEST

START_TEST(what_is_refused)
{
    char *path = private_file(), *other = public_file();

    refused(path, false, -EBADMSG, ": The key is a private one");
    ck_assert_int_eq(chmod(path, 0640), 0);
    refused(path, true, -EPERM, "Others than its owner have rights to it (mode 0640)");
    refused(other, true, -EPERM, "Others than its owner");
    ck_assert_int_eq(chmod(other, 0600), 0);
    refused(other, true, -EBADMSG, "it is a public one");
    refused("/none/at/all", true, -ENOENT, "It cannot be opened");
    refused("/none/at/all", false, -ENOENT, "It cannot be opened");
    drop(path);
    drop(other);
}
END_TEST

START_TEST(as_long_as_may_be)
{
    for (size_t more = 0; more <= 1; more++) {
        uint8_t bytes[KEY_FILE_MAX + 1] = {0xa0};
        char *path = unit_temp_file((struct bytes){bytes, KEY_FILE_MAX + more});

        if (more)
            refused(path, false, -EFBIG, "4096 are the most");
        else
            refused(path, false, -EBADMSG, "There are bytes behind the key.");
        drop(path);
    }
}
END_TEST

UNIT_MAIN("key_file", both_kinds, what_is_refused, as_long_as_may_be)
