/* SPDX-License-Identifier: PostgreSQL */
/*
 * What `walbus inspect` says of a content, which anyone may have put on the bus. Its rows have to
 * be the content, in order and each byte once, whatever the limits; a terminal has to be able to
 * show each; and what it says the content is has to be what the parsers say.
 */
#include "explain.h"

#include "base/text.h"
#include "codec/cbor.h"
#include "codec/cose_key.h"
#include "codec/cose_sign1.h"
#include "codec/event.h"
#include "codec/signed_event.h"
#include "fuzz.h"

/* The protected header and the payload of a COSE_Sign1 begin anew, one inside the other. */
#define DEPTH_MAX (3 * (2 * CBOR_NESTING_MAX + 2))

struct seen {
    struct bytes content;
    size_t next, n_rows, left_out, faults;
};

static void check_visible(struct bytes text)
{
    for (size_t i = 0; i < text.size;) {
        uint32_t code_point = 0;
        size_t n = text_utf8_sequence(text.data + i, text.size - i, &code_point);

        FUZZ_CHECK(n > 0 && text_is_visible(code_point));
        i += n;
    }
}

static void check_row(void *context, const struct explain_row *row)
{
    struct seen *seen = context;

    FUZZ_CHECK(row->offset == seen->next);
    FUZZ_CHECK(row->bytes.size == 0 || row->left_out == 0);
    FUZZ_CHECK(row->bytes.size == 0 || row->bytes.data == seen->content.data + row->offset);
    FUZZ_CHECK(row->bytes.size <= CBOR_HEAD_MAX && row->depth <= DEPTH_MAX && row->text.size > 0);
    check_visible(row->text);
    seen->n_rows++;
    seen->left_out += row->left_out;
    seen->next += row->bytes.size + row->left_out;
    seen->faults += row->bytes.size == 0 && row->left_out == 0;
}

static struct seen explain(struct bytes content, size_t string_max, size_t rows_max)
{
    const struct explain_limits limits = {string_max, rows_max};
    struct seen seen = {.content = content};

    FUZZ_CHECK(explain_rows(content, &limits, check_row, &seen) == 0);
    FUZZ_CHECK(seen.next == content.size);
    return seen;
}

static void check_kind(struct bytes content, enum explain_kind kind)
{
    struct cose_sign1 m;
    struct cose_key key;
    struct event event;
    bool is_event = event_decode(content, &event) == CBOR_OK;
    bool is_signed = signed_event_parse(content, &m) == COSE_SIGN1_OK && event_decode_map(m.payload, &event) == CBOR_OK;
    bool is_sign1 = cose_sign1_parse(content, &m) == COSE_SIGN1_OK;
    bool is_key = cose_key_decode_public(content, &key) == COSE_KEY_OK;

    FUZZ_CHECK((kind == EXPLAIN_EVENT) == is_event);
    FUZZ_CHECK((kind == EXPLAIN_SIGNED_EVENT) == is_signed);
    FUZZ_CHECK((kind == EXPLAIN_COSE_SIGN1) == (is_sign1 && !is_signed));
    FUZZ_CHECK((kind == EXPLAIN_COSE_KEY) == is_key);
    FUZZ_CHECK(kind != EXPLAIN_CBOR || cbor_check(content, NULL) == CBOR_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes content = {data, size};
    struct buf sentence = BUF_INIT;
    enum explain_kind kind = explain_what(content, &sentence);

    FUZZ_CHECK(sentence.size > 0 && explain_kind_text(kind)[0] != '\0');
    check_visible(buf_bytes(&sentence));
    buf_deinit(&sentence);
    check_kind(content, kind);

    struct seen all = explain(content, SIZE_MAX, SIZE_MAX);

    FUZZ_CHECK(all.left_out == 0);
    if (kind == EXPLAIN_EVENT || kind == EXPLAIN_COSE_KEY || kind == EXPLAIN_CBOR)
        FUZZ_CHECK(all.faults == 0);
    struct seen bounded = explain(content, 5, 7);

    FUZZ_CHECK(bounded.n_rows <= 8 || all.n_rows <= 7); /* the last says what is not shown */
    return 0;
}
