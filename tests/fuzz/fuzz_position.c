/* SPDX-License-Identifier: PostgreSQL */
/*
 * Positions and LSNs: as text, which is read back from what is written, and as bytes, whose order
 * is the positions' own. The input is both: a text, and a run of binary positions.
 */
#include "codec/position.h"

#include <errno.h>

#include "fuzz.h"

/* The canonical form of a text that has been accepted: upper case, no leading zeros. */
static void canonical(const char *text, char *out)
{
    while (*text) {
        if (*text == '0' && strchr("0123456789abcdefABCDEF", text[1]) && text[1]) {
            text++;
            continue;
        }
        /* a number begins: copied whole, so that zeros inside stay */
        while (*text && *text != ':' && *text != '/') {
            *out++ = (char)(*text >= 'a' && *text <= 'f' ? *text - 'a' + 'A' : *text);
            text++;
        }
        if (*text)
            *out++ = *text++;
    }
    *out = '\0';
}

/* ---- the grammar: what is to be accepted ---- */

static bool take_digits(const char **at, const char *digits, size_t most)
{
    size_t n = strspn(*at, digits);

    *at += n;
    return n >= 1 && n <= most;
}

static bool take_char(const char **at, char c)
{
    return *(*at)++ == c; /* behind the end of the text nothing is read: the first fault ends it */
}

static bool take_lsn(const char **at)
{
    static const char hex[] = "0123456789abcdefABCDEF";

    return take_digits(at, hex, 8) && take_char(at, '/') && take_digits(at, hex, 8);
}

static bool take_u32(const char **at)
{
    const char *start = *at;

    return take_digits(at, "0123456789", 10) && strtoull(start, NULL, 10) <= UINT32_MAX;
}

static bool is_lsn(const char *at)
{
    return take_lsn(&at) && *at == '\0';
}

static bool is_position(const char *at)
{
    return take_u32(&at) && take_char(&at, ':') && take_lsn(&at) && take_char(&at, ':') &&
           take_u32(&at) && *at == '\0';
}

static void check_text(const char *text)
{
    char out[POSITION_TEXT_SIZE], want[256];
    struct position p, again;
    uint64_t lsn, lsn_again;

    fuzz_mark(&p, sizeof p);
    int r = position_parse(text, &p);
    FUZZ_CHECK((r == 0) == is_position(text));
    if (r == 0) {
        FUZZ_CHECK(position_format(p, out) == out && strlen(out) < sizeof out);
        FUZZ_CHECK(position_parse(out, &again) == 0 && position_compare(p, again) == 0);
        FUZZ_CHECK(strlen(text) < sizeof want);
        canonical(text, want);
        FUZZ_CHECK(strcmp(out, want) == 0);
    } else {
        FUZZ_CHECK(r == -EINVAL && fuzz_is_marked(&p, sizeof p));
    }

    fuzz_mark(&lsn, sizeof lsn);
    r = lsn_parse(text, &lsn);
    FUZZ_CHECK((r == 0) == is_lsn(text));
    if (r == 0) {
        FUZZ_CHECK(lsn_format(lsn, out) == out && strlen(out) < LSN_TEXT_SIZE);
        FUZZ_CHECK(lsn_parse(out, &lsn_again) == 0 && lsn == lsn_again);
        FUZZ_CHECK(strlen(text) < sizeof want);
        canonical(text, want);
        FUZZ_CHECK(strcmp(out, want) == 0);
    } else {
        FUZZ_CHECK(r == -EINVAL && fuzz_is_marked(&lsn, sizeof lsn));
    }
}

static int sign(int v)
{
    return (v > 0) - (v < 0);
}

static void check_binary(struct bytes in)
{
    struct position before = {0};
    uint8_t before_raw[POSITION_SIZE] = {0}, raw[POSITION_SIZE];
    char text[POSITION_TEXT_SIZE];

    for (size_t at = 0; in.size - at >= POSITION_SIZE; at += POSITION_SIZE) {
        struct position p = position_decode(in.data + at), again;

        position_encode(p, raw);
        FUZZ_CHECK(memcmp(raw, in.data + at, POSITION_SIZE) == 0);
        FUZZ_CHECK(position_is_zero(p) == (position_compare(p, (struct position){0}) == 0));
        FUZZ_CHECK(sign(position_compare(before, p)) ==
                   sign(memcmp(before_raw, raw, POSITION_SIZE)));
        FUZZ_CHECK(sign(position_compare(p, before)) ==
                   sign(memcmp(raw, before_raw, POSITION_SIZE)));
        FUZZ_CHECK(position_parse(position_format(p, text), &again) == 0);
        FUZZ_CHECK(position_compare(p, again) == 0);
        before = p;
        memcpy(before_raw, raw, POSITION_SIZE);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);

    FUZZ_CHECK(text != NULL);
    if (size)
        memcpy(text, data, size);
    text[size] = '\0';
    check_text(text);
    free(text);
    check_binary((struct bytes){data, size});
    return 0;
}
