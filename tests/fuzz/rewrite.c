/* SPDX-License-Identifier: PostgreSQL */
#include "rewrite.h"

#include <math.h>

#include "fuzz.h"

static bool is_shortest_head(const struct cbor_head *h)
{
    switch (h->info) {
    case 24:
        return h->arg >= 24;
    case 25:
        return h->arg > UINT8_MAX;
    case 26:
        return h->arg > UINT16_MAX;
    case 27:
        return h->arg > UINT32_MAX;
    default:
        return true;
    }
}

/* A half has 11 bits of significand, nothing below 2^-24 and nothing above 65504 but infinity. */
static bool fits_half(double v)
{
    int exponent;

    if (v == 0 || isinf(v))
        return true;
    double significand = frexp(fabs(v), &exponent) * 2048, steps = ldexp(fabs(v), 24);
    return fabs(v) <= 65504 && significand == floor(significand) && steps == floor(steps);
}

static bool is_shortest_float(const struct cbor_head *h)
{
    if (isnan(h->number))
        return h->info == 25 && h->arg == 0x7e00;
    if (fits_half(h->number))
        return h->info == 25;
    if (fabs(h->number) <= 0x1.fffffep127 && (double)(float)h->number == h->number)
        return h->info == 26;
    return true;
}

static struct cbor_head head_of(struct cbor_reader *r)
{
    struct cbor_head h;

    FUZZ_CHECK(cbor_read_head(r, &h) == CBOR_OK);
    return h;
}

static void rewrite_string(struct rewrite *w, struct cbor_reader *r, struct cbor_head h,
                           struct buf *out)
{
    void (*const put)(struct buf *, struct bytes) =
        h.type == CBOR_TEXT ? cbor_put_text : cbor_put_bytes;
    struct buf joined = BUF_INIT;

    if (!h.indefinite) {
        put(out, h.str);
        return;
    }
    w->indefinite = true;
    if (!w->definite)
        buf_append_u8(out, (uint8_t)(h.type << 5 | 31));
    for (;;) {
        struct cbor_head chunk = head_of(r);

        if (chunk.type == CBOR_BREAK)
            break;
        w->preferred = w->preferred && is_shortest_head(&chunk);
        if (w->definite)
            buf_append(&joined, chunk.str.data, chunk.str.size);
        else
            put(out, chunk.str);
    }
    if (w->definite)
        put(out, buf_bytes(&joined));
    else
        buf_append_u8(out, 0xff);
    buf_deinit(&joined);
}

static void rewrite_container(struct rewrite *w, struct cbor_reader *r, struct cbor_head h,
                              struct buf *out)
{
    struct buf inside = BUF_INIT;
    uint64_t n = 0, width = h.type == CBOR_MAP ? 2 : 1;

    for (;; n++) {
        if (h.indefinite ? *r->at == 0xff : n == h.arg * width)
            break;
        if (width == 2 && n % 2 == 0) {
            uint8_t major = *r->at >> 5;

            w->container_keys = w->container_keys || major == CBOR_ARRAY || major == CBOR_MAP ||
                                major == CBOR_TAG; /* of which the inside may be one */
        }
        rewrite_item(w, r, &inside);
    }
    if (h.indefinite) {
        w->indefinite = true;
        r->at++;
    }
    if (h.indefinite && !w->definite)
        buf_append_u8(out, (uint8_t)(h.type << 5 | 31));
    else if (h.type == CBOR_MAP)
        cbor_put_map(out, n / 2);
    else
        cbor_put_array(out, n);
    buf_append(out, inside.data, inside.size);
    if (h.indefinite && !w->definite)
        buf_append_u8(out, 0xff);
    buf_deinit(&inside);
}

void rewrite_item(struct rewrite *w, struct cbor_reader *r, struct buf *out)
{
    struct cbor_head h = head_of(r);

    w->preferred =
        w->preferred && (h.type == CBOR_FLOAT ? is_shortest_float(&h) : is_shortest_head(&h));
    switch (h.type) {
    case CBOR_UINT:
        cbor_put_uint(out, h.arg);
        break;
    case CBOR_NINT:
        if (h.arg <= INT64_MAX) {
            cbor_put_int(out, -1 - (int64_t)h.arg);
        } else { /* the writer has no function for it */
            buf_append_u8(out, 0x3b);
            buf_append_u64(out, h.arg);
        }
        break;
    case CBOR_BYTES:
    case CBOR_TEXT:
        rewrite_string(w, r, h, out);
        break;
    case CBOR_ARRAY:
    case CBOR_MAP:
        rewrite_container(w, r, h, out);
        break;
    case CBOR_TAG:
        cbor_put_tag(out, h.arg);
        rewrite_item(w, r, out);
        break;
    case CBOR_SIMPLE:
        if (h.arg == CBOR_SIMPLE_FALSE || h.arg == CBOR_SIMPLE_TRUE) {
            cbor_put_bool(out, h.arg == CBOR_SIMPLE_TRUE);
        } else if (h.arg == CBOR_SIMPLE_NULL) {
            cbor_put_null(out);
        } else if (h.arg < 24) { /* nor for these */
            buf_append_u8(out, (uint8_t)(0xe0 | h.arg));
        } else {
            buf_append_u8(out, 0xf8);
            buf_append_u8(out, (uint8_t)h.arg);
        }
        break;
    case CBOR_FLOAT:
        cbor_put_double(out, h.number);
        break;
    case CBOR_BREAK:
        FUZZ_CHECK(!"a break in a well-formed item");
        break;
    }
}

struct rewrite rewrite(struct bytes in, bool definite, struct buf *out)
{
    struct rewrite w = {.definite = definite, .preferred = true};
    struct cbor_reader r = cbor_reader_init(in);

    rewrite_item(&w, &r, out);
    FUZZ_CHECK(r.at == r.end && !out->failed);
    return w;
}
