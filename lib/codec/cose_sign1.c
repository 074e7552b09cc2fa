/* SPDX-License-Identifier: PostgreSQL */
#include "codec/cose_sign1.h"

#include <assert.h>
#include <errno.h>

#include "codec/cbor.h"
#include "codec/cose.h"

#define TAG_COSE_SIGN1 18 /* RFC 9052 table 1 */
#define FIELDS         4
#define CONTEXT        "Signature1" /* RFC 9052 4.4 */

/* Levels of nesting around the headers: the tag and the array. */
#define HEADER_NESTING 2

/* RFC 9052 table 3; typ: RFC 9596 section 2. */
enum {
    LABEL_ALG = 1,
    LABEL_CRIT = 2,
    LABEL_CONTENT_TYPE = 3,
    LABEL_KID = 4,
    LABEL_IV = 5,
    LABEL_PARTIAL_IV = 6,
    LABEL_TYP = 16,
};

const char *cose_sign1_fault_text(enum cose_sign1_fault fault)
{
    switch (fault) {
    case COSE_SIGN1_OK:
        return "The message is good.";
#define COSE_SIGN1_ROW(name, text) \
    case COSE_SIGN1_##name:        \
        return text;
        COSE_SIGN1_FAULTS(COSE_SIGN1_ROW)
#undef COSE_SIGN1_ROW
    }
    return "The message is refused for an unknown reason.";
}

/* ---- reading ---- */

static enum cose_sign1_fault fault_of(enum cbor_fault fault)
{
    switch (fault) {
    case CBOR_OK:
        return COSE_SIGN1_OK;
    case CBOR_FAULT_TRUNCATED:
        return COSE_SIGN1_TRUNCATED;
    case CBOR_FAULT_TRAILING:
        return COSE_SIGN1_TRAILING;
    case CBOR_FAULT_NESTING:
        return COSE_SIGN1_NESTING;
    case CBOR_FAULT_TYPE: /* only cose_labels_read answers the next three */
        return COSE_SIGN1_LABEL;
    case CBOR_FAULT_COUNT:
        return COSE_SIGN1_LABELS;
    case CBOR_FAULT_DUPLICATE:
        return COSE_SIGN1_DUPLICATE;
    default:
        return COSE_SIGN1_CBOR;
    }
}

/* A whole item as a string; of another type: `refusal`. */
static enum cose_sign1_fault read_string(struct bytes item, enum cbor_kind type,
                                         enum cose_sign1_fault refusal, struct bytes *ret)
{
    struct cbor_reader r = cbor_reader_init(item);
    struct cbor_head h;
    enum cbor_fault fault = cbor_read_head(&r, &h);

    if (fault != CBOR_OK)
        return fault_of(fault);
    if (h.type != type)
        return refusal;
    if (h.indefinite)
        return COSE_SIGN1_INDEFINITE;
    *ret = h.str;
    return COSE_SIGN1_OK;
}

/* tstr / uint, as of content type and typ; *ret is empty for a number. */
static enum cose_sign1_fault read_media_type(struct bytes item, enum cose_sign1_fault refusal,
                                             struct bytes *ret)
{
    struct cbor_reader r = cbor_reader_init(item);
    uint64_t number;

    *ret = (struct bytes){NULL, 0};
    if (cbor_read_uint(&r, &number) == CBOR_OK)
        return COSE_SIGN1_OK;
    return read_string(item, CBOR_TEXT, refusal, ret);
}

/* What both headers say: IV and partial IV exclude each other also across them. */
struct headers {
    struct cose_labels labels[2]; /* protected, unprotected */
    bool iv, partial_iv;
};

static enum cose_sign1_fault read_parameter(const struct cose_label *label, struct bytes item,
                                            enum cose_place place, struct headers *headers,
                                            struct cose_sign1 *m)
{
    struct bytes unused;

    if (cose_label_is(label, LABEL_ALG)) {
        m->alg_place = place;
        return cose_alg_read(item, &m->alg) == CBOR_OK ? COSE_SIGN1_OK : COSE_SIGN1_ALG_TYPE;
    }
    if (cose_label_is(label, LABEL_CRIT))
        return COSE_SIGN1_CRIT;
    if (cose_label_is(label, LABEL_CONTENT_TYPE))
        return read_media_type(item, COSE_SIGN1_CONTENT_TYPE_TYPE, &unused);
    if (cose_label_is(label, LABEL_KID)) {
        m->kid_place = place;
        return read_string(item, CBOR_BYTES, COSE_SIGN1_KID_TYPE, &m->kid);
    }
    if (cose_label_is(label, LABEL_IV) || cose_label_is(label, LABEL_PARTIAL_IV)) {
        *(cose_label_is(label, LABEL_IV) ? &headers->iv : &headers->partial_iv) = true;
        if (headers->iv && headers->partial_iv)
            return COSE_SIGN1_IV_TWICE;
        return read_string(item, CBOR_BYTES, COSE_SIGN1_IV_TYPE, &unused);
    }
    if (cose_label_is(label, LABEL_TYP)) {
        m->typ_place = place;
        return read_media_type(item, COSE_SIGN1_TYP_TYPE, &m->typ);
    }
    return COSE_SIGN1_OK;
}

/* One header: a well-formed map. */
static enum cose_sign1_fault read_header(struct bytes map, enum cose_place place,
                                         struct headers *headers, struct cose_sign1 *m)
{
    struct cbor_reader r = cbor_reader_init(map);
    struct cose_labels *labels = &headers->labels[place == COSE_UNPROTECTED];
    struct cbor_head h;
    enum cbor_fault fault = cbor_read_head(&r, &h);

    if (fault != CBOR_OK)
        return fault_of(fault);
    m->definite = m->definite && !h.indefinite;
    for (uint64_t i = 0; h.indefinite ? *r.at != 0xff : i < h.arg; i++) {
        struct cose_label label;
        struct bytes item;

        fault = cose_labels_read(labels, &r, &label);
        if (fault == CBOR_OK)
            fault = cbor_read_item(&r, &item);
        if (fault != CBOR_OK)
            return fault_of(fault);
        if (place == COSE_UNPROTECTED && cose_labels_have(&headers->labels[0], &label))
            return COSE_SIGN1_DUPLICATE_ACROSS;

        enum cose_sign1_fault refused = read_parameter(&label, item, place, headers, m);

        if (refused != COSE_SIGN1_OK)
            return refused;
    }
    return COSE_SIGN1_OK;
}

static bool is_map(struct bytes item)
{
    struct cbor_reader r = cbor_reader_init(item);
    struct cbor_head h;

    return cbor_read_head(&r, &h) == CBOR_OK && h.type == CBOR_MAP;
}

static enum cose_sign1_fault read_headers(struct cose_sign1 *m)
{
    struct headers headers = {.iv = false};
    enum cose_sign1_fault refused = COSE_SIGN1_OK;

    headers.labels[0].n = headers.labels[1].n = 0;
    if (m->protected_map.size > 0) {
        enum cbor_fault fault = cbor_check_inside(m->protected_map, HEADER_NESTING, NULL);

        if (fault == CBOR_FAULT_NESTING)
            return COSE_SIGN1_NESTING;
        if (fault != CBOR_OK || !is_map(m->protected_map))
            return COSE_SIGN1_PROTECTED_MAP;
        refused = read_header(m->protected_map, COSE_PROTECTED, &headers, m);
    }
    if (refused == COSE_SIGN1_OK)
        refused = read_header(m->unprotected_map, COSE_UNPROTECTED, &headers, m);
    m->n_protected = headers.labels[0].n;
    m->n_unprotected = headers.labels[1].n;
    return refused;
}

/* The whole items of the array, and whether they are four. */
static enum cose_sign1_fault read_fields(struct bytes in, struct cose_sign1 *m,
                                         struct bytes fields[FIELDS])
{
    struct cbor_reader r = cbor_reader_init(in);
    struct cbor_head h;
    enum cbor_fault fault = cbor_check(in, NULL);

    if (fault == CBOR_OK)
        fault = cbor_read_head(&r, &h);
    if (fault == CBOR_OK && h.type == CBOR_TAG) {
        if (h.arg != TAG_COSE_SIGN1)
            return COSE_SIGN1_TAG;
        m->tagged = true;
        fault = cbor_read_head(&r, &h);
        if (fault == CBOR_OK && h.type == CBOR_TAG)
            return COSE_SIGN1_TAG;
    }
    if (fault != CBOR_OK)
        return fault_of(fault);
    if (h.type != CBOR_ARRAY || (!h.indefinite && h.arg != FIELDS))
        return COSE_SIGN1_ARRAY;
    m->definite = !h.indefinite;
    for (size_t i = 0; i < FIELDS; i++)
        if (cbor_read_item(&r, &fields[i]) != CBOR_OK)
            return COSE_SIGN1_ARRAY; /* well-formed, so what cannot be read is the break */
    return h.indefinite && *r.at != 0xff ? COSE_SIGN1_ARRAY : COSE_SIGN1_OK;
}

enum cose_sign1_fault cose_sign1_parse(struct bytes in, struct cose_sign1 *ret)
{
    struct cose_sign1 m = {.tagged = false};
    struct bytes fields[FIELDS];
    enum cose_sign1_fault refused = read_fields(in, &m, fields);

    if (refused == COSE_SIGN1_OK)
        refused = read_string(fields[0], CBOR_BYTES, COSE_SIGN1_PROTECTED_TYPE, &m.protected_map);
    if (refused == COSE_SIGN1_OK && !is_map(fields[1]))
        refused = COSE_SIGN1_UNPROTECTED_TYPE;
    if (refused != COSE_SIGN1_OK)
        return refused;
    m.unprotected_map = fields[1];
    m.detached = fields[2].size == 1 && fields[2].data[0] == 0xf6; /* nil; it has no other form */
    if (!m.detached)
        refused = read_string(fields[2], CBOR_BYTES, COSE_SIGN1_PAYLOAD_TYPE, &m.payload);
    if (refused == COSE_SIGN1_OK)
        refused = read_string(fields[3], CBOR_BYTES, COSE_SIGN1_SIGNATURE_TYPE, &m.signature);
    if (refused == COSE_SIGN1_OK)
        refused = read_headers(&m);
    if (refused == COSE_SIGN1_OK)
        *ret = m;
    return refused;
}

/* ---- what is signed ---- */

static size_t string_size(struct bytes string)
{
    return cbor_head_size(string.size) + string.size;
}

/* Of a Sig_structure, what stands before the payload's byte string. */
static size_t structure_front(struct bytes protected_map, struct bytes external_aad)
{
    return 1 + 1 + strlen(CONTEXT) + string_size(protected_map) + string_size(external_aad);
}

int cose_sig_structure_put(struct bytes protected_map, struct bytes external_aad,
                           struct bytes payload, struct buf *out)
{
    /* At once, so that no growing on the way copies the payload again. The cbor_put_… functions ask
     * for the room of the longest head. */
    (void)buf_reserve(out, structure_front(protected_map, external_aad) + string_size(payload) +
                               CBOR_HEAD_MAX);
    cbor_put_array(out, FIELDS);
    cbor_put_str(out, CONTEXT);
    cbor_put_bytes(out, protected_map);
    cbor_put_bytes(out, external_aad);
    cbor_put_bytes(out, payload);
    return out->failed ? -ENOMEM : 0;
}

int cose_sign1_to_be_signed(const struct cose_sign1 *message, struct bytes external_aad,
                            struct bytes payload, struct buf *out)
{
    /* A map without labels, in whatever form it came, is signed as the empty string (RFC 9052 4.4). */
    struct bytes protected_map =
        message->n_protected > 0 ? message->protected_map : (struct bytes){NULL, 0};

    return cose_sig_structure_put(protected_map, external_aad, payload, out);
}

/* ---- verifying ---- */

static enum cose_sign1_fault check_alg(const struct cose_sign1 *m, const struct cose_key *key)
{
    if (m->alg_place == COSE_NOWHERE)
        return COSE_SIGN1_ALG_MISSING;
    if (!cose_alg_is_accepted(m->alg))
        return COSE_SIGN1_ALG_UNSUPPORTED;
    if (m->alg_place == COSE_UNPROTECTED)
        return COSE_SIGN1_ALG_UNPROTECTED;
    if (key->alg != 0 && key->alg != m->alg)
        return COSE_SIGN1_ALG_KEY;
    return COSE_SIGN1_OK;
}

int cose_sign1_verify(const struct cose_sign1 *message, const struct cose_key *key,
                      struct bytes external_aad, const struct bytes *detached, struct buf *scratch)
{
    if (message->detached && !detached)
        return COSE_SIGN1_DETACHED;
    if (!message->detached && detached)
        return COSE_SIGN1_PAYLOAD_TWICE;

    enum cose_sign1_fault refused = check_alg(message, key);

    if (refused != COSE_SIGN1_OK)
        return (int)refused;
    if (message->signature.size != COSE_KEY_SIGNATURE_SIZE)
        return COSE_SIGN1_SIGNATURE_SIZE;
    buf_clear(scratch);

    int r = cose_sign1_to_be_signed(message, external_aad, detached ? *detached : message->payload,
                                    scratch);

    if (r < 0)
        return r;
    return cose_key_verifies(key, buf_bytes(scratch), message->signature) ? 0
                                                                          : COSE_SIGN1_SIGNATURE;
}

/* ---- signing ---- */

/*
 * What is signed and the message end in the same byte string, so they can share it. In `room`:
 *
 *     signed     gap?  84 "Signature1" protected external_aad | payload
 *     message          (before)  d2 84 protected unprotected  | payload | signature
 *
 * The message's front is written over the other's once the signature is made, so that it ends where
 * the payload begins. The gap is for an unprotected header so long that the message's is the longer
 * front.
 */

int cose_sign1_sign(const struct cose_sign1_parts *parts,
                    const uint8_t secret[COSE_KEY_SECRET_SIZE], struct buf *room, struct bytes *ret)
{
    size_t signed_front = structure_front(parts->protected_map, parts->external_aad);
    size_t front = 1 + 1 + string_size(parts->protected_map) + parts->unprotected_map.size;
    size_t gap = front > signed_front ? front - signed_front : 0;
    size_t payload_at = gap + signed_front;
    size_t end = payload_at + string_size(parts->payload);
    uint8_t signature[COSE_KEY_SIGNATURE_SIZE];

    buf_clear(room);
    if (!buf_reserve(room, end + CBOR_HEAD_MAX + sizeof signature))
        return -ENOMEM;
    memset(room->data, 0, gap);
    room->size = gap;

    int r = cose_sig_structure_put(parts->protected_map, parts->external_aad, parts->payload, room);

    if (r < 0)
        return r;
    assert(room->size == end);
    cose_key_sign(secret, (struct bytes){room->data + gap, end - gap}, signature);

    room->size = payload_at - front;
    cbor_put_tag(room, TAG_COSE_SIGN1);
    cbor_put_array(room, FIELDS);
    cbor_put_bytes(room, parts->protected_map);
    buf_append(room, parts->unprotected_map.data, parts->unprotected_map.size);
    assert(room->size == payload_at);
    room->size = end;
    cbor_put_bytes(room, (struct bytes){signature, sizeof signature});
    if (room->failed)
        return -ENOMEM;
    *ret = (struct bytes){room->data + payload_at - front, room->size - (payload_at - front)};
    return 0;
}
