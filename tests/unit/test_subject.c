/* SPDX-License-Identifier: PostgreSQL */
#include "codec/subject.h"

#include <stdlib.h>
#include <string.h>

#include "unit.h"

static bool matches(enum filter_kind kind, struct bytes text, struct bytes prefix)
{
    struct bytes exact_text = unit_exact(text), exact_prefix = unit_exact(prefix);
    struct filter filter = {kind, exact_text};
    bool yes = filter_matches(&filter, exact_prefix);

    unit_free(exact_text);
    unit_free(exact_prefix);
    return yes;
}

START_TEST(tokens)
{
    static const struct {
        const char *prefix;
        size_t n;
        const char *tokens[5];
    } cases[] = {
        {"", 1, {""}},
        {"a", 1, {"a"}},
        {".", 2, {"", ""}},
        {"..", 3, {"", "", ""}},
        {"a.b", 2, {"a", "b"}},
        {"a..b", 3, {"a", "", "b"}},
        {".a", 2, {"", "a"}},
        {"a.", 2, {"a", ""}},
        {"orders.eu.created.v1", 4, {"orders", "eu", "created", "v1"}},
        {"*.>", 2, {"*", ">"}},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct bytes whole = unit_exact(unit_bytes(cases[i].prefix)), rest = whole, token;
        bool more = true;

        for (size_t n = 0; n < cases[i].n; n++) {
            ck_assert_msg(subject_next_token(&rest, &more, &token), "\"%s\" token %zu",
                          cases[i].prefix, n);
            unit_assert_text(token, cases[i].tokens[n]);
        }
        ck_assert(!more);
        ck_assert(!subject_next_token(&rest, &more, &token));
        ck_assert(!subject_next_token(&rest, &more, &token));
        unit_free(whole);
    }
}
END_TEST

struct match_case {
    const char *pattern, *prefix;
    bool match;
};

static void check_matches(enum filter_kind kind, const struct match_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(matches(kind, unit_bytes(cases[i].pattern), unit_bytes(cases[i].prefix)) ==
                          cases[i].match,
                      "\"%s\" against \"%s\" should%s match", cases[i].pattern, cases[i].prefix,
                      cases[i].match ? "" : " not");
}

START_TEST(patterns)
{
    static const struct match_case cases[] = {
        /* ordinary tokens stand for themselves */
        {"orders", "orders", true},
        {"orders", "order", false},
        {"orders", "orderss", false},
        {"orders", "Orders", false},
        {"orders", "", false},
        {"orders", "orders.created", false},
        {"orders", "orders.", false},
        {"orders", ".orders", false},
        {"orders.created", "orders.created", true},
        {"orders.created", "orders", false},
        {"orders.created", "orders.created.v1", false},
        {"orders.created", "ordersxcreated", false},
        /* the empty token is a token */
        {"", "", true},
        {"", "a", false},
        {"", ".", false},
        {".", ".", true},
        {".", "", false},
        {".", "..", false},
        {".", "a.", false},
        {"a..b", "a..b", true},
        {"a..b", "a.b", false},
        {"a..b", "a.x.b", false},
        {"a.b", "a..b", false},
        /* '*' is exactly one token */
        {"*", "", true},
        {"*", "a", true},
        {"*", "*", true},
        {"*", ">", true},
        {"*", ".", false},
        {"*", "a.b", false},
        {"*", "a.", false},
        {"*.*", ".", true},
        {"*.*", "a.b", true},
        {"*.*", "a", false},
        {"*.*", "", false},
        {"*.*", "a.b.c", false},
        {"a.*", "a.b", true},
        {"a.*", "a.", true},
        {"a.*", "a", false},
        {"a.*", "a.b.c", false},
        {"a.*", "b.b", false},
        {"*.b", "a.b", true},
        {"*.b", ".b", true},
        {"*.b", "b", false},
        {"a.*.c", "a.b.c", true},
        {"a.*.c", "a..c", true},
        {"a.*.c", "a.c", false},
        {"a.*.c", "a.b.b.c", false},
        {"a.*.c", "a.b.d", false},
        /* '>' as the last token is one or more */
        {">", "", true},
        {">", ".", true},
        {">", "a", true},
        {">", "a.b.c", true},
        {">", "a..b", true},
        {">", ">", true},
        {"a.>", "a", false},
        {"a.>", "a.", true},
        {"a.>", "a.b", true},
        {"a.>", "a.b.c.d", true},
        {"a.>", "a..", true},
        {"a.>", "", false},
        {"a.>", "ab", false},
        {"a.>", "b.a", false},
        {".>", ".", true},
        {".>", "", false},
        {".>", ".a.b", true},
        {".>", "a.b", false},
        {"*.>", "a", false},
        {"*.>", "", false},
        {"*.>", ".", true},
        {"*.>", "a.b", true},
        {"*.>", "a.b.c", true},
        {"a.*.>", "a.b", false},
        {"a.*.>", "a.b.c", true},
        /* '>' elsewhere, and a wildcard inside a longer token, are ordinary */
        {">.a", ">.a", true},
        {">.a", "b.a", false},
        {">.", ">.", true},
        {">.", "a.", false},
        {"a.>.b", "a.>.b", true},
        {"a.>.b", "a.x.b", false},
        {">.>", ">.a", true},
        {">.>", "a.a", false},
        {"a*", "a*", true},
        {"a*", "ab", false},
        {"a*", "a", false},
        {"*a", "*a", true},
        {"*a", "ba", false},
        {"**", "**", true},
        {"**", "a", false},
        {"**", "a.b", false},
        {">>", ">>", true},
        {">>", "a", false},
        {"a>", "a>", true},
        {"a>", "a.b", false},
        {"a.b>", "a.b>", true},
        {"a.b>", "a.bc", false},
        /* nothing else means anything */
        {"?", "?", true},
        {"?", "a", false},
        {"[ab]", "a", false},
        {"a|b", "a", false},
        {"#", "a", false},
        {"a\nb", "a\nb", true},
        {"\xc3\xa9.*", "\xc3\xa9.x", true},
        {"\xc3\xa9.*", "\xc3.x", false},
    };

    check_matches(FILTER_PATTERN, cases, ARRAY_SIZE(cases));
}
END_TEST

START_TEST(exact)
{
    static const struct match_case cases[] = {
        {"", "", true},      {"", "a", false},    {"a", "", false},      {"a.b", "a.b", true},
        {"a.b", "a", false}, {"a", "a.b", false}, {">", ">", true},      {">", "a", false},
        {"*", "*", true},    {"*", "", false},    {"a.>", "a.b", false}, {"a.", "a", false},
    };

    check_matches(FILTER_EXACT, cases, ARRAY_SIZE(cases));
}
END_TEST

START_TEST(starts_with)
{
    static const struct match_case cases[] = {
        {"", "", true},
        {"", "a", true},
        {"", ".", true},
        {"a", "", false},
        {"a", "a", true},
        {"a", "ab", true},
        {"a", "a.b", true},
        {"a", "ba", false},
        {"a.", "a", false},
        {"a.", "a.b", true},
        {"neon-file:", "neon-file:base/5/1", true},
        {"neon-file:", "neon-file", false},
        {"neon-file:", "neon-files:", false},
        {"*", "*a", true},
        {"*", "a", false},
        {">", "a", false},
    };

    check_matches(FILTER_STARTS_WITH, cases, ARRAY_SIZE(cases));
}
END_TEST

/* All bytes, NUL too although PostgreSQL never delivers one: nothing but '.', '*' and '>' means
 * anything, and signed and unsigned char are no different. */
START_TEST(every_byte_value)
{
    for (unsigned c = 0; c < 256; c++) {
        uint8_t one[] = {(uint8_t)c};
        uint8_t token[] = {'x', '.', (uint8_t)c};
        uint8_t inside[] = {'x', (uint8_t)c, 'y'};
        struct bytes byte = {one, 1}, tail = {token, 3}, middle = {inside, 3};

        ck_assert(matches(FILTER_PATTERN, unit_bytes(">"), byte));
        ck_assert(matches(FILTER_EXACT, byte, byte));
        ck_assert(matches(FILTER_STARTS_WITH, byte, byte));
        ck_assert(matches(FILTER_STARTS_WITH, unit_bytes("x"), middle));
        ck_assert(matches(FILTER_PATTERN, byte, byte));
        ck_assert(matches(FILTER_PATTERN, tail, tail));
        ck_assert(matches(FILTER_PATTERN, middle, middle));
        ck_assert_msg(matches(FILTER_PATTERN, unit_bytes("*"), byte) == (c != '.'), "%u", c);
        ck_assert_msg(matches(FILTER_PATTERN, unit_bytes("x.*"), tail) == (c != '.'), "%u", c);
        ck_assert_msg(matches(FILTER_PATTERN, unit_bytes("*"), middle) == (c != '.'), "%u", c);
        ck_assert_msg(matches(FILTER_PATTERN, unit_bytes("*.*"), middle) == (c == '.'), "%u", c);
        for (unsigned d = 0; d < 256; d++) {
            uint8_t other[] = {(uint8_t)d};
            struct bytes prefix = {other, 1};
            struct filter pattern = {FILTER_PATTERN, byte}, same = {FILTER_EXACT, byte};
            bool want = c == d || c == '>' || (c == '*' && d != '.');

            /* Check tells its parent of each assertion, which is too slow for so many. */
            if (filter_matches(&pattern, prefix) != want ||
                filter_matches(&same, prefix) != (c == d))
                ck_abort_msg("%u against %u", c, d);
        }
    }
}
END_TEST

/* Recursive by the definition, and slow: what the matcher must agree with. */
static bool matches_by_definition(const char *pattern, const char *prefix)
{
    size_t p = strcspn(pattern, "."), q = strcspn(prefix, ".");
    bool pattern_last = pattern[p] == '\0', prefix_last = prefix[q] == '\0';

    if (pattern_last && strcmp(pattern, ">") == 0)
        return true;
    if (!(p == 1 && pattern[0] == '*') && (p != q || memcmp(pattern, prefix, p) != 0))
        return false;
    if (pattern_last || prefix_last)
        return pattern_last && prefix_last;
    return matches_by_definition(pattern + p + 1, prefix + q + 1);
}

/* Every pattern of up to four of the bytes that matter against every such prefix. */
START_TEST(every_short_pattern)
{
    static const char letters[] = ".*>a";
    enum { LONGEST = 4, N = 1 + 4 + 16 + 64 + 256 };
    static char words[N][LONGEST + 1];
    size_t n = 0, matched = 0;

    for (size_t size = 0; size <= LONGEST; size++)
        for (size_t v = 0; v < (size_t)1 << (2 * size); v++) {
            for (size_t i = 0; i < size; i++)
                words[n][i] = letters[v >> (2 * i) & 3];
            n++;
        }
    ck_assert_uint_eq(n, N);
    for (size_t i = 0; i < n; i++) {
        struct filter filter = {FILTER_PATTERN, unit_bytes(words[i])};

        for (size_t j = 0; j < n; j++) {
            bool got = filter_matches(&filter, unit_bytes(words[j]));

            if (got != matches_by_definition(words[i], words[j]))
                ck_abort_msg("\"%s\" against \"%s\": %d", words[i], words[j], got);
            matched += got;
        }
    }
    ck_assert_uint_gt(matched, n);
}
END_TEST

/* A prefix of a million bytes is as good as any. */
START_TEST(long_prefix)
{
    enum { SIZE = 1000000 };
    uint8_t *raw = malloc(SIZE);

    ck_assert_ptr_nonnull(raw);
    memset(raw, '.', SIZE);
    ck_assert(matches(FILTER_PATTERN, unit_bytes(">"), (struct bytes){raw, SIZE}));
    ck_assert(matches(FILTER_PATTERN, unit_bytes("*.>"), (struct bytes){raw, SIZE}));
    ck_assert(!matches(FILTER_PATTERN, unit_bytes("*.*"), (struct bytes){raw, SIZE}));
    ck_assert(matches(FILTER_PATTERN, (struct bytes){raw, SIZE}, (struct bytes){raw, SIZE}));
    ck_assert(!matches(FILTER_PATTERN, (struct bytes){raw, SIZE}, (struct bytes){raw, SIZE - 1}));
    ck_assert(
        matches(FILTER_STARTS_WITH, (struct bytes){raw, SIZE - 1}, (struct bytes){raw, SIZE}));
    ck_assert(
        !matches(FILTER_STARTS_WITH, (struct bytes){raw, SIZE}, (struct bytes){raw, SIZE - 1}));
    free(raw);
}
END_TEST

START_TEST(publish_prefixes)
{
    static const struct {
        const char *prefix;
        size_t max;
        bool reserved;
        enum subject_fault fault;
        size_t offset;
    } cases[] = {
        {"orders.created", 255, false, SUBJECT_OK, 0},
        {"A-Z_a-z.0-9", 255, false, SUBJECT_OK, 0},
        {"a", 1, false, SUBJECT_OK, 0},
        {"-", 255, false, SUBJECT_OK, 0},
        {"a._b", 255, false, SUBJECT_OK, 0},
        {"a_", 255, false, SUBJECT_OK, 0},
        {"", 255, false, SUBJECT_EMPTY, 0},
        {"", 0, false, SUBJECT_EMPTY, 0},
        {"ab", 1, false, SUBJECT_TOO_LONG, 1},
        {"abc.d", 4, false, SUBJECT_TOO_LONG, 4},
        {"abc.d", 5, false, SUBJECT_OK, 0},
        {".", 255, false, SUBJECT_EMPTY_TOKEN, 0},
        {".a", 255, false, SUBJECT_EMPTY_TOKEN, 0},
        {"a.", 255, false, SUBJECT_EMPTY_TOKEN, 2},
        {"a..b", 255, false, SUBJECT_EMPTY_TOKEN, 2},
        {"a.b..", 255, false, SUBJECT_EMPTY_TOKEN, 4},
        {"*", 255, false, SUBJECT_CHARACTER, 0},
        {"a.>", 255, false, SUBJECT_CHARACTER, 2},
        {"a b", 255, false, SUBJECT_CHARACTER, 1},
        {"a.b\n", 255, false, SUBJECT_CHARACTER, 3},
        {"caf\xc3\xa9", 255, false, SUBJECT_CHARACTER, 3},
        {"_a", 255, false, SUBJECT_RESERVED, 0},
        {"_", 255, false, SUBJECT_RESERVED, 0},
        {"_walbus.heartbeat", 255, false, SUBJECT_HEARTBEAT, 0},
        {"_walbus.heartbeat", 255, true, SUBJECT_HEARTBEAT, 0},
        {"_walbus.heartbea", 255, true, SUBJECT_OK, 0},
        {"_walbus.heartbeats", 255, true, SUBJECT_OK, 0},
        {"_walbus.heartbeats", 255, false, SUBJECT_RESERVED, 0},
        {"_a..", 255, true, SUBJECT_EMPTY_TOKEN, 3},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct bytes prefix = unit_exact(unit_bytes(cases[i].prefix));
        size_t offset = 0;
        enum subject_fault fault =
            subject_check_publish(prefix, cases[i].max, cases[i].reserved, &offset);

        ck_assert_msg(fault == cases[i].fault && offset == cases[i].offset,
                      "\"%s\": fault %d at %zu", cases[i].prefix, (int)fault, offset);
        ck_assert_int_eq(subject_check_publish(prefix, cases[i].max, cases[i].reserved, NULL),
                         (int)fault);
        unit_free(prefix);
    }
}
END_TEST

START_TEST(publish_every_byte_value)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";

    for (unsigned c = 0; c < 256; c++) {
        uint8_t raw[] = {'x', (uint8_t)c, 'y'};
        size_t offset = 9;
        bool good = c == '.' || (c != 0 && strchr(allowed, (int)c));
        enum subject_fault fault =
            subject_check_publish((struct bytes){raw, 3}, SUBJECT_PUBLISH_MAX, false, &offset);

        ck_assert_msg(fault == (good ? SUBJECT_OK : SUBJECT_CHARACTER), "byte %u", c);
        ck_assert_uint_eq(offset, good ? 9 : 1);
    }
}
END_TEST

START_TEST(publish_length_limit)
{
    char prefix[SUBJECT_PUBLISH_MAX + 2];
    size_t offset = 0;

    memset(prefix, 'a', sizeof prefix - 1);
    prefix[sizeof prefix - 1] = '\0';
    ck_assert_int_eq(subject_check_publish((struct bytes){(uint8_t *)prefix, SUBJECT_PUBLISH_MAX},
                                           SUBJECT_PUBLISH_MAX, false, &offset),
                     SUBJECT_OK);
    ck_assert_int_eq(subject_check_publish(unit_bytes(prefix), SUBJECT_PUBLISH_MAX, false, &offset),
                     SUBJECT_TOO_LONG);
    ck_assert_uint_eq(offset, SUBJECT_PUBLISH_MAX);
}
END_TEST

START_TEST(copies_are_their_own)
{
    char texts[] = "a.*a\0x";
    struct filter filters[] = {{FILTER_PATTERN, {(uint8_t *)texts, 3}},
                               {FILTER_EXACT, {NULL, 0}},
                               {FILTER_STARTS_WITH, {(uint8_t *)texts + 3, 3}}};
    struct filter *copy = filters_copy(filters, ARRAY_SIZE(filters));

    ck_assert_ptr_nonnull(copy);
    memset(texts, '-', sizeof texts);
    memset(filters, 0, sizeof filters);
    ck_assert_int_eq(copy[0].kind, FILTER_PATTERN);
    ck_assert(bytes_equal(copy[0].text, unit_bytes("a.*")));
    ck_assert_int_eq(copy[1].kind, FILTER_EXACT);
    ck_assert_uint_eq(copy[1].text.size, 0);
    ck_assert_int_eq(copy[2].kind, FILTER_STARTS_WITH);
    ck_assert(bytes_equal(copy[2].text, (struct bytes){(const uint8_t *)"a\0x", 3}));
    free(copy);
    copy = filters_copy(NULL, 0);
    ck_assert_ptr_nonnull(copy);
    free(copy);
}
END_TEST

/* ---- whether a filter lies within a pattern ---- */

#define COVER_TEXTS    341  /* up to 4 of 4 signs */
#define COVER_PREFIXES 3906 /* up to 5 of 5 signs: one more than a filter has, and one that no filter names */
#define COVER_WORDS    ((COVER_PREFIXES + 63) / 64)

/* The i-th word over the first `n` of these signs, by length. */
static struct bytes nth_word(size_t i, unsigned n, uint8_t out[8])
{
    static const char signs[] = "a.*>b";
    size_t size = 0, count = 1;

    while (i >= count) {
        i -= count;
        count *= n;
        size++;
    }
    for (size_t k = 0; k < size; k++, i /= n)
        out[k] = (uint8_t)signs[i % n];
    return (struct bytes){out, size};
}

static void match_all(struct filter filter, uint64_t out[COVER_WORDS])
{
    uint8_t text[8];

    memset(out, 0, COVER_WORDS * sizeof *out);
    for (size_t i = 0; i < COVER_PREFIXES; i++)
        if (filter_matches(&filter, nth_word(i, 5, text)))
            out[i / 64] |= UINT64_C(1) << (i % 64);
}

/* Of all short filters and patterns: covered if, and only if, each prefix that the filter matches is matched by the
 * pattern. */
START_TEST(covered_is_what_matches)
{
    static uint64_t allowed[COVER_TEXTS][COVER_WORDS], matched[COVER_WORDS];
    static const enum filter_kind kinds[] = {FILTER_PATTERN, FILTER_EXACT, FILTER_STARTS_WITH};
    uint8_t text[8], other[8];
    size_t covered = 0;

    for (size_t p = 0; p < COVER_TEXTS; p++)
        match_all((struct filter){FILTER_PATTERN, nth_word(p, 4, text)}, allowed[p]);
    for (size_t k = 0; k < ARRAY_SIZE(kinds); k++)
        for (size_t f = 0; f < COVER_TEXTS; f += unit_sparse()) {
            struct filter filter = {kinds[k], nth_word(f, 4, text)};

            match_all(filter, matched);
            for (size_t p = 0; p < COVER_TEXTS; p++) {
                struct bytes pattern = nth_word(p, 4, other);
                bool within = true;

                for (size_t w = 0; within && w < COVER_WORDS; w++)
                    within = (matched[w] & ~allowed[p][w]) == 0;
                ck_assert_msg(filter_is_covered(&filter, pattern) == within,
                              "kind %d \"%.*s\" within \"%.*s\": %d", (int)kinds[k], (int)filter.text.size, (const char *)filter.text.data, (int)pattern.size,
                              (const char *)pattern.data, within);
                covered += within;
            }
        }
    ck_assert_uint_gt(covered, 1000 / unit_sparse());
}
END_TEST

START_TEST(faults_have_their_own_sentences)
{
    for (int i = SUBJECT_OK; i <= SUBJECT_HEARTBEAT + 1; i++)
        for (int j = SUBJECT_OK; j < i; j++)
            ck_assert_str_ne(subject_fault_text((enum subject_fault)i),
                             subject_fault_text((enum subject_fault)j));
}
END_TEST

START_TEST(patterns_that_look_like_a_mistake)
{
    static const struct {
        const char *pattern, *token, *sentence;
    } odd[] = {
        {"orders.", "", "empty token"},       {".", "", "empty token"},
        {"a..b", "", "empty token"},          {"", "", "empty token"},
        {"a.>.b", ">", "only as the last"},   {"orders.cre*", "cre*", "'*' stands for"},
        {"orders>", "orders>", "'>' as the"}, {"a.**", "**", "'*' stands for"},
        {"a b", "a b", "white space"},        {"a.	b.c*", "	b", "white space"},
    };
    static const char *const plain[] = {">", "*", "orders.>", "*.*.>", "a.*.c", "a-b_c.d", "a:b"};
    struct bytes token;

    for (size_t i = 0; i < ARRAY_SIZE(odd); i++) {
        const char *sentence = subject_pattern_oddity(unit_bytes(odd[i].pattern), &token);

        ck_assert_ptr_nonnull(sentence);
        ck_assert_msg(strstr(sentence, odd[i].sentence) != NULL, "%s", sentence);
        unit_assert_text(token, odd[i].token);
    }
    for (size_t i = 0; i < ARRAY_SIZE(plain); i++)
        ck_assert_ptr_null(subject_pattern_oddity(unit_bytes(plain[i]), &token));
}
END_TEST

/* What decides who may do what, or what must be signed, says what it looks like. */
START_TEST(wildcards_that_are_none)
{
    static const char *const good[] = {">", "*", "a.>", "a.*.b", "*.*", "a..b", "a. b", "a.", ""};
    static const char *const stars[] = {"a*", "*a", "a.b*c.d", "**", "a.>*"};
    static const char *const rests[] = {"a>", ">.a", "a.>.b", ">>", "a.b>"};

    for (size_t i = 0; i < ARRAY_SIZE(good); i++)
        ck_assert_msg(!subject_wildcard_fault(unit_bytes(good[i])), "%s", good[i]);
    for (size_t i = 0; i < ARRAY_SIZE(stars); i++) {
        const char *fault = subject_wildcard_fault(unit_bytes(stars[i]));
        ck_assert_msg(fault && strstr(fault, "a '*' stands for"), "%s", stars[i]);
    }
    for (size_t i = 0; i < ARRAY_SIZE(rests); i++) {
        const char *fault = subject_wildcard_fault(unit_bytes(rests[i]));
        ck_assert_msg(fault && strstr(fault, "a '>' stands alone"), "%s", rests[i]);
    }
}
END_TEST

UNIT_MAIN("subject", patterns_that_look_like_a_mistake, wildcards_that_are_none, tokens, patterns, exact, starts_with,
          every_byte_value, every_short_pattern, long_prefix, publish_prefixes, publish_every_byte_value,
          publish_length_limit, copies_are_their_own, covered_is_what_matches, faults_have_their_own_sentences)
