/* SPDX-License-Identifier: PostgreSQL */
#include "codec/cose.h"

bool cose_label_is(const struct cose_label *label, int64_t n)
{
    if (n < 0)
        return label->type == CBOR_NINT && label->arg == ~(uint64_t)n;
    return label->type == CBOR_UINT && label->arg == (uint64_t)n;
}

static bool same(const struct cose_label *a, const struct cose_label *b)
{
    return a->type == b->type && a->arg == b->arg && bytes_equal(a->text, b->text);
}

bool cose_labels_have(const struct cose_labels *labels, const struct cose_label *label)
{
    for (size_t i = 0; i < labels->n; i++)
        if (same(&labels->all[i], label))
            return true;
    return false;
}

enum cbor_fault cose_labels_read(struct cose_labels *labels, struct cbor_reader *r,
                                 struct cose_label *ret)
{
    struct cbor_reader ahead = *r;
    struct cbor_head h;
    struct cose_label label = {0};
    enum cbor_fault fault = cbor_read_head(&ahead, &h);

    if (fault != CBOR_OK)
        return fault;
    label.type = h.type;
    if (h.type == CBOR_TEXT) {
        ahead = *r;
        fault = cbor_read_text(&ahead, &label.text);
        if (fault != CBOR_OK)
            return fault;
    } else if (h.type == CBOR_UINT || h.type == CBOR_NINT) {
        label.arg = h.arg;
    } else {
        return CBOR_FAULT_TYPE;
    }
    if (cose_labels_have(labels, &label))
        return CBOR_FAULT_DUPLICATE;
    if (labels->n == COSE_LABELS_MAX)
        return CBOR_FAULT_COUNT;
    labels->all[labels->n++] = label;
    *r = ahead;
    *ret = label;
    return CBOR_OK;
}

enum cbor_fault cose_alg_read(struct bytes item, int64_t *ret)
{
    struct cbor_reader r = cbor_reader_init(item), number = r;
    struct cbor_head h;
    enum cbor_fault fault = cbor_read_head(&r, &h);

    if (fault != CBOR_OK)
        return fault;
    if (h.type != CBOR_UINT && h.type != CBOR_NINT && h.type != CBOR_TEXT)
        return CBOR_FAULT_TYPE;
    if (cbor_read_int(&number, ret) != CBOR_OK)
        *ret = 0;
    return CBOR_OK;
}

bool cose_alg_is_accepted(int64_t alg)
{
    return alg == COSE_ALG_EDDSA || alg == COSE_ALG_ED25519;
}

bool cose_item_is_chunked(struct bytes item)
{
    return item.size > 0 && (item.data[0] == 0x5f || item.data[0] == 0x7f);
}
