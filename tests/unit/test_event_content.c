/* SPDX-License-Identifier: PostgreSQL */
#include "client/event_content.h"

#include "client/known_struct.h"

#include <string.h>

#include "unit.h"
#include "walbus/walbus.h"

/** The result of one event, and what of its sentence must be there. */
static void put_gives(const struct walbus_event *event, enum walbus_result want, const char *word)
{
    const struct event_defaults defaults = {"/s", INT64_C(1767312000000000), 1000};
    struct buf out = BUF_INIT, why = BUF_INIT;
    char id[WALBUS_ID_SIZE];
    enum walbus_result result = event_content_put(event, &defaults, &out, id, &why);

    ck_assert_msg(result == want, "%s: %s", walbus_result_name(result), buf_str(&why));
    ck_assert_msg(strstr(buf_str(&why), word) != NULL, "%s", buf_str(&why));
    ck_assert_int_eq(result == WALBUS_OK, why.size == 0);
    buf_deinit(&out);
    buf_deinit(&why);
}

static struct walbus_event event_of(const char *id)
{
    struct walbus_event event = WALBUS_EVENT_INIT;

    event.prefix = "a";
    event.id = id;
    return event;
}

START_TEST(an_id_is_one_line)
{
    static const struct {
        const char *id;
        enum walbus_result result;
        const char *word;
    } cases[] = {
        {"1", WALBUS_OK, ""},
        {"a b~\xc2\xa0\xe2\x82\xac", WALBUS_OK, ""},
        {"1\n2", WALBUS_BAD_EVENT, "byte 1"},
        {"\r", WALBUS_BAD_EVENT, "byte 0"},
        {"ab\x1f", WALBUS_BAD_EVENT, "byte 2"},
        {"\x1b[2J", WALBUS_BAD_EVENT, "control character"},
        {"\x7f", WALBUS_BAD_EVENT, "control character"},
        {"\xc2\x80", WALBUS_BAD_EVENT, "control character"},
        {"\xc2\x9f", WALBUS_BAD_EVENT, "control character"},
        {"\xff", WALBUS_BAD_EVENT, "UTF-8"},
        {"", WALBUS_BAD_EVENT, "empty"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct walbus_event event = event_of(cases[i].id);

        put_gives(&event, cases[i].result, cases[i].word);
    }
}
END_TEST

START_TEST(bad_arguments)
{
    static const struct walbus_attribute nameless = {NULL, "v"}, valueless = {"n", NULL};
    struct walbus_event event = event_of(NULL);

    put_gives(&event, WALBUS_OK, "");
    event.data_size = 1;
    put_gives(&event, WALBUS_BAD_ARGUMENT, "data is NULL");
    event = event_of(NULL);
    event.data_kind = (enum walbus_data_kind)3;
    put_gives(&event, WALBUS_BAD_ARGUMENT, "kind");
    event = event_of(NULL);
    event.n_attributes = 1;
    put_gives(&event, WALBUS_BAD_ARGUMENT, "attributes are NULL");
    event.attributes = &nameless;
    put_gives(&event, WALBUS_BAD_ARGUMENT, "NULL");
    event.attributes = &valueless;
    put_gives(&event, WALBUS_BAD_ARGUMENT, "NULL");
    event = event_of(NULL);
    event.time_us = INT64_C(-62135596800000000); /* the year 1 begins */
    put_gives(&event, WALBUS_OK, "");
    event.time_us--;
    put_gives(&event, WALBUS_BAD_ARGUMENT, "years");
    event.time_us = INT64_C(253402300799999999); /* the year 9999 ends */
    put_gives(&event, WALBUS_OK, "");
    event.time_us++;
    put_gives(&event, WALBUS_BAD_ARGUMENT, "years");
}
END_TEST

/* A size from memory that was not initialised must not decide how much is read. */
START_TEST(sizes_of_structs)
{
    uint8_t given[STRUCT_SIZE_MAX] = {0};
    struct bytes small = unit_exact((struct bytes){given, 16});

    ck_assert(!struct_is_known(given, 15, 16));
    ck_assert(struct_is_known(small.data, 16, 16));
    ck_assert(struct_is_known(given, STRUCT_SIZE_MAX, 16));
    ck_assert(!struct_is_known(small.data, STRUCT_SIZE_MAX + 1, 16));
    ck_assert(!struct_is_known(small.data, SIZE_MAX, 16));
    given[STRUCT_SIZE_MAX - 1] = 1;
    ck_assert(!struct_is_known(given, STRUCT_SIZE_MAX, 16));
    ck_assert(struct_is_known(given, STRUCT_SIZE_MAX - 1, 16));
    unit_free(small);
}
END_TEST

/* WALBUS_VERSION is meson's. */
START_TEST(version_is_the_projects)
{
    ck_assert_str_eq(WALBUS_VERSION_TEXT, WALBUS_VERSION);
    ck_assert_str_eq(walbus_version_text(), WALBUS_VERSION);
    ck_assert_int_eq(walbus_version_number(), WALBUS_VERSION_NUMBER);
}
END_TEST

UNIT_MAIN("event_content", an_id_is_one_line, bad_arguments, sizes_of_structs,
          version_is_the_projects)
