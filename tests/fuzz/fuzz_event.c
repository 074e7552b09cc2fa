/* SPDX-License-Identifier: PostgreSQL */
/*
 * The event inside a message's content. What was decoded is encoded, which must succeed when every
 * name may be published, decoded again and compared; the encoding is deterministic.
 */
#include "codec/event.h"

#include <errno.h>

#include "fuzz.h"

static const struct event_attribute *find(const struct event *event, struct bytes name)
{
    for (size_t i = 0; i < event->n_attributes; i++)
        if (bytes_equal(event->attributes[i].name, name))
            return &event->attributes[i];
    return NULL;
}

static void check_inside(struct bytes part, struct bytes content)
{
    FUZZ_CHECK(part.data >= content.data && part.size <= content.size);
    FUZZ_CHECK((size_t)(part.data - content.data) <= content.size - part.size);
}

/* What event_decode promises of an event. */
static void check_event(const struct event *event, struct bytes content)
{
    static const char *const required[] = {"id", "source", "type"};

    FUZZ_CHECK(event->n_attributes <= EVENT_ATTRIBUTES_MAX);
    for (size_t i = 0; i < ARRAY_SIZE(required); i++)
        FUZZ_CHECK(event_get(event, required[i]).size > 0);
    FUZZ_CHECK(bytes_equal(event_get(event, "specversion"), bytes_of_text("1.0")));
    for (size_t i = 0; i < event->n_attributes; i++) {
        const struct event_attribute *a = &event->attributes[i];

        check_inside(a->name, content);
        check_inside(a->item, content);
        if (a->is_text)
            check_inside(a->value, a->item);
        FUZZ_CHECK(cbor_check_inside(a->item, EVENT_NESTING, NULL) == CBOR_OK);
        FUZZ_CHECK(find(event, a->name) == a);
        FUZZ_CHECK(!bytes_equal(a->name, bytes_of_text("data")));
    }
    if (event->data.size) {
        check_inside(event->data, content);
        FUZZ_CHECK(cbor_check_inside(event->data, EVENT_NESTING, NULL) == CBOR_OK);
    }
}

static void check_same(const struct event *a, const struct event *b)
{
    FUZZ_CHECK(a->n_attributes == b->n_attributes && bytes_equal(a->data, b->data));
    for (size_t i = 0; i < a->n_attributes; i++) {
        const struct event_attribute *left = &a->attributes[i], *right = find(b, left->name);

        FUZZ_CHECK(right != NULL && left->is_text == right->is_text);
        /* A text is written in the shortest form, and `time` gets its tag: only an item that is no
         * text comes back to the byte. */
        FUZZ_CHECK(left->is_text ? bytes_equal(left->value, right->value)
                                 : bytes_equal(left->item, right->item));
    }
}

static void check_keys_rise(const struct event *event)
{
    for (size_t i = 1; i < event->n_attributes; i++) {
        struct bytes a = event->attributes[i - 1].name, b = event->attributes[i].name;

        FUZZ_CHECK(a.size < b.size || (a.size == b.size && memcmp(a.data, b.data, a.size) < 0));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct event event, again; /* large, and zeroed by whoever writes them */
    struct bytes content = {data, size};
    struct buf out = BUF_INIT, out_again = BUF_INIT;
    bool publishable = true;

    fuzz_mark(&event, sizeof event);
    enum cbor_fault fault = event_decode(content, &event);
    if (content_kind_of(content) == CONTENT_UNSIGNED) {
        struct bytes map = {data + EVENT_TAG_SIZE, size - EVENT_TAG_SIZE};

        FUZZ_CHECK(event_decode_map(map, &again) == fault);
        if (fault == CBOR_OK)
            check_same(&event, &again);
    }
    if (fault != CBOR_OK) {
        FUZZ_CHECK(fuzz_is_marked(&event, sizeof event));
        FUZZ_CHECK(cbor_fault_text(fault)[0] != '\0');
        return 0;
    }
    FUZZ_CHECK(content_kind_of(content) == CONTENT_UNSIGNED);
    FUZZ_CHECK(cbor_check(content, NULL) == CBOR_OK);
    check_event(&event, content);

    for (size_t i = 0; i < event.n_attributes; i++)
        publishable = publishable && event_name_is_valid(event.attributes[i].name);
    int r = event_encode(&event, &out);
    if (!publishable) {
        FUZZ_CHECK(r == -EINVAL && out.size == 0);
        return 0;
    }
    FUZZ_CHECK(r == 0);
    FUZZ_CHECK(event_decode(buf_bytes(&out), &again) == CBOR_OK);
    check_event(&again, buf_bytes(&out));
    check_same(&event, &again);
    check_keys_rise(&again);
    FUZZ_CHECK(event_encode(&again, &out_again) == 0);
    FUZZ_CHECK(bytes_equal(buf_bytes(&out), buf_bytes(&out_again)));
    buf_deinit(&out);
    buf_deinit(&out_again);
    return 0;
}
