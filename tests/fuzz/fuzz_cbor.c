/* SPDX-License-Identifier: PostgreSQL */
/*
 * Reading CBOR. Whether an item is well-formed is compared with the pseudo-code of RFC 8949,
 * appendix C, followed here by recursion; a well-formed one is written again and compared.
 */
#include "codec/cbor.h"

#include "fuzz.h"
#include "rewrite.h"

/* ---- appendix C ---- */

struct bytes_left {
    const uint8_t *at;
    size_t left;
};

/* RFC 3629, by value: the shortest form, no surrogates, at most U+10FFFF. */
static bool is_utf8(struct bytes text)
{
    static const uint32_t lowest[] = {0, 0, 0x80, 0x800, 0x10000};

    for (size_t i = 0; i < text.size;) {
        uint8_t first = text.data[i];
        size_t n = first < 0x80 ? 1 : first >> 5 == 6 ? 2 : first >> 4 == 14 ? 3 : 4;
        uint32_t v = n == 1 ? first : first & (0x7fu >> n);

        if ((n == 4 && first >> 3 != 30) || text.size - i < n)
            return false;
        for (size_t k = 1; k < n; k++) {
            if (text.data[i + k] >> 6 != 2)
                return false;
            v = v << 6 | (text.data[i + k] & 0x3f);
        }
        if (v < lowest[n] || v > 0x10ffff || (v >= 0xd800 && v <= 0xdfff))
            return false;
        i += n;
    }
    return true;
}

/* What an item is to the one around it: its major type, or one of these. */
enum { ITEM_BREAK = -1, ITEM_INDEFINITE_STRING = 98, ITEM_WRONG = 99 };

static int well_formed(struct bytes_left *in, bool breakable, size_t levels);

static int well_formed_indefinite(struct bytes_left *in, int major, bool breakable, size_t levels)
{
    int item;

    switch (major) {
    case 2:
    case 3:
        for (;;) {
            struct bytes_left before = *in;

            item = well_formed(in, true, levels);
            if (item == ITEM_BREAK)
                return ITEM_INDEFINITE_STRING;
            if (item != major || before.left == 0)
                return ITEM_WRONG;
        }
    case 4:
        if (levels == 0)
            return ITEM_WRONG;
        while ((item = well_formed(in, true, levels - 1)) != ITEM_BREAK)
            if (item == ITEM_WRONG)
                return ITEM_WRONG;
        return major;
    case 5:
        if (levels == 0)
            return ITEM_WRONG;
        while ((item = well_formed(in, true, levels - 1)) != ITEM_BREAK)
            if (item == ITEM_WRONG || well_formed(in, false, levels - 1) == ITEM_WRONG)
                return ITEM_WRONG;
        return major;
    case 7:
        return breakable ? ITEM_BREAK : ITEM_WRONG;
    default:
        return ITEM_WRONG;
    }
}

static int well_formed(struct bytes_left *in, bool breakable, size_t levels)
{
    if (in->left == 0)
        return ITEM_WRONG;
    uint8_t initial = *in->at++;
    int major = initial >> 5;
    uint8_t info = initial & 0x1f;
    uint64_t value = info;

    in->left--;
    if (info >= 24 && info <= 27) {
        size_t width = (size_t)1 << (info - 24);

        if (in->left < width)
            return ITEM_WRONG;
        value = 0;
        for (size_t i = 0; i < width; i++)
            value = value << 8 | *in->at++;
        in->left -= width;
    } else if (info >= 28 && info <= 30) {
        return ITEM_WRONG;
    } else if (info == 31) {
        return well_formed_indefinite(in, major, breakable, levels);
    }
    switch (major) {
    case 2:
    case 3:
        if (value > in->left)
            return ITEM_WRONG;
        if (major == 3 && !is_utf8((struct bytes){in->at, (size_t)value}))
            return ITEM_WRONG;
        in->at += value;
        in->left -= (size_t)value;
        break;
    case 4:
    case 5:
    case 6:
        if (levels == 0)
            return ITEM_WRONG;
        for (uint64_t pass = 0; pass < (major == 5 ? 2 : 1); pass++)
            for (uint64_t i = 0; i < (major == 6 ? 1 : value); i++)
                if (well_formed(in, false, levels - 1) == ITEM_WRONG)
                    return ITEM_WRONG;
        break;
    case 7:
        if (info == 24 && value < 32)
            return ITEM_WRONG;
        break;
    default:
        break;
    }
    return major;
}

/* ---- typed reads ---- */

/* Each takes its own type alone, and does not move over anything else. */
static void check_typed_reads(struct bytes in, const struct cbor_head *h)
{
    uint64_t u;
    int64_t s;
    bool b;
    struct bytes str;
    bool is_int = (h->type == CBOR_UINT || h->type == CBOR_NINT) && h->arg <= INT64_MAX;

#define CHECK_READ(call, condition)                          \
    do {                                                     \
        struct cbor_reader r = cbor_reader_init(in);         \
        enum cbor_fault fault_ = (call);                     \
        FUZZ_CHECK((fault_ == CBOR_OK) == (condition));      \
        FUZZ_CHECK((r.at > r.start) == (fault_ == CBOR_OK)); \
    } while (0)
    CHECK_READ(cbor_read_uint(&r, &u), h->type == CBOR_UINT);
    CHECK_READ(cbor_read_int(&r, &s), is_int);
    CHECK_READ(cbor_read_bytes(&r, &str), h->type == CBOR_BYTES && !h->indefinite);
    CHECK_READ(cbor_read_text(&r, &str), h->type == CBOR_TEXT && !h->indefinite && is_utf8(h->str));
    CHECK_READ(cbor_read_bool(&r, &b), h->type == CBOR_SIMPLE && (h->arg == CBOR_SIMPLE_FALSE ||
                                                                  h->arg == CBOR_SIMPLE_TRUE));
    CHECK_READ(cbor_read_array(&r, &u), h->type == CBOR_ARRAY && !h->indefinite);
    CHECK_READ(cbor_read_map(&r, &u), h->type == CBOR_MAP && !h->indefinite);
#undef CHECK_READ
}

static void check_head(struct bytes in)
{
    struct cbor_reader r = cbor_reader_init(in);
    struct cbor_head h;

    fuzz_mark(&h, sizeof h);
    if (cbor_read_head(&r, &h) != CBOR_OK) {
        FUZZ_CHECK(r.at == r.start && fuzz_is_marked(&h, sizeof h));
        return;
    }
    FUZZ_CHECK(r.at > r.start && r.at <= r.end);
    check_typed_reads(in, &h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes in = {data, size}, item = {NULL, 0};
    size_t offset = SIZE_MAX;
    struct buf again = BUF_INIT, twice = BUF_INIT, definite = BUF_INIT;

    check_head(in);
    enum cbor_fault fault = cbor_check(in, &offset);
    for (size_t inside = 0; inside <= CBOR_NESTING_MAX + 1; inside++) {
        size_t levels = inside < CBOR_NESTING_MAX ? CBOR_NESTING_MAX - inside : 0;
        struct bytes_left left = {data, size};
        bool good = well_formed(&left, false, levels) != ITEM_WRONG;
        enum cbor_fault found = cbor_check_inside(in, inside, NULL);

        FUZZ_CHECK((found == CBOR_OK) == (good && left.left == 0));
        FUZZ_CHECK((found == CBOR_FAULT_TRAILING) == (good && left.left > 0));
        if (inside == 0)
            FUZZ_CHECK(found == fault);
        if (found != CBOR_OK && found != CBOR_FAULT_NESTING)
            break; /* with fewer levels it stays so, or is nested too deeply before that */
    }
    FUZZ_CHECK(cbor_fault_text(fault)[0] != '\0');
    struct cbor_reader r = cbor_reader_init(in);
    FUZZ_CHECK(cbor_read_item(&r, &item) == (fault == CBOR_FAULT_TRAILING ? CBOR_OK : fault));
    if (fault != CBOR_OK) {
        FUZZ_CHECK(offset <= size && (size_t)(r.at - r.start) == offset);
        FUZZ_CHECK((item.data != NULL) == (fault == CBOR_FAULT_TRAILING));
        return 0;
    }
    FUZZ_CHECK(offset == SIZE_MAX && r.at == r.end && item.data == data && item.size == size);

    struct rewrite w = rewrite(in, false, &again);
    FUZZ_CHECK(bytes_equal(buf_bytes(&again), in) == w.preferred);
    FUZZ_CHECK(rewrite(buf_bytes(&again), false, &twice).preferred);
    FUZZ_CHECK(bytes_equal(buf_bytes(&again), buf_bytes(&twice)));
    FUZZ_CHECK(rewrite(in, true, &definite).indefinite == w.indefinite);
    FUZZ_CHECK(bytes_equal(buf_bytes(&again), buf_bytes(&definite)) == !w.indefinite);
    FUZZ_CHECK(cbor_check(buf_bytes(&definite), NULL) == CBOR_OK);
    buf_deinit(&again);
    buf_deinit(&twice);
    buf_deinit(&definite);
    return 0;
}
