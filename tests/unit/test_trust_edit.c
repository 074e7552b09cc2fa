/* SPDX-License-Identifier: PostgreSQL */
#include "codec/trust_edit.h"

#include <errno.h>

#include "base/text.h"
#include "trust_fixture.h"
#include "unit.h"

/* Texts with @1, @2, … in place of the section and key of the n-th pair. */
static struct buf expand(const char *text)
{
    struct buf out = BUF_INIT;

    for (; *text; text++) {
        if (*text == '@') {
            struct pair pair = nth_pair((unsigned)(*++text - '0'));

            put_trust_section(&out, &pair.key);
        } else {
            buf_append(&out, text, 1);
        }
    }
    return out;
}

static void same(const struct buf *got, const char *want)
{
    struct buf expected = expand(want);
    struct buf copy = BUF_INIT;

    buf_append(&copy, got->data, got->size);
    ck_assert_str_eq(buf_str(&copy), buf_str(&expected));
    buf_deinit(&copy);
    buf_deinit(&expected);
}

/* ---- removing ---- */

static void removed(const char *before, unsigned n, const char *after)
{
    struct buf text = expand(before), out = BUF_INIT;
    struct pair pair = nth_pair(n);
    struct trust_fault fault;

    ck_assert_int_eq(
        trust_edit_remove(buf_bytes(&text), cose_key_kid(&pair.key), &out, &fault), 0);
    same(&out, after);
    buf_deinit(&text);
    buf_deinit(&out);
}

START_TEST(a_section_goes_with_what_belongs_to_it)
{
    removed("@1allow = a\n", 1, "");
    removed("@1allow = a", 1, "");
    removed("# all\n\n# one\n@1allow = a\n\n# two\n@2allow = b\n", 1,
            "# all\n\n# two\n@2allow = b\n");
    removed("# all\n\n# one\n@1allow = a\n\n# two\n@2allow = b\n", 2,
            "# all\n\n# one\n@1allow = a\n\n");
    removed("@1allow = a\n# allow = b\n\n@2allow = b\n", 1, "@2allow = b\n");
    removed("@1allow = a\n# two\n@2allow = b\n", 1, "# two\n@2allow = b\n");
    removed("@1\n# why\nallow = a\n\nmax-delay = 1s\n\n\n# the others\n\n@2allow = b\n", 1,
            "# the others\n\n@2allow = b\n");
    removed("@1allow = a\r\n\r\n@2allow = b\r\n", 1, "@2allow = b\r\n");
    removed("\xef\xbb\xbf# all\n\n@1allow = a\n", 1, "\xef\xbb\xbf# all\n\n");
    removed("@1allow = a\n@2allow = b\n@3allow = c\n", 2, "@1allow = a\n@3allow = c\n");
}
END_TEST

START_TEST(what_cannot_be_removed)
{
    struct buf text = expand("@1allow = a\n"), out = BUF_INIT;
    struct trust_fault fault;
    struct pair pair = nth_pair(2);

    ck_assert_int_eq(
        trust_edit_remove(buf_bytes(&text), cose_key_kid(&pair.key), &out, &fault), -ENOENT);
    ck_assert_int_eq(
        trust_edit_remove(unit_bytes("what\n"), cose_key_kid(&pair.key), &out, &fault), -EINVAL);
    ck_assert_uint_eq(fault.line, 1);
    ck_assert_uint_eq(out.size, 0);
    buf_deinit(&text);
    buf_deinit(&out);
}
END_TEST

/* ---- adding ---- */

static const struct bytes no_audience = {NULL, 0};

static int add(const char *before, struct trust_edit_entry entry, const char *after,
               enum trust_edit_done *done, struct trust_fault *fault)
{
    struct buf text = expand(before), out = BUF_INIT;
    int r;

    buf_append_str(&out, "kept");
    r = trust_edit_add(buf_bytes(&text), &entry, &out, done, fault);
    ck_assert_mem_eq(out.data, "kept", 4);
    if (r == 0) {
        memmove(out.data, out.data + 4, out.size - 4);
        out.size -= 4;
        same(&out, after);
    } else {
        ck_assert_uint_eq(out.size, 4);
    }
    buf_deinit(&text);
    buf_deinit(&out);
    return r;
}

static void added(const char *before, struct trust_edit_entry entry, const char *after,
                  enum trust_edit_done want)
{
    enum trust_edit_done done;
    struct trust_fault fault;

    ck_assert_int_eq(add(before, entry, after, &done, &fault), 0);
    ck_assert_int_eq(done, want);
}

static void not_added(const char *before, struct trust_edit_entry entry, const char *sentence)
{
    enum trust_edit_done done;
    struct trust_fault fault;

    ck_assert_int_eq(add(before, entry, "", &done, &fault), -EINVAL);
    ck_assert_msg(strstr(fault.why, sentence) != NULL, "%s", fault.why);
}

START_TEST(a_new_key_comes_last)
{
    const struct bytes a = unit_bytes("a.>"), two[] = {a, unit_bytes("b"), a},
                       production = unit_bytes("production");
    struct trust_edit_entry entry = {.key = nth_pair(1).key, .patterns = &a, .n_patterns = 1};

    added("", entry, "@1allow = a.>\n", TRUST_EDIT_ADDED);
    added("# mine\n", entry, "# mine\n\n@1allow = a.>\n", TRUST_EDIT_ADDED);
    added("# mine\n\n", entry, "# mine\n\n@1allow = a.>\n", TRUST_EDIT_ADDED);
    added("@2allow = b", entry, "@2allow = b\n\n@1allow = a.>\n", TRUST_EDIT_ADDED);
    entry.audience = &production;
    entry.max_delay_us = 90000000;
    entry.patterns = two;
    entry.n_patterns = 3;
    added("", entry, "@1allow = a.>\nallow = b\naudience = production\nmax-delay = 90s\n",
          TRUST_EDIT_ADDED);
    entry.audience = &no_audience;
    added("", entry, "@1allow = a.>\nallow = b\naudience =\nmax-delay = 90s\n", TRUST_EDIT_ADDED);
}
END_TEST

START_TEST(a_key_without_kid_gets_its_default_one)
{
    const struct bytes a = unit_bytes("a");
    struct trust_edit_entry entry = {.key = nth_pair(1).key, .patterns = &a, .n_patterns = 1};

    entry.key.kid_size = 0;
    added("", entry, "@1allow = a\n", TRUST_EDIT_ADDED);
}
END_TEST

START_TEST(a_known_key_gets_what_it_lacks)
{
    const struct bytes two[] = {unit_bytes("a"), unit_bytes("c")}, test = unit_bytes("test");
    struct trust_edit_entry entry = {.key = nth_pair(1).key, .patterns = two, .n_patterns = 2};

    added("# one\n@1# why\nallow = a\n; more\n\n@2allow = b\n", entry,
          "# one\n@1# why\nallow = a\nallow = c\n; more\n\n@2allow = b\n", TRUST_EDIT_CHANGED);
    added("@1allow = a", entry, "@1allow = a\nallow = c\n", TRUST_EDIT_CHANGED);
    added("@1allow = c\nmax-delay = 1s\nallow = a\n", entry,
          "@1allow = c\nmax-delay = 1s\nallow = a\n", TRUST_EDIT_NOTHING);
    entry.audience = &test;
    entry.max_delay_us = 1000000;
    added("@1audience = production\nallow = a\nmax-delay = 2s\n", entry,
          "@1audience = test\nallow = a\nallow = c\nmax-delay = 1s\n", TRUST_EDIT_CHANGED);
    added("@1allow = a\nallow = c\n", entry,
          "@1allow = a\nallow = c\naudience = test\nmax-delay = 1s\n", TRUST_EDIT_CHANGED);
    entry.n_patterns = 0;
    added("@1allow = x\naudience = test\nmax-delay = 1000 ms\n", entry,
          "@1allow = x\naudience = test\nmax-delay = 1000 ms\n", TRUST_EDIT_NOTHING);
}
END_TEST

START_TEST(what_cannot_be_added)
{
    const struct bytes a = unit_bytes("a"), empty = {NULL, 0}, blank = unit_bytes("a b"),
                       comment = unit_bytes("#a"), line = unit_bytes("a\nallow"),
                       wild = unit_bytes("x\n[00]");
    struct trust_edit_entry entry = {.key = nth_pair(1).key, .patterns = &a, .n_patterns = 1};
    struct trust_edit_entry other = entry;

    not_added("what\n", entry, "line 1: \"what\"");
    other.n_patterns = 0;
    not_added("", other, "A new key needs a pattern");
    other = entry;
    other.patterns = &empty;
    not_added("", other, "Pattern 1 is empty");
    other.patterns = &blank;
    not_added("", other, "Pattern 1 has a blank");
    other.patterns = &comment;
    not_added("", other, "Pattern 1 begins as a comment does");
    other.patterns = &line;
    not_added("", other, "Pattern 1 has a control character");
    other = entry;
    other.audience = &wild;
    not_added("", other, "The audience has a control character");
    other.audience = &(struct bytes){(const uint8_t *)" a", 2};
    not_added("", other, "begins or ends with a blank");
    other = entry;
    other.max_delay_us = TRUST_DELAY_MAX_US + 1;
    not_added("", other, "The max-delay is longer");
    other = entry;
    memcpy(other.key.kid, nth_pair(2).key.kid, other.key.kid_size);
    not_added("@2allow = a\n", other, "Another key with this id stands in line 1.");
    other = entry;
    other.key.alg = -8;
    not_added("@1allow = a\n", other, "Another key with this id stands in line 1.");
}
END_TEST

START_TEST(limits_of_the_whole)
{
    struct bytes many[TRUST_PATTERNS_MAX + 1];
    char names[TRUST_PATTERNS_MAX + 1][8];
    struct trust_edit_entry entry = {.key = nth_pair(1).key, .patterns = many};
    struct buf text = BUF_INIT, out = BUF_INIT;
    enum trust_edit_done done;
    struct trust_fault fault;

    for (size_t i = 0; i < ARRAY_SIZE(many); i++) {
        (void)snprintf(names[i], sizeof names[i], "p%zu", i);
        many[i] = bytes_of_text(names[i]);
    }
    entry.n_patterns = TRUST_PATTERNS_MAX;
    ck_assert_int_eq(trust_edit_add(buf_bytes(&text), &entry, &out, &done, &fault), 0);
    buf_clear(&out);
    entry.n_patterns++;
    ck_assert_int_eq(trust_edit_add(buf_bytes(&text), &entry, &out, &done, &fault), -EINVAL);
    ck_assert_uint_eq(out.size, 0);
    buf_deinit(&out);
}
END_TEST

UNIT_MAIN("trust_edit", a_section_goes_with_what_belongs_to_it, what_cannot_be_removed,
          a_new_key_comes_last, a_key_without_kid_gets_its_default_one,
          a_known_key_gets_what_it_lacks, what_cannot_be_added, limits_of_the_whole)
