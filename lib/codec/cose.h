/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CODEC_COSE_H
#define WALBUS_CODEC_COSE_H

/*
 * What keys and messages of COSE (RFC 9052) have in common: maps whose keys, called labels, are
 * integers or texts, none twice; and the algorithms that walbus knows.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/macros.h"
#include "codec/cbor.h"

/** EdDSA (RFC 9053 2.2), which with a key of the curve Ed25519 is Ed25519. It is what we write,
 *  since every COSE library knows it. */
#define COSE_ALG_EDDSA (-8)
/** Ed25519 by its own number (RFC 9864 2.2). */
#define COSE_ALG_ED25519 (-19)

/** Most labels of one map: as many as EVENT_ATTRIBUTES_MAX, so that looking for one that stands
 *  twice costs nothing worth counting. RFC 9052 itself has no limit. */
#define COSE_LABELS_MAX 64

/** A label (RFC 9052 1.5: int / tstr). */
struct cose_label {
    enum cbor_kind type; /* CBOR_UINT, CBOR_NINT or CBOR_TEXT */
    uint64_t arg;        /* of an integer: the value, or -1 - value; else 0 */
    struct bytes text;   /* of a text; borrowed; else empty */
};

bool cose_label_is(const struct cose_label *label, int64_t n);

/** The labels of one map that were read so far; begins as {.n = 0}. */
struct cose_labels {
    struct cose_label all[COSE_LABELS_MAX];
    size_t n;
};

bool cose_labels_have(const struct cose_labels *labels, const struct cose_label *label);

/**
 * Reads a map's next label and adds it. CBOR_OK; CBOR_FAULT_TYPE: neither an integer nor a text of
 * definite length; CBOR_FAULT_DUPLICATE, by value, in whatever width the integers are written;
 * CBOR_FAULT_COUNT: more than COSE_LABELS_MAX; or what cbor_read_head or cbor_read_text answers.
 * The label borrows from what is read.
 */
enum cbor_fault cose_labels_read(struct cose_labels *labels, struct cbor_reader *r,
                                 struct cose_label *ret) MUST_CHECK;

/**
 * An algorithm's identifier (int / tstr, RFC 9052 3.1) out of one whole item: CBOR_OK and the
 * number, or 0 (reserved: it is no algorithm) for a text, and for a number beyond int64;
 * CBOR_FAULT_TYPE.
 */
enum cbor_fault cose_alg_read(struct bytes item, int64_t *ret) MUST_CHECK;

/** Whether it is COSE_ALG_EDDSA or COSE_ALG_ED25519: nothing else is accepted, of a message or of a key. */
bool cose_alg_is_accepted(int64_t alg);

/** Whether an item of one of the string types is of indefinite length. */
bool cose_item_is_chunked(struct bytes item);

#endif
