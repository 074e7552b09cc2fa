/* SPDX-License-Identifier: PostgreSQL */
#include "walbus/publish.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "key_fixture.h"
#include "unit.h"

static struct walbus_publisher *publisher(void)
{
    struct walbus_publisher_options options = WALBUS_PUBLISHER_OPTIONS_INIT;
    struct walbus_publisher *p;

    options.source = "/shop";
    ck_assert_int_eq(walbus_publisher_new(&options, &p), WALBUS_OK);
    return p;
}

static char *key_file(mode_t mode)
{
    struct pair pair = test_pair();
    uint8_t encoded[COSE_KEY_PRIVATE_ENCODED_MAX];
    size_t size = cose_key_encode_private(&pair.key, pair.secret, encoded);
    char *path = unit_temp_file((struct bytes){encoded, size});

    ck_assert_int_eq(chmod(path, mode), 0);
    return path;
}

static void refused(struct walbus_publisher *p, const char *path, const char *audience,
                    enum walbus_result result, const char *sentence)
{
    ck_assert_int_eq(walbus_publisher_set_key(p, path, audience), result);
    ck_assert_msg(strstr(walbus_publisher_error(p), sentence) != NULL, "%s",
                  walbus_publisher_error(p));
}

/* What is signed with it, test_signed.py sees. */
START_TEST(a_key_is_set_and_taken_away)
{
    struct walbus_publisher *p = publisher();
    char *path = key_file(0600), audience[257];

    memset(audience, 'a', sizeof audience);
    audience[255] = '\0';
    ck_assert_int_eq(walbus_publisher_set_key(p, path, NULL), WALBUS_OK);
    ck_assert_int_eq(walbus_publisher_set_key(p, path, audience), WALBUS_OK);
    ck_assert_str_eq(walbus_publisher_error(p), "");
    ck_assert_int_eq(walbus_publisher_set_key(p, NULL, NULL), WALBUS_OK);
    ck_assert_int_eq(walbus_publisher_set_key(p, NULL, NULL), WALBUS_OK);
    ck_assert_int_eq(walbus_publisher_set_key(p, path, ""), WALBUS_OK);
    ck_assert_ptr_null(walbus_publisher_free(p));
    (void)unlink(path);
    free(path);
}
END_TEST

START_TEST(what_is_no_key)
{
    struct walbus_publisher *p = publisher();
    char *open_to_all = key_file(0644), *none = unit_temp_file(unit_bytes("no key"));
    char *path = key_file(0600), audience[257];

    memset(audience, 'a', sizeof audience);
    audience[256] = '\0';
    ck_assert_int_eq(walbus_publisher_set_key(NULL, path, NULL), WALBUS_BAD_ARGUMENT);
    refused(p, open_to_all, NULL, WALBUS_BAD_KEY, "Others than its owner have rights to it (mode 0644)");
    refused(p, none, NULL, WALBUS_BAD_KEY, ": ");
    refused(p, "/none/at/all", NULL, WALBUS_BAD_KEY, "/none/at/all: It cannot be opened");
    refused(p, "", NULL, WALBUS_BAD_KEY, "It cannot be opened");
    refused(p, path, audience, WALBUS_BAD_ARGUMENT, "The audience is longer than 255 bytes.");
    refused(p, path, "\xff", WALBUS_BAD_ARGUMENT, "The audience is not UTF-8.");
    refused(p, NULL, "a\nb", WALBUS_BAD_ARGUMENT, "The audience has a control character.");
    ck_assert_str_eq(walbus_publisher_sqlstate(p), "");
    (void)walbus_publisher_free(p);
    (void)unlink(open_to_all);
    (void)unlink(none);
    (void)unlink(path);
    free(open_to_all);
    free(none);
    free(path);
}
END_TEST

UNIT_MAIN("publisher", a_key_is_set_and_taken_away, what_is_no_key)
