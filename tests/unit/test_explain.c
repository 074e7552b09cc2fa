/* SPDX-License-Identifier: PostgreSQL */
#include "explain.h"

#include <stdio.h>
#include <string.h>

#include "unit.h"

static const struct explain_limits unbounded = {SIZE_MAX, SIZE_MAX};

/* A row as a line: offset, bytes, what is left out, text; two blanks for each level before the text. */
static void put_line(void *context, const struct explain_row *row)
{
    struct buf *out = context;

    buf_printf(out, "%zx ", row->offset);
    for (size_t i = 0; i < row->bytes.size; i++)
        buf_printf(out, "%02x", row->bytes.data[i]);
    if (row->left_out > 0)
        buf_printf(out, "+%zu", row->left_out);
    buf_append_u8(out, ' ');
    for (unsigned i = 0; i < row->depth; i++)
        buf_append_str(out, "  ");
    buf_append(out, row->text.data, row->text.size);
    buf_append_u8(out, '\n');
}

static void explained_within(const char *hex, const struct explain_limits *limits, const char *want)
{
    struct bytes content = unit_from_hex(hex);
    struct buf out = BUF_INIT;

    ck_assert_int_eq(explain_rows(content, limits, put_line, &out), 0);
    unit_assert_text(buf_bytes(&out), want);
    buf_deinit(&out);
    unit_free(content);
}

static void explained(const char *hex, const char *want)
{
    explained_within(hex, &unbounded, want);
}

static void is(const char *hex, enum explain_kind kind, const char *sentence)
{
    struct bytes content = unit_from_hex(hex);
    struct buf out = BUF_INIT;

    ck_assert_int_eq(explain_what(content, &out), kind);
    unit_assert_text(buf_bytes(&out), sentence);
    buf_deinit(&out);
    unit_free(content);
}

START_TEST(values)
{
    explained("84 00 3903e7 f93e00 f6", "0 84 array of 4 items\n"
                                        "1 00   0\n"
                                        "2 3903e7   -1000\n"
                                        "5 f93e00   1.5\n"
                                        "8 f6   null\n");
    explained("82 00 f0", "0 82 array of 2 items\n1 00   0\n2 f0   simple(16)\n");
    explained("a1 01 c2 41ff", "0 a1 map of 1 pair\n"
                               "1 01   1\n"
                               "2 c2     tag 2 (bignum)\n"
                               "3 41       byte string of 1 byte\n"
                               "4 ff         |.|\n");
    explained("80", "0 80 array of 0 items\n");
    explained("", "");
}
END_TEST

START_TEST(indefinite_lengths)
{
    explained("9f 7f 6161 60 ff bf ff ff", "0 9f array up to its end mark\n"
                                          "1 7f   text up to its end mark\n"
                                          "2 61     chunk: text of 1 byte: \"a\"\n"
                                          "3 61       |a|\n"
                                          "4 60     chunk: text of 0 bytes: \"\"\n"
                                          "5 ff     end mark\n"
                                          "6 bf   map up to its end mark\n"
                                          "7 ff     end mark\n"
                                          "8 ff   end mark\n");
}
END_TEST

START_TEST(long_texts_are_previewed)
{
    static const struct explain_limits none = {0, SIZE_MAX};
#define LETTERS_24 "616161616161616161616161616161616161616161616161"

    /* 47 letters, and a character of three bytes that the preview would cut */
    explained_within("81 7832 " LETTERS_24 " 6161616161616161616161616161616161616161616161 e282ac", &none,
                     "0 81 array of 1 item\n"
                     "1 7832   text of 50 bytes: \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…\"\n"
                     "3 +50     not shown\n");
    explained_within("81 7830 " LETTERS_24 LETTERS_24, &none,
                     "0 81 array of 1 item\n"
                     "1 7830   text of 48 bytes: \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"\n"
                     "3 +48     not shown\n");
}
END_TEST

START_TEST(limits)
{
    static const struct explain_limits string = {9, SIZE_MAX}, rows = {SIZE_MAX, 2}, no_rows = {1, 0};

    explained_within("81 4b 3031323334353637383961", &string,
                     "0 81 array of 1 item\n"
                     "1 4b   byte string of 11 bytes\n"
                     "2 3031323334353637     |01234567|\n"
                     "a 38     |8|\n"
                     "b +2     not shown\n");
    explained_within("82 00 00", &rows, "0 82 array of 2 items\n1 00   0\n2 +1 not shown\n");
    explained_within("81 00", &rows, "0 81 array of 1 item\n1 00   0\n");
    explained_within("81 4b 3031323334353637383961", &rows,
                     "0 81 array of 1 item\n1 4b   byte string of 11 bytes\n2 +11 not shown\n");
    explained_within("6869", &no_rows, "0 +2 not shown\n");
}
END_TEST

/* Inside a COSE_Sign1, so that what is around it is seen to go on. */
START_TEST(malformed_inside)
{
    explained("84 43 a10126 a0 43 a16161 40", "0 84 array of 4 items\n"
                                              "1 43   protected header: byte string of 3 bytes\n"
                                              "2 a1     map of 1 pair\n"
                                              "3 01       1 (alg)\n"
                                              "4 26         -7\n"
                                              "5 a0   unprotected header: map of 0 pairs\n"
                                              "6 43   payload: byte string of 3 bytes\n"
                                              "7 a1     map of 1 pair\n"
                                              "8 61       text of 1 byte: \"a\"\n"
                                              "9 61         |a|\n"
                                              "a  !! malformed here: the item needs more bytes than there are\n"
                                              "a 40   signature: byte string of 0 bytes\n");
    explained("84 40 a0 42 a000 40", "0 84 array of 4 items\n"
                                     "1 40   protected header: byte string of 0 bytes\n"
                                     "2 a0   unprotected header: map of 0 pairs\n"
                                     "3 42   payload: byte string of 2 bytes\n"
                                     "4 a0     map of 0 pairs\n"
                                     "5  !! malformed here: bytes behind the item\n"
                                     "5 00   |.|\n"
                                     "6 40   signature: byte string of 0 bytes\n");
}
END_TEST

START_TEST(malformed_outside)
{
    explained("d9d9f7 a1 63 61ff62", "0 d9d9f7 tag 55799 (CBOR follows)\n"
                                     "3 a1   map of 1 pair\n"
                                     "4 63     text of 3 bytes: \"a\\xffb\"\n"
                                     "5 61       |a|\n"
                                     "6  !! malformed here: a text string that is not UTF-8\n"
                                     "6 ff62   |.b|\n");
    explained("d284 1c", "0 d2 tag 18 (COSE_Sign1)\n"
                         "1  !! malformed here: the item needs more bytes than there are: an array of 4 items\n"
                         "1 841c   |..|\n");
    explained("d9d9f7 bf 01 ff", "0 d9d9f7 tag 55799 (CBOR follows)\n"
                                 "3 bf   map up to its end mark\n"
                                 "4 01     1\n"
                                 "5  !! malformed here: a break where none is allowed\n"
                                 "5 ff   |.|\n");
}
END_TEST

START_TEST(cut_off)
{
#define CUT_OFF "  !! malformed here: the item needs more bytes than there are"

    explained("d9d9f7 a1 63 61", "0 d9d9f7 tag 55799 (CBOR follows)\n"
                                 "3 a1   map of 1 pair\n"
                                 "4" CUT_OFF ": a text of 3 bytes, 1 of them there\n"
                                 "4 6361   |ca|\n");
    explained("d9d9f7 a1 5a00010000 0102", "0 d9d9f7 tag 55799 (CBOR follows)\n"
                                           "3 a1   map of 1 pair\n"
                                           "4" CUT_OFF
                                           ": a byte string of 65536 bytes, 2 of them there\n"
                                           "4 5a000100000102   |Z......|\n");
    explained("d9d9f7 a1 5a0001", "0 d9d9f7 tag 55799 (CBOR follows)\n"
                                  "3 a1   map of 1 pair\n"
                                  "4" CUT_OFF "\n"
                                  "4 5a0001   |Z..|\n");
    explained("d9d9f7 bb ffffffffffffffff", "0 d9d9f7 tag 55799 (CBOR follows)\n"
                                            "3" CUT_OFF
                                            ": a map of 18446744073709551615 pairs\n"
                                            "3 bbffffffffffffff   |........|\n"
                                            "b ff   |.|\n");
    explained("d9d9f7 a1", "0 d9d9f7 tag 55799 (CBOR follows)\n"
                           "3" CUT_OFF ": a map of 1 pair\n"
                           "3 a1   |.|\n");
    explained("d9d9f7 a1 60", "0 d9d9f7 tag 55799 (CBOR follows)\n"
                              "3" CUT_OFF ": a map of 1 pair\n"
                              "3 a160   |.`|\n");
}
END_TEST

START_TEST(kinds)
{
    is("", EXPLAIN_OPAQUE, "opaque: nothing at all");
    is("6869", EXPLAIN_OPAQUE, "opaque: text");
    is("ff", EXPLAIN_OPAQUE, "opaque: bytes");
    is("a0", EXPLAIN_CBOR, "opaque: well-formed CBOR, but no event");
    is("d9d9f7a0", EXPLAIN_OPAQUE,
       "opaque; it begins as an event does: a required map key is missing or has no acceptable value");
    is("d9d9f7a1", EXPLAIN_OPAQUE,
       "opaque; it begins as an event does: the item needs more bytes than there are, at byte 3");
    is("8440a04040", EXPLAIN_COSE_SIGN1,
       "a COSE_Sign1, but no signed event: A signed event has the tag 18, and this has none");
    is("d28440a04040", EXPLAIN_COSE_SIGN1,
       "a COSE_Sign1, but no signed event: A signed event names its key (kid, 4) in the protected header");
    is("d28440a040", EXPLAIN_OPAQUE, "opaque; it begins as a signed event does: The message ends before it is whole");
    is("a3010120062158203d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", EXPLAIN_COSE_KEY,
       "a public key, with the id 5c840f7a40230170");
}
END_TEST

UNIT_MAIN("explain", values, indefinite_lengths, long_texts_are_previewed, limits, malformed_inside,
          malformed_outside, cut_off, kinds)
