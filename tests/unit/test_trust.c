/* SPDX-License-Identifier: PostgreSQL */
#include "codec/trust.h"

#include <errno.h>
#include <stdlib.h>

#include "base/text.h"
#include "trust_fixture.h"
#include "unit.h"

/* The key of key_fixture.h. */
#define KID     "866eefbd6718c884"
#define SECTION "[" KID "]\n"
#define KEY     "key = owEBIAYhWCDXWpgBgrEKt9VL/tPJZAc6DuFy89qmIyWvAhpo9wdRGg==\n"
#define ALLOW   "allow = orders.>\n"

static int parse(struct bytes text, struct trust **ret, struct trust_fault *fault)
{
    struct bytes exact = unit_exact(text);
    int r = trust_parse(exact, ret, fault);

    unit_free(exact);
    return r;
}

static struct trust *good(const char *text)
{
    struct trust_fault fault;
    struct trust *trust = NULL;

    ck_assert_msg(parse(unit_bytes(text), &trust, &fault) == 0, "%s", fault.why);
    return trust;
}

static void refused(struct bytes text, size_t line, const char *sentence)
{
    struct trust_fault fault = {.line = 99};
    struct trust *trust = NULL;

    ck_assert_int_eq(parse(text, &trust, &fault), -EINVAL);
    ck_assert_ptr_null(trust);
    ck_assert_uint_eq(fault.line, line);
    ck_assert_msg(strstr(fault.why, sentence) != NULL, "\"%s\" is not in \"%s\"", sentence,
                  fault.why);
}

/* ---- what is accepted ---- */

START_TEST(all_of_it)
{
    struct trust *t = good("# the shop's\n"
                           "\n" SECTION KEY "allow = orders.>\n"
                           "; and\n"
                           "allow = payments.*.done\n"
                           "audience = production\n"
                           "max-delay = 10min\n");
    const struct trust_key *key = trust_at(t, 0);

    ck_assert_uint_eq(trust_count(t), 1);
    ck_assert_uint_eq(key->line, 3);
    unit_assert_hex(cose_key_kid(&key->key), KID);
    unit_assert_hex((struct bytes){key->key.x, sizeof key->key.x},
                    "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
    ck_assert_uint_eq(key->n_allow, 2);
    unit_assert_text(key->allow[0].text, "orders.>");
    unit_assert_text(key->allow[1].text, "payments.*.done");
    ck_assert(key->has_audience);
    unit_assert_text(key->audience, "production");
    ck_assert_int_eq(key->max_delay_us, INT64_C(600000000));
    ck_assert_ptr_eq(trust_find(t, cose_key_kid(&key->key)), key);
    ck_assert_ptr_null(trust_find(t, unit_bytes("")));
    ck_assert_ptr_null(trust_find(t, unit_bytes("12345678")));
    ck_assert(trust_key_may_sign(key, unit_bytes("orders.paid")));
    ck_assert(trust_key_may_sign(key, unit_bytes("payments.1.done")));
    ck_assert(!trust_key_may_sign(key, unit_bytes("orders")));
    ck_assert(!trust_key_may_sign(key, unit_bytes("")));
    ck_assert_ptr_null(trust_free(t));
}
END_TEST

START_TEST(without_what_may_be_missing)
{
    struct trust *t = good(SECTION KEY ALLOW);

    ck_assert(!trust_at(t, 0)->has_audience);
    ck_assert_int_eq(trust_at(t, 0)->max_delay_us, 0);
    (void)trust_free(t);
    t = good(SECTION KEY ALLOW "audience =\n");
    ck_assert(trust_at(t, 0)->has_audience);
    ck_assert_uint_eq(trust_at(t, 0)->audience.size, 0);
    (void)trust_free(t);
}
END_TEST

START_TEST(nothing_in_it)
{
    static const char *const texts[] = {"", "\n", "# nothing\n;\n\n", "\xef\xbb\xbf", "  \t\r\n"};

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        struct trust *t = good(texts[i]);

        ck_assert_uint_eq(trust_count(t), 0);
        ck_assert_ptr_null(trust_find(t, unit_bytes("12345678")));
        (void)trust_free(t);
    }
}
END_TEST

START_TEST(written_in_other_ways)
{
    static const char *const texts[] = {
        SECTION KEY "allow = orders.>", /* no end of line */
        "\xef\xbb\xbf" SECTION KEY ALLOW,
        "  [ 866EEFBD6718C884\t]  \n \tkey=owEBIAYhWCDXWpgBgrEKt9VL/tPJZAc6DuFy89qmIyWvAhpo9wdRGg==\n"
        "\tallow\t=\torders.>\t\r\n",
        "[" KID "]\r\n" KEY "\r\nallow = orders.>\r\n",
        SECTION ALLOW KEY,
    };

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        struct trust *t = good(texts[i]);

        ck_assert_uint_eq(trust_count(t), 1);
        ck_assert(trust_key_may_sign(trust_at(t, 0), unit_bytes("orders.x")));
        (void)trust_free(t);
    }
}
END_TEST

START_TEST(a_pattern_may_have_an_equals_sign)
{
    struct trust *t = good(SECTION KEY "allow = a=b.[c]\n");

    unit_assert_text(trust_at(t, 0)->allow[0].text, "a=b.[c]");
    (void)trust_free(t);
}
END_TEST

START_TEST(delays_as_postgresql_writes_them)
{
    static const struct {
        const char *text;
        int64_t us;
    } delays[] = {
        {"30", 30000000},      {"1us", 1},
        {"1.5 s", 1500000},    {"2h", INT64_C(7200000000)},
        {"36500d", TRUST_DELAY_MAX_US},
    };

    for (size_t i = 0; i < ARRAY_SIZE(delays); i++) {
        struct buf text = BUF_INIT;

        buf_printf(&text, SECTION KEY ALLOW "max-delay = %s\n", delays[i].text);
        struct trust *t = good(buf_str(&text));
        ck_assert_int_eq(trust_at(t, 0)->max_delay_us, delays[i].us);
        (void)trust_free(t);
        buf_deinit(&text);
    }
}
END_TEST

/* ---- what is refused ---- */

START_TEST(refusals)
{
    static const struct {
        const char *text;
        size_t line;
        const char *sentence;
    } cases[] = {
        {KEY, 1, "line 1: \"key\" stands before any section; begin with [KID]."},
        {"[866eefbd6718c88]\n", 1, "line 1: [866eefbd6718c88] is not a key's id: 1 to 255 bytes"},
        {"[]\n", 1, "[] is not a key's id"},
        {"[shop]\n", 1, "[shop] is not a key's id"},
        {"[" KID "\n", 1, "\"[" KID "\" is neither [KID] nor `name = value`."},
        {"[" KID "] x\n", 1, "is neither [KID]"},
        {"[" KID "] # the shop's\n", 1, "is neither [KID]"},
        {"\n\x1b[31m\n", 2, "line 2: This is neither"},
        {"#\n" SECTION, 2, "line 2: This section has no key; it needs `key = BASE64`."},
        {SECTION ALLOW, 1, "This section has no key"},
        {SECTION KEY, 1, "This section allows nothing; it needs `allow = PATTERN` at least once."},
        {SECTION KEY "[1122]\n", 1, "This section allows nothing"},
        {SECTION "key =\n", 2, "The key ends before it is whole"},
        {SECTION "key = ?\n", 2, "line 2: The key is not base64"},
        {SECTION "key = pAE\n", 2, "The key is not base64"},   /* no padding */
        {SECTION "key = pAF=\n", 2, "The key is not base64"},  /* bits behind the end */
        {SECTION "key = pAE=pAE=\n", 2, "The key is not base64"},
        {SECTION "key = pAE= pAE=\n", 2, "The key is not base64"},
        {SECTION "key = pAE=\n", 2, "no public COSE_Key of Ed25519: The key ends before"},
        {SECTION KEY KEY ALLOW, 3, "line 3: The section has a key already"},
        {"[866eefbd6718c885]\n" KEY ALLOW, 2, "The key's id is " KID ", which is not that of"},
        {"[866eefbd6718c88400]\n" KEY ALLOW, 2, "The key's id is " KID},
        {SECTION KEY "allow =\n", 3, "The pattern \"\" is empty."},
        {SECTION KEY "allow = a b\n", 3, "The pattern \"a b\" has a blank: each pattern has a line"},
        {SECTION KEY "allow = a\tb\n", 3, "has a blank"},
        {SECTION KEY "allow = a\x01\n", 3, "\"a\\x01\" has a control character"},
        {SECTION KEY "allow = a\rb\n", 3, "has a control character"},
        {SECTION KEY "allow = \xc3\xa4\n", 3, "is not ASCII"},
        {SECTION KEY "allow = a # b\n", 3, "A comment stands behind a value"},
        {SECTION KEY "allow = #b\n", 3, "A comment stands behind a value"},
        {SECTION KEY "allow = a ;b\n", 3, "A comment stands behind a value"},
        {SECTION KEY ALLOW "audience = a\naudience = a\n", 5, "has an audience already"},
        {SECTION KEY ALLOW "audience = \xff\n", 4, "The audience \"\\xff\" is not UTF-8."},
        {SECTION KEY ALLOW "audience = a\x07\n", 4, "has a control character"},
        {SECTION KEY ALLOW "audience = a\t#b\n", 4, "A comment stands behind a value"},
        {SECTION KEY ALLOW "max-delay = 1s\nmax-delay = 1s\n", 5, "has a max-delay already"},
        {SECTION KEY ALLOW "max-delay = soon\n", 4, "max-delay is \"soon\", but must be a time as"},
        {SECTION KEY ALLOW "max-delay =\n", 4, "but must be a time"},
        {SECTION KEY ALLOW "max-delay = -1\n", 4, "but must be a time"},
        {SECTION KEY ALLOW "max-delay = 0\n", 4, "must be from 1us to 36500d; without the line"},
        {SECTION KEY ALLOW "max-delay = 36501d\n", 4, "must be from 1us"},
        {SECTION KEY ALLOW "max-delay = 99999999999999999999d\n", 4, "must be from 1us"},
        {SECTION KEY "allows = a\n", 3, "\"allows\" is unknown; a section has key, allow, audience"},
        {SECTION KEY "Allow = a\n", 3, "is unknown"},
        {SECTION KEY "= a\n", 3, "\"\" is unknown"},
        {SECTION KEY "allow\n", 3, "\"allow\" is neither"},
        {SECTION KEY ALLOW "\n" SECTION KEY ALLOW, 5,
         "line 5: This key has a section already, in line 1."},
        {SECTION KEY ALLOW "[866EEFBD6718C884]\n" KEY ALLOW, 4, "has a section already, in line 1"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        refused(unit_bytes(cases[i].text), cases[i].line, cases[i].sentence);
    refused((struct bytes){(const uint8_t *)SECTION KEY "allow = a\0b\n",
                           sizeof SECTION KEY "allow = a\0b\n" - 1},
            3, "The line has a NUL byte.");
}
END_TEST

START_TEST(a_private_key_is_refused_and_not_repeated)
{
    struct pair pair = test_pair();
    uint8_t encoded[COSE_KEY_PRIVATE_ENCODED_MAX];
    char base64[2 * COSE_KEY_PRIVATE_ENCODED_MAX];
    struct buf text = BUF_INIT;
    struct trust_fault fault;
    struct trust *trust;
    size_t size = cose_key_encode_private(&pair.key, pair.secret, encoded);

    buf_printf(&text, SECTION "key = %s\n" ALLOW,
               sodium_bin2base64(base64, sizeof base64, encoded, size,
                                 sodium_base64_VARIANT_ORIGINAL));
    ck_assert_int_eq(trust_parse(buf_bytes(&text), &trust, &fault), -EINVAL);
    ck_assert_str_eq(fault.why, "line 2: The key is no public COSE_Key of Ed25519: The key is a "
                                "private one (it has a d, -4), and a public one is needed.");
    buf_deinit(&text);
}
END_TEST

/* ---- limits, from both sides ---- */

static struct buf keys(size_t n)
{
    struct buf text = BUF_INIT;

    for (size_t i = 0; i < n; i++) {
        struct pair pair = nth_pair((unsigned)i);

        put_trust_section(&text, &pair.key);
        buf_append_str(&text, "allow = a\n");
    }
    return text;
}

START_TEST(as_many_keys_as_may_be)
{
    struct buf text = keys(TRUST_KEYS_MAX);
    struct trust *t = good(buf_str(&text));

    ck_assert_uint_eq(trust_count(t), TRUST_KEYS_MAX);
    for (size_t i = 0; i < TRUST_KEYS_MAX; i++) {
        const struct trust_key *key = trust_at(t, i);

        ck_assert_uint_eq(key->line, 3 * i + 1);
        ck_assert_ptr_eq(trust_find(t, cose_key_kid(&key->key)), key);
    }
    (void)trust_free(t);
    buf_append_str(&text, "[00]\n");
    refused(buf_bytes(&text), 3 * TRUST_KEYS_MAX + 1, "There are more than 1024 keys");
    buf_deinit(&text);
}
END_TEST

START_TEST(as_many_patterns_as_may_be)
{
    struct buf text = BUF_INIT;

    buf_append_str(&text, SECTION KEY);
    for (size_t i = 0; i < TRUST_PATTERNS_MAX; i++)
        buf_printf(&text, "allow = a%zu\n", i);
    struct trust *t = good(buf_str(&text));
    ck_assert_uint_eq(trust_at(t, 0)->n_allow, TRUST_PATTERNS_MAX);
    ck_assert(trust_key_may_sign(trust_at(t, 0), unit_bytes("a255")));
    (void)trust_free(t);
    buf_append_str(&text, "allow = b\n");
    refused(buf_bytes(&text), TRUST_PATTERNS_MAX + 3, "The key has more than 256 patterns");
    buf_deinit(&text);
}
END_TEST

static void put_run(struct buf *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        buf_append_str(text, "a");
}

START_TEST(as_long_as_may_be)
{
    static const struct {
        const char *before;
        size_t max;
        const char *sentence;
    } runs[] = {
        {SECTION KEY "allow = ", FILTER_TEXT_MAX, "is longer than a pattern may be"},
        {SECTION KEY ALLOW "audience = ", TRUST_AUDIENCE_MAX, "is longer than 255 bytes"},
        {SECTION KEY ALLOW "#", TRUST_LINE_MAX - 1, "The line has 8193 bytes; 8192 are the most."},
    };

    for (size_t i = 0; i < ARRAY_SIZE(runs); i++) {
        struct buf text = BUF_INIT;

        buf_append_str(&text, runs[i].before);
        put_run(&text, runs[i].max);
        (void)trust_free(good(buf_str(&text)));
        buf_append_str(&text, "a");
        refused(buf_bytes(&text), i == 0 ? 3 : 4, runs[i].sentence);
        buf_deinit(&text);
    }
}
END_TEST

START_TEST(a_text_as_long_as_may_be)
{
    struct buf text = BUF_INIT;

    while (text.size < TRUST_TEXT_MAX)
        buf_append_str(&text, "#\n");
    (void)trust_free(good(buf_str(&text)));
    buf_append_str(&text, "\n");
    refused(buf_bytes(&text), 0, "It has 1048577 bytes; 1048576 are the most.");
    buf_deinit(&text);
}
END_TEST

START_TEST(kids_as_long_as_may_be)
{
    for (size_t size = COSE_KEY_KID_MAX; size <= COSE_KEY_KID_MAX + 1; size++) {
        struct buf text = BUF_INIT;
        struct pair pair = nth_pair(1);

        memset(pair.key.kid, 'k', COSE_KEY_KID_MAX);
        pair.key.kid_size = COSE_KEY_KID_MAX;
        if (size == COSE_KEY_KID_MAX) {
            struct trust *t = trust_of(&pair.key, "allow = a\n");

            ck_assert_ptr_nonnull(trust_find(t, cose_key_kid(&pair.key)));
            (void)trust_free(t);
        } else {
            buf_append_str(&text, "[");
            for (size_t i = 0; i < size; i++)
                buf_append_str(&text, "6b");
            buf_append_str(&text, "]\n");
            refused(buf_bytes(&text), 1, "is not a key's id");
        }
        buf_deinit(&text);
    }
}
END_TEST

UNIT_MAIN("trust", all_of_it, without_what_may_be_missing, nothing_in_it, written_in_other_ways,
          a_pattern_may_have_an_equals_sign, delays_as_postgresql_writes_them, refusals,
          a_private_key_is_refused_and_not_repeated, as_many_keys_as_may_be,
          as_many_patterns_as_may_be, as_long_as_may_be, a_text_as_long_as_may_be,
          kids_as_long_as_may_be)
