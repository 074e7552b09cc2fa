/* SPDX-License-Identifier: PostgreSQL */
/*
 * JSON that people type, to CBOR: it is one deterministic item that fits into an event, and printed
 * as JSON and read again it is the same item.
 */
#include "json_cbor.h"

#include <errno.h>

#include "codec/cbor.h"
#include "codec/event.h"
#include "fuzz.h"
#include "rewrite.h"

static void check_keys_rise(struct cbor_reader *r)
{
    struct cbor_head h;

    FUZZ_CHECK(cbor_read_head(r, &h) == CBOR_OK);
    if (h.type == CBOR_ARRAY) {
        for (uint64_t i = 0; i < h.arg; i++)
            check_keys_rise(r);
    } else if (h.type == CBOR_MAP) {
        struct bytes before = {NULL, 0}, key;

        for (uint64_t i = 0; i < h.arg; i++) {
            FUZZ_CHECK(cbor_read_text(r, &key) == CBOR_OK);
            FUZZ_CHECK(i == 0 || before.size < key.size ||
                       (before.size == key.size && key.size &&
                        memcmp(before.data, key.data, key.size) < 0));
            before = key;
            check_keys_rise(r);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char before[] = "before";
    struct buf out = BUF_INIT, again = BUF_INIT, text = BUF_INIT, rewritten = BUF_INIT;
    struct json_cbor_error error = {0};

    buf_append_str(&out, before);
    int r = json_to_cbor((struct bytes){data, size}, &out, &error);
    if (r < 0) {
        FUZZ_CHECK(r == -EINVAL && bytes_equal(buf_bytes(&out), bytes_of_text(before)));
        FUZZ_CHECK(error.line >= 1 && error.column >= 1);
        FUZZ_CHECK(error.text[0] != '\0' && memchr(error.text, '\0', sizeof error.text));
        buf_deinit(&out);
        return 0;
    }
    struct bytes item = {out.data + strlen(before), out.size - strlen(before)};
    FUZZ_CHECK(cbor_check_inside(item, EVENT_NESTING, NULL) == CBOR_OK);
    struct rewrite w = rewrite(item, false, &rewritten);
    FUZZ_CHECK(w.preferred && !w.indefinite && bytes_equal(buf_bytes(&rewritten), item));
    struct cbor_reader reader = cbor_reader_init(item);
    check_keys_rise(&reader);

    FUZZ_CHECK(cbor_print_json(item, &text) == CBOR_OK);
    FUZZ_CHECK(json_to_cbor(buf_bytes(&text), &again, &error) == 0);
    FUZZ_CHECK(bytes_equal(buf_bytes(&again), item));
    buf_deinit(&out);
    buf_deinit(&again);
    buf_deinit(&text);
    buf_deinit(&rewritten);
    return 0;
}
